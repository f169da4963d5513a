# SPDX-License-Identifier: Apache-2.0
"""Tests and measures the option `device` on a machine with a GPU; `make test-gpu` calls it.

test_gpu.py [FOLDER]    results go to FOLDER, or build/gpu: log, results.json, table.md, trace.json

It installs nothing and fetches nothing: the wheel of this Python that `make wheels` has put into dist/ is unpacked, and
this Python has torch and pytest. All parts together take at most LIMIT_S; each has a limit of its own, and a part that
fails or is late does not end the others.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIMIT_S = 350.0
PYTEST = [sys.executable, "-m", "pytest", "-q", "-x", "--no-header", "-p", "no:cacheprovider"]
FACTS = (
    "import torch, platform, os; from headrace._tensors import torch_names; "
    "print(torch.__version__, torch.version.cuda, torch.cuda.get_device_name(), platform.release(), os.cpu_count()); "
    "print('names that this torch lacks:', torch_names.missing('engine', 'state', ''))"
)
# name, command, seconds. The measurements come first, because they are what is asked for most.
PARTS: list[tuple[str, list[str], float]] = [
    ("facts", [sys.executable, "-c", "import headrace.torch; " + FACTS], 40),
    ("measure", [sys.executable, str(ROOT / "tests/gpu/measure.py")], 110),
    ("on_gpu", [*[one for one in PYTEST if one != "-x"], "--timeout=60", str(ROOT / "tests/gpu/test_on_gpu.py")], 100),
    ("workers", [sys.executable, str(ROOT / "tests/gpu/measure_workers.py")], 90),
    ("pinning", [*PYTEST, "--timeout=60", str(ROOT / "tests/python/torch/test_pinning.py")], 30),
    (
        "same",
        [*PYTEST, "--timeout=60", str(ROOT / "tests/python/torch/test_same_as_torch.py"), "-k", "not drawn"],
        60,
    ),
    ("protocol", [sys.executable, str(ROOT / "bench/bench_device.py")], 20),
]


def unpack_wheel(folder: Path) -> None:
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    machine = os.uname().machine
    found = sorted(ROOT.glob(f"dist/headrace-*-{tag}-{tag}-*_{machine}.whl"))
    if not found:
        sys.exit(
            f"no wheel of {tag} for {machine} in dist/: make wheels ONLY='{tag[2]}.{tag[3:]} {machine}' builds it, on "
            "a machine with network; dist/ travels along"
        )
    with zipfile.ZipFile(found[-1]) as wheel:
        wheel.extractall(folder)


def run(name: str, command: list[str], seconds: float, environment: dict[str, str], log: Path) -> dict[str, object]:
    start = time.monotonic()
    with log.open("a") as out:
        print(f"\n==== {name}", file=out, flush=True)
        try:
            done = subprocess.run(command, env=environment, stdout=out, stderr=out, timeout=seconds, cwd=ROOT)
            code = done.returncode
        except subprocess.TimeoutExpired:
            code = 124
    took = time.monotonic() - start
    print(f"{name:10} {'ok' if code == 0 else f'exit {code}':9} {took:6.1f} s", flush=True)
    return {"name": name, "exit": code, "seconds": round(took, 1)}


def main() -> int:
    results = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build/gpu").resolve()
    results.mkdir(parents=True, exist_ok=True)
    log = results / "log"
    log.write_text("")
    end = time.monotonic() + LIMIT_S
    done = []
    with tempfile.TemporaryDirectory() as site:
        unpack_wheel(Path(site))
        paths = [site, str(ROOT / "tests/python/lib"), str(ROOT / "bench")]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "HEADRACE_GPU_RESULTS": str(results),
            "HEADRACE_TESTS_PIN": "1",
            "PYTHONUNBUFFERED": "1",
        }
        for name, command, seconds in PARTS:
            left = min(seconds, end - time.monotonic())
            if left > 0:
                done.append(run(name, command, left, environment, log))
    (results / "results.json").write_text(json.dumps(done, indent=1))
    print(log.read_text()[-6000:])
    return 0 if len(done) == len(PARTS) and all(one["exit"] == 0 for one in done) else 1


if __name__ == "__main__":
    sys.exit(main())
