# SPDX-License-Identifier: Apache-2.0
"""The status text of a worker, in its diagnostics file: a JSON object with a part for each subject. The trainer reads
it whenever it makes a report."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from headrace import _core


class Status:
    """Writes the parts of this worker's status."""

    def __init__(self, port: _core.Port) -> None:
        self._port = port
        self._parts: dict[str, str] = {}

    def put(self, name: str, value: Any) -> None:
        """Writes one part; the others stay. Raises OSError if the dataset has closed the file, or if the text is too
        long."""
        self._parts[name] = json.dumps(value)
        parts = (f'"{one}":{text}' for one, text in self._parts.items())
        self._port.post_status(f"{{{','.join(parts)}}}".encode())


def parts_of(core: _core.Loader, count: int, name: str) -> Iterator[Any]:
    """Returns one part of the status of each worker that has it. A worker may have written anything."""
    for text in map(core.posted_status, range(count)):
        try:
            status = json.loads(text) if text else None
        except ValueError:
            continue
        if isinstance(status, dict) and name in status:
            yield status[name]
