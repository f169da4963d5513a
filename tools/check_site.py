# SPDX-License-Identifier: Apache-2.0
"""Opens each page of the site in Chromium, from its file, as a reader would.

check_site.py [FOLDER]: build/docs/html is the default. Each page is opened in light and in dark, 390 and 1280 pixels
wide. No page may ask for anything outside of the folder, write an error to the console, be wider than the window, or
have a link to a page or a heading that does not exist. The search has to find what users type. The first page has what
a visitor has to see on one screen (FIRST_SCREEN), and long pages begin with a summary (SUMMARIES).

Chromium is driven through pipes (--remote-debugging-pipe): messages of its DevTools protocol, each ended by a zero
byte.
"""

import html.parser
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from common import ROOT

WIDTHS = (390, 1280)
SCHEMES = ("light", "dark")
SEARCHES = {"shm": "index", "arena_limit": "options", "torchrun": "launch", "KeyError": "cache", "preempted": "index"}
HEIGHT = 800
DEADLINE_S = 60
# What is above the fold of the first page in a wide window: elements, as the page's script finds them.
FIRST_SCREEN = {
    "the line to change": "[...document.querySelectorAll('pre')].find(e => e.innerText.includes('headrace.torch'))",
    "how to install it": "[...document.querySelectorAll('code')].find(e => e.innerText.startsWith('pip install'))",
    "the picture": "document.querySelector('article img')",
}
NAMES = ("chromium", "chromium-browser", "google-chrome")
# Long pages, each with words of its summary, which ends on the first screen.
SUMMARIES = {
    "benchmarks": "memory are saved",
    "conformance": "for looking things up",
    "reliability": "limits that are known",
    "untested": "a slower way",
}
_SUMMARY = "[...document.querySelectorAll('article p')].find(e => e.innerText.includes({words!r}))"


class Browser:
    """A Chromium without a window, with one page."""

    def __init__(self, program: str, folder: str) -> None:
        # Chromium reads commands from descriptor 3, and writes answers and events to descriptor 4.
        its_input, self._output = os.pipe()
        self._input, its_output = os.pipe()
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run"]
        command = ["bash", "-c", f'exec "$0" "$@" 3<&{its_input} 4>&{its_output}', program, *flags]
        self._process = subprocess.Popen(
            [*command, f"--user-data-dir={folder}"], pass_fds=(its_input, its_output), stderr=subprocess.DEVNULL
        )
        os.close(its_input)
        os.close(its_output)
        self._numbers, self._buffer, self.events = itertools.count(1), b"", list[dict[str, Any]]()
        self._session: dict[str, str] = {}
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._session = {"sessionId": session}
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._output)
        os.close(self._input)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Sends a command and returns its result. Events that come meanwhile are kept."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters, **self._session}
        os.write(self._output, json.dumps(message).encode() + b"\0")
        while (answer := self._read()).get("id") != number:
            self.events.append(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return dict(answer["result"])

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            piece = os.read(self._input, 1 << 16)
            if not piece:
                raise RuntimeError("Chromium has ended")
            self._buffer += piece
        message, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(message))

    def show(self, url: str, width: int, scheme: str) -> None:
        """Opens a page, and returns when it is loaded. `events` are those since then."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=HEIGHT, deviceScaleFactor=1, mobile=False)
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.call("Emulation.setEmulatedMedia", features=[feature])
        self.events.clear()
        self.call("Page.navigate", url=url)
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self._read())

    def value(self, expression: str) -> Any:
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")


class Links(html.parser.HTMLParser):
    """The links of a page, and the places in it that links can lead to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.links: list[str] = []
        self.places = {""}
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.places.add(values.get("id") or "")
        link = values.get("href" if tag in ("a", "link") else "src")
        if link:
            self.links.append(link)


def find_broken_links(folder: Path) -> list[str]:
    """Returns a complaint for each link that leads nowhere."""
    pages = {path.resolve(): Links(path) for path in folder.rglob("*.html")}
    found = []
    for page in pages.values():
        for link in page.links:
            name, _, place = link.partition("#")
            if ":" in name or name.startswith("//"):
                continue
            target = (page.path.parent / unquote(name.partition("?")[0])).resolve() if name else page.path.resolve()
            if not target.exists() or (place and target in pages and unquote(place) not in pages[target].places):
                found.append(f"{page.path.relative_to(folder)}: a link leads nowhere: {link}")
    return found


def find_faults(browser: Browser, folder: Path, page: Path, width: int, scheme: str) -> list[str]:
    """Opens a page, and returns a complaint for each thing that is wrong with it."""
    browser.show(page.as_uri(), width, scheme)
    is_wide = browser.value("document.documentElement.scrollWidth > document.documentElement.clientWidth")
    faults = ["is wider than the window"] if is_wide else []
    for event in browser.events:
        method, details = event["method"], event.get("params", {})
        if method == "Network.requestWillBeSent":
            url = details["request"]["url"]
            if not url.startswith((folder.as_uri(), "data:")):
                faults.append(f"asks for {url}")
        elif method == "Runtime.exceptionThrown":
            faults.append(f"script: {details['exceptionDetails'].get('text')}")
        elif method == "Log.entryAdded" and details["entry"]["level"] == "error":
            faults.append(f"console: {details['entry']['text']}")
    name = page.relative_to(folder)
    return [f"{name}, {scheme}, {width} pixels: {fault}" for fault in faults]


def find_below_fold(browser: Browser, page: Path, elements: dict[str, str]) -> list[str]:
    """Returns a complaint for each of the elements that a visitor of a page does not see at once."""
    browser.show(page.as_uri(), WIDTHS[-1], SCHEMES[0])
    found = {name: browser.value(f"{element}?.getBoundingClientRect().bottom") for name, element in elements.items()}
    size = f"{WIDTHS[-1]} x {HEIGHT}"
    return [
        f"{page.name}: {name} is not on the first screen of {size}"
        for name, bottom in found.items()
        if bottom is None or bottom > HEIGHT
    ]


def search(browser: Browser, folder: Path, word: str) -> list[str]:
    """Returns the pages that the site's search finds."""
    browser.show(f"{(folder / 'search.html').as_uri()}?q={word}", WIDTHS[-1], SCHEMES[0])
    found = "[...document.querySelectorAll('#search-results li a')].map(a => a.href)"
    is_done = "document.querySelector('#search-results p.search-summary')?.innerText || ''"
    deadline = time.monotonic() + DEADLINE_S
    while "found" not in browser.value(is_done) and time.monotonic() < deadline:
        time.sleep(0.05)
    names = (unquote(url).removeprefix(f"{folder.as_uri()}/").partition("?")[0] for url in browser.value(found))
    return [name.partition("#")[0].removesuffix(".html") for name in names]


def main(folder: Path) -> int:
    program = next((path for name in NAMES if (path := shutil.which(name))), None)
    if program is None:
        print(f"check_site: none of {', '.join(NAMES)} is installed (Debian: apt install chromium)", file=sys.stderr)
        return 2
    complaints = find_broken_links(folder)
    pages = sorted(folder.rglob("*.html"))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Browser(program, profile)
        for page, width, scheme in itertools.product(pages, WIDTHS, SCHEMES):
            complaints += find_faults(browser, folder, page, width, scheme)
        complaints += find_below_fold(browser, folder / "index.html", FIRST_SCREEN)
        for name, words in SUMMARIES.items():
            element = {"the summary": _SUMMARY.format(words=words)}
            complaints += find_below_fold(browser, folder / f"{name}.html", element)
        for word, page_name in SEARCHES.items():
            if page_name not in (names := search(browser, folder, word)):
                complaints.append(f"search for {word}: {page_name} is not among {len(names)} pages that were found")
        browser.close()
    print("\n".join(complaints))
    print(f"check_site: {len(pages)} pages, {len(complaints)} faults")
    return 1 if complaints or not pages else 0


if __name__ == "__main__":
    sys.exit(main(Path(*sys.argv[1:]).resolve() if sys.argv[1:] else ROOT / "build/docs/html"))
