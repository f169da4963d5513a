# SPDX-License-Identifier: Apache-2.0
"""headrace.sources.Tokens: windows, sequences and documents of token files."""

from __future__ import annotations

import errno
import operator
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headrace import _core
from headrace._base.help_key import help_on
from headrace._base.warn import warn_user
from headrace.sources._places import Places
from headrace.sources._source import Source

if TYPE_CHECKING:
    import numpy as np

_NAME = "Tokens"
_LONGEST = 2**60
_END = 2**64
_SCAN_BYTES = 1 << 26  # read at a time, so that Ctrl-C is noticed
_FORMATS = ("without a head", "llm.c", "NumPy", "Megatron")  # enum hr_tokens_kind
_UNITS = {
    _core.TOKENS_WINDOWS: "windows",
    _core.TOKENS_SEQUENCES: "sequences",
    _core.TOKENS_DOCUMENTS: "documents",
    _core.TOKENS_SEPARATED: "documents between separators",
}
_CODES = {"i": 0, "u": 1}


class Tokens(Source):
    """Samples of token files, as int64 arrays.

    paths: a path, a pattern (its files are sorted by bytes), braces as in "train_{000..127}.bin", or a list of
    these; URLs with https, s3, gs, az and hf, too, see docs/sources.md. A file is known by its head or its name:
    llm.c's .bin, .npy with one dimension, Megatron's .bin with an .idx file, and nanoGPT's .bin, which has no head and
    is uint16 unless `dtype` says something else.

    length: sample i of a file has its tokens from i * stride to i * stride + length - 1. A window does not cross
        files; what is left at the end of a file is not used. stride: None is length; 1 gives each window that there is.
    labels: a sample is a pair (x, y), where y has for each token of x the next one. A window takes length + 1 tokens.
    documents: a sample is a document of Megatron's files, its sequences joined. Without length, documents and
        separator, a sample is a sequence of Megatron's files.
    separator: a sample is a document that ends with this token, which belongs to it; in llm.c's files, which put the
        separator before each document, a document that begins with it. All files are read once, when they are opened.
    dtype: that of files without a head, for example "uint32"; other files have to have the same.
    vocab_size: a token that is not below it is an error when it is read.
    storage: settings of remote objects, see docs/sources.md: region, endpoint, keys, headers, retry_s and others.

    Raises OSError if a file cannot be opened, or was changed since it was opened, and ValueError if it is damaged, or
    the arguments do not fit it.
    """

    gathers = True

    def __init__(
        self,
        paths: Any,
        *,
        length: int | None = None,
        stride: int | None = None,
        labels: bool = False,
        dtype: Any = None,
        documents: bool = False,
        separator: int | None = None,
        vocab_size: int | None = None,
        storage: Mapping[str, Any] | None = None,
    ) -> None:
        self._length = None if length is None else _check_int("length", length, 1, _LONGEST)
        self._stride = None if stride is None else _check_int("stride", stride, 1, _LONGEST)
        self._separator = None if separator is None else _check_int("separator", separator, 0, _END - 1)
        self._vocab_size = None if vocab_size is None else _check_int("vocab_size", vocab_size, 1, _END - 1)
        self._labels, self._documents = bool(labels), bool(documents)
        self._dtype = _check_dtype(dtype)
        self._unit = self._choose_unit()
        places = Places(paths, _NAME, storage, next_to=".idx")
        self._remote = places.remote  # in pickles before the files, which are then known
        self._open(_without_indexes(places.paths))
        self._scan()
        places.warn_of_repeats(_NAME, self._paths())
        self._warn_if_empty()

    def _choose_unit(self) -> int:
        given = {
            "length": self._length is not None,
            "documents": self._documents,
            "separator": self._separator is not None,
        }
        names = [name for name, is_given in given.items() if is_given]
        if len(names) > 1:
            raise ValueError(f"{_NAME}: give one of {' and '.join(names)}: a sample is a window or a whole document")
        if self._stride is not None and self._length is None:
            raise ValueError(f"{_NAME}: stride={self._stride} is the distance of windows; give their length too")
        if self._length is not None:
            return _core.TOKENS_WINDOWS
        if self._separator is not None:
            return _core.TOKENS_SEPARATED
        return _core.TOKENS_DOCUMENTS if self._documents else _core.TOKENS_SEQUENCES

    # ---- opening ----

    def _open(self, paths: list[str]) -> None:
        code, bits = self._dtype
        self._tokens = _core.Tokens(
            tuple(os.fsencode(path) for path in paths),
            code=code,
            bits=bits,
            unit=self._unit,
            length=self._length or 0,
            stride=self._stride or 0,
            separator=self._separator or 0,
            vocab_size=self._vocab_size or 0,
            has_labels=self._labels,
        )
        self._samples, self._total, self._used, self._files = self._tokens.look()

    def _scan(self) -> None:
        while self._unit == _core.TOKENS_SEPARATED and not self._tokens.scan(_SCAN_BYTES):
            pass
        self._samples, self._total, self._used, self._files = self._tokens.look()

    def _paths(self) -> list[str]:
        return [os.fsdecode(self._tokens.file(number)[0]) for number in range(self._files)]

    def _warn_if_empty(self) -> None:
        if self._samples or not self._total:
            return
        wanted = (self._length or 0) + self._labels
        longest = max(self._tokens.file(number)[5] for number in range(self._files))
        warn_user(
            f"headrace: sources.{_NAME}: there is no sample, because a window takes {wanted:,} tokens and the longest "
            f"file has {longest:,}"
        )

    def __getstate__(self) -> dict[str, Any]:
        """Returns a handle: options, paths, and what shows that a file is still the same."""
        files = [self._tokens.file(number) for number in range(self._files)]
        handle = [(os.fsdecode(file[0]), file[7]) for file in files]
        ends = None
        if self._unit == _core.TOKENS_SEPARATED:
            import numpy as np

            ends = np.frombuffer(self._tokens.ends(), np.uint64)
        return {**self.__dict__, "_tokens": (handle, ends)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        handle, ends = state["_tokens"]
        self.__dict__.update(state)
        self._open([path for path, _ in handle])
        for number, (path, stamp) in enumerate(handle):
            if self._tokens.file(number)[7] != stamp:
                raise OSError(
                    errno.ESTALE,
                    f"{_NAME}: {path} was changed since this source was pickled; open the source again, and do not "
                    "write to files that are in use" + help_on("source-changed"),
                )
        if ends is not None:
            self._tokens.set_ends(ends)
            self._scan()

    # ---- samples ----

    def _count(self) -> int:
        return self._samples

    def _sample(self, index: int) -> Any:
        import numpy as np

        if self._length is None:
            _, _, count, length = self._tokens.find(index)
        else:
            count, length = self._length + self._labels, self._length
        x = np.empty(length, np.int64)
        y = np.empty(length, np.int64) if self._labels else None
        self._tokens.read(index, count, length, x, y)
        return x if y is None else (x, y)

    def _columns(self) -> _core.Columns | None:
        if self._length is None:
            return None
        _core.use_numpy()
        return _core.Columns.of_windows(self._tokens, self._length, self._labels)

    def _asked(self) -> _core.Tokens | None:
        return self._tokens if self._remote else None

    @property
    def lengths(self) -> np.ndarray[Any, Any] | None:
        """The length of each sample, int64, shape (len(source),), which `headrace.Plan` takes; None for windows, which
        are all equal. It is computed each time."""
        if self._length is not None:
            return None
        import numpy as np

        found = np.empty(self._samples, np.int64)
        self._tokens.lengths(0, found)
        return found

    def where(self, index: int) -> str:
        """Returns the file of a sample, the offset of its first token, and how many tokens it takes."""
        number, at, count, _ = self._tokens.find(self._check_index(index))
        path, _, code, bits, *_ = self._tokens.file(number)
        return f"{os.fsdecode(path)}: {count:,} tokens of {_dtype_name(code, bits)} from byte {at:,} on"

    # ---- what it is ----

    def report(self) -> dict[str, Any]:
        """Returns what was found: "unit" (what a sample is), "samples", "tokens", "unused_tokens" (which are in no
        sample), and "files", for each its "path", "format", "dtype", "tokens" and "samples"."""
        files = []
        for number in range(self._files):
            path, kind, code, bits, _, tokens, samples, _ = self._tokens.file(number)
            files.append(
                {
                    "path": os.fsdecode(path),
                    "format": _FORMATS[kind],
                    "dtype": _dtype_name(code, bits),
                    "tokens": tokens,
                    "samples": samples,
                }
            )
        return {
            "unit": _UNITS[self._unit],
            "samples": self._samples,
            "tokens": self._total,
            "unused_tokens": max(self._total - self._used, 0),
            "files": files,
        }

    def _describe(self) -> str:
        first = os.fsdecode(self._tokens.file(0)[0])
        files = repr(first) if self._files == 1 else f"{self._files:,} files from {first!r} on"
        options = {"length": self._length, "stride": self._stride, "separator": self._separator}
        given = [f"{name}={value}" for name, value in options.items() if value is not None]
        given += [
            f"{name}=True" for name, is_given in (("labels", self._labels), ("documents", self._documents)) if is_given
        ]
        return ", ".join([files, *given, f"{self._samples:,} samples"])


def _check_int(name: str, value: Any, least: int, most: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{_NAME}: {name} should be an int, but got {value!r}") from None
    if isinstance(value, bool) or not least <= number <= most:
        raise ValueError(f"{_NAME}: {name} should be from {least} to {most}, but got {value!r}")
    return number


def _check_dtype(dtype: Any) -> tuple[int, int]:
    """Returns the code of DLPack and the bits of a dtype; (0, 0): not given."""
    if dtype is None:
        return 0, 0
    import numpy as np

    try:
        found = np.dtype(dtype)
    except TypeError:
        raise TypeError(f"{_NAME}: dtype should be a dtype of NumPy, such as 'uint16', but got {dtype!r}") from None
    if found.kind not in _CODES or not found.isnative:
        raise ValueError(f"{_NAME}: dtype should be an integer in the byte order of this machine, but got {found!r}")
    return _CODES[found.kind], 8 * found.itemsize


def _dtype_name(code: int, bits: int) -> str:
    return f"{'uint' if code else 'int'}{bits}"


def _without_indexes(paths: list[str]) -> list[str]:
    """Leaves out Megatron's .idx files whose .bin file is in the list, as patterns such as "data/*" give both."""
    given = set(paths)
    return [path for path in paths if not (path.endswith(".idx") and path.removesuffix(".idx") + ".bin" in given)]
