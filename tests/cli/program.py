# SPDX-License-Identifier: Apache-2.0
"""The headrace program, as it is installed next to this interpreter."""

import subprocess
import sysconfig
from pathlib import Path

PROGRAM = Path(sysconfig.get_path("scripts")) / "headrace"


def run(
    *arguments: str,
    program: Path = PROGRAM,
    cwd: Path | None = None,
    env: dict[str, str] | None = None,
    stdin: str = "",
) -> subprocess.CompletedProcess[str]:
    """Runs the program as in a terminal without colours."""
    return subprocess.run(
        [program, *arguments], cwd=cwd, env=env, input=stdin, capture_output=True, text=True, timeout=100
    )
