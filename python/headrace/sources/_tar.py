# SPDX-License-Identifier: Apache-2.0
"""headrace.sources.Tar: the samples of tar files as WebDataset writes them, any of them at random."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from headrace import _core
from headrace._base import exception_text
from headrace._base.warn import warn_user
from headrace._samples.prepared import PreparedDataset
from headrace.sources._index import FileIndex
from headrace.sources._places import Places
from headrace.sources._source import Source
from headrace.sources._tar_decode import KEY, Decoder, Decoders
from headrace.sources._tar_report import check_damage, describe_empty, describe_skipped, report_of

_NAME = "Tar"
_OF_PROCESS = ("note", "_tar", "_decoders", "_plan", "_is_raw")  # attributes that a pickle does not have


class Tar(Source, PreparedDataset):
    """Samples of tar files, as WebDataset has them: neighbouring members of one file whose names have the same key.
    "a/0001.jpg" and "a/0001.cls" are the fields "jpg" and "cls" of the sample "a/0001".

    paths: a path, a pattern (its files are sorted by bytes), braces as in "train-{000..127}.tar", or a list of these;
        URLs with https, s3, gs, az and hf, too, see docs/sources.md.

    fields: a sample is a tuple of these; "jpg;png" is the first of the two that the sample has, "__key__" is its key.
        None: a sample is a dict of all its members, with "__key__"; a key that comes again in a file, with other
        samples between, is then an error, because its members are not side by side.
    decode: "auto" decodes by the last part of the field: images (jpg, png, ...) to RGB by headrace.images, cls and id
        to int, txt to str, json, and npy. None: bytes. A dict of functions of the bytes by field ("png", or "jpg;png"
        for both) is used first.
    transform: a function of the sample, or a dict of functions, one for each field.
    missing: "error" or "skip": samples that lack one of the fields.
    damaged: "error" or "skip": files that are damaged, of which "skip" takes the samples before the damage, and samples
        that have a field twice.
    keep: how long the index of the files is kept, as for headrace.cache.
    storage: settings of remote objects, see docs/sources.md: region, endpoint, keys, headers, retry_s and others.

    The index is made once per machine, or is read from PATH.hri next to a file (`headrace index`). Each read is
    compared with the file. Pickles in a file (pth, pkl, pyd) are not loaded: give a function in `decode` for them.

    Raises OSError if a file cannot be read, or was changed since it was opened, and ValueError if files are damaged or
    the arguments do not fit them.
    """

    note: Callable[[int], None] | None

    def __init__(
        self,
        paths: Any,
        *,
        fields: str | Sequence[str] | None = None,
        decode: Any = "auto",
        transform: Any = None,
        missing: str = "error",
        damaged: str = "error",
        keep: str = "boot",
        storage: Mapping[str, Any] | None = None,
    ) -> None:
        self._fields = None if fields is None else _check_fields(fields)
        self._decode = decode
        self._missing, self._damaged = _check_way("missing", missing), _check_way("damaged", damaged)
        self._transform = _check_transform(transform, self._fields)
        Decoders(decode)  # refuses what is no dict of functions
        places = Places(paths, _NAME, storage, next_to=".hri")
        self._files = FileIndex(_core.INDEX_TAR, places, _NAME, keep)
        check_damage(self._files, self._damaged == "skip")
        self._open()
        places.warn_of_repeats(_NAME)
        self._warn()

    def _open(self) -> None:
        self.note = None
        wanted = [field for field in self._fields or () if field != KEY]
        self._tar = _core.Tar(
            tuple(os.fsencode(path) for path in self._files.paths),
            self._files.index,
            tuple(os.fsencode(field) for field in wanted),
            self._fields is not None and KEY in self._fields,
            self._missing == "skip",
            self._damaged == "skip",
        )
        self._samples, self._lacking, self._repeated = self._tar.look()
        self._decoders = Decoders(self._decode)
        self._plan = None if self._fields is None else self._make_plan(wanted)
        self._is_raw = self._decode is None and self._transform is None and KEY not in (self._fields or ())

    def _make_plan(self, wanted: list[str]) -> list[Decoder | None] | None:
        """Returns the decoder of each field; None: it depends on which of several fields a sample has."""
        plan: list[Decoder | None] = []
        for field in wanted:
            found = {self._decoders.find(one) for one in field.split(";")}
            if len(found) > 1:
                return None
            plan += found
        return plan

    def _warn(self) -> None:
        named = self._transform if isinstance(self._transform, dict) and self._fields is None else {}
        unknown = [name for name in named if name not in self._tar.names]
        if unknown and self._samples:
            warn_user(f"headrace: sources.{_NAME}: transform has functions for {unknown}, which no sample has")
        for text in (*describe_skipped(self._files), describe_empty(self._files)):
            if text:
                warn_user(f"headrace: sources.{_NAME}: {text}")
        if self._lacking or self._repeated:
            warn_user(
                f"headrace: sources.{_NAME}: {self._lacking:,} samples that lack a field and {self._repeated:,} that "
                f"have one twice are left out of {self._samples + self._lacking + self._repeated:,}"
            )

    def __getstate__(self) -> dict[str, Any]:
        """Returns a handle: options, paths, and the index, which is itself a handle if it is in headrace.cache."""
        return {name: value for name, value in self.__dict__.items() if name not in _OF_PROCESS}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    # ---- samples ----

    def _count(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> Any:
        if type(index) is not int or not 0 <= index < self._samples:
            index = self._check_index(index)
        return self._tar.read(index) if self._is_raw else self._sample(index)

    def _sample(self, index: int) -> Any:
        found = self._tar.read(index)
        try:
            return self._transformed(self._as_dict(found) if self._fields is None else self._as_tuple(index, found))
        except Exception as error:
            exception_text.add_note(error, f"sources.{_NAME}: sample {index} is {self.where(index)}")
            raise

    def _as_dict(self, found: dict[str, Any]) -> dict[str, Any]:
        for field, data in found.items():
            decoder = None if field == KEY else self._decoders.find(field)
            if decoder is not None:
                found[field] = decoder(data)
        return found

    def _as_tuple(self, index: int, found: tuple[Any, ...]) -> tuple[Any, ...]:
        plan = self._plan
        if plan is None:
            plan = [self._decoders.find(name) for name, *_ in self._tar.find(index)[1]]
        values = iter([data if decoder is None else decoder(data) for decoder, data in zip(plan, found, strict=False)])
        assert self._fields is not None
        return tuple([found[-1] if field == KEY else next(values) for field in self._fields])

    def _transformed(self, sample: Any) -> Any:
        transform = self._transform
        if transform is None:
            return sample
        if callable(transform):
            return transform(sample)
        if isinstance(sample, dict):
            return {name: transform[name](value) if name in transform else value for name, value in sample.items()}
        pairs = zip(self._fields or (), sample, strict=True)
        return tuple([transform[name](value) if name in transform else value for name, value in pairs])

    # ---- batches: the kernel reads all samples of one ahead ----

    def prepare(self, indices: Iterable[Any]) -> None:
        self._tar.ask(list(indices))

    def _asked(self) -> _core.Tar | None:
        return self._tar if self._files.remote else None

    # ---- what it is ----

    def key(self, index: int) -> str:
        """Returns the key of a sample, which is read from its file."""
        return self._tar.key(self._check_index(index))

    def where(self, index: int) -> str:
        """Returns the file of a sample, and the offsets of its members."""
        number, members = self._tar.find(self._check_index(index))
        places = ", ".join(f"{name} ({size:,} bytes) at {at:,}" for name, at, _, size in members[:4])
        more = f" and {len(members) - 4} more members" if len(members) > 4 else ""
        return f"{self._files.paths[number]}: {places}{more}"

    def report(self) -> dict[str, Any]:
        """Returns what was found: "samples", "missing" and "repeated" (samples that are left out, because they lack a
        field or have one twice), "members", "bytes" (of all members), "fields", "skipped" (members of no sample),
        "repeated_keys", and "files", for each its "path", "samples", "members", "bytes" and "damage"."""
        found = {"samples": self._samples, "missing": self._lacking, "repeated": self._repeated}
        return found | report_of(self._files, self._tar.names)

    def _describe(self) -> str:
        files = self._files.paths
        first = repr(files[0]) if len(files) == 1 else f"{len(files):,} files from {files[0]!r} on"
        given = [] if self._fields is None else [f"fields={self._fields}"]
        return ", ".join([first, *given, f"{self._samples:,} samples"])


def _check_fields(fields: Any) -> tuple[str, ...]:
    listed = [fields] if isinstance(fields, str) else list(fields)
    for field in listed:
        if not isinstance(field, str) or not all(field.split(";")):
            raise ValueError(f"{_NAME}: a field should be a str as 'jpg' or 'jpg;png', but got {field!r}")
    names = [name for field in listed for name in field.lower().split(";")]
    if not names or len(set(names)) < len(names) or names == [KEY]:
        raise ValueError(f"{_NAME}: fields should be a list of different fields, but got {fields!r}")
    return tuple(field if field == KEY else field.lower() for field in listed)


def _check_way(name: str, way: Any) -> str:
    if way not in ("error", "skip"):
        raise ValueError(f'{_NAME}: {name} should be "error" or "skip", but got {way!r}')
    return str(way)


def _check_transform(transform: Any, fields: tuple[str, ...] | None) -> Any:
    if transform is None or callable(transform):
        return transform
    if not isinstance(transform, Mapping):
        raise TypeError(f"{_NAME}: transform should be a function, or a dict of them by field, but got {transform!r}")
    found = {str(name).lower(): function for name, function in transform.items()}
    if fields is None:
        found = {one: function for name, function in found.items() for one in name.split(";")}
    for name, function in found.items():
        if not callable(function) or (fields is not None and name not in fields):
            raise ValueError(
                f"{_NAME}: transform has {name!r}: {function!r}; it should have functions of the fields "
                f"{'of the files' if fields is None else list(fields)}"
            )
    return found
