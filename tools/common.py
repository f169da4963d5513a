# SPDX-License-Identifier: Apache-2.0
"""Shared by the scripts in tools/: the files of the repository, and the count that ends a run."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# The tools of the virtual environment that runs this, activated or not.
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


def list_files(root: Path) -> list[Path]:
    """The files of the repository, tracked or new and not ignored; where git knows none, all but what make makes."""
    if not (root / ".git").exists():
        tops = [top for top in root.iterdir() if top.name not in (".venv", "build")]
        return sorted(path for top in tops for path in (top, *top.rglob("*")) if path.is_file())
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z", "-co", "--exclude-standard"]
    names = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout
    paths = (root / name for name in sorted(set(names.split("\0"))) if name)
    return [path for path in paths if path.is_file()]


@dataclass(frozen=True)
class Tally:
    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(self.passed + other.passed, self.failed + other.failed, self.skipped + other.skipped)

    def with_status(self, status: int) -> "Tally":
        """A run that failed with no failed test (it crashed, or found no tests) counts as one failure."""
        return self + Tally(failed=1) if status and not self.failed else self

    def finish(self, name: str) -> int:
        """Prints the last line of a run, leaves it for .ci/run, and returns the exit status."""
        line = f"{self.passed} passed, {self.failed} failed"
        skipped = f", {self.skipped} skipped" if self.skipped else ""
        print(f"make {name}: {line}{skipped}", flush=True)
        (ROOT / f"build/{name}.tally").write_text(f"{self.passed} {self.failed}\n")
        return 1 if self.failed else 0
