# SPDX-License-Identifier: Apache-2.0
"""bench/report.py: docs/benchmarks.md shows a part of the tables of bench/results.md."""

import sys

from common import ROOT

sys.path.insert(0, str(ROOT / "bench"))
import report

RESULTS = f"""
{report.BEGIN}

| machine | 2 cores |

### dataloader

| work | workers | headrace |
| --- | --- | --- |
| small | 1 | 2 us |
| small | 2 | 3 us |

| goal | measured | to reach | reached |
| --- | --- | --- | --- |
| small, 1 worker | 2 us | <= 3 us | yes |
| small, 2 workers | 3 us | <= 2 us | no: 1.50 x over |

### start

It failed with exit code 1.

{report.END}

| goal | measured | to reach | reached |
| --- | --- | --- | --- |
| by hand | 2 us | <= 1 us | no: 2.00 x over |
"""


def test_summary_has_the_machine_one_worker_and_a_count_of_goals():
    summary = report.summarize(RESULTS)
    assert "| machine | 2 cores |" in summary
    assert "| small | 1 | 2 us |" in summary
    assert "| small | 2 | 3 us |" not in summary
    assert "1 of 2 goals" in summary
    assert "by hand" not in summary


def test_page_for_users_is_made_of_the_results():
    page = (ROOT / "docs/benchmarks.md").read_text()
    assert page == report.fill(page, report.summarize((ROOT / "bench/results.md").read_text()))


def test_page_for_users_has_each_goal_that_is_missed():
    missed = (ROOT / "docs/benchmarks.md").read_text().partition("\n## What is missed")[2]
    goals = report.missed_goals((ROOT / "bench/results.md").read_text())
    assert len(goals) > 5
    assert [goal for goal in goals if goal[1].partition(";")[0] not in missed] == []


def test_pictures_find_their_tables():
    results = (ROOT / "bench/results.md").read_text()
    assert report.read_results(results, "dataloader")
    assert report.read_results(results, "frozen")
