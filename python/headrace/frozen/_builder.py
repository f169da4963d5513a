# SPDX-License-Identifier: Apache-2.0
"""headrace.frozen.Builder: makes frozen data record by record."""

from __future__ import annotations

import os
from types import TracebackType
from typing import Any, Literal

from headrace import _core
from headrace.frozen import _freeze, _pickling
from headrace.frozen._freeze import Report


class Builder:
    """Makes the frozen data of a list record by record, for data that is larger than memory.

        with headrace.frozen.Builder("train.frozen") as builder:
            for record in records:
                builder.append(record)
        records = builder.view

    path: the file, which appears at the end of the with statement; None: frozen data in memory.
    on_unknown, progress: the same as for headrace.freeze.

    A record that cannot be frozen raises TypeError, and the builder continues without it. Records share no
    objects: an object that is in two records is in the frozen data twice. An exception in the with statement discards
    all of it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        on_unknown: Literal["raise", "pickle"] = "raise",
        progress: _freeze.Progress = None,
    ) -> None:
        self._file = None if path is None else os.path.abspath(os.fspath(path))
        self._bar = _freeze.prepare(on_unknown, progress)
        self._builder = _core.Builder(
            os.fsencode(self._file) if self._file else None, on_unknown == "pickle", self._bar
        )
        self._view: Any = None
        self._is_closed = False
        self.report: Report | None = None  # set when the frozen data is finished

    def append(self, record: Any) -> None:
        """Freezes a record and adds it to the list."""
        self._builder.append(record)

    def __len__(self) -> int:
        return len(self._builder)

    @property
    def nbytes(self) -> int:
        """The number of bytes written so far."""
        return self._builder.bytes if self.report is None else self.report.bytes

    @property
    def view(self) -> Any:
        """The frozen list. Raises ValueError before the frozen data is finished."""
        if self._view is None:
            raise ValueError("headrace: this builder is not finished; use finish() or the end of its with statement")
        return self._view

    def finish(self) -> Any:
        """Completes the frozen data and returns the frozen list."""
        frozen, (kinds, pickles) = self._builder.finish()
        _pickling.remember(frozen, self._file)
        self.report = Report(frozen.bytes, kinds, pickles, {})
        self._view = frozen.root()
        self.close()
        return self._view

    def close(self) -> None:
        """Discards frozen data that is not finished, and its file."""
        self._builder.close()
        self._is_closed = True
        _freeze.end_progress(self._bar)

    def __enter__(self) -> Builder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            if kind is None and not self._is_closed:
                self.finish()
        finally:
            self.close()
