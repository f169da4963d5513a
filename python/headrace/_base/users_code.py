# SPDX-License-Identifier: Apache-2.0
"""Tells code of the user from that of Python and of installed packages. The digests of the cache, and the search for
random number generators, follow only the former."""

from __future__ import annotations

import functools
import os
import site
import sys
import sysconfig
import types
from typing import Any

from headrace._base import lookup


@functools.cache
def _library_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    known = [paths["stdlib"], paths["platstdlib"], paths["purelib"], paths["platlib"], site.getusersitepackages()]
    known.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return tuple(os.path.join(os.path.realpath(path), "") for path in known)


@functools.cache
def _is_installed(folder: str) -> bool:
    """Returns True for a folder of a package that pip has installed into another place, which is on sys.path."""
    while os.path.exists(os.path.join(folder, "__init__.py")):
        folder = os.path.dirname(folder)
    try:
        return any(name.endswith(".dist-info") for name in os.listdir(folder))
    except OSError:
        return False


def is_users(file: str | None) -> bool:
    """Returns True for a file that is not of Python, of an installed package, or of headrace itself."""
    if not file or file.startswith("<frozen"):
        return False
    path = os.path.realpath(file)
    return not path.startswith(_library_folders()) and not _is_installed(os.path.dirname(path))


def file_of(value: Any) -> str | None:
    """Returns the file that a function or a class, or the class of an instance, was written in."""
    if isinstance(value, types.FunctionType):
        return value.__code__.co_filename
    name = getattr(value, "__module__", None) or ""
    file = getattr(sys.modules.get(name), "__file__", None)
    return file or _place_of(value if isinstance(value, type) else type(value), name)


def _place_of(cls: type, module: str) -> str | None:
    """Returns where a class comes from whose module is no file, such as that of a notebook: where its methods do."""
    members = list(lookup.static_dict(cls).values())
    files = [one.__code__.co_filename for one in members if isinstance(one, types.FunctionType)]
    return files[0] if files else "<typed in>" if module == "__main__" else None
