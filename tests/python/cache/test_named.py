# SPDX-License-Identifier: Apache-2.0
"""headrace.cache in one process: what it returns, what makes it build again, and how objects are removed."""

from __future__ import annotations

import collections
import os
import pathlib
import warnings
from typing import Any

import headrace
import numpy as np
import pytest

pytestmark = pytest.mark.usefixtures("root")

COUNT = 3


def build_rows() -> Any:
    return np.arange(COUNT * 4, dtype="f4").reshape(COUNT, 4)


# ---- what it returns ----


@pytest.mark.parametrize(
    "value",
    [
        np.arange(24).reshape(2, 3, 4),
        np.asfortranarray(np.arange(24.0).reshape(4, 6)),
        np.arange(5, dtype=">i4"),
        np.array(3.5),
        np.empty((0, 7), "u1"),
        np.arange(20)[::-2],
        np.array(["a", "longer"]),
        np.array(["2020-01-01"], "M8[D]"),
        np.array([(1, 2.0)], [("a", "i4"), ("b", "f8")]),
        np.array([True, False]),
    ],
    ids=["c", "fortran", "big-endian", "0-d", "empty", "negative-stride", "text", "date", "record", "bool"],
)
def test_arrays_come_back_read_only(value: Any) -> None:
    found = headrace.cache("array", lambda: value)
    assert type(found) is np.ndarray
    assert found.dtype == value.dtype and found.shape == value.shape
    np.testing.assert_array_equal(found, value)
    assert not found.flags.writeable
    with pytest.raises(ValueError):
        found.flags.writeable = True


def test_nested_data_comes_back_as_a_view() -> None:
    value = {"names": ["a", "b"], "x": build_rows(), "more": ({"k": None}, 1.5)}
    found = headrace.cache("nested", lambda: value)
    assert found["names"] == ["a", "b"] and found["more"] == ({"k": None}, 1.5)
    np.testing.assert_array_equal(found["x"], value["x"])
    assert not found["x"].flags.writeable


def test_tensors_are_tensors_and_writes_stay_private() -> None:
    import torch

    found = headrace.cache("tensors", lambda: {"t": torch.arange(1000)})
    found["t"][0] = 7
    assert found["t"][0] == 7
    assert headrace.cache("tensors")["t"][1] == 1
    headrace.cache.verify("tensors")


def test_view_as_tensor_shares_memory_and_writes_stay_private() -> None:
    import torch

    array = headrace.cache("rows", build_rows)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tensor = headrace.cache.view_as_tensor(array[1:])
    assert tensor.data_ptr() == array[1:].__array_interface__["data"][0]
    tensor += 1  # copy on write: neither a crash nor a change of the data
    assert torch.equal(tensor, torch.from_numpy(build_rows()[1:]) + 1)
    headrace.cache.verify("rows")
    with pytest.raises(TypeError, match=r"array of headrace\.cache"):
        headrace.cache.view_as_tensor(build_rows())


def test_pieces_of_a_generator_become_one_array() -> None:
    def pieces() -> Any:
        for number in range(3):
            yield np.full((number + 1, 2), number, "i2")

    found = headrace.cache("pieces", pieces)
    np.testing.assert_array_equal(found, np.concatenate(list(pieces())))
    assert found.dtype == "i2"


def test_records_of_a_generator_become_a_list() -> None:
    found = headrace.cache("records", lambda: ({"number": number} for number in range(4)))
    assert list(found) == [{"number": number} for number in range(4)]


def test_pieces_that_do_not_fit_each_other_are_an_error() -> None:
    def pieces() -> Any:
        yield np.zeros((2, 3))
        yield np.zeros((2, 4))

    with pytest.raises(TypeError, match=r"shape \(2, 4\).*same dtype and row shape"):
        headrace.cache("pieces", pieces)


# ---- when it is built ----


def test_second_call_does_not_build(tmp_path: pathlib.Path) -> None:
    def build() -> Any:
        (tmp_path / "calls").open("a").write("x")
        return build_rows()

    first, second = headrace.cache("rows", build), headrace.cache("rows", build)
    assert (tmp_path / "calls").read_text() == "x"
    assert first.__array_interface__["data"] == second.__array_interface__["data"]
    assert headrace.cache("rows") is not None


def test_versions_are_other_objects() -> None:
    one = headrace.cache("rows", lambda: np.zeros(2), version=1)
    two = headrace.cache("rows", lambda: np.ones(2), version="2b")
    assert one[0] == 0 and two[0] == 1
    with pytest.raises(KeyError, match="'rows' is there in version 1, 2b, not 0"):
        headrace.cache("rows")


def test_missing_name_lists_near_names() -> None:
    headrace.cache.put("scannet-features", 1)
    with pytest.raises(KeyError, match="similar names: scannet-features"):
        headrace.cache("scanet-features")


def test_changed_source_builds_again_and_is_named(tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "train.txt"
    source.write_text("one")
    old = headrace.cache("text", lambda: np.frombuffer(source.read_bytes(), "u1"), sources=source)
    source.write_text("other")
    new = headrace.cache("text", lambda: np.frombuffer(source.read_bytes(), "u1"), sources=[tmp_path])
    assert bytes(old) == b"one" and bytes(new) == b"other"
    assert f"it is built again, because the source {source} has changed" in capfd.readouterr().err
    assert [entry.state for entry in headrace.cache.ls()] == ["ready", "removed"]
    del old
    assert [entry.state for entry in headrace.cache.ls()] == ["ready"]


def test_changed_function_builds_again(capfd: pytest.CaptureFixture[str]) -> None:
    def make(number: int) -> Any:
        return lambda: np.full(2, number)

    assert headrace.cache("n", make(1))[0] == 1
    assert headrace.cache("n", make(1))[0] == 1
    assert headrace.cache("n", make(2))[0] == 2
    assert "number has changed" in capfd.readouterr().err


def test_put_replaces_and_returns() -> None:
    assert headrace.cache.put("one", {"a": 1}) == {"a": 1}
    assert headrace.cache.put("one", {"a": 2}) == {"a": 2}
    assert headrace.cache("one") == {"a": 2}


def test_add_copies_files_once(tmp_path: pathlib.Path) -> None:
    np.save(tmp_path / "a.npy", build_rows())
    (tmp_path / "raw.bin").write_bytes(b"bytes" * 1000)
    np.testing.assert_array_equal(headrace.cache.add("a", tmp_path / "a.npy"), build_rows())
    raw = headrace.cache.add("raw", tmp_path / "raw.bin")
    assert bytes(raw) == b"bytes" * 1000 and raw.readonly
    identity = headrace.cache.info("raw").id
    headrace.cache.add("raw", tmp_path / "raw.bin")
    assert headrace.cache.info("raw").id == identity
    (tmp_path / "raw.bin").write_bytes(b"other")
    assert bytes(headrace.cache.add("raw", tmp_path / "raw.bin")) == b"other"
    with pytest.raises(FileNotFoundError, match=r"missing\.bin does not exist"):
        headrace.cache.add("m", tmp_path / "missing.bin")


# ---- the decorator ----


def test_function_caches_each_argument(tmp_path: pathlib.Path) -> None:
    @headrace.cache.function("powers")
    def powers(count: int, exponent: Any = 2) -> Any:
        """Returns powers."""
        (tmp_path / "calls").open("a").write("x")
        return np.arange(count) ** exponent

    for _ in range(2):
        assert powers(4).tolist() == powers(count=4).tolist() == [0, 1, 4, 9]
        assert powers(4, 3)[3] == 27
        assert powers(3, np.array([1, 2, 3])).tolist() == [0, 1, 8]
    assert (tmp_path / "calls").read_text() == "xxx"
    assert powers.__doc__ == "Returns powers."
    assert "powers(count=4, exponent=2)" in {entry.name for entry in headrace.cache.ls()}


def test_bare_decorators_name_the_right_one() -> None:
    with pytest.raises(TypeError, match=r"@headrace\.cache\.function"):
        headrace.cache(build_rows)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"@headrace\.cache\.function\(\"features\"\)"):
        headrace.cache.function(build_rows)  # type: ignore[arg-type]


def test_function_refuses_arguments_without_pickle() -> None:
    @headrace.cache.function("f")
    def load(file: Any) -> Any:
        return 1

    with open(os.devnull) as file, pytest.raises(TypeError, match="are part of its name"):
        load(file)


# ---- what is there, and its end ----


def test_ls_and_info_describe_objects() -> None:
    array = headrace.cache("rows", build_rows)
    (entry,) = headrace.cache.ls()
    assert (entry.name, entry.version, entry.state, entry.bytes, entry.keep) == ("rows", "0", "ready", 48, "boot")
    info = headrace.cache.info("rows")
    assert [claim.pid for claim in info.claims] == [os.getpid()]
    assert "build_rows" in info.stamp and "fit into memory" in info.place
    assert len(array) == COUNT
    with pytest.raises(KeyError, match="there is no 'cols'"):
        headrace.cache.info("cols")


def test_rm_refuses_what_is_in_use() -> None:
    array = headrace.cache("rows", build_rows)
    with pytest.raises(headrace.CacheError, match="processes have 'rows'"):
        headrace.cache.rm("rows")
    headrace.cache.rm("rows", force=True)
    np.testing.assert_array_equal(array, build_rows())
    with pytest.raises(KeyError):
        headrace.cache("rows")
    del array
    assert headrace.cache.ls() == []
    with pytest.raises(KeyError):
        headrace.cache.rm("rows")


def test_gc_keeps_what_is_in_use() -> None:
    kept = headrace.cache("kept", build_rows)
    headrace.cache("dropped", build_rows)
    result = headrace.cache.gc(quota="10")
    assert (result.objects, result.bytes, result.bytes_left) == (1, 48, 48)
    assert [entry.name for entry in headrace.cache.ls()] == ["kept"]
    assert len(kept) == COUNT


def test_damage_is_found_and_built_again(capfd: pytest.CaptureFixture[str]) -> None:
    headrace.cache("rows", build_rows)
    path = pathlib.Path(headrace.cache.info("rows").path)
    data = bytearray(path.read_bytes())
    data[5] ^= 1
    path.write_bytes(data)
    with pytest.raises(headrace.CacheError, match="'rows' is damaged: bytes 0 to 48"):
        headrace.cache.verify("rows")
    path.write_bytes(data[:20])
    with pytest.raises(headrace.CacheError, match="it was truncated"):
        headrace.cache("rows")
    np.testing.assert_array_equal(headrace.cache("rows", build_rows), build_rows())
    assert "it is built again, because it is damaged" in capfd.readouterr().err


def test_disabled_cache_builds_in_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_DISABLE", "1")
    with pytest.warns(UserWarning, match="HEADRACE_DISABLE is set") as caught:
        for _ in range(2):
            np.testing.assert_array_equal(headrace.cache("rows", build_rows), build_rows())
            assert headrace.cache("nested", lambda: {"a": [1]}) == {"a": [1]}
    assert len(caught) == 1
    with pytest.raises(KeyError, match="HEADRACE_DISABLE"):
        headrace.cache("rows")
    monkeypatch.delenv("HEADRACE_DISABLE")
    assert headrace.cache.ls() == []


def test_disk_root_holds_the_data(tmp_path: pathlib.Path) -> None:
    array = headrace.cache("rows", build_rows, root=tmp_path, keep="disk")
    np.testing.assert_array_equal(array, build_rows())
    assert headrace.cache.info("rows", root=tmp_path).path.startswith(str(tmp_path))
    assert headrace.cache.ls() == []


def test_default_root_falls_back_and_disk_is_apart(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a root, names are in a temporary folder if /dev/shm cannot be used, and keep="disk" uses another one."""
    from headrace import _core

    if not _core.FAILPOINTS:
        pytest.skip("needs failpoints")
    monkeypatch.delenv("HEADRACE_CACHE")
    monkeypatch.setenv("HEADRACE_FAIL", "dev_shm:EACCES")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    (tmp_path / "tmp").mkdir()
    cache = _core.Cache(None)
    assert cache.root.startswith(str(tmp_path / "tmp"))
    monkeypatch.setattr("headrace._cache.opening._open", collections.defaultdict(lambda: cache))
    headrace.cache("rows", build_rows, keep="disk")
    assert headrace.cache.info("rows").path.startswith(str(tmp_path / "home" / "headrace"))
    assert headrace.cache("rows").shape == (COUNT, 4)
    headrace.cache.rm("rows")


def test_looking_makes_no_cache(tmp_path: pathlib.Path) -> None:
    root = tmp_path / "none"
    assert headrace.cache.ls(root=root) == []
    assert headrace.cache.gc(root=root).objects == 0
    for look in (headrace.cache.info, headrace.cache.verify, headrace.cache.rm):
        with pytest.raises(KeyError, match="the cache is empty"):
            look("rows", root=root)
    assert not root.exists()
