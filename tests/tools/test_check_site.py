# SPDX-License-Identifier: Apache-2.0
"""tools/check_site.py finds what is wrong with a page."""

from __future__ import annotations

import shutil
from pathlib import Path

import check_site
import pytest

PROGRAM = next((path for name in check_site.NAMES if (path := shutil.which(name))), None)
PAGE = "<!DOCTYPE html><html><head><title>x</title></head><body>{}</body></html>"


def test_broken_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "b.html").write_text(PAGE.format('<p id="here">b</p>'))
    links = ["b.html", "b.html#here", "b.html#gone", "c.html", "#gone", "https://example.org/"]
    (tmp_path / "a.html").write_text(PAGE.format("".join(f'<a href="{link}">x</a>' for link in links)))
    found = check_site.find_broken_links(tmp_path)
    assert [line.rpartition(" ")[2] for line in found] == ["b.html#gone", "c.html", "#gone"]


@pytest.mark.skipif(PROGRAM is None, reason="Chromium is not installed")
def test_faults_of_page_are_found(tmp_path: Path) -> None:
    assert PROGRAM is not None
    bodies = {
        "good": "<p>good</p>",
        "wide": '<div style="width: 3000px">wide</div>',
        "asking": '<img src="http://127.0.0.1:9/x.png">',
        "raising": "<script>throw new Error('no')</script>",
    }
    (tmp_path / "profile").mkdir()
    browser = check_site.Browser(PROGRAM, str(tmp_path / "profile"))
    faults = {}
    for name, body in bodies.items():
        page = tmp_path / f"{name}.html"
        page.write_text(PAGE.format(body))
        faults[name] = check_site.find_faults(browser, tmp_path, page, 390, "dark")
    first = tmp_path / "first.html"
    first.write_text(
        PAGE.format('<pre>import headrace.torch</pre><p style="height: 790px"><code>pip install x</code></p>')
    )
    below = check_site.find_below_fold(browser, first, check_site.FIRST_SCREEN)
    first.write_text(PAGE.format('<p style="height: 800px">long</p><code>pip install x</code>'))
    all_below = check_site.find_below_fold(browser, first, check_site.FIRST_SCREEN)
    browser.close()
    assert below == ["first.html: the picture is not on the first screen of 1280 x 800"]
    assert len(all_below) == len(check_site.FIRST_SCREEN)
    assert faults["good"] == []
    assert faults["wide"] == ["wide.html, dark, 390 pixels: is wider than the window"]
    assert any("asks for http://127.0.0.1:9/x.png" in fault for fault in faults["asking"])
    assert any("script: Uncaught" in fault for fault in faults["raising"])
