# SPDX-License-Identifier: Apache-2.0
"""Builds the sdist and the wheels of all Pythons and machines into dist/; `make wheels` calls it.

make_wheels.py [--work FOLDER] [--dist FOLDER] [WORD...]    WORD: 3.12, x86_64; only these Pythons and machines

Two builds of the same files give the same bytes, wherever the sources and the tools are. SOURCE_DATE_EPOCH is the time
that all files have; without it, that of the last commit. What cannot be built here is left out, and named at the end.
"""

import argparse
import os
import subprocess
from pathlib import Path

from common import ROOT, list_files
from wheels import build
from wheels.commands import fail, step, unpack
from wheels.debian import Debian
from wheels.headers import VERSIONS, find
from wheels.libraries import LIBRARIES, get_source
from wheels.target import MACHINES, Target


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Builds the sdist and the wheels of headrace.")
    parser.add_argument("--work", type=Path, default=ROOT / "build/wheels", help="where to build")
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="where the results go")
    parser.add_argument("words", nargs="*", metavar="WORD", help=f"only these: {', '.join(VERSIONS + MACHINES)}")
    options = parser.parse_args()
    for word in options.words:
        if word not in VERSIONS + MACHINES:
            fail(f"{word} is unknown; choose from {', '.join(VERSIONS + MACHINES)}")
    options.pythons = [version for version in VERSIONS if version in options.words] or VERSIONS
    options.machines = [machine for machine in MACHINES if machine in options.words] or MACHINES
    return options


def find_epoch() -> int:
    if "SOURCE_DATE_EPOCH" in os.environ:
        return int(os.environ["SOURCE_DATE_EPOCH"])
    command = ["git", "-c", "safe.directory=*", "log", "-1", "--format=%ct"]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return (
        int(answer.stdout) if answer.returncode == 0 else fail("no commit to take the time from: set SOURCE_DATE_EPOCH")
    )


def main() -> None:
    options, epoch = parse(), find_epoch()
    work, dist = options.work.resolve(), options.dist.resolve()
    for folder in (work, dist):
        folder.mkdir(parents=True, exist_ok=True)
    debian = Debian(work / "debian")
    with step("sdist"):
        sdist = build.make_sdist(list_files(ROOT), ROOT, work, dist, epoch)
        source = unpack(sdist, work / "source")
    inside = {library.name: get_source(library, debian, work / f"{library.name}-source") for library in LIBRARIES}
    made, missing = [sdist], []
    for machine in options.machines:
        target = Target(machine, work / machine)
        with step(f"the libraries for {machine}"):
            build.build_libraries(target, inside)
        for python in options.pythons:
            headers = find(python, target, debian)
            if not headers:
                missing.append(f"CPython {python} for {machine}: its headers are not here")
                continue
            with step(f"CPython {python} for {machine}"):
                made.append(build.make_wheel(source, inside, target, headers, dist, epoch))
    for path in made:
        print(f"{path.stat().st_size / 1e6:.2f} MB  {path.name}")
    for line in missing:
        print(f"left out: {line}")


if __name__ == "__main__":
    main()
