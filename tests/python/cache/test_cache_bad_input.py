# SPDX-License-Identifier: Apache-2.0
"""Bad arguments of headrace.cache, and the messages that they give."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable
from typing import Any

import headrace
import numpy as np
import pytest
import torch
from headrace import _core

needs_failpoints = pytest.mark.skipif(not _core.FAILPOINTS, reason="needs failpoints")


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize(
    ("name", "error", "text"),
    [
        ("a/b", ValueError, "has a slash"),
        ("..", ValueError, "begins with a dot"),
        (".x", ValueError, "begins with a dot"),
        ("a\0b", ValueError, "NUL character"),
        ("a\nb", ValueError, "control character"),
        ("n" * 300, ValueError, "300 bytes"),
        ("", ValueError, "is empty"),
        (7, TypeError, "a name is a str, not int"),
    ],
)
def test_bad_names_are_refused(name: Any, error: Any, text: str) -> None:
    for use in (lambda: headrace.cache(name, lambda: 1), lambda: headrace.cache.put(name, 1)):
        with pytest.raises(error, match=text):
            use()
    assert headrace.cache.ls() == []


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"keep": "ever"}, ValueError, '"job", "boot" or "disk"'),
        ({"version": 1.5}, TypeError, "an int or a str, not float"),
        ({"size_hint": -1}, ValueError, "0 or more bytes"),
        ({"size_hint": "4Q"}, ValueError, 'a text such as "40G"'),
        ({"timeout": -1}, ValueError, "0 or more seconds"),
        ({"sources": "/does/not/exist"}, FileNotFoundError, "/does/not/exist does not exist"),
        ({"build": 5}, TypeError, "a function without arguments, not int"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        headrace.cache("name", **{"build": lambda: 1, **options})


@pytest.mark.usefixtures("root")
def test_data_that_cannot_be_shared_is_named() -> None:
    class DataFrame:
        def __reduce__(self) -> Any:
            return "x"

    DataFrame.__module__ = "pandas.core.frame"
    with pytest.raises(TypeError, match="cache its columns"):
        headrace.cache("frame", DataFrame)
    DataFrame.__module__ = "datasets.arrow_dataset"
    with pytest.raises(TypeError, match="memory-mapped already"):
        headrace.cache("frame", DataFrame)
    with pytest.raises(TypeError, match=r"obj\['lock'\]|\['f'\]"):
        headrace.cache("frame", lambda: {"f": open(os.devnull)})  # noqa: SIM115
    assert headrace.cache.ls() == []


LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "sparse_coo": lambda tensor: tensor.to_sparse(),
    "sparse_csr": lambda tensor: tensor.to_sparse_csr(),
    "sparse_csc": lambda tensor: tensor.to_sparse_csc(),
    "sparse_bsr": lambda tensor: tensor.to_sparse_bsr((2, 2)),
    "sparse_bsc": lambda tensor: tensor.to_sparse_bsc((2, 2)),
    "mkldnn": lambda tensor: tensor.to_mkldnn(),
    "nested": lambda tensor: torch.nested.nested_tensor([tensor, tensor[:1]]),
    "jagged": lambda tensor: torch.nested.nested_tensor([tensor, tensor[:1]], layout=torch.jagged),
    "without values": lambda tensor: tensor.to("meta"),
    "with a gradient": lambda tensor: tensor.clone().requires_grad_(),
    "size that raises": lambda tensor: type("Odd", (), {"nbytes": property(lambda self: 1 // 0), "__slots__": "a"})(),
}


@pytest.mark.usefixtures("root")
@pytest.mark.filterwarnings("ignore:Sparse:UserWarning", "ignore:The PyTorch API of nested:UserWarning")
@pytest.mark.parametrize("within", ["", "list", "dict", "pieces"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_tensors_of_other_layouts_are_named(name: str, within: str) -> None:
    """Each is a TypeError that says so, whatever torch raises when it is asked for its size."""
    value = LAYOUTS[name](torch.eye(4))
    wrap: dict[str, Callable[[], Any]] = {
        "": lambda: value,
        "list": lambda: [value],
        "dict": lambda: {"x": value},
        "pieces": lambda: (one for one in [value]),
    }
    with pytest.raises(TypeError, match="cannot be frozen"):
        headrace.cache("name", wrap[within], version=1)
    assert headrace.cache.ls() == []


def test_bad_roots_are_refused(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match="is not a folder"):
        headrace.cache("name", lambda: 1, root=tmp_path / "file")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(PermissionError, match="chmod go-w"):
        headrace.cache("name", lambda: 1, root=tmp_path / "open")
    with pytest.raises(FileNotFoundError, match="cannot make the folder"):
        headrace.cache("name", lambda: 1, root=tmp_path / "missing" / "deep")


@needs_failpoints
def test_network_root_is_refused(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_FAIL", "statfs_nfs:EIO")
    with pytest.raises(OSError, match="is on NFS, whose locks are not reliable"):
        headrace.cache("name", lambda: 1, root=tmp_path)


@needs_failpoints
@pytest.mark.usefixtures("root")
@pytest.mark.parametrize(
    ("plan", "text"),
    [
        ("fallocate:ENOSPC", "No space left"),
        ("write_sums:ENOSPC", "cannot write the checksums"),
    ],
)
def test_full_disk_is_an_error_and_leaves_nothing(plan: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for build in (lambda: np.zeros(1000), lambda: ["text"] * 10, lambda: (np.zeros((2, 2)) for _ in range(3))):
        monkeypatch.setenv("HEADRACE_FAIL", plan)
        with pytest.raises(OSError, match=f"{text}|No space left"):
            headrace.cache("name", build)
        monkeypatch.delenv("HEADRACE_FAIL")
        assert headrace.cache.ls() == []


@needs_failpoints
@pytest.mark.usefixtures("root")
def test_full_file_system_is_named_with_its_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_FAIL", "statfs_full:EIO")
    with pytest.raises(OSError, match=r"no room for 'name' .* free in the file system 0\.00 GiB"):
        headrace.cache("name", lambda: np.zeros(1000))


@pytest.mark.usefixtures("root")
def test_size_that_does_not_fit_is_refused_before_building(tmp_path: pathlib.Path) -> None:
    calls = []
    with pytest.raises(OSError, match="no room for 'name'"):
        headrace.cache("name", lambda: calls.append(1), size_hint="4000T")
    assert calls == []


def test_progress_outside_of_a_build_is_refused() -> None:
    with pytest.raises(RuntimeError, match="inside the function that builds"):
        headrace.cache.progress(1, 2)


@pytest.mark.usefixtures("root")
def test_bad_progress_is_refused() -> None:
    with pytest.raises(ValueError, match="0 <= done <= total"):
        headrace.cache("name", lambda: headrace.cache.progress(3, 2))


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize(("options", "error"), [({"older": "7x"}, ValueError), ({"quota": -5}, ValueError)])
def test_gc_refuses_bad_limits(options: dict[str, Any], error: Any) -> None:
    with pytest.raises(error, match=r"headrace\.cache"):
        headrace.cache.gc(**options)


def test_doctor_says_where_a_cache_would_be(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.doctor.machine import cache

    machine = _core.machine()
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    found = cache.cache(machine)
    assert found.severity in ("ok", "note") and "fit into memory" in found.value
    tmp_path.chmod(0o777)
    found = cache.cache(machine)
    assert found.severity == "warning" and "other users may write" in found.consequence
