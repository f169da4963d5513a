# SPDX-License-Identifier: Apache-2.0
"""Checks what a release needs, after `make wheels` and `make docs-check`, and says what is left to do by hand.

The version is the same in meson.build, CITATION.cff, CHANGELOG.md, the wheels and the sdist; all wheels are there, and
hold what they must, with licences and SBOM (tests/wheels/test_contents.py); all changes are committed.
"""

import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator

from common import ROOT, Tally

DIST = ROOT / "dist"
PYTHONS = ("310", "311", "312", "313", "314", "315")
MACHINES = ("x86_64", "aarch64")
UNRELEASED = "not yet released"
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}$")


def read_version() -> str:
    """Returns the version, which meson.build has."""
    match = re.search(r"version: '([^']+)'", (ROOT / "meson.build").read_text())
    assert match
    return match[1]


def check_texts(version: str) -> Iterator[str]:
    """Yields what is wrong with the version in documents."""
    if f"\nversion: {version}\n" not in (ROOT / "CITATION.cff").read_text():
        yield f"CITATION.cff does not have version {version}"
    heading = re.search(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    name, _, when = heading[1].partition(", ") if heading else ("", "", "")
    if name != version:
        yield f"the first section of CHANGELOG.md is about {name or 'no version'}, not {version}"
    elif when == UNRELEASED:
        print(f"to do: CHANGELOG.md says {UNRELEASED!r}; write the date, as in '## {version}, 2026-11-27'")
    elif not _DATE.match(when):
        yield f"the first section of CHANGELOG.md has no date: {when!r}"


def check_dist(version: str) -> Iterator[str]:
    """Yields what is missing in dist/, or too much there."""
    wanted = {
        f"headrace-{version}-cp{python}-cp{python}-manylinux_2_17_{machine}.whl"
        for python in PYTHONS
        for machine in MACHINES
    }
    wanted.add(f"headrace-{version}.tar.gz")
    found = {path.name for path in DIST.glob("*")} if DIST.exists() else set()
    for name in sorted(wanted - found):
        yield f"dist/{name} is missing: make wheels"
    for name in sorted(found - wanted):
        yield f"dist/{name} is not of this release: remove it"
    if f"headrace-{version}.tar.gz" in found:
        with tarfile.open(DIST / f"headrace-{version}.tar.gz") as archive:
            if f"headrace-{version}/LICENSE" not in archive.getnames():
                yield "the sdist has no LICENSE"


def check_contents() -> Iterator[str]:
    """Yields a line if the tests of the wheels' contents fail."""
    command = [sys.executable, "-m", "pytest", "-q", "tests/wheels/test_contents.py"]
    if subprocess.run(command, cwd=ROOT, env={**os.environ, "HEADRACE_WHEELS": "1"}).returncode:
        yield "tests/wheels/test_contents.py fails"


def check_checkout() -> Iterator[str]:
    """Yields a line if something is not committed."""
    status = subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, check=True)
    if status.stdout:
        yield f"these changes are not committed:\n{status.stdout.rstrip()}"


def main() -> int:
    version, tally = read_version(), Tally()
    checks = (check_texts(version), check_dist(version), check_contents(), check_checkout())
    for complaints in map(list, checks):
        tally += Tally(failed=1) if complaints else Tally(passed=1)
        print("".join(f"{complaint}\n" for complaint in complaints), end="")
    return tally.finish("release-check")


if __name__ == "__main__":
    sys.exit(main())
