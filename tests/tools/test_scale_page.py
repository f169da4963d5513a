# SPDX-License-Identifier: Apache-2.0
"""docs/scale.md names each limit of the library, and bench/scale.py has its cases."""

import re

from common import ROOT

PAGE = (ROOT / "docs/scale.md").read_text()
NAME = re.compile(r"\b(HR_[A-Z0-9_]*(?:MOST|MAX)[A-Z0-9_]*|HR_[A-Z0-9_]*_BITS)\b(?:\s+\(?\S|\s*=\s)")


def limits_of_headers() -> set[str]:
    headers = [*(ROOT / "include").rglob("*.h"), *(ROOT / "src").rglob("*.h")]
    return {match[1] for path in headers for match in NAME.finditer(path.read_text())}


def test_each_limit_of_a_header_is_on_the_page() -> None:
    limits = limits_of_headers()
    assert {"HR_PLAN_PACK_MAX", "HR__TAR_AT_MOST", "HR__LINE_AT_BITS", "HR_ARENA_MAX_WORKERS"} <= limits
    assert sorted(name for name in limits if f"`{name}`" not in PAGE) == []


def test_each_limit_of_the_page_exists() -> None:
    named = set(re.findall(r"`(HR_\w*(?:MOST|MAX|_BITS)\w*)`", PAGE))
    assert sorted(named - limits_of_headers()) == []
