# SPDX-License-Identifier: Apache-2.0
"""headrace.sources.Lines and Jsonl: the lines of text files, any of them at random."""

from __future__ import annotations

import codecs
import importlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from headrace import _core
from headrace._base.help_key import help_on
from headrace._base.warn import warn_user
from headrace._samples.prepared import PreparedDataset
from headrace.sources._index import FileIndex
from headrace.sources._places import Places
from headrace.sources._source import Source

if TYPE_CHECKING:
    import numpy as np

_BLANK = 0  # HR_LINES_BLANK
_SHOWN = 30  # characters before and behind an error in a line
_UTF8 = "utf-8"

Transform = Callable[[Any], Any]


class _Files:
    """The open files of a source. Its pickle is their index."""

    def __init__(self, index: FileIndex) -> None:
        self.index = index
        self.lines = _core.Lines(tuple(os.fsencode(path) for path in index.paths), index.index)
        _, _, self.count, _ = index.index.look()

    def __reduce__(self) -> Any:
        return _Files, (self.index,)


class _LineSource(Source, PreparedDataset):
    """The lines of text files as bytes, which a class turns into samples."""

    def __init__(self, paths: Any, transform: Any, keep: str, storage: Any) -> None:
        places = Places(paths, self._name, storage, next_to=".hri")
        self._transform = transform
        self._files = _Files(FileIndex(_core.INDEX_LINES, places, self._name, keep))
        places.warn_of_repeats(self._name)
        if not self._count():
            warn_user(f"headrace: sources.{self._name}: there is no sample, because all lines of {self!r} are blank")

    def _count(self) -> int:
        return self._files.count

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "note"}

    # ---- batches: the kernel reads all lines of one ahead ----

    def prepare(self, indices: Iterable[Any]) -> None:
        self._files.lines.ask(list(indices))

    def _asked(self) -> _core.Lines | None:
        return self._files.lines if self._files.index.remote else None

    # ---- errors ----

    def _place(self, index: int) -> str:
        path, _, _ = self._files.lines.find(index)
        return f"line {self._files.lines.number(index):,} of {os.fsdecode(path)}"

    def _raise_undecodable(self, index: int, error: UnicodeDecodeError) -> NoReturn:
        """Raises the exception for a line that is not of its encoding, with the bytes that are wrong."""
        _, at, _ = self._files.lines.find(index)
        wrong = bytes(error.object[error.start : error.end])
        reason = f"{error.reason} (byte {at + error.start:,} of the file, {self._place(index)})"
        raise UnicodeDecodeError(error.encoding, wrong, 0, len(wrong), reason) from None

    # ---- what it is ----

    @property
    def lengths(self) -> np.ndarray[Any, Any]:
        """The length of each line in bytes, int64, shape (len(source),), which `headrace.Plan` takes. It is computed
        each time."""
        import numpy as np

        found = np.empty(self._files.count, np.int64)
        self._files.lines.lengths(0, found)
        return found

    def where(self, index: int) -> str:
        """Returns the file of a line, its number there, its offset, and how many bytes it has."""
        number = self._check_index(index)
        path, at, count = self._files.lines.find(number)
        return f"{os.fsdecode(path)}: line {self._files.lines.number(number):,}, {count:,} bytes from byte {at:,} on"

    def report(self) -> dict[str, Any]:
        """Returns what was found: "samples", "bytes" of them, "blank_lines", which are no samples, and the same for
        each of "files", with its "path"."""
        found = [self._files.index.file(number) for number in range(len(self._files.index.paths))]
        files = [
            {
                "path": file["path"],
                "samples": file["samples"],
                "bytes": file["data_bytes"],
                "blank_lines": file["counts"][_BLANK],
            }
            for file in found
        ]
        sums = {name: sum(file[name] for file in files) for name in ("samples", "bytes", "blank_lines")}
        return {**sums, "files": files}

    def _describe(self) -> str:
        paths = self._files.index.paths
        files = repr(paths[0]) if len(paths) == 1 else f"{len(paths):,} files from {paths[0]!r} on"
        return f"{files}, {self._files.count:,} samples"


class Lines(_LineSource):
    """Samples are the lines of text files, without their ends.

    paths: a path, a pattern (its files are sorted by bytes), braces as in "part-{000..127}.txt", or a list of these;
        URLs with https, s3, gs, az and hf, too, see docs/sources.md.
    decode: the encoding of the files, one in which the byte 10 is the end of a line; None: samples are bytes.
    transform: a function of the line, whose result is the sample.
    keep: how long the index of the files stays, as for headrace.cache: "job", "boot", or "disk", in a file.
    storage: settings of remote objects, see docs/sources.md: region, endpoint, keys, headers, retry_s and others.

    A line ends with "\\n" or "\\r\\n". Lines of white space only are no samples, and are counted in `report()`.

    Raises OSError if a file cannot be opened, or was changed since it was opened; ValueError if it is compressed;
    UnicodeDecodeError, with file, line and offset, for a line that is not of the encoding.
    """

    def __init__(
        self,
        paths: Any,
        *,
        decode: str | None = _UTF8,
        transform: Transform | None = None,
        keep: str = "boot",
        storage: Mapping[str, Any] | None = None,
    ) -> None:
        self._decode = None if decode is None else _check_encoding(decode)
        super().__init__(paths, _check_function(transform, self._name), keep, storage)

    def _sample(self, index: int) -> Any:
        line = self._files.lines.read(index) if self._decode is None else self._text(index)
        return line if self._transform is None else self._transform(line)

    def _text(self, index: int) -> str:
        try:
            if self._decode == _UTF8:
                return self._files.lines.text(index)
            return self._files.lines.read(index).decode(self._decode or _UTF8)
        except UnicodeDecodeError as error:
            self._raise_undecodable(index, error)


class Jsonl(_LineSource):
    """Samples are what the lines of JSON Lines files (.jsonl, .ndjson) say: dicts, lists, strings, numbers.

    paths: a path, a pattern (its files are sorted by bytes), braces as in "part-{000..127}.jsonl", or a list of these;
        URLs with https, s3, gs, az and hf, too, see docs/sources.md.
    transform: a function of what a line says, whose result is the sample; or a dict with a function for each of some
        keys, which gets the value and gives the new one.
    keep: how long the index of the files stays, as for headrace.cache: "job", "boot", or "disk", in a file.
    storage: settings of remote objects, see docs/sources.md: region, endpoint, keys, headers, retry_s and others.

    Lines are parsed by orjson if it is installed, else by json. The results are those of json in both cases.

    Raises OSError if a file cannot be opened, or was changed since it was opened; ValueError if it is compressed, and,
    with file, line and offset, for a line that is no JSON.
    """

    def __init__(
        self,
        paths: Any,
        *,
        transform: Transform | Mapping[str, Transform] | None = None,
        keep: str = "boot",
        storage: Mapping[str, Any] | None = None,
    ) -> None:
        checked = _check_functions(transform, self._name) if isinstance(transform, Mapping) else transform
        if checked is transform:
            checked = _check_function(transform, self._name)
        super().__init__(paths, checked, keep, storage)

    def _sample(self, index: int) -> Any:
        value = self._parse(index)
        if self._transform is None:
            return value
        return self._each(value, index) if isinstance(self._transform, dict) else self._transform(value)

    def _each(self, value: Any, index: int) -> Any:
        """Calls the functions for some keys."""
        for key, function in self._transform.items():
            if not isinstance(value, dict) or key not in value:
                found = f"the keys {list(value)}" if isinstance(value, dict) else f"a {type(value).__name__}"
                raise KeyError(
                    f"{self._name}: transform has a function for {key!r}, but {self._place(index)} has {found}"
                )
            value[key] = function(value[key])
        return value

    def _parse(self, index: int) -> Any:
        if _fast_loads is not None:
            line = self._files.lines.read(index)
            if not _core.Lines.has_long_integer(line):  # orjson makes floats of those above 64 bits
                try:
                    return _fast_loads(line)
                except ValueError:
                    pass  # json says what is wrong, or takes it: NaN, single surrogates
        try:
            text = self._files.lines.text(index)
        except UnicodeDecodeError as error:
            self._raise_undecodable(index, error)
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            raise self._not_json(index, text, error) from None
        except RecursionError:
            raise ValueError(f"{self._name}: {self._place(index)} is nested too deeply for Python") from None

    def _not_json(self, index: int, text: str, error: json.JSONDecodeError) -> ValueError:
        _, at, _ = self._files.lines.find(index)
        at += len(text[: error.pos].encode(errors="surrogatepass"))
        shown = text[max(0, error.pos - _SHOWN) : error.pos + _SHOWN]
        return ValueError(
            f"{self._name}: {self._place(index)} is no JSON: {error.msg}, at byte {at:,} of the file and character "
            f"{error.pos + 1:,} of the line, in {shown!r}" + help_on("damaged-files")
        )

    def report(self) -> dict[str, Any]:
        """Returns what was found: see Lines, and "parser", "orjson" or "json"."""
        return {**super().report(), "parser": "json" if _fast_loads is None else "orjson"}


def _find_fast_loads() -> Callable[[bytes], Any] | None:
    try:
        loads: Callable[[bytes], Any] = importlib.import_module("orjson").loads
    except (ImportError, AttributeError):
        return None
    return loads


_fast_loads = _find_fast_loads()


def _check_encoding(decode: Any) -> str:
    """Returns the name of an encoding in which the end of a line is the byte 10, and no other character has it."""
    if not isinstance(decode, str):
        raise TypeError(f"Lines: decode should be the name of an encoding or None, but got {decode!r}")
    try:
        name = codecs.lookup(decode).name
    except LookupError:
        raise ValueError(f"Lines: decode is {decode!r}, which is no encoding that Python knows") from None
    if name == "utf-8-sig":  # the mark belongs to no line anyway
        return _UTF8
    try:
        is_line = "\n".encode(name) == b"\n"
    except (LookupError, UnicodeError):
        is_line = False
    if not is_line:
        raise ValueError(
            f"Lines: decode is {decode!r}, in which the end of a line is not the byte 10; convert the files: "
            f"iconv -f {decode} -t UTF-8"
        )
    return name


def _check_function(transform: Any, name: str) -> Transform | None:
    if transform is not None and not callable(transform):
        raise TypeError(f"{name}: transform should be a function, but got {transform!r}")
    found: Transform | None = transform
    return found


def _check_functions(transform: Mapping[Any, Any], name: str) -> dict[str, Transform]:
    for key, function in transform.items():
        if not isinstance(key, str) or not callable(function):
            raise TypeError(f"{name}: transform should have a function for each key, but has {key!r}: {function!r}")
    return dict(transform)
