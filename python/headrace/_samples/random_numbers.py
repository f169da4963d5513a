# SPDX-License-Identifier: Apache-2.0
"""Random numbers that depend on a seed, an epoch and a sample, and on nothing else.

The maker of samples and the refills use them; the crew uses text_of to name a sample.
"""

from __future__ import annotations

import contextlib
import hashlib
import operator
import random
import sys
from collections.abc import Iterator
from typing import Any


def exact_text_of(index: object) -> str:
    """Returns the index of a sample as text. 3 and numpy's 3 give the same text. Raises any exception of its
    __repr__."""
    with contextlib.suppress(TypeError):
        index = operator.index(index)  # type: ignore[arg-type]
    return repr(index)


def text_of(index: object) -> str:
    """Returns the index of a sample as text. All indices of a class that cannot be printed give the same text."""
    try:
        return exact_text_of(index)
    except Exception:  # its own __repr__ or __index__ raised it
        return f"<{type(index).__name__}>"


def key_of(seed: int, epoch: int, index: object, *more: object) -> int:
    """Returns 64 bits that are a pure function of the arguments (BLAKE2b)."""
    text = repr((seed, epoch, exact_text_of(index), *more))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def sample_key(seed: int, epoch: int, index: object, draw: int = 0) -> int:
    """Returns the 64 bits of a sample. draw: how often the index was drawn before in the epoch."""
    return key_of(seed, epoch, index, "draw", draw) if draw else key_of(seed, epoch, index)


def seed_all(seed: int, epoch: int, index: object, draw: int = 0) -> int:
    """Seeds random and, if they are imported, the default generators of numpy and torch, with the key of a sample,
    and returns it."""
    key = sample_key(seed, epoch, index, draw)
    random.seed(key)
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        numpy.random.seed([key & 0xFFFFFFFF, key >> 32])
    if torch is not None:
        torch.default_generator.manual_seed(key)
    return key


def states() -> dict[str, Any]:
    """Returns the states of these generators, by library, as values that can be compared."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    found: dict[str, Any] = {"random": random.getstate()}
    if numpy is not None:
        found["numpy"] = numpy.random.get_state(legacy=False)
    if torch is not None:
        found["torch"] = torch.default_generator.get_state()
    return found


def restore(before: dict[str, Any]) -> None:
    """Sets these generators to the states."""
    random.setstate(before["random"])
    if "numpy" in before:
        sys.modules["numpy"].random.set_state(before["numpy"])
    if "torch" in before:
        sys.modules["torch"].default_generator.set_state(before["torch"])


@contextlib.contextmanager
def generators_kept() -> Iterator[None]:
    """Restores these generators at the end of the block to what they were at its start."""
    before = states()
    try:
        yield
    finally:
        restore(before)
