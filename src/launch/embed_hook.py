# SPDX-License-Identifier: Apache-2.0
"""Writes the modules that run in a rank's interpreter into a C array: a zip, as zipimport reads it.

    embed_hook.py OUTPUT.c sitecustomize=hook.py what_ended=what_ended.py

src/meson.build calls it. The zip is not compressed, so that reading it needs no zlib, and the same sources always give
the same bytes.
"""

from __future__ import annotations

import io
import sys
import zipfile
from pathlib import Path

BYTES_PER_LINE = 20
START = """/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/hook.h"

const unsigned char hr__hook_zip[] = {
"""
END = """};
const size_t hr__hook_zip_bytes = sizeof(hr__hook_zip);
"""


def make_zip(modules: dict[str, Path]) -> bytes:
    """Returns a zip with one source file for each module."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, path in modules.items():
            member = zipfile.ZipInfo(f"{name}.py", (1980, 1, 1, 0, 0, 0))
            member.create_system = 3  # Unix, on every machine
            member.external_attr = 0o644 << 16
            archive.writestr(member, path.read_bytes())
    return buffer.getvalue()


def write_array(data: bytes) -> str:
    """Returns C source that defines the array and its size."""
    rows = (data[at : at + BYTES_PER_LINE] for at in range(0, len(data), BYTES_PER_LINE))
    return START + "".join("    " + "".join(f"{byte}," for byte in row) + "\n" for row in rows) + END


if __name__ == "__main__":
    pairs = (argument.split("=", 1) for argument in sys.argv[2:])
    source = write_array(make_zip({name: Path(path) for name, path in pairs}))
    Path(sys.argv[1]).write_text(source)
