# SPDX-License-Identifier: Apache-2.0
"""Tells the C library how to start the fetcher from this interpreter."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

from headrace import _core
from headrace._base import program

# The module search path of the program may begin with the folder of the user's script, whose modules could have the
# names of those that the fetcher imports. So it gets the folders of installed packages only, and that of headrace.
_PROGRAM = (
    "import sys; sys.path[:0] = {first!r}; sys.path += {last!r}; from headrace._remote.fetcher import main; main()"
)
_INSTALLED = ("site-packages", "dist-packages")
_told: list[int] = []


def use_python() -> None:
    """Sets the command of the fetcher, once per process. $HEADRACE_FETCHER is used instead if it is set. A frozen
    program is no interpreter, and needs that variable."""
    if _told or not sys.executable or program.is_frozen():
        return
    package = str(Path(__file__).resolve().parents[2])
    installed = [one for one in sys.path if os.path.isabs(one) and os.path.basename(one) in _INSTALLED]
    obstore = importlib.util.find_spec("obstore")  # this does not import it
    for folder in (obstore.submodule_search_locations if obstore else None) or ():
        installed.append(os.path.dirname(os.path.abspath(folder)))
    code = _PROGRAM.format(first=[package], last=[one for one in installed if one != package])
    _core.remote_use(tuple(os.fsencode(word) for word in (sys.executable, "-I", "-c", code)))
    _told.append(os.getpid())
