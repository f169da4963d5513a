# SPDX-License-Identifier: Apache-2.0
"""sources.Parquet over URLs: the rows are those of local files, and only footers and columns are fetched."""

from __future__ import annotations

import io
import pathlib
import pickle
import signal
import threading
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from headrace import sources
from headrace.sources._parquet_files import ParquetFiles
from processes import Script, until
from remote_runs import kill_fetchers
from remote_server import LYING, PASSING, Faults, RemoteServer

ROWS, GROUP = 30_000, 5_000


def parquet_bytes(seed: int, rows: int = ROWS) -> bytes:
    """Returns a file with a small column and a large one, which cannot be compressed."""
    draw = np.random.default_rng(seed)
    large = pa.FixedSizeListArray.from_arrays(pa.array(draw.integers(0, 2**62, rows * 8)), 8)
    table = pa.table({"label": pa.array(draw.integers(0, 1000, rows)), "large": large, "text": ["word"] * rows})
    file = io.BytesIO()
    pq.write_table(table, file, row_group_size=GROUP)
    return file.getvalue()


FILES = {f"part-{number}.parquet": parquet_bytes(number) for number in range(2)}


@pytest.fixture
def server() -> Any:
    with RemoteServer(dict(FILES)) as found:
        yield found


def urls(server: RemoteServer) -> str:
    return server.url("part-{0..1}.parquet")


def bytes_of_columns(data: bytes, columns: list[str] | None) -> int:
    metadata = pq.ParquetFile(io.BytesIO(data)).metadata
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    chunks = [group.column(place) for group in groups for place in range(group.num_columns)]
    names = columns or ["label", "large", "text"]
    return sum(one.total_compressed_size for one in chunks if one.path_in_schema.partition(".")[0] in names)


def local(folder: pathlib.Path, **options: Any) -> Any:
    for name, data in FILES.items():
        (folder / name).write_bytes(data)
    return sources.Parquet(str(folder / "part-*.parquet"), keep="job", **options)


def assert_same_rows(one: Any, other: Any) -> None:
    assert one._table.equals(other._table) and len(one) == len(other) > 0


@pytest.mark.parametrize("columns", [None, ["label"], ["large", "label"], ["text"]])
def test_rows_are_those_of_local_files(columns: Any, server: RemoteServer, tmp_path: pathlib.Path) -> None:
    remote = sources.Parquet(urls(server), columns=columns)
    assert_same_rows(remote, local(tmp_path, columns=columns))
    footers = len(FILES) * 2 * 65536  # and the first bytes, which come with the size
    assert server.sent_bytes <= footers + sum(bytes_of_columns(data, columns) for data in FILES.values())


def test_decoded_rows_are_kept(server: RemoteServer) -> None:
    first = sources.Parquet(urls(server), columns=["label"])
    before = server.sent_bytes
    again = sources.Parquet(urls(server), columns=["label"])
    copied = pickle.loads(pickle.dumps(again))
    assert_same_rows(first, copied)
    assert server.sent_bytes == before
    assert "part-0.parquet" in repr(first) and "row 3 of" in first.where(3)


def test_another_version_is_decoded_again(server: RemoteServer, tmp_path: pathlib.Path) -> None:
    first = sources.Parquet(server.url("part-0.parquet"), columns=["label"])
    server.files["part-0.parquet"] = parquet_bytes(7, ROWS // 2)
    again = sources.Parquet(server.url("part-0.parquet") + "?new", columns=["label"])
    assert len(first) == ROWS and len(again) == ROWS // 2


@pytest.mark.parametrize("quota", ["0", "200K"])
def test_rows_are_right_without_room(
    quota: str,
    server: RemoteServer,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    recwarn: pytest.WarningsRecorder,
) -> None:
    monkeypatch.setenv("HEADRACE_REMOTE_QUOTA", quota)
    assert_same_rows(sources.Parquet(urls(server)), local(tmp_path))
    assert not [one for one in recwarn if "HEADRACE_REMOTE_QUOTA" in str(one.message)]


def test_rows_are_right_if_the_fetcher_is_killed(
    server: RemoteServer, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is killed for each group of rows, while parts of this and the next one are on their way."""
    begin, killed = ParquetFiles.begin_groups, list[int]()

    def begin_and_kill(files: ParquetFiles, path: str, group: int) -> None:
        begin(files, path, group)
        killed.extend(kill_fetchers(tmp_path / "remote"))

    monkeypatch.setattr(ParquetFiles, "begin_groups", begin_and_kill)
    assert_same_rows(sources.Parquet(urls(server)), local(tmp_path))
    assert killed


STOPPED = """
from headrace import sources

sources.Parquet({url!r}, storage={{"timeout_s": 3600, "retry_s": 3600}})
"""


def test_ctrl_c_ends_the_process_while_parts_are_fetched(
    server: RemoteServer, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server answers the first request only, so threads wait for parts when the signal comes."""
    end = threading.Event()
    monkeypatch.setattr(server, "stall", lambda: end.wait(600))
    server.faults = Faults(kinds=("stall_before",), only_parts=True)
    try:
        with Script(tmp_path, STOPPED.format(url=server.url("part-0.parquet"))) as script:
            assert until(lambda: server.faults.drawn["stall_before"], 100), "a part is asked for"
            script.process.send_signal(signal.SIGINT)
            assert script.process.wait(100) != 0
            assert server.statuses.total() == 1, "no part was answered"
    finally:
        end.set()


@pytest.mark.parametrize("kind", PASSING)
def test_passing_faults_give_right_rows(kind: str, server: RemoteServer, tmp_path: pathlib.Path) -> None:
    expected = local(tmp_path, columns=["label"])
    server.faults = Faults(seed=1, kinds=(kind,), share=0.5, most=6)
    storage = {"retry_s": 60, "timeout_s": 1}
    assert_same_rows(sources.Parquet(urls(server), columns=["label"], storage=storage), expected)
    assert server.faults.drawn[kind]


@pytest.mark.parametrize("kind", LYING)
def test_lying_servers_give_errors_and_no_other_rows(kind: str, server: RemoteServer, tmp_path: pathlib.Path) -> None:
    expected = local(tmp_path)
    server.faults = Faults(seed=2, kinds=(kind,), only_parts=True)
    try:
        found = sources.Parquet(urls(server), storage={"retry_s": 2, "timeout_s": 1})
    except OSError as error:
        assert "127.0.0.1" in str(error)
    else:
        assert_same_rows(found, expected)
    assert server.faults.drawn[kind]


def test_errors_name_the_url(server: RemoteServer, tmp_path: pathlib.Path) -> None:
    server.files["bad.parquet"] = b"PAR1" + bytes(100_000)
    with pytest.raises(ValueError, match=r"bad\.parquet is no Parquet file, or it is damaged"):
        sources.Parquet(server.url("bad.parquet"))
    with pytest.raises(FileNotFoundError, match=r"none\.parquet"):
        sources.Parquet(server.url("none.parquet"))
    with pytest.raises(ValueError, match=r"part-0\.parquet has no column \['none'\]"):
        sources.Parquet(server.url("part-0.parquet"), columns=["none"])
    with pytest.raises(ValueError, match="storage is for URLs"):
        local(tmp_path, storage={})
