# SPDX-License-Identifier: Apache-2.0
"""headrace.sources.Jsonl: compared with json, with orjson where it is installed and without, and with datasets."""

from __future__ import annotations

import json
import pathlib
import pickle
import tempfile
from collections.abc import Iterator
from typing import Any

import headrace
import pytest
from drawn import draws
from headrace import _core, sources
from headrace.sources import _lines
from hypothesis import given, settings
from hypothesis import strategies as st

PARSERS = ["json"] if _lines._fast_loads is None else ["json", "orjson"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))


@pytest.fixture(params=PARSERS)
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "json":
        monkeypatch.setattr(_lines, "_fast_loads", None)
    yield request.param


def write(path: pathlib.Path, lines: list[str], end: str = "\n") -> str:
    path.write_bytes("".join(line + end for line in lines).encode(errors="surrogatepass"))
    return str(path)


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(st.characters(exclude_categories=[])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


@given(rows=st.lists(values, min_size=1, max_size=8), is_ascii=st.booleans(), crlf=st.booleans())
@settings(deadline=None, max_examples=draws(200))
def test_samples_are_those_of_json(rows: list[Any], is_ascii: bool, crlf: bool) -> None:
    """Including large integers, NaN, infinities and single surrogates, with each parser."""
    lines = [json.dumps(row, ensure_ascii=is_ascii) for row in rows]
    lines = [line for line in lines if is_ascii or not any(0xD800 <= ord(letter) < 0xE000 for letter in line)]
    if not lines:
        return
    wanted = [repr(json.loads(line)) for line in lines]
    fast = _lines._fast_loads
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        found = sources.Jsonl(write(pathlib.Path(folder, "a.jsonl"), lines, "\r\n" if crlf else "\n"), keep="job")
        try:
            for loads in {fast, None}:
                _lines._fast_loads = loads
                assert [repr(sample) for sample in found] == wanted
        finally:
            _lines._fast_loads = fast


@pytest.mark.parametrize(
    "line",
    [
        "18446744073709551615",
        "18446744073709551616",
        "-9223372036854775809",
        '{"id": 123456789012345678901234567890, "x": [1.5, -12345678901234567890]}',
        '{"1": 1, "a": 1, "a": 2}',
        "[1e400, -1e400, NaN, Infinity, 1E5, -0, -0.0, 0.12345678901234567890123]",
        '"\\ud800 \\u0000 \\/"',
        " [ ] ",
    ],
)
def test_unusual_values_are_those_of_json(tmp_path: pathlib.Path, parser: str, line: str) -> None:
    found = sources.Jsonl(write(tmp_path / "a.jsonl", [line]))
    assert repr(found[0]) == repr(json.loads(line))
    assert found.report()["parser"] == parser


def test_long_integers_are_found() -> None:
    digits = "1234567890123456789"
    for before in range(40):
        for count in (17, 18, 19, 20):
            text = ("x" * before + digits[:count] + "0" * (count - 19) + ",1.5").encode()
            assert _core.Lines.has_long_integer(text) == (count >= 19)
    assert not _core.Lines.has_long_integer(b"")
    assert _core.Lines.has_long_integer(digits.encode())


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ('{"a": 1 "b": 2}', r"Expecting ',' delimiter, at byte 21 of the file and character 9 of the line"),
        ('{"ä": 1 "b": 2}', r"Expecting ',' delimiter, at byte 22 of the file and character 9 of the line"),
        ('{"a": 1}{"b": 2}', r"Extra data, at byte 21 of the file"),
        ("tru", r"Expecting value, at byte 13"),
        ('"\x01"', r"Invalid control character at, at byte 14"),
        ("01", r"Extra data"),
        ("[" * 200_000, r"nested too deeply|Expecting value"),
    ],
)
def test_line_that_is_no_json_is_named(tmp_path: pathlib.Path, parser: str, line: str, text: str) -> None:
    path = write(tmp_path / "a.jsonl", ['{"good": 1}', "", line, "[2]"])
    found = sources.Jsonl(path)
    with pytest.raises(ValueError, match=rf"Jsonl: line 3 of /.*a\.jsonl is (no JSON: )?.*({text})"):
        found[1]
    with pytest.warns(UserWarning, match=r"line 3 of /.*a\.jsonl"):
        batches = list(headrace.Loader(found, 3, on_bad_sample="skip", collate_fn=list, num_workers=1))
    assert batches == [[{"good": 1}, [2]]]


def test_line_that_is_no_utf8_is_named(tmp_path: pathlib.Path, parser: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a": "\xff"}\n{"a": "\xed\xa0\x80"}\n')
    found = sources.Jsonl(path)
    for index, offset in ((1, 16), (2, 27)):
        with pytest.raises(UnicodeDecodeError, match=rf"byte {offset} of the file, line {index + 1} of /.*a\.jsonl"):
            found[index]


def test_json_line_of_50_mb_is_parsed(tmp_path: pathlib.Path) -> None:
    text = "0123456789" * 5_000_000
    found = sources.Jsonl(write(tmp_path / "a.jsonl", ["{}", json.dumps({"text": text, "n": 1}), "[]"]))
    assert found[1] == {"text": text, "n": 1} and found[2] == []


def test_transform_of_samples_and_of_keys(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path / "a.jsonl", ['{"text": "one", "n": 1}', '{"text": "two", "n": 2}', '{"n": 3}'])
    assert list(sources.Jsonl(path, transform=lambda sample: sample["n"])) == [1, 2, 3]
    by_key = sources.Jsonl(path, transform={"text": str.upper})
    assert by_key[1] == {"text": "TWO", "n": 2}
    assert pickle.loads(pickle.dumps(by_key))[0] == {"text": "ONE", "n": 1}
    with pytest.raises(KeyError, match=r"a function for 'text', but line 3 of .*a\.jsonl has the keys \['n'\]"):
        by_key[2]
    for wrong in ("text", {"text": 3}, {3: str}):
        with pytest.raises(TypeError, match="transform should"):
            sources.Jsonl(path, transform=wrong)  # type: ignore[arg-type]
