# SPDX-License-Identifier: Apache-2.0
"""Images that are made record by record."""

from __future__ import annotations

import os
from types import TracebackType
from typing import Any, Literal

from headrace import _core
from headrace.store import _freeze, _pickling
from headrace.store._freeze import Report


class Builder:
    """An image of a list that is made record by record, for data that is larger than memory.

        with headrace.store.Builder("train.frozen") as builder:
            for record in records:
                builder.append(record)
        records = builder.view

    path: of the file, which appears at the end of the with statement; None: an image in memory.
    on_unknown, progress: as headrace.freeze.

    A record that cannot be frozen raises TypeError, and the builder goes on without it. Records share nothing with each
    other: an object that is in two is in the image twice. An exception in the with statement drops the image.
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
        self.report: Report | None = None  # of a finished image

    def append(self, record: Any) -> None:
        """Freezes a record and adds it to the list."""
        self._builder.append(record)

    def __len__(self) -> int:
        return len(self._builder)

    @property
    def nbytes(self) -> int:
        """Bytes written so far; of a finished image, all."""
        return self._builder.bytes if self.report is None else self.report.bytes

    @property
    def view(self) -> Any:
        """The frozen list. ValueError before it is finished."""
        if self._view is None:
            raise ValueError("headrace: this builder is not finished; use finish() or the end of its with statement")
        return self._view

    def finish(self) -> Any:
        """Completes the image and returns the frozen list."""
        image, (kinds, pickles) = self._builder.finish()
        _pickling.remember(image, self._file)
        self.report = Report(image.bytes, kinds, pickles, {})
        self._view = image.root()
        self.close()
        return self._view

    def close(self) -> None:
        """Drops an image that is not finished: no file is left."""
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
