# SPDX-License-Identifier: Apache-2.0
"""headrace.sources.Objects: each file, or each object of a bucket, is a sample."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from headrace import _core
from headrace._base import exception_text
from headrace._base.help_key import help_on
from headrace._remote import settings
from headrace._remote.addresses import is_listed, is_remote, without_mark
from headrace._samples.prepared import PreparedDataset
from headrace.sources._listing import list_objects
from headrace.sources._places import Places
from headrace.sources._source import Source
from headrace.sources._tar_decode import Decoders

_NAME = "Objects"
_OF_PROCESS = ("note", "_open_files", "_decoders")  # attributes that a pickle does not have


class Objects(Source, PreparedDataset):
    """Samples are whole files or objects: the bytes of each, or what `decode` makes of them.

    paths: the URL of a bucket or a part of it that ends with "/", whose objects are listed, or of a folder of the hub;
        a path, a pattern, braces or a list of these, as for `Tar`.
    suffixes: endings of names; other objects are left out. None: all are taken.
    decode: None: bytes. "auto": by the ending of the name, as `Tar` does: images to RGB, txt to str, json, npy. A dict
        of functions of the bytes by ending: {"jpg": f}.
    transform: a function of the sample, whose result is the sample.
    storage: settings of remote objects, see docs/sources.md: region, endpoint, keys, headers, retry_s and others.

    Raises OSError if an object cannot be read, or was replaced since it was opened.
    """

    note: Callable[[int], None] | None

    def __init__(
        self,
        paths: Any,
        *,
        suffixes: str | Sequence[str] | None = None,
        decode: Any = None,
        transform: Callable[[Any], Any] | None = None,
        storage: Mapping[str, Any] | None = None,
    ) -> None:
        if transform is not None and not callable(transform):
            raise TypeError(f"{_NAME}: transform should be a function, but got {transform!r}")
        self._transform, self._decode = transform, decode
        Decoders(decode)  # refuses what is no dict of functions
        endings = _check_suffixes(suffixes)
        if is_remote(paths) and is_listed(paths) and paths.endswith("/"):
            paths = list_objects(paths, settings.write(storage, _NAME), _NAME)
        places = Places(paths, _NAME, storage, endings=endings)
        self._paths = places.paths
        self._remote = places.remote
        self._open()
        places.warn_of_repeats(_NAME)

    def _open(self) -> None:
        self.note = None
        self._open_files = _core.Objects(tuple(os.fsencode(path) for path in self._paths))
        self._decoders = Decoders(self._decode)

    def __getstate__(self) -> dict[str, Any]:
        """Returns a handle: paths, options, and what shows that an object is still the same."""
        state = {name: value for name, value in self.__dict__.items() if name not in _OF_PROCESS}
        return {**state, "_stamp": self._open_files.stamp()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        stamp = state.pop("_stamp")
        self.__dict__.update(state)
        self._open()
        if self._open_files.stamp() != stamp:
            raise OSError(
                errno.ESTALE,
                f"headrace: sources.{_NAME}: files were changed since this source was pickled, such as "
                f"{self._paths[0]}; open the source again, and do not write to files that are in use"
                + help_on("source-changed"),
            )

    # ---- samples ----

    def _count(self) -> int:
        return len(self._paths)

    def _sample(self, index: int) -> Any:
        data: Any = self._open_files.read(index)
        try:
            decoder = None if self._decode is None else self._decoders.find(_ending_of(self._paths[index]))
            sample = data if decoder is None else decoder(data)
            return sample if self._transform is None else self._transform(sample)
        except Exception as error:
            exception_text.add_note(error, f"sources.{_NAME}: sample {index} is {self.where(index)}")
            raise

    def prepare(self, indices: Iterable[Any]) -> None:
        self._open_files.ask(list(indices))

    def _asked(self) -> _core.Objects | None:
        return self._open_files if self._remote else None

    # ---- what it is ----

    def where(self, index: int) -> str:
        """Returns the path of a sample, and its size."""
        number = self._check_index(index)
        return f"{self._paths[number]} ({self._open_files.size(number):,} bytes)"

    def path(self, index: int) -> str:
        """Returns the path of a sample, for example to find its label."""
        return self._paths[self._check_index(index)]

    def report(self) -> dict[str, Any]:
        """Returns "samples" and "bytes" of all of them."""
        return {"samples": len(self._paths), "bytes": sum(map(self._open_files.size, range(len(self._paths))))}

    def _describe(self) -> str:
        first = repr(self._paths[0])
        return first if len(self._paths) == 1 else f"{len(self._paths):,} objects from {first} on"


def _check_suffixes(suffixes: Any) -> tuple[str, ...]:
    listed = (suffixes,) if isinstance(suffixes, str) else tuple(suffixes or ())
    if not all(isinstance(one, str) and one for one in listed):
        raise TypeError(f"{_NAME}: suffixes should be endings of names, such as '.jpg', but got {suffixes!r}")
    return listed


def _ending_of(path: str) -> str:
    """Returns what is behind the last dot of a name, in lower case."""
    name = os.path.basename(without_mark(path))
    return name.rpartition(".")[2].lower() if "." in name else ""
