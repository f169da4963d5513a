# SPDX-License-Identifier: Apache-2.0
"""Draws docs/report.svg: the page of `headrace report`, as far as the picture is high, on a made-up run of two hours.

    python bench/report_picture.py

The picture is the page itself in an SVG, so it is light or dark as the page is. It changes only if the page does.
"""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/python/lib"))

from headrace._report import page  # noqa: E402
from headrace._report.ranks import jobs_of  # noqa: E402
from headrace._report.recorded import Hour, Recorded, Slow  # noqa: E402
from headrace._report.style import STYLE  # noqa: E402
from recorded_runs import MS, OPENED, S, run  # noqa: E402

WIDTH, HEIGHT = 900, 990
FIGURE, SHOWN = "</figure>", 2  # the figures that are in the picture
SECONDS, WORKERS, PER_S = 7200, 4, 21
SLOW_AT = range(2400, 4200)  # seconds in which the samples of one slow file come


def made_up() -> Recorded:
    """Makes a run that waits for slow samples for half an hour, and hardly before and after."""
    draw = random.Random(1)
    waits = [draw.uniform(0.3, 0.85) if second in SLOW_AT else draw.uniform(0, 0.08) for second in range(SECONDS)]
    batches = [round(PER_S * (1 - 0.6 * wait)) for wait in waits]
    one = run(count=SECONDS, per_s=PER_S, workers=WORKERS, busy=0.7,
              more={"batches": batches, "inside_ns": [int(wait * S) for wait in waits],
                    "wait_ns": [int(wait * S) for wait in waits]},
              cores=8, used=4.6, slow_every=40)  # fmt: skip
    times = [int(200_000 * 2.718 ** (-((bucket - 21.5) ** 2) / 3)) + 40 * (bucket in (27, 28)) for bucket in range(44)]
    collates = [int(30_000 * 2.718 ** (-((bucket - 21) ** 2) / 1.5)) for bucket in range(44)]
    slowest = [Slow(int((0.41 - 0.01 * at) * S), draw.randrange(118_000), at % WORKERS, OPENED + (2500 + 70 * at) * S)
               for at in range(20)]  # fmt: skip
    began = one.batches["began_ns"]
    fetch = [int(draw.uniform(80, 400 if at % 40 == 0 else 140) * MS) for at in range(len(began))]
    collate = [int(draw.uniform(8, 30) * MS)] * len(began)
    began = [ns - took - int(draw.uniform(8, 40) * MS) for ns, took in zip(began, fetch, strict=True)]
    return replace(one, hours=[Hour(OPENED, times, collates)], slowest=slowest,
                   batches={**one.batches, "began_ns": began, "fetch_ns": fetch, "collate_ns": collate})  # fmt: skip


def draw() -> str:
    """Returns the picture."""
    body = page.make(jobs_of([made_up()]), "run1/").partition("<body>")[2]
    shown = FIGURE.join(body.split(FIGURE)[:SHOWN]) + f"{FIGURE}</div>"
    shown = shown.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}">'
        f"<style>{STYLE} svg:root {{ height: auto }} </style>"
        f'<foreignObject width="{WIDTH}" height="{HEIGHT}"><body xmlns="http://www.w3.org/1999/xhtml">{shown}</body>'
        "</foreignObject></svg>\n"
    )


if __name__ == "__main__":
    (ROOT / "docs/report.svg").write_text(draw())
