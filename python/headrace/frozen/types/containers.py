# SPDX-License-Identifier: Apache-2.0
"""The containers that are not built in. Frozen data stores what a container is made with, and its contents."""

from __future__ import annotations

import collections
import types
from typing import Any

from headrace.frozen.types import names
from headrace.frozen.types.row import ContainerRow


def _factory(mapping: Any) -> Any:
    """Returns the default factory if another process can find it, or None. Frozen data never calls it."""
    factory = mapping.default_factory
    return factory if factory is None or names.name_of(factory) is not None else None


def _dict_parts(mapping: Any) -> Any:
    """Returns the parts of a dict that has attributes: torch's state_dict keeps its _metadata there."""
    return (dict(vars(mapping)) or None, dict(mapping))


def _namespace_parts(value: Any) -> Any:
    held = dict(vars(value))
    return (None, held) if all(type(name) is str for name in held) else None


def _with_attributes(made: Any, attributes: Any) -> Any:
    vars(made).update(attributes or {})
    return made


ROWS = (
    ContainerRow(
        collections.deque,
        "deque",
        lambda value: (value.maxlen, list(value)),
        lambda maxlen, count: collections.deque(maxlen=maxlen),
    ),
    ContainerRow(
        collections.defaultdict,
        "defaultdict",
        lambda value: (_factory(value), dict(value)),
        lambda factory, count: collections.defaultdict(factory),
    ),
    ContainerRow(
        collections.Counter,
        "Counter",
        _dict_parts,
        lambda attributes, count: _with_attributes(collections.Counter(), attributes),
    ),
    ContainerRow(
        collections.OrderedDict,
        "OrderedDict",
        _dict_parts,
        lambda attributes, count: _with_attributes(collections.OrderedDict(), attributes),
    ),
    ContainerRow(
        types.SimpleNamespace,
        "namespace",
        _namespace_parts,
        lambda nothing, count: types.SimpleNamespace(),
    ),
)
