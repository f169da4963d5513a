# SPDX-License-Identifier: Apache-2.0
"""Draws programs that change one thing at one moment of a loop, and compares torch's loader with headrace's in each,
for as long as it is told: `soak_moments.py [TIME [SEED]]`, where TIME is 90, 10m or 1h. Without a seed it takes a new
one, which it prints. It ends at the first difference with the program that shows it.
"""

from __future__ import annotations

import os
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python/lib"))

import moments
import side_by_side
from drawn import to_seconds


def main(arguments: list[str]) -> int:
    end = time.monotonic() + to_seconds(arguments[0] if arguments else "10m")
    seed = arguments[1] if len(arguments) > 1 else str(int.from_bytes(os.urandom(4), "little"))
    cells = moments.cells()
    print(f"seed {seed}, {len(cells)} cells", flush=True)
    seen, count, skipped = set[moments.Cell](), 0, 0
    for case in moments.drawn(seed, cells):
        if time.monotonic() > end:
            break
        count += 1
        seen.add(case.cell)
        try:
            found = side_by_side.compare_case(case)
        except side_by_side.NoCase:
            skipped += 1
            continue
        if found is not None:
            print(side_by_side.script_of(case, found))
            return 1
    print(f"{count} programs, {len(seen)} of {len(cells)} cells, no difference; {skipped} of which torch says nothing")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
