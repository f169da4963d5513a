# SPDX-License-Identifier: Apache-2.0
"""Headspace: how much faster a training loop would be if its data were free. With HEADRACE_HEADSPACE=100 a loop runs
so many steps with data, as many with batches that are repeated, and as many with data again; then the script ends.

    session.py    what was asked for, which loader is measured, and what is printed
    measure.py    the stages of a measurement, and their times
    steps.py      the iterator that the loop gets
    kept.py       the batches that are repeated
    ending.py     how the script ends, on all ranks

Both loaders make a Steps around their iterator if `is_asked`. They import the other modules only then.
"""

import os

VARIABLE = "HEADRACE_HEADSPACE"


def is_asked() -> bool:
    """Returns True if the environment asks for a measurement."""
    return os.environ.get(VARIABLE, "") not in ("", "0")
