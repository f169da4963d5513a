# SPDX-License-Identifier: Apache-2.0
"""The page of headrace report: its size, what it escapes, and how Chromium shows it."""

from __future__ import annotations

import itertools
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import check_site
import pytest
from headrace._report import page, svg
from headrace._report.ranks import jobs_of
from headrace._report.recorded import Recorded
from recorded_runs import run, week

PROGRAM = next((path for name in check_site.NAMES if (path := shutil.which(name))), None)
HOSTILE = '<script>alert("1")</script>\x1b[31m&\'\u202e'


def page_of(*loaders: Recorded) -> str:
    return page.make(jobs_of(loaders), "run1/")


@pytest.fixture(scope="module")
def long() -> Recorded:
    return week()


def test_page_of_a_week_is_small(long: Recorded) -> None:
    text = page_of(long)
    assert len(text.encode()) <= page.MOST_BYTES
    for title in ("WAIT over time", "What the workers do", "the last minute", "the minute with the most waiting",
                  "Time of a sample", "Private memory of each worker", "memory is full in about"):  # fmt: skip
        assert title in text


def test_page_of_many_loaders_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them are on it with their verdicts, and those that wait most with their figures."""
    monkeypatch.setattr(page, "MOST_BYTES", 200_000)
    text = page_of(*(run(name=f"train.py:{at}", wait=0.01 * at) for at in range(20, 40)))
    assert len(text.encode()) <= page.MOST_BYTES
    assert text.index("train.py:39") < text.index("train.py:20")
    assert text.count("<strong>") == 20
    assert 0 < text.count("make a page of its file alone") < 20


def test_every_peak_is_in_the_curve() -> None:
    """100,000 points in 1,000 columns: the one that is large is the largest value of its column."""
    values = [0.1] * 100_000
    values[77_777] = 0.9
    pixels = svg.by_pixel(range(100_000), values, 0, 99_999)
    assert len(pixels) == svg.WIDTH + 1
    assert [pixel.x for pixel in pixels if pixel.high == 0.9] == [round(1000 * 77_777 / 99_999)]


def test_curve_has_a_gap_where_nothing_was_recorded() -> None:
    xs = [*range(100), *range(500, 600)]
    drawn = svg.curve(svg.by_pixel(xs, [1.0] * 200, 0, 600), 1.0, "a")
    assert drawn.count("<path") == 2


def test_busy_pixels_are_stronger() -> None:
    """Half of the strip is covered all the time, half of it a quarter of the time."""
    times = [(0, 500), *((at, at + 0.25) for at in range(500, 1000))]
    drawn = svg.spans(times, 0, 1000, "a", 10)
    assert re.findall(r'opacity="([\d.]+)" d="([^"]*)"', drawn) == [
        ("0.25", "M250 0h250v10h-250Z"), ("1", "M0 0h250v10h-250Z"),
    ]  # fmt: skip


@pytest.mark.parametrize(("value", "top"), [(0, 1), (0.3, 0.5), (1, 1), (7, 10), (20, 20), (21, 50), (99_999, 100_000)])
def test_axis_ends_at_a_round_number(value: float, top: float) -> None:
    assert svg.round_up(value) == pytest.approx(top)


def test_names_are_escaped() -> None:
    one = run(
        name=HOSTILE, command=HOSTILE, host=HOSTILE, version=HOSTILE, ended=HOSTILE, slow_every=50, rank=0, world_size=2
    )
    other = run(name=HOSTILE, host=HOSTILE, rank=1, world_size=2, wait=0.2)
    text = page.make(jobs_of([one, other]), HOSTILE)
    assert not re.search("<script|\x1b|\u202e", text)
    assert text.count("&lt;script&gt;alert(&quot;1&quot;)&lt;/script&gt;") >= 6


def test_page_without_rows_says_so() -> None:
    assert "run1/one.hrr: nothing was recorded" in page_of(run(count=0))


# ---- in a browser ----


@pytest.fixture(scope="module")
def browser() -> Iterator[check_site.Browser]:
    if PROGRAM is None:
        pytest.skip("Chromium is not installed")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = check_site.Browser(PROGRAM, profile)
        yield browser
        browser.close()


def test_browser_shows_the_page_without_a_request(browser: check_site.Browser, tmp_path: Path, long: Recorded) -> None:
    """Light and dark, on a telephone and on a wide screen: no request, no complaint, no scrolling to the side."""
    ranks = [
        run(rank=rank, world_size=16, wait=0.1 + rank / 50, slow_every=50, name=HOSTILE + 99 * "x")
        for rank in range(16)
    ]
    pages = {"week": page_of(long), "ranks": page_of(*ranks), "empty": page_of(run(count=0))}
    backs = set()
    for (name, text), width, scheme in itertools.product(pages.items(), (400, 1400), ("light", "dark")):
        path = tmp_path / f"{name}.html"
        path.write_text(text)
        assert check_site.find_faults(browser, path, path, width, scheme) == []
        backs.add((scheme, browser.value("getComputedStyle(document.body).backgroundColor")))
    assert len(backs) == 2
    assert [event for event in browser.events if event["method"] == "Runtime.consoleAPICalled"] == []
