# SPDX-License-Identifier: Apache-2.0
"""Draws docs/top.svg: what `headrace top --once` prints of a job of two ranks that waits for its data.

    python bench/top_picture.py

The numbers are those of the job, which runs for some seconds meanwhile; only the name of the machine is replaced.
"""

from __future__ import annotations

import contextlib
import html
import os
import re
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = Path(sys.executable).with_name("headrace")
JOB = """
import os, time
from headrace import Loader

class Photographs:
    def __len__(self):
        return 100_000
    def __getitem__(self, index):
        time.sleep(0.3 if index % 997 == 0 else 0.008)
        return bytes(20_000)

for batch in Loader(Photographs(), batch_size=8, num_workers=2, seed=int(os.environ["RANK"])):
    time.sleep(0.02)
"""
WARM_S, COLUMNS = 15, 80
LINE, LETTER, EDGE = 17, 7.8, 14  # pixels
STYLE = """
 text { font: 13px ui-monospace, 'DejaVu Sans Mono', monospace; fill: #1f2328; white-space: pre }
 text.head { font-weight: 600 } .paper { fill: #ffffff; stroke: #d1d9e0 }
 @media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .paper { fill: #0d1117; stroke: #3d444d } }
"""


def print_in_terminal(words: list[object]) -> str:
    """Returns what a program prints in a terminal of 80 columns."""
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (24, COLUMNS))
    subprocess.run(list(map(str, words)), stdout=theirs, check=True)
    os.close(theirs)
    printed = b""
    with contextlib.suppress(OSError), open(ours, "rb", buffering=0) as terminal:  # EIO: the end
        while piece := terminal.read(1 << 16):
            printed += piece
    return printed.decode().replace("\r\n", "\n")


def look() -> list[str]:
    """Returns the lines of a picture of the job."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "train.py").write_text(JOB)
        job = subprocess.Popen([PROGRAM, "run", "--nproc", "2", "train.py"], cwd=folder, stderr=subprocess.DEVNULL)
        try:
            time.sleep(WARM_S)
            text = print_in_terminal([PROGRAM, "top", "--once", str(job.pid)])
        finally:
            job.terminate()
            job.wait()
    return re.sub(r"^(headrace top +)\S+", r"\1node07", text).rstrip("\n").split("\n")


def draw(lines: list[str]) -> str:
    """Returns the picture."""
    width, height = round(LETTER * max(map(len, lines)) + 2 * EDGE), LINE * len(lines) + 2 * EDGE
    rows = "\n".join(
        f'<text x="{EDGE}" y="{EDGE + LINE * at + 12}"{" class=" + chr(34) + "head" + chr(34) if at == 0 else ""}'
        f' xml:space="preserve">{html.escape(line)}</text>'
        for at, line in enumerate(lines)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">'
        f"<style>{STYLE}</style>"
        f'<rect x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="6" class="paper"/>\n{rows}\n</svg>\n'
    )


if __name__ == "__main__":
    (ROOT / "docs/top.svg").write_text(draw(look()))
