# SPDX-License-Identifier: Apache-2.0
"""Tests headrace with other versions of torch, one after the other: `make test-torches VERSIONS="2.6.0 2.9.1"`.

Each is installed into build/torches/VERSION, with what it needs and the torchvision that fits, tested, and removed: the
private names, the conformance with torch, the frameworks, and the images. EVERYTHING=1 runs all other Python tests too.
Without versions it says what it would download, and downloads nothing.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from check_names import TABLE, load_table
from common import ROOT

FOLDER = ROOT / "build/torches"
TESTS = ["tests/python/torch/test_private_names.py", "tests/python/torch/test_same_as_torch.py"]
FRAMEWORKS = "tests/python/frameworks"
IMAGES = "tests/python/images"
GB = 5  # of a build with CUDA, which is what the package index has for Linux on x86-64, with its libraries
PATIENCE_S = 3 * 3600
NO_TESTS = 5  # pytest's exit status


def say(versions: list[str]) -> None:
    table = load_table(ROOT / "python" / TABLE)
    print(f"headrace is made for torch {table.FLOOR} to {table.NEWEST}.")
    print(f"Each version takes about {GB} GB to download and as much on the disk, in {FOLDER}, until it is tested.")
    if versions:
        print(f"Now: {', '.join(versions)}, about {GB * len(versions)} GB in all.", flush=True)
    else:
        print('Nothing was downloaded. Give versions: make test-torches VERSIONS="2.6.0 2.9.1 2.13.0 2.14.0 2.15.0"')


def run(words: list[Any], **environment: str) -> int:
    print("$", *words, flush=True)
    return subprocess.run(words, cwd=ROOT, env={**os.environ, **environment}, timeout=PATIENCE_S).returncode


def install(version: str, site: Path) -> bool:
    """Installs a version, and a torchvision if there is one for it."""
    command = ["uv", "pip", "install", "-q", "--python", sys.executable, "--target", site, f"torch=={version}"]
    return run([*command, "torchvision"]) == 0 or run(command) == 0


def pytest(site: Path, tests: list[str], path: list[Path]) -> bool:
    """Runs tests with the torch in a folder, which has to be the one that is imported."""
    found = os.pathsep.join(map(str, [site, *path]))
    is_found = f"import sys, torch; sys.exit(not torch.__file__.startswith({str(site)!r}))"
    if run([sys.executable, "-c", is_found], PYTHONPATH=found):
        return False
    return run([sys.executable, "-m", "pytest", "-q", *tests], PYTHONPATH=found) in (0, NO_TESTS)


def test(version: str) -> list[str]:
    """Returns what failed with a version."""
    site = FOLDER / version
    try:
        if not install(version, site):
            return ["its installation"]
        frameworks = ROOT / "build/frameworks/site-packages"
        results = {
            "names": run([sys.executable, ROOT / "tools/torch_names.py", site / "torch"]) == 0,
            "conformance": pytest(site, TESTS, []),
            "frameworks": pytest(site, [FRAMEWORKS], [frameworks]),
            "images": pytest(site, [IMAGES], []),
        }
        if os.environ.get("EVERYTHING"):
            done = [word for name in [*TESTS, FRAMEWORKS, IMAGES] for word in ("--deselect", name)]
            results["everything else"] = pytest(site, ["tests/python", "tests/cli", *done], [])
        return [name for name, holds in results.items() if not holds]
    finally:
        shutil.rmtree(site, ignore_errors=True)


def main(versions: list[str]) -> int:
    say(versions)
    if not versions:
        return 2
    failed = {version: test(version) for version in versions}
    for version, what in failed.items():
        print(f"torch {version}: {'failed: ' + ', '.join(what) if what else 'passed'}")
    print(
        f"make test-torches: {len(versions) - sum(map(bool, failed.values()))} passed, "
        f"{sum(map(bool, failed.values()))} failed"
    )
    return int(any(failed.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
