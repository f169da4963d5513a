# SPDX-License-Identifier: Apache-2.0
"""Arrays and tensors whose places share memory are frozen once, and share it again when they are read."""

from __future__ import annotations

import base64
import copy
import datetime
import multiprocessing
import pathlib
import pickle
import struct
import time
import zlib
from typing import Any

import frozen_types as ft
import headrace
import numpy as np
import pytest
import torch
from headrace.frozen import nbytes
from headrace.torch import DataLoader

SLIDE = np.lib.stride_tricks.sliding_window_view
ROW = np.arange(1000, dtype="i4")
TABLE = np.arange(10_000, dtype="i4").reshape(100, 100)
RECORD = np.array([(1, 2.5), (3, 4.5)], dtype=[("a", "i4"), ("b", "f8")])
REST = 640  # bytes of frozen data around the elements

# What is frozen, and how many bytes its elements take.
SHARING: dict[str, tuple[Any, int]] = {
    "scalar": (np.broadcast_to(np.float64(3), (50, 60)), 8),
    "rows": (np.broadcast_to(ROW, (500, 1000)), 4000),
    "columns": (np.broadcast_to(ROW[:, None], (1000, 500)), 4000),
    "table": (np.broadcast_to(TABLE, (7, 100, 100)), 40_000),
    "transposed": (np.broadcast_to(TABLE.T, (7, 100, 100)), 40_000),
    "backwards": (np.broadcast_to(ROW[::-1], (500, 1000)), 4000),
    "slice of a large base": (np.broadcast_to(np.zeros(1 << 22, "u1")[:: 1 << 18], (99, 16)), 16),
    "windows": (SLIDE(ROW, 50), 4000),
    "windows backwards": (SLIDE(ROW, 50)[:, ::-1], 4000),
    "every other window, backwards": (SLIDE(ROW[::-1], 50)[::2], 4000),
    "windows over two dimensions": (SLIDE(TABLE, (3, 4)), 40_000),
    "windows over part of a table": (SLIDE(TABLE[:, 10:20], (3, 4)), 4000),
    "structures": (np.broadcast_to(RECORD, (99, 2)), 24),
    "field": (np.broadcast_to(RECORD["a"], (99, 2)), 8),
    "dates": (np.broadcast_to(np.array(["2020-01-01", "NaT"], dtype="M8[D]"), (99, 2)), 16),
    "texts": (np.broadcast_to(np.array(["one", "three"]), (99, 2)), 40),
    "expanded": (torch.arange(1000).expand(500, 1000), 8000),
    "expanded columns": (torch.arange(1000.0)[:, None].expand(1000, 500), 4000),
    "expanded bfloat16": (torch.ones(3).bfloat16()[:, None].expand(3, 99), 6),
    "expanded complex": (torch.ones(3, dtype=torch.complex64).expand(99, 3), 24),
    "unfolded": (torch.arange(1000).unfold(0, 50, 3), 7984),
    "expanded slice": (torch.zeros(1 << 20)[:: 1 << 16].expand(99, 16), 64),
}
# Each place is an element of its own: these are stored in C order.
APART: dict[str, Any] = {
    "backwards": ROW[::-1],
    "transposed": TABLE.T,
    "Fortran": np.asfortranarray(TABLE),
    "strided": TABLE[::7, ::3],
    "elements over each other": np.lib.stride_tricks.as_strided(ROW, (90, 4), (4, 1)),
    "empty": np.broadcast_to(np.zeros((0, 3)), (5, 0, 3)),
    "dimensions of one": np.broadcast_to(ROW, (1, 1, 1000)),
    "0-d": np.broadcast_to(np.float32(1), ()),
    "tensor transposed": torch.arange(12).reshape(3, 4).T,
    "tensor channels last": torch.arange(120).reshape(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "tensor of steps": torch.arange(100).unfold(0, 10, 20),
    "tensor empty": torch.zeros(0, 2).expand(5, 0, 2),
}


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


def strides_of(value: Any) -> tuple[int, ...]:
    return tuple(value.stride()) if isinstance(value, torch.Tensor) else value.strides


def address_of(value: Any) -> int:
    return value.data_ptr() if isinstance(value, torch.Tensor) else value.__array_interface__["data"][0]


def reach_of(value: Any) -> int:
    """Bytes from the first to the last that an array looks at."""
    unit = value.element_size() if isinstance(value, torch.Tensor) else 1
    item = unit if unit > 1 or isinstance(value, torch.Tensor) else value.itemsize
    return item + unit * sum((n - 1) * abs(step) for n, step in zip(value.shape, strides_of(value), strict=True))


@pytest.mark.parametrize("name", SHARING)
@pytest.mark.parametrize("into", ["memory", "file", "builder"])
def test_shared_elements_are_stored_once(name: str, into: str, tmp_path: pathlib.Path) -> None:
    value, element_bytes = SHARING[name]
    path = None if into == "memory" else tmp_path / "image"
    if into == "builder":
        with headrace.frozen.Builder(path) as builder:
            builder.append(value)
        view = builder.view
    else:
        view = headrace.freeze([value], path)
    assert nbytes(view) <= element_bytes + REST
    assert same(view[0], value)
    assert [n == 0 for n in strides_of(view[0])] == [n == 0 for n in strides_of(value)]
    assert reach_of(view[0]) == element_bytes
    if path is not None:
        assert same(headrace.open(path, verify=True)[0], value)


@pytest.mark.parametrize("name", SHARING)
def test_thawed_elements_are_shared_again(name: str) -> None:
    value, element_bytes = SHARING[name]
    view = headrace.freeze({"a": value, "b": ft.Point(1, value)})
    thawed, point = headrace.thaw(view), headrace.thaw(view["b"])
    alone = headrace.thaw(view["a"])
    for back in (thawed["a"], point.y, alone, copy.deepcopy(view)["a"]):
        assert same(back, value) and reach_of(back) == element_bytes
        assert address_of(back) != address_of(view["a"])
        assert not isinstance(back, np.ndarray) or back.flags.writeable
    assert thawed["a"] is thawed["b"].y


@pytest.mark.parametrize("name", APART)
def test_unshared_elements_are_stored_in_c_order(name: str) -> None:
    value = APART[name]
    view = headrace.freeze([value])
    assert same(view[0], value) and same(headrace.thaw(view)[0], value)
    assert nbytes(view) <= value.nbytes + REST
    back = view[0]
    assert back.is_contiguous() if isinstance(back, torch.Tensor) else back.flags.c_contiguous


def test_large_expanded_tensor_takes_its_storage_only() -> None:
    storage = torch.arange(32 * 1024, dtype=torch.float32)  # 128 KiB
    value = storage.expand(2080, -1)  # 260 MiB
    took = []
    for _ in range(5):
        begin = time.perf_counter()
        view = headrace.freeze({"mask": value, "tiles": np.broadcast_to(storage.numpy(), (2080, 32 * 1024))})
        took.append(time.perf_counter() - begin)
    assert nbytes(view) < 128 * 1024 + 2 * REST, "tensor and array are of one storage"
    assert min(took) < 0.1
    assert view["mask"].shape == value.shape and view["mask"].stride() == (0, 1)
    assert torch.equal(view["mask"][17], storage)
    assert view["tiles"].strides == (0, 4) and not view["tiles"].flags.writeable
    assert headrace.thaw(view)["mask"].untyped_storage().nbytes() == 128 * 1024


def test_endless_expansion_of_one_element_comes_back() -> None:
    value = torch.full((1,), 7.0).expand(1 << 61)  # numpy and bytes could not count it
    view = headrace.freeze([value, np.broadcast_to(np.uint8(3), (1 << 61,))])
    for back in (view, headrace.thaw(view)):
        assert back[0].shape == value.shape and back[0][1 << 60] == 7
        assert back[1].shape == (1 << 61,) and back[1][1 << 60] == 3


def test_arrays_of_one_storage_share_it_again() -> None:
    row = np.arange(5000.0)
    tensor = torch.arange(5000)
    parts = [np.broadcast_to(row, (n, 5000)) for n in range(2, 100)] + [tensor.expand(n, -1) for n in range(2, 100)]
    view = headrace.freeze(parts)
    assert nbytes(view) < 2 * 40_000 + len(parts) * 128
    for back in (view, headrace.thaw(view)):
        assert all(same(a, b) for a, b in zip(back, parts, strict=True))
        assert np.shares_memory(back[0], back[97])
        assert back[98].data_ptr() == back[-1].data_ptr()


def test_arrays_at_one_address_in_turn_are_not_confused() -> None:
    """An array that ends before the next record is appended gives its memory to the next one."""
    with headrace.frozen.Builder() as builder:
        for number in range(100):
            builder.append(np.broadcast_to(np.full(1000, number), (3, 1000)))
    assert [int(row[2, 999]) for row in builder.view] == list(range(100))


def send(view: Any, queue: Any) -> None:
    a, t = view["a"], view["t"]  # no sums: after a fork, torch's threads are missing
    queue.put((nbytes(view), strides_of(a), strides_of(t), int(a[17, 999]), int(t[17, 999])))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_strided_view_goes_to_another_process(method: str) -> None:
    context = multiprocessing.get_context(method)
    a, t = np.broadcast_to(ROW, (500, 1000)), torch.arange(1000).expand(500, -1)
    view = headrace.freeze({"a": a, "t": t})
    queue = context.Queue()
    process = context.Process(target=send, args=(view, queue))
    process.start()
    assert queue.get(timeout=60) == (nbytes(view), (0, 4), (0, 1), 999, 999)
    process.join(60)


def test_pickle_of_a_strided_view_has_its_storage_only() -> None:
    view = headrace.freeze({"rest": list(range(100)), "part": [torch.arange(1000).expand(500, -1), SLIDE(ROW, 50)]})
    for sent in (view, view["part"]):
        data = pickle.dumps(sent)
        assert len(data) < 8000 + 4000 + 2000
        back = pickle.loads(data)
        part = back["part"] if sent is view else back
        assert part[0].stride() == (0, 1) and part[1].strides == (4, 4)
        assert same(part[0], view["part"][0]) and same(part[1], view["part"][1])


class Masks(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __init__(self) -> None:
        mask = torch.arange(256.0)
        self.items = [{"mask": mask.expand(64, -1), "name": f"image number {i} " * 20} for i in range(4000)]

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return index, self.items[index]["mask"][3].sum()


def test_freeze_attributes_keeps_expanded_tensors_small() -> None:
    dataset = Masks()
    report = headrace.freeze_attributes(dataset)
    assert [one.path for one in report.frozen] == ["dataset.items"]
    assert report.frozen_bytes < 4_000_000, "256 MB, if the tensors were written out"
    assert dataset.items[3999]["mask"].stride() == (0, 1)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_loader_freezes_expanded_tensors_of_its_dataset(method: str) -> None:
    loader = DataLoader(Masks(), 2, num_workers=1, freeze=True, multiprocessing_context=method)
    expected = torch.arange(256.0).sum().item()
    assert [sums.tolist() for _, sums in loader] == [[expected] * 2] * 2
    assert loader.dataset.items[3999]["mask"].stride() == (0, 1)


def test_frozen_windows_cannot_be_written() -> None:
    view = headrace.freeze([SLIDE(ROW, 50)])
    with pytest.raises(ValueError, match="read-only"):
        view[0][0, 0] = 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        view[0].flags.writeable = True


def test_strided_tensor_of_a_file_that_is_gone_is_a_copy(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "image"
    view = headrace.freeze([torch.arange(1000).expand(500, -1)], path)
    path.unlink()
    assert view[0].stride() == (0, 1) and same(view[0], torch.arange(1000).expand(500, -1))


# ---- hostile files ----

NODE = struct.Struct("<4I2Q")  # kind, item_bytes, dimension_count, is_strided, data_at, data_bytes
HUGE = (1 << 63) - 1


def spoil(path: pathlib.Path, package: str, **changes: int) -> None:
    """A file with one strided array, of shape (500, 1000), strides (0, 1) and first element 0; some of it changed."""
    value = np.broadcast_to(ROW, (500, 1000)) if package == "numpy" else torch.from_numpy(ROW).expand(500, -1)
    headrace.freeze([value], path)
    data = bytearray(path.read_bytes())
    words = struct.pack("<2Q2qQ", 500, 1000, 0, 1, 0)
    at = data.index(words)
    names = ("kind", "item_bytes", "dimension_count", "is_strided", "data_at", "data_bytes")
    node = dict(zip(names, NODE.unpack_from(data, at - NODE.size), strict=True))
    layout = {"rows": 500, "columns": 1000, "row_stride": 0, "column_stride": 1, "first": 0}
    for name, number in changes.items():
        (node if name in node else layout)[name] = number
    NODE.pack_into(
        data, at - NODE.size, *(node[name] & (2**32 - 1 if i < 4 else 2**64 - 1) for i, name in enumerate(names))
    )
    data[at : at + len(words)] = struct.pack("<2Q2qQ", *layout.values())
    path.write_bytes(data)


@pytest.mark.parametrize("package", ["numpy", "torch"])
@pytest.mark.parametrize(
    "changes",
    [
        {"row_stride": 1},
        {"row_stride": -1},
        {"row_stride": HUGE},
        {"row_stride": -HUGE - 1},
        {"column_stride": 2},
        {"column_stride": -1},
        {"column_stride": HUGE // 999},
        {"row_stride": HUGE, "column_stride": -HUGE},
        {"first": 1},
        {"first": 2**64 - 1},
        {"rows": 0},
        {"rows": 2**64 - 1},
        {"rows": 1 << 60},  # times 1000 elements
        {"columns": 1001},
        {"columns": 1 << 62, "column_stride": 0, "rows": 4},
        {"data_bytes": 3996},
        {"data_bytes": 4001},
        {"data_bytes": 0},
        {"data_bytes": 2**64 - 4},
        {"data_at": 2**64 - 64},
        {"item_bytes": 0},
        {"item_bytes": 2},
        {"item_bytes": 2**32 - 1},
        {"is_strided": 0},
        {"is_strided": 2},
        {"dimension_count": 65},
        {"dimension_count": 2**32 - 1},
        {"kind": 0},
        {"kind": 4},
    ],
    ids=str,
)
def test_strides_that_leave_the_frozen_data_are_refused(
    changes: dict[str, int], package: str, tmp_path: pathlib.Path
) -> None:
    path = tmp_path / "image"
    spoil(path, package, **changes)
    view = headrace.open(path)
    with pytest.raises(headrace.FrozenError):
        view[0]
    with pytest.raises(headrace.FrozenError):
        headrace.thaw(view)


def test_more_bytes_than_numpy_counts_are_refused(tmp_path: pathlib.Path) -> None:
    spoil(tmp_path / "image", "numpy", rows=1 << 52)  # 2**62 elements of 4 bytes
    with pytest.raises(headrace.FrozenError):
        headrace.open(tmp_path / "image")[0]


def test_backward_strides_of_a_tensor_are_refused(tmp_path: pathlib.Path) -> None:
    spoil(tmp_path / "image", "torch", column_stride=-1, first=999)
    with pytest.raises(headrace.FrozenError, match="layout"):
        headrace.open(tmp_path / "image")[0]
    spoil(tmp_path / "image", "numpy", column_stride=-1, first=999)
    assert headrace.open(tmp_path / "image")[0][17].tolist() == ROW[::-1].tolist()


def test_every_byte_of_a_strided_array_may_be_flipped(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "image"
    windows, tensor = SLIDE(np.arange(20), 5)[:, ::-1], torch.arange(3.0).expand(4, 3)
    headrace.freeze([windows, tensor, windows[::2], tensor.expand(2, 4, 3)], path)
    data = path.read_bytes()
    for at in range(len(data)):
        for flip in (1, 0x80):
            damaged = bytearray(data)
            damaged[at] ^= flip
            path.write_bytes(damaged)
            try:
                view = headrace.open(path)
                for one in (*view, *headrace.thaw(view)):
                    if one.nbytes < 1 << 20:
                        one.sum()
            except (headrace.FrozenError, TypeError, AttributeError):
                pass  # TypeError: the root became another value


# ---- frozen data of version 2 ----

# pickle.dumps(headrace.freeze(value), 4), by the last headrace that wrote version 2; zlib, base64.
VERSION_2 = """
eNrFVmtoHFUUPrt789hsmuwr6Wqtrk1NW0vTzGyeGuzSVq0RX/EJKsu6OzGryW6YmWhjBYMUHxhE6qp/NBTxUaWILzRWMfWJIIK/BBEUwR8FHwni
H6kUz5lzbjK7iIgWvPDdb7/Ze889c+4998ycemJTBLw2n5qw8kU7X7B6HLdiWz256VLhzslS+fbqfEPurpJ1d/Xx6gTMt+UmK/lizpq6zSoWrSI+
3H28BWDf2LXXXTV2cUuQbAUA6Bm1w8IZAIO4497R+96ZHVzQz0NMsCg6ALpFvf7r60/uOPju5Qdnvo0sTkXbSzdGD3UFl774/MBE93Lqkf5x+J/b
JxMrvxVOde0slR03Xy5YDqy9xzrf+6wvz2DEbCdZKrs0psO19tOPZLFUcFEnHMv1xtlWoWIXnUgY0qSTxbxr0fi8bedn8f9CZXJmqux0OtM27hd0
0P9op9O1yk7FhnQjXETzzt0K+4g3A9xC3AvwEDFuwlfE5wF8T5wOwTJxv/jaB6CEE8Ldwhnh3cRKXqzJ61W2MQx76VcY4BL/vgbq4pWtlXNMK0t6
bFDmKkQDolHWaGbbQMeETmyrxLcN0S6nJYaIUywpbhQzRCfFFJFCnIE4E7EBcRZiI+JsxDkUB4oZYhOii+NGMYJuxBYZR+0zYSV+gPjYKmunZCzN
P5/jDgOIEcQexCjiGsRNiByCDvAUgjb/AOJ+xMOIxxBPIRYQzyOOIt5AHEN84PODjlG61+sNrze9PuP1fV7f7/UDXj/o9UNeP8yzZDLPNni6wfMN
NmCwBYNNGGzDYCMGWzHZiik+sBWTrZhsxWQrJlsx2YrJVszhpD4vDepT4JgtCB8Wflb4OeEXhI8Ivyx8VPgV4VeFXxd+U/gt4UXhY8LvCb8vfFz4
Q+GP9f5Ti/XKeZCDHjNEB0WboiUhYhnRYiDWJ7pBdL/oRtEDoptED4puFj0kOix6WLTcp3GDHVQRrdlB1ao1O6jWac0Oqjat2UHVrjU7qKJas4Mq
pjU7qOJas4MqofVwzQWA1r4k3oFxRs8iGzgFAUc9LXXjNczHQ/X3Lub2k5ivb2/HtMAVDczhzZjnNubsizsBlrdwSlLOb8c8/2GbLijYLgRYqr+f
tgbhm5p9zNfuo94/fUfpebH9wrNr94LfrtbpAPzot4/6J7991D/710H9i3++nlfvTyYIvwv/IXyKeNyu3GOVc+7stOVccHUFq85avSUTkTj8+nf+
YyE/SfzRS7Xr6+faD611ndoWgiANPdHE62wUe4mRUp+OixIfvAIg5zglWj8P/Yta/Ff1IzEyPqT/a/bZB8mX3rr1gqflq6BZytzKLvmWydaWv2QW
42H6fV6NR7g2HuofxyMg57K27xy5Yujmvbeuvv9qPW7xf2X99/e+4dLaur5+HD8T3YwZqt9vWTddt646LXGf28UxzmbrdVRe/ITcq0fkPl189Lv4
Zc+k7qjuidZ/alYfqI5VR+nD9coH8VfPn7nmGiE=
"""


def test_frozen_data_of_version_2_still_opens(tmp_path: pathlib.Path) -> None:
    data = zlib.decompress(base64.b64decode(VERSION_2))
    at = data.index(b"HRSTORE\n")
    version, total = struct.unpack_from("<I4xQ", data, at + 8)
    assert version == 2
    path = tmp_path / "image"
    path.write_bytes(data[at : at + total])
    opened = headrace.open(path, verify=True)
    for view in (opened, pickle.loads(pickle.dumps(opened))):
        assert view["numbers"] == [1, 2.5, 2**70, -1j, True, None]
        assert view["ints"] == list(range(40)) and view["texts"] == [f"text {i}" for i in range(30)]
        assert view["dict"] == {i: str(i) for i in range(20)} and view["set"] == {1, "a", (2, 3)}
        assert view["records"] == [{"x": i, "y": [i]} for i in range(4)]
        assert list(view["instances"]) == [ft.Point(i, "é") for i in range(3)]
        assert view["date"] == datetime.date(2024, 2, 29)
        assert same(view["array"], np.arange(6, dtype="i4").reshape(2, 3))
        assert same(view["columns"], np.arange(6.0).reshape(2, 3).T)
        assert same(view["spread"], np.broadcast_to(np.arange(3, dtype="i2"), (4, 3)))
        assert same(view["dates"], np.array(["2020-01-01", "NaT"], dtype="M8[D]"))
        assert same(view["tensor"], torch.arange(4.0).expand(2, 4))
        assert headrace.thaw(view)["records"][3]["y"] == [3]


@pytest.mark.parametrize("version", [0, 1, 4, 2**32 - 1])
def test_frozen_data_of_other_versions_are_refused(version: int, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "image"
    headrace.freeze([1], path)
    data = bytearray(path.read_bytes())
    struct.pack_into("<I", data, 8, version)
    path.write_bytes(data)
    with pytest.raises(headrace.FrozenError, match=f"format version {version}; this headrace reads 2 to 3"):
        headrace.open(path)
