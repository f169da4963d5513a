# SPDX-License-Identifier: Apache-2.0
"""The states of random number generators, as text for the state of a loader and back."""

from __future__ import annotations

import base64
import contextlib
import copy
import random
import sys
import zlib
from collections.abc import Iterator
from typing import Any

import torch

from headrace._samples import generator_kinds, random_numbers
from headrace.sampling import _values
from headrace.sampling._state import StateError


def bytes_of(state: torch.Tensor) -> bytes:
    """Returns the bytes of the state of a torch.Generator. It does not need NumPy, which a torch may be without."""
    return bytes(state.tolist())


def encode(state: torch.Tensor) -> str:
    """Returns the state of a torch.Generator as text of 4 to 7 thousand characters."""
    return base64.b85encode(zlib.compress(bytes_of(state), 1)).decode()


def decode(text: Any) -> torch.Tensor:
    """Returns the state that encode was given. Raises StateError."""
    try:
        data = bytearray(zlib.decompress(base64.b85decode(text)))
        return torch.frombuffer(data, dtype=torch.uint8)
    except (ValueError, TypeError, zlib.error) as error:
        raise StateError(
            f"headrace: this state is damaged: the state of a generator cannot be read ({error})"
        ) from None


def set_state(generator: torch.Generator, text: Any) -> None:
    """Sets a generator to a state that encode was given. Raises StateError."""
    state = decode(text)
    try:
        generator.set_state(state)
    except (RuntimeError, TypeError) as error:
        raise StateError(
            f"headrace: the state of a generator does not fit a torch.Generator on {generator.device}: {error}"
        ) from None


def _pack(words: Any) -> str:
    data = b"".join(int(word).to_bytes(4, "little") for word in words)
    return base64.b85encode(zlib.compress(data, 1)).decode()


def _unpack(text: str) -> list[int]:
    data = zlib.decompress(base64.b85decode(text))
    return [int.from_bytes(data[i : i + 4], "little") for i in range(0, len(data), 4)]


# ---- generators of a sampler's own ----


def text_of(state: Any) -> Any:
    """Returns what generator_kinds.state_of has returned as JSON can contain it."""
    if isinstance(state, torch.Tensor):
        return encode(state)
    if isinstance(state, tuple):
        version, words, gauss = state
        return [version, _pack(words), gauss]
    return _values.encode(state)


def restore(generator: Any, text: Any) -> None:
    """Sets a generator to the state that text_of has encoded. Raises StateError."""
    try:
        if isinstance(generator, torch.Generator):
            set_state(generator, text)
        elif isinstance(generator, random.Random):
            version, words, gauss = text
            generator.setstate((version, tuple(_unpack(words)), gauss))
        else:
            generator_kinds.restore(generator, _values.decode(text))
    except StateError:
        raise
    except (KeyError, ValueError, TypeError, zlib.error) as error:
        raise StateError(f"headrace: the state of a {type(generator).__name__} does not fit it: {error!r}") from None


# ---- the generators that all code shares ----


class Globals:
    """The states of the generators that all code of this process shares: torch's, Python's and, if it is imported,
    numpy's."""

    def __init__(self) -> None:
        numpy = sys.modules.get("numpy")
        self.torchs = torch.default_generator.get_state()
        self.pythons = random.getstate()
        self.numpys = None if numpy is None else numpy.random.get_state()

    def encode(self) -> dict[str, Any]:
        """Returns the states as JSON can contain them."""
        found: dict[str, Any] = {"torch": encode(self.torchs), "random": text_of(self.pythons)}
        if self.numpys is not None:
            name, keys, *rest = self.numpys
            found["numpy"] = [name, _pack(keys), *rest]
        return found

    def restore(self) -> None:
        """Sets the generators to these states."""
        torch.default_generator.set_state(self.torchs)
        random.setstate(self.pythons)
        numpy = sys.modules.get("numpy")
        if numpy is not None and self.numpys is not None:
            numpy.random.set_state(self.numpys)

    def differs_from(self, other: Globals) -> list[str]:
        """Returns the modules from whose generators something was drawn between the two."""
        same = {
            "random": self.pythons == other.pythons,
            "torch": torch.equal(self.torchs, other.torchs),
            "numpy": None in (self.numpys, other.numpys) or _text(self.numpys) == _text(other.numpys),
        }
        return [module for module, is_same in same.items() if not is_same]

    def drawn_from(self) -> list[str]:
        """Returns the modules from whose generators something was drawn since these states were noted."""
        return self.differs_from(Globals())

    def after_base_seed(self) -> Globals:
        """Returns the states after torch's iterator has drawn its base seed from torch's generator."""
        other = copy.copy(self)
        other.torchs = after_base_seed(self.torchs)
        return other


def after_base_seed(state: torch.Tensor) -> torch.Tensor:
    """Returns the state of a generator on the CPU after torch's iterator has drawn its base seed from it."""
    generator = torch.Generator()
    generator.set_state(state)
    torch.empty((), dtype=torch.int64).random_(generator=generator)
    return generator.get_state()


def _text(numpys: Any) -> str:
    return f"{numpys[1].tobytes()!r} {numpys[2:]}"


def set_globals(states: dict[str, Any]) -> None:
    """Sets the shared generators to what Globals.encode has returned. Raises StateError."""
    try:
        set_state(torch.default_generator, states["torch"])
        restore(random._inst, states["random"])
        numpy = sys.modules.get("numpy")
        if numpy is not None and "numpy" in states:
            name, keys, *rest = states["numpy"]
            numpy.random.set_state((name, _unpack(keys), *rest))
    except StateError:
        raise
    except (KeyError, ValueError, TypeError, zlib.error) as error:
        raise StateError(f"headrace: this state is damaged: its generators cannot be set ({error!r})") from None


@contextlib.contextmanager
def kept_with(generator: torch.Generator | None) -> Iterator[None]:
    """Restores the shared generators, and that of a loader if it has one, at the end of the block."""
    before = None if generator is None else generator.get_state()
    try:
        with random_numbers.generators_kept():
            yield
    finally:
        if generator is not None and before is not None:
            generator.set_state(before)
