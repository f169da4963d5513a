# SPDX-License-Identifier: Apache-2.0
"""The wheels of the newest Pythons, and those of aarch64, work with Debian's interpreters.

qemu-user cannot start a second interpreter without help of the kernel, so fork is the only start method there.
"""

from __future__ import annotations

import json
import platform
from pathlib import Path

import debian_pythons
import pytest
import wheel_files
from wheel_files import Wheel
from wheels.headers import IN_DEBIAN

WHEELS = [wheel for wheel in wheel_files.list_wheels() if wheel.python in IN_DEBIAN]
pytestmark = [
    pytest.mark.skipif(not WHEELS, reason=wheel_files.WHY_MISSING),
    pytest.mark.timeout(900),
]


@pytest.mark.parametrize("wheel", WHEELS, ids=lambda wheel: f"{wheel.python}-{wheel.machine}")
def test_wheel_works_with_python_of_debian(wheel: Wheel, tmp_path: Path) -> None:
    reason = debian_pythons.why_not(wheel)
    if reason:
        pytest.skip(reason)
    is_emulated = wheel.machine != platform.machine()
    methods = ["fork"] if is_emulated else ["fork", "spawn", "forkserver"]
    output = debian_pythons.run(wheel, tmp_path, Path(__file__).with_name("tour.py"), *["one"] * is_emulated)
    seen = json.loads(output.splitlines()[-1])
    assert seen["extension"].endswith(Path(wheel.extension).name)
    assert seen["images"] == {method: {"same": True, "made": 32, "left": {}} for method in methods}
    assert seen["frozen"]
    assert seen["cache"] == [1, 499_500, 499_500]
    assert seen["packed"]
    if not is_emulated:  # qemu counts the page faults of its own
        assert all(max(seen["heap"][method][-5:]) < seen["block pages"] / 10 for method in methods)
