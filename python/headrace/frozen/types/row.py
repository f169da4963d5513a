# SPDX-License-Identifier: Apache-2.0
"""The rows of the tables of types that can be frozen. The files next to this one fill the tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Row(NamedTuple):
    """One type: how a value is taken apart, and how it is made again.

    name: what frozen data calls the type; never change it, because frozen data in files contain it.
    parts: returns what is stored of a value; it can be frozen itself. None: this value cannot be frozen.
    make: returns the value that has these parts.
    """

    type: type
    name: str
    parts: Callable[[Any], Any]
    make: Callable[[Any], Any]


class ContainerRow(NamedTuple):
    """One type of container.

    parts: returns (what the container is made with, its contents as a list or a dict), or None.
    make_empty: returns an empty container from what it is made with and the number of its items; the items are put in
    later, because they may refer to the container.
    """

    type: type
    name: str
    parts: Callable[[Any], Any]
    make_empty: Callable[[Any, int], Any]
