# SPDX-License-Identifier: Apache-2.0
"""Checks that the table of files in docs/architecture.md has one row for each file, and no row without a file.

A row is ``| `path` | one sentence |``. Rows are sorted by path, as git lists the files. `make check` calls it as
`docs`.
"""

import re
import sys
from pathlib import Path

from common import ROOT, list_files

PAGE = "docs/architecture.md"
FOLDERS = ("cli/", "include/", "python/headrace/", "src/")
SUFFIXES = (".c", ".h", ".py", ".pyi")
ROW = re.compile(r"^\| `([^` ]+/[^` ]+)` \|(.*)\|$", re.MULTILINE)


def wanted_files(root: Path) -> list[str]:
    """Returns the paths that need a row, sorted."""
    names = (path.relative_to(root).as_posix() for path in list_files(root))
    return sorted(name for name in names if name.startswith(FOLDERS) and name.endswith(SUFFIXES))


def check(root: Path) -> list[str]:
    """Returns one complaint for each missing, surplus, repeated, empty or misplaced row."""
    rows = [(name, text.strip()) for name, text in ROW.findall((root / PAGE).read_text()) if name.startswith(FOLDERS)]
    names, wanted = [name for name, _ in rows], wanted_files(root)
    complaints = [f"{name}: has no row" for name in wanted if name not in names]
    complaints += [f"{name}: the row has no file" for name in names if name not in wanted]
    complaints += [f"{name}: has more than one row" for name in sorted(set(names)) if names.count(name) > 1]
    complaints += [f"{name}: the row has no sentence" for name, text in rows if not text]
    if not complaints and names != sorted(names):
        first = next(name for name, place in zip(names, sorted(names), strict=True) if name != place)
        complaints.append(f"{first}: the rows are not sorted by path")
    return [f"{PAGE}: {complaint}" for complaint in complaints]


if __name__ == "__main__":
    found = check(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT)
    print("\n".join(found))
    sys.exit(bool(found))
