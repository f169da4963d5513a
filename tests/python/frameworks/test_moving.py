# SPDX-License-Identifier: Apache-2.0
"""docs/moving/files.md: the code of another library and headrace's give the same samples of the same files."""

from __future__ import annotations

import collections
import io
import json
import pathlib
import re
import sys
import tarfile
from collections.abc import Iterator
from typing import Any

import pytest

PAGE = pathlib.Path(__file__).parents[3] / "docs/moving/files.md"
COUNT = 48


def code_of(heading: str) -> list[str]:
    """Returns the code of a section: theirs and ours."""
    sections = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)
    section = next(one for one in sections if one.startswith(heading))
    return re.findall(r"^```python\n(.*?)^```", section, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture(autouse=True)
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """The working directory, with the files of all sections."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "huggingface"))
    for stem, parts in (("train", 4), ("web", 2), ("code", 2)):
        for part in range(parts):
            write_tar(tmp_path / f"{stem}-{part:03}.tar", stem, range(part, COUNT, parts))
    for name, first in (("web", 0), ("code", 1000)):
        write_lines(tmp_path / f"{name}.jsonl", range(first, first + COUNT))
    for part in range(4):
        write_lines(tmp_path / f"part-{part}.jsonl", range(part, COUNT, 4))
    return tmp_path


def write_tar(path: pathlib.Path, stem: str, numbers: Any) -> None:
    with tarfile.open(path, "w") as file:
        for number in numbers:
            for field, text in (("txt", f"{stem} {number}"), ("cls", str(number))):
                info = tarfile.TarInfo(f"{number:04}.{field}")
                info.size = len(text)
                file.addfile(info, io.BytesIO(text.encode()))


def write_lines(path: pathlib.Path, numbers: Any) -> None:
    path.write_text("".join(json.dumps({"id": number, "text": f"text {number}"}) + "\n" for number in numbers))


@pytest.fixture
def without_lib() -> Iterator[None]:
    """The packages that are installed, in place of modules of the same name that tests import, such as datasets."""
    path, others = list(sys.path), {name: sys.modules.pop(name) for name in list(sys.modules) if name == "datasets"}
    sys.path[:] = [one for one in path if pathlib.Path(one).name != "lib"]
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "datasets"]:
        del sys.modules[name]
    sys.modules.update(others)
    sys.path[:] = path


def run(code: str) -> list[tuple[str, int]]:
    """Runs code of the page. Returns the samples that its step has seen, in order."""
    seen: list[tuple[str, int]] = []

    def step(texts: Any, numbers: Any) -> None:
        seen.extend((str(text), int(number)) for text, number in zip(texts, numbers, strict=True))

    exec(compile(code, str(PAGE), "exec"), {"__name__": "moving", "step": step})
    return seen


@pytest.mark.parametrize(("heading", "package"), [("WebDataset", "webdataset"), ("Hugging Face", "datasets")])
def test_both_read_each_sample_once(without_lib: None, heading: str, package: str) -> None:
    pytest.importorskip(package, reason=f"{package} is not installed: make test-frameworks does it")
    theirs, ours = (run(code) for code in code_of(heading))
    assert len(ours) == COUNT and sorted(ours) == sorted(theirs)
    assert ours != sorted(ours, key=lambda sample: sample[1]), "they are shuffled"


def share_of_web(seen: list[tuple[str, int]], count: int) -> float:
    found = collections.Counter(number < 1000 for _, number in seen[:count])
    return found[True] / count


def test_both_mix_alike(without_lib: None) -> None:
    """No sample comes twice, and the shares are those of the weights."""
    pytest.importorskip("grain", reason="grain is not installed: make test-frameworks does it")
    theirs, ours = (run(code) for code in code_of("Grain"))
    for seen in (theirs, ours):
        assert len(set(seen)) == len(seen) >= COUNT
        assert {sample for sample in seen if sample[1] < 1000} <= {(f"text {i}", i) for i in range(COUNT)}
    assert share_of_web(ours, 64) == 0.75 and abs(share_of_web(theirs, 60) - 0.75) < 0.1


def test_mixed_tar_files_take_the_place_of_a_blend() -> None:
    """headrace's part of Energon's section."""
    _, ours = code_of("Megatron-Energon")
    seen = run(ours)
    words = collections.Counter(text.split()[0] for text, _ in seen[:64])
    assert len(set(seen)) == len(seen) == 64 and words == {"web": 48, "code": 16}
