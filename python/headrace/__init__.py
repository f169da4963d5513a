# SPDX-License-Identifier: Apache-2.0
"""headrace loads data for training.

`headrace.torch.DataLoader` replaces torch's DataLoader; `headrace.Loader` is the same engine without torch.
"""

from __future__ import annotations

import os as _os
import sys as _sys

TYPE_CHECKING = False  # for type checkers it is True; the module typing takes most of the time of this import
if TYPE_CHECKING:
    from headrace import doctor as doctor
    from headrace import frozen as frozen
    from headrace import sources as sources
    from headrace._base.exception_text import ForkWarning as ForkWarning
    from headrace._cache.interface import cache as cache
    from headrace._cache.samples import cache_samples as cache_samples
    from headrace._core import CacheError as CacheError
    from headrace._numpy.batch_maker import WorkerInfo as WorkerInfo
    from headrace._numpy.batch_maker import get_worker_info as get_worker_info
    from headrace._numpy.collate import default_collate as default_collate
    from headrace._numpy.lengths import lengths as lengths
    from headrace._numpy.loader import Loader as Loader
    from headrace._ranks.disagreement import RanksDisagree as RanksDisagree
    from headrace._samples.checks import SamplesDiffer as SamplesDiffer
    from headrace._samples.sample_generators import sample_generator as sample_generator
    from headrace.frozen._attributes import freeze_attributes as freeze_attributes
    from headrace.frozen._freeze import FrozenError as FrozenError
    from headrace.frozen._freeze import freeze as freeze
    from headrace.frozen._freeze import open as open
    from headrace.frozen._thaw import thaw as thaw
    from headrace.sampling._mixture import Mixture as Mixture
    from headrace.sampling._order import Order as Order
    from headrace.sampling._plan import Plan as Plan
    from headrace.sampling._state import StateError as StateError

    __version__: str

__all__ = [
    "CacheError",
    "ForkWarning",
    "FrozenError",
    "Loader",
    "Mixture",
    "Order",
    "Plan",
    "RanksDisagree",
    "SamplesDiffer",
    "StateError",
    "WorkerInfo",
    "__version__",
    "cache",
    "cache_samples",
    "default_collate",
    "doctor",
    "freeze",
    "freeze_attributes",
    "frozen",
    "get_worker_info",
    "lengths",
    "open",
    "sample_generator",
    "sources",
    "thaw",
]

_LATE = {
    "CacheError": "headrace._core",
    "ForkWarning": "headrace._base.exception_text",
    "Loader": "headrace._numpy.loader",
    "Mixture": "headrace.sampling._mixture",
    "Order": "headrace.sampling._order",
    "Plan": "headrace.sampling._plan",
    "RanksDisagree": "headrace._ranks.disagreement",
    "WorkerInfo": "headrace._numpy.batch_maker",
    "get_worker_info": "headrace._numpy.batch_maker",
    "SamplesDiffer": "headrace._samples.checks",
    "sample_generator": "headrace._samples.sample_generators",
    "cache": "headrace._cache.interface",
    "cache_samples": "headrace._cache.samples",
    "default_collate": "headrace._numpy.collate",
    "lengths": "headrace._numpy.lengths",
    "StateError": "headrace.sampling._state",
    "FrozenError": "headrace.frozen._freeze",
    "freeze": "headrace.frozen._freeze",
    "freeze_attributes": "headrace.frozen._attributes",
    "open": "headrace.frozen._freeze",
    "thaw": "headrace.frozen._thaw",
}
_MODULES = ("doctor", "frozen", "sources")

# Relative paths are those of the folder in which the process was started: a script may change it later, and so may a
# program that this process starts.
for _variable in ("HEADRACE_RECORD", "HEADRACE_CACHE"):
    if not _os.path.isabs(_os.environ.get(_variable) or "/"):
        try:
            _os.environ[_variable] = _os.path.abspath(_os.environ[_variable])
        except OSError:  # the working directory was removed
            pass

if hasattr(_sys, "_is_gil_enabled") and not _sys._is_gil_enabled():
    from headrace._base import gil as _gil

    _gil.load_extension()


def __getattr__(name: str) -> object:
    # Imported late, so that headrace.torch can fall back to torch's loader if the extension cannot be loaded.
    if name in _LATE:
        from importlib import import_module

        return getattr(import_module(_LATE[name]), name)
    if name in _MODULES:
        from importlib import import_module

        return import_module(f"headrace.{name}")
    if name == "__version__":
        from importlib.metadata import version

        return version("headrace")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
