# SPDX-License-Identifier: Apache-2.0
"""headrace for torch. A script changes one line: `from headrace.torch import DataLoader`.

If the engine cannot run, DataLoader is torch's own, and one warning gives the reason.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import warnings

from headrace._base.help_key import help_on


def _why_not() -> str | None:
    """Returns why the engine cannot run here, or None if it can."""
    if os.environ.get("HEADRACE_DISABLE", "0") not in ("", "0"):
        return "HEADRACE_DISABLE is set" + help_on("disabled")
    if sys.platform != "linux":
        return f"headrace needs Linux, and this is {sys.platform}" + help_on("disabled")
    try:
        import headrace._core  # noqa: F401
    except ImportError as error:
        return f"its extension cannot be loaded ({error}); reinstall headrace for this Python" + help_on("disabled")
    from headrace._tensors import torch_names
    from headrace.torch._own import classes  # noqa: F401 # raises ImportError if another class has the name of torch's

    reason = torch_names.why_not()
    return None if reason is None else reason + help_on("torch-lacks-names")


try:
    import torch
    import torch.utils.data  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError(
        "headrace.torch needs torch, which is not installed in this Python; run pip install torch, or use "
        "headrace.Loader, which gives NumPy arrays and needs no torch",
        name="torch",
    ) from None

from headrace._loader.start import gc_pause  # noqa: E402 # after torch is found

with gc_pause.paused():  # a collection would visit all of torch, which takes as long as these imports
    _reason = _why_not()
    if _reason is None:
        from headrace.torch._loader.install import install, installed, uninstall
        from headrace.torch._loader.loader import DataLoader
        from headrace.torch._loader.stats import stats
        from headrace.torch._ranks import store
        from headrace.torch._ranks.spawn import spawn

        store.install()
    else:
        if not getattr(multiprocessing.current_process(), "_inheriting", False):  # a worker would repeat the warning
            warnings.warn(f"headrace: using torch's DataLoader instead of headrace's: {_reason}", stacklevel=2)
        from headrace.torch._own import table

        table.why_no_engine = _reason
        from headrace.torch._loader.fallback import (  # type: ignore[assignment]
            DataLoader,
            install,
            installed,
            spawn,
            stats,
            uninstall,
        )

    from headrace.torch._batches.packed import collate_packed
    from headrace.torch._loader.any_loader import load_state_dict, report, skip, state_dict
    from headrace.torch._samplers.distributed_sampler import DistributedSampler
    from headrace.torch._samplers.per_rank import per_rank

__all__ = [
    "DataLoader",
    "DistributedSampler",
    "collate_packed",
    "install",
    "installed",
    "load_state_dict",
    "per_rank",
    "report",
    "skip",
    "spawn",
    "state_dict",
    "stats",
    "uninstall",
]
