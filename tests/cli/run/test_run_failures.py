# SPDX-License-Identifier: Apache-2.0
"""Ranks that fail: the exit code, the one that failed first, and what is left."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cases import FAILURES, failing
from jobs import run

GRACE = ("--grace", "0.5")


@pytest.mark.parametrize("name", FAILURES)
def test_failure_is_explained_and_ends_the_job(tmp_path: Path, name: str) -> None:
    failure = FAILURES[name]
    result = run(tmp_path, failing(name), *GRACE, "--report", "report.json")
    assert result.code == failure.exit_code, result.stderr
    result.assert_says(r"^headrace: rank 1 failed first: it ", failure.says)
    assert "  rank 0 ended when asked to" in result.summary
    assert result.stderr.splitlines()[-1] == f"headrace: exit code {failure.exit_code}"
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["exit_code"] == failure.exit_code
