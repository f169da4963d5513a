# SPDX-License-Identifier: Apache-2.0
"""Frozen data on its way to other processes and into pickles."""

from __future__ import annotations

import gc
import io
import multiprocessing
import os
import pathlib
import pickle
import signal
import subprocess
import sys
from multiprocessing.reduction import ForkingPickler
from typing import Any

import frozen_types as ft
import headrace
import numpy as np
import processes
import pytest
import torch
from headrace import _core
from headrace.frozen import _pickling
from headrace.torch import DataLoader

METHODS = ["fork", "spawn", "forkserver"]
DEADLINE_S = 60


def value() -> dict[str, Any]:
    return {
        "paths": [f"/data/{i}.jpg" for i in range(2000)],
        "index": {f"k{i}": i for i in range(2000)},
        "scans": [ft.Scan(f"s{i}", np.full(100, i), {"t": torch.full((3,), float(i))}) for i in range(20)],
    }


def check(view: Any) -> str:
    assert view["paths"][1999] == "/data/1999.jpg" and view["index"]["k7"] == 7
    scan = view["scans"][3]
    assert scan.points.sum() == 300 and not scan.points.flags.writeable and scan.tags["t"].tolist() == [3.0] * 3
    return f"{len(view['paths'])} {type(scan).__name__}"


def answer(pipe: Any, *views: Any) -> None:
    try:
        pipe.send([check(view) for view in views])
    except BaseException as error:
        pipe.send(repr(error))


def answer_queue(queue: Any, pipe: Any) -> None:
    for view in iter(queue.get, None):
        pipe.send(check(view) if "paths" in view else repr(view[:3]))


def maker(pipe: Any) -> None:
    pipe.send(headrace.freeze(value()))  # this process does not keep it
    pipe.recv()
    os.kill(os.getpid(), signal.SIGKILL)


def joined(process: Any) -> None:
    process.join(DEADLINE_S)
    assert process.exitcode == 0


# ---- processes ----


@pytest.mark.parametrize("method", METHODS)
def test_a_view_goes_to_a_process_that_is_started_with_it(method: str) -> None:
    context = multiprocessing.get_context(method)
    view = headrace.freeze(value())
    ours, theirs = context.Pipe()
    process = context.Process(target=answer, args=(theirs, view, {"inside": view}["inside"], view))
    process.start()
    theirs.close()
    assert ours.recv() == ["2000 Scan"] * 3
    joined(process)
    ours.close()


@pytest.mark.parametrize("method", METHODS)
def test_views_of_a_file_go_to_a_process(method: str, tmp_path: pathlib.Path) -> None:
    context = multiprocessing.get_context(method)
    view = headrace.freeze(value(), tmp_path / "x.frozen")
    ours, theirs = context.Pipe()
    process = context.Process(target=answer, args=(theirs, view))
    process.start()
    theirs.close()
    assert ours.recv() == ["2000 Scan"]
    joined(process)
    ours.close()


@pytest.mark.parametrize("method", METHODS)
def test_views_go_through_a_queue_and_map_their_frozen_data_once(method: str) -> None:
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    ours, theirs = context.Pipe()
    process = context.Process(target=answer_queue, args=(queue, theirs))
    process.start()
    theirs.close()
    view = headrace.freeze(value())
    for item in (view, view["paths"][5:8], view["scans"][:0], view):
        queue.put(item)
    assert ours.recv() == "2000 Scan"
    assert ours.recv() == "['/data/5.jpg', '/data/6.jpg', '/data/7.jpg']"
    assert ours.recv() == "[]"
    assert ours.recv() == "2000 Scan"
    maps = pathlib.Path(f"/proc/{process.pid}/maps").read_text()
    assert maps.count("memfd:headrace") - maps.count("rw-s") <= 2, "the tensors' own mapping is the second one"
    fds = [os.readlink(entry.path) for entry in os.scandir(f"/proc/{process.pid}/fd")]
    assert sum("memfd:headrace" in fd for fd in fds) <= 2
    queue.put(None)
    joined(process)
    queue.close()
    queue.join_thread()
    ours.close()


@pytest.mark.parametrize("method", METHODS)
def test_data_outlives_the_process_that_made_it(method: str) -> None:
    context = multiprocessing.get_context(method)
    ours, theirs = context.Pipe()
    process = context.Process(target=maker, args=(theirs,))
    process.start()
    theirs.close()
    view = ours.recv()
    ours.send("die")
    process.join(DEADLINE_S)
    assert process.exitcode == -signal.SIGKILL
    assert check(view) == "2000 Scan"
    assert list(headrace.thaw(view)["index"].values()) == list(range(2000))
    ours.close()


def test_view_of_freed_data_is_reported() -> None:
    """Unpickling a view fails with the reason if the frozen data no longer exists."""
    view = headrace.freeze([1, 2, [3]])
    data, again = bytes(ForkingPickler.dumps(view)), bytes(ForkingPickler.dumps(view))
    identity = _core.where(view)[0].id
    with pytest.raises(headrace.FrozenError, match="is not the frozen data that was sent"):
        pickle.loads(again.replace(identity, bytes(16)))
    del view
    gc.collect()
    assert identity not in _pickling._opened
    assert pickle.loads(data) == [1, 2, [3]], "it is kept for the receiver"
    gc.collect()
    with pytest.raises(headrace.FrozenError, match="must live until its message has been received, once"):
        pickle.loads(data)


def test_a_handle_is_small_whatever_the_size(tmp_path: pathlib.Path) -> None:
    big = [f"/data/{i}.jpg" for i in range(100_000)]
    for view in (headrace.freeze(big), headrace.freeze(big, tmp_path / "x.frozen")):
        for sent in (view, view[10:], [view] * 10):
            assert len(ForkingPickler.dumps(sent)) < 4000


def test_a_handle_loads_to_the_same_frozen_data_here() -> None:
    view = headrace.freeze({"a": [1, 2, 3]})
    back = pickle.loads(ForkingPickler.dumps([view, view["a"], view["a"][1:]]))
    assert back == [view, [1, 2, 3], [2, 3]]
    assert all(_core.where(item)[0] is _core.where(view)[0] for item in back)


def test_an_instance_takes_its_views_along() -> None:
    scan = headrace.freeze([ft.Scan("s", [1, 2] * 1000, np.arange(3))])[0]
    data = bytes(ForkingPickler.dumps(scan))
    assert len(data) < 4000
    assert pickle.loads(data).points == [1, 2] * 1000
    assert pickle.loads(pickle.dumps(scan)).points == [1, 2] * 1000


class Frozen(torch.utils.data.Dataset[Any]):
    def __init__(self) -> None:
        self.records = headrace.freeze([{"i": i, "x": np.full(3, i), "path": f"p{i}"} for i in range(64)])

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> Any:
        record = self.records[index]
        return {"i": record["i"], "x": record["x"], "path": record["path"]}


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
@pytest.mark.parametrize("method", METHODS)
def test_loaders_send_a_dataset_with_frozen_records(method: str) -> None:
    for kind in (DataLoader, torch.utils.data.DataLoader):
        loader: Any = kind(Frozen(), 16, num_workers=2, multiprocessing_context=method)
        batches = list(loader)
        assert [batch["i"].tolist() for batch in batches] == [list(range(i, i + 16)) for i in (0, 16, 32, 48)]
        assert batches[1]["x"][2].tolist() == [18, 18, 18] and batches[0]["path"][3] == "p3"
        del loader


def test_a_forked_child_reads_what_its_parent_froze() -> None:
    view = headrace.freeze(value())
    pid = os.fork()
    if pid == 0:
        try:
            check(view)
            os._exit(0)
        except BaseException:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0


def test_reading_keeps_a_workers_memory_shared() -> None:
    view = headrace.freeze([{"id": i, "text": f"some text of {i}" * 20, "box": [i / 7] * 20} for i in range(50_000)])
    assert _core.where(view)[0].bytes > 20e6
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        gc.disable()
        list(view[:100])
        before = processes.private_bytes()
        for record in view:
            record["text"], record["box"][3], record["id"]
        os.write(write, str(processes.private_bytes() - before).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    grown = int(os.read(read, 100))
    os.close(read)
    os.close(write)
    assert grown < 1_000_000


def read_scans(scans: Any, pipe: Any) -> None:
    total = 0
    for name in scans:
        total += int(scans[name].points[0, 0]) + scans[name].tags["boxes"]["chair"][0]
    before, total = processes.private_bytes(), 0
    for _ in range(2):
        for name in scans:
            scan = scans[name]
            total += int(scan.points.sum()) + scan.count() + scan.tags["boxes"]["chair"][0]
    pipe.send((total, processes.private_bytes() - before))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_share_the_arrays_of_many_instances(method: str) -> None:
    context = multiprocessing.get_context(method)
    points = np.ones((50_000, 3), dtype="i2")
    scans = headrace.freeze(
        {f"scene{i:04d}": ft.Scan(f"s{i}", points + 0, {"boxes": {"chair": [i, 1.5]}}) for i in range(150)}
    )
    assert _core.where(scans)[0].bytes > 45e6
    pipes, started = [], []
    for _ in range(4):
        ours, theirs = context.Pipe()
        process = context.Process(target=read_scans, args=(scans, theirs))
        process.start()
        theirs.close()
        pipes.append(ours)
        started.append(process)
    for ours, process in zip(pipes, started, strict=True):
        total, grown = ours.recv()
        assert total == 2 * (150 * 150_000 + 150 * 50_000 + sum(range(150)))
        assert grown < 1_000_000
        joined(process)
        ours.close()


# ---- pickles ----


OPEN = """
import pickle, sys, headrace
view = pickle.load(open(sys.argv[1], "rb"))
print(type(view).__name__, view["paths"][1999], view["index"]["k7"], view["scans"][3].points.sum())
"""


def run_elsewhere(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([processes.HERE, os.environ.get("PYTHONPATH", "")])}
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=90, env=env)


def elsewhere(code: str, *arguments: Any) -> subprocess.CompletedProcess[str]:
    return run_elsewhere(["-c", code, *map(str, arguments)])


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_has_the_data_itself(protocol: int, tmp_path: pathlib.Path) -> None:
    (tmp_path / "x.pickle").write_bytes(pickle.dumps(headrace.freeze(value()), protocol))
    done = elsewhere(OPEN, tmp_path / "x.pickle")
    assert done.stdout == "FrozenDict /data/1999.jpg 7 300\n", done.stderr


def test_a_torch_checkpoint_holds_no_handle(tmp_path: pathlib.Path) -> None:
    torch.save({"records": headrace.freeze(value())}, tmp_path / "x.pt")
    code = "import torch, sys\nprint(len(torch.load(sys.argv[1], weights_only=False)['records']['paths']))"
    done = elsewhere(code, tmp_path / "x.pt")
    assert done.stdout == "2000\n", done.stderr


def test_a_pickle_of_a_part_has_that_part_only() -> None:
    view = headrace.freeze({"large": ["x" * 1000 for _ in range(1000)], "small": {"a": [1, 2]}, "n": [1] * 1000})
    assert len(pickle.dumps(view)) > 1_000_000
    data = pickle.dumps([view["small"], view["n"][:3]])
    assert len(data) < 4000
    assert pickle.loads(data) == [{"a": [1, 2]}, [1, 1, 1]]


MANY_PARTS = """
import multiprocessing, pickle, resource, sys, headrace, frozen_types as ft
from multiprocessing.reduction import ForkingPickler

def read(pipe):
    pipe.send([headrace.thaw(part) for part in (pipe.recv(), pipe.recv())])

if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    view = headrace.freeze([{"number": i, "box": [i, str(i)]} for i in range(500)])
    scans = headrace.freeze([ft.Scan(str(i), [i, [i]]) for i in range(500)])
    back, instances = pickle.loads(pickle.dumps([list(view), list(scans)]))
    assert back == list(view) and type(back[7]) is type(view[7])
    assert [scan.points[1] for scan in instances] == [[i] for i in range(500)]
    sent = headrace.freeze([str(i) for i in range(5000)])
    sent = pickle.loads(pickle.dumps(sent[1:]))
    assert len(ForkingPickler.dumps(sent)) < 4000
    for method in ("fork", "spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        ours, theirs = context.Pipe()
        process = context.Process(target=read, args=(theirs,))
        process.start()
        ours.send(sent)
        ours.send(back[3])
        assert ours.recv() == [[str(i) for i in range(1, 5000)], {"number": 3, "box": [3, "3"]}]
        process.join()
    print("all of them")
"""


def test_a_pickle_of_many_parts_takes_no_descriptor_for_each(tmp_path: pathlib.Path) -> None:
    script = tmp_path / "many.py"
    script.write_text(MANY_PARTS)
    done = run_elsewhere([str(script)])
    assert done.stdout == "all of them\n", done.stderr


def test_a_pickle_of_a_files_view_has_its_path_and_digest(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x.frozen"
    view = headrace.freeze(value(), path)
    data = pickle.dumps(view)
    assert len(data) < 2000
    (tmp_path / "x.pickle").write_bytes(data)
    done = elsewhere("import frozen_types\n" + OPEN, tmp_path / "x.pickle")
    assert done.stdout == "FrozenDict /data/1999.jpg 7 300\n", done.stderr
    headrace.freeze([1, 2, 3], path)
    done = elsewhere(OPEN, tmp_path / "x.pickle")
    assert "is another frozen file than this pickle refers to" in done.stderr
    path.unlink()
    done = elsewhere(OPEN, tmp_path / "x.pickle")
    assert "is missing; bring it there" in done.stderr and str(path) in done.stderr


def test_file_view_is_trusted_no_more_in_another_process(tmp_path: pathlib.Path) -> None:
    """Another process that opens the file trusts its content only if it says so."""
    path = tmp_path / "x.frozen"
    headrace.freeze(value(), path)
    code = "import headrace, sys\nv = headrace.open(sys.argv[1], trust=len(sys.argv) > 2)\nprint(v['scans'][1].name)"
    done = elsewhere(code, path)
    assert "trust=True" in done.stderr and done.returncode != 0
    assert elsewhere(code, path, "trust").stdout == "s1\n"


def test_trust_of_a_file_view_travels_with_it(tmp_path: pathlib.Path) -> None:
    """A view of a file is trusted where it arrives exactly if it was trusted where it came from."""
    path = tmp_path / "x.frozen"
    headrace.freeze([1, ft.OwnReduce(7)], path, on_unknown="pickle")
    trusted = headrace.open(path, trust=True)
    untrusted = headrace.open(path)
    assert pickle.loads(pickle.dumps(trusted))[1].value == 7
    with pytest.raises(headrace.FrozenError, match="trust=True"):
        pickle.loads(pickle.dumps(untrusted))[1]


def test_an_array_over_an_frozen_data_pickles_as_an_array() -> None:
    array = headrace.freeze({"a": np.arange(5)})["a"]
    back = pickle.loads(pickle.dumps(array))
    plain = np.arange(5)
    plain.flags.writeable = False  # protocol 5, the default since CPython 3.14, keeps that
    assert back.tolist() == [0, 1, 2, 3, 4]
    assert back.flags.writeable == pickle.loads(pickle.dumps(plain)).flags.writeable
    file = io.BytesIO()
    np.save(file, array)
    assert file.tell() > 100


def test_opening_a_large_file_takes_no_time(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x.frozen"
    headrace.freeze({"a": np.zeros(50_000_000, dtype="u1"), "b": 1}, path)
    code = """
import headrace, sys, time
from headrace import _core
best = 1.0
for _ in range(20):
    start = time.perf_counter()
    view = headrace.open(sys.argv[1])
    best = min(best, time.perf_counter() - start)
    assert view["b"] == 1
    del view
print(best < 0.001)
"""
    assert elsewhere(code, path).stdout == "True\n"


@pytest.mark.parametrize("name", [b"no\xff", *(b"a" * i + ("€" * 60 + "/").encode() * 12 for i in range(3))])
def test_path_that_is_no_utf8_or_too_long_is_in_the_message(tmp_path: pathlib.Path, name: bytes) -> None:
    path = os.path.join(os.fsencode(tmp_path), name)
    with pytest.raises(FileNotFoundError, match="cannot open"):
        headrace.open(os.fsdecode(path))
