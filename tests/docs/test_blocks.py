# SPDX-License-Identifier: Apache-2.0
"""The Python and shell blocks of the documents are run, one document after the other, each in a folder of its own.

All blocks of a document share their variables and the folder. Set-up that readers need not see is in HTML comments:

    <!-- invisible-code-block: python
    dataset = list(range(64))
    -->

A `text` block is what the blocks before it have printed since the last one. A block that cannot be run has
`<!-- skip: next "the reason" -->` before it. These are counted in docs/untested.md. `<!-- needs: spdl -->` names
packages that `make test` does not install: where they are missing, the document is skipped. `make test-moving` has
them.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import os
import pathlib
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from unittest import SkipTest

import pytest
from common import list_files
from sybil import Document, Example, Sybil
from sybil.parsers.markdown import CodeBlockParser, PythonCodeBlockParser, SkipParser

ROOT = pathlib.Path(__file__).resolve().parents[2]
MOST_SKIPPED = 16
LANGUAGES = {"", "python", "sh", "text", "c", "{toctree}", "{eval-rst}"}
_FENCE = re.compile(r"^```(\S*)$", re.MULTILINE)
_SKIP = re.compile(r'^<!-- skip: next "([^"]+)" -->$', re.MULTILINE)
BY_TEST_MOVING = "docs/moving/files.md"
_NEEDS = re.compile(r"^<!-- needs: ([\w ]+) -->$", re.MULTILINE)
TIMEOUT_S = 120  # of a shell block
# The doctor ends with 1 if it has a warning, which depends on the machine.
PROLOGUE = """set -eu -o pipefail
headrace() { if [ "$1" = doctor ]; then command headrace "$@" || test $? = 1; else command headrace "$@"; fi; }
"""


class Runner:
    """Runs the blocks of one document."""

    def __init__(self) -> None:
        self.printed = ""
        sh = CodeBlockParser("sh", self.run_shell)
        self.sybil = Sybil([PythonCodeBlockParser(), sh, CodeBlockParser("text", self.compare), SkipParser()])

    def run(self, path: pathlib.Path) -> int:
        """Runs all blocks of a document, and returns how many it has. Raises what a block raises."""
        count, document = 0, self.parse(path)
        try:
            for example in document.examples():
                output = io.StringIO()
                with contextlib.redirect_stdout(output), contextlib.suppress(SkipTest):
                    example.evaluate()
                self.printed += output.getvalue()
                count += 1
        finally:
            document.namespace.clear()  # sybil keeps the document, and so the objects that it has made
        return count

    def parse(self, path: pathlib.Path) -> Document:
        document = self.sybil.parse(path)
        document.namespace["__name__"] = "__main__"
        return document

    def run_shell(self, example: Example) -> None:
        folder = shlex.quote(os.path.dirname(sys.executable))
        script = f"{PROLOGUE}export PATH={folder}:$PATH\n{example.parsed}"
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=TIMEOUT_S)
        assert done.returncode == 0, f"{example.path}:{example.line}: {done.stderr or done.stdout}"
        self.printed += done.stdout

    def compare(self, example: Example) -> None:
        printed, self.printed = self.printed, ""
        assert printed.rstrip("\n") == example.parsed.rstrip("\n"), f"{example.path}:{example.line}: other output"


def list_documents() -> list[str]:
    """Returns the documents for users, except for the page that test_moving.py runs. Other tests run the commands of
    examples/README.md; those of CONTRIBUTING.md build and test everything."""
    names = (path.relative_to(ROOT).as_posix() for path in list_files(ROOT) if path.suffix == ".md")
    return [name for name in names if name == "README.md" or (name.startswith("docs/") and name != BY_TEST_MOVING)]


@pytest.fixture
def in_folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    gc.collect()
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_initialized():  # a document has made a process group
        distributed.destroy_process_group()


@pytest.mark.parametrize("name", [name for name in list_documents() if _FENCE.search((ROOT / name).read_text())])
def test_blocks_of_document_run(name: str, in_folder: None) -> None:
    text = (ROOT / name).read_text()
    if "import photos" in text:
        photos = importlib.import_module("photos")  # not above: it puts torchvision on the path of the other documents
        if photos.MISSING:
            pytest.skip(photos.WHY_MISSING)
    for package in " ".join(_NEEDS.findall(text)).split():
        pytest.importorskip(package, reason="make test-moving installs it")
    shown = [word for word in _FENCE.findall(text)[::2] if word in ("python", "sh", "text")]
    assert Runner().run(ROOT / name) >= len(shown)


def test_each_block_has_language_that_is_run_or_listed() -> None:
    for name in list_documents():
        words = _FENCE.findall((ROOT / name).read_text())
        assert len(words) % 2 == 0 and not any(words[1::2]), f"{name}: a block does not end"
        assert set(words[::2]) <= LANGUAGES, name


def test_skipped_blocks_are_few_and_counted() -> None:
    count = sum(len(_SKIP.findall((ROOT / name).read_text())) for name in list_documents())
    assert count <= MOST_SKIPPED
    assert f"{count} blocks of code in the documents are not run" in (ROOT / "docs/untested.md").read_text()


@pytest.mark.parametrize(
    "text, failure",
    [
        ("```python\nprint(1)\n```\n\n```text\n2\n```\n", AssertionError),
        ("```python\nraise KeyError\n```\n", KeyError),
        ("```sh\nfalse\n```\n", AssertionError),
        ("```sh\necho 1\n```\n\n```text\n2\n```\n", AssertionError),
    ],
)
def test_wrong_block_fails(tmp_path: pathlib.Path, text: str, failure: type[Exception]) -> None:
    path = tmp_path / "page.md"
    path.write_text(text)
    with pytest.raises(failure):
        Runner().run(path)
