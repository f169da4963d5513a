# SPDX-License-Identifier: Apache-2.0
"""Writes the options into the docstrings and signatures of the loaders."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TypeVar

from headrace._options.table import TABLE

_Class = TypeVar("_Class", bound=type)
_Init = TypeVar("_Init", bound=Callable[..., None])


def documented(package: str) -> Callable[[_Class], _Class]:
    """Decorates a loader class: replaces the line `{options}` of its docstring by a paragraph for each option.
    `package`: "torch" or "numpy", which chooses the texts."""

    def document(loader: _Class) -> _Class:
        text = loader.__doc__ or ""  # python -OO drops docstrings
        for line in text.splitlines():
            if line.strip() == "{options}":  # indented as the class is written, or less: since 3.13 by the compiler
                indent = line.removesuffix("{options}")
                loader.__doc__ = text.replace(line, "\n".join(indent + one for one in _paragraphs(package)))
        return loader

    return document


def _paragraphs(package: str) -> list[str]:
    """Returns the lines of the paragraphs of a docstring; those after the first of each are indented once more."""
    texts = {name: f"{row.text}\n{getattr(row, package)}".strip().splitlines() for name, row in TABLE.items()}
    paragraphs = [f"{name}: " + "\n    ".join(map(str.strip, lines)) for name, lines in texts.items()]
    return "\n".join(paragraphs).splitlines()


def shown_with(theirs: Callable[..., None]) -> Callable[[_Init], _Init]:
    """Decorates an __init__ that passes *args and **kwargs on to `theirs`: inspect and help show the names of both."""

    def show(ours: _Init) -> _Init:
        own = [one for one in inspect.signature(ours).parameters.values() if one.kind is one.KEYWORD_ONLY]
        both = sorted([*inspect.signature(theirs).parameters.values(), *own], key=lambda one: one.kind)
        ours.__signature__ = inspect.Signature(both)  # type: ignore[attr-defined]
        return ours

    return show
