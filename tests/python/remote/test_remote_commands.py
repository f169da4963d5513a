# SPDX-License-Identifier: Apache-2.0
"""headrace index and headrace cache over remote objects: indexes for an upload, what is kept, removed and filled."""

from __future__ import annotations

import json
import os
import pathlib
import pickle
import shutil
import signal
import subprocess
from typing import Any

import pytest
from headrace import _core, sources
from headrace._base import program
from hub_server import HubServer
from processes import until
from remote_runs import BIG, FILES, assert_same, fetchers_of, kill_fetchers, token_bytes, write_files
from remote_server import RemoteServer

PROGRAM = str(program.find())


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PROGRAM, *words], capture_output=True, text=True, timeout=100, stdin=subprocess.DEVNULL)


@pytest.fixture
def server() -> Any:
    with RemoteServer({**FILES, "big.bin": token_bytes(BIG)}) as found:
        yield found


def forget(folder: pathlib.Path) -> None:
    """Removes all that is kept, as on another machine."""
    _core.remote_close()
    kill_fetchers(folder)
    until(lambda: not fetchers_of(folder))
    shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(folder.parent / "cache", ignore_errors=True)


def asked_for(server: RemoteServer, ending: str) -> list[str]:
    return sorted({path.partition("?")[0].strip("/") for path, _ in server.requests if path.endswith(ending)})


# ---- index ----


def test_index_of_urls_is_for_an_upload(server: RemoteServer, tmp_path: pathlib.Path) -> None:
    write_files(tmp_path / "local")
    server.files["a%20b.jsonl"] = FILES["a.jsonl"]
    urls = [server.url("a.tar", "?X-Amz-Signature=word"), server.url("a.jsonl"), server.url("a%20b.jsonl")]
    result = run("index", *urls, "--to", str(tmp_path / "new/out"))
    assert (result.returncode, result.stdout) == (
        0,
        f"3 indexes written to {tmp_path}/new/out, of 6,060 samples; 0 failed\n",
    ), result.stderr
    assert "word" not in result.stderr
    found = {path.name: path.read_bytes() for path in (tmp_path / "new/out").iterdir()}
    assert sorted(found) == ["a b.jsonl.hri", "a.jsonl.hri", "a.tar.hri"]
    server.files.update({f"{name}.hri": found[f"{name}.hri"] for name in ("a.tar", "a.jsonl")})
    forget(tmp_path / "remote")
    before = server.sent_bytes
    tar = sources.Tar(server.url("a.tar"), fields=("bin", "cls"))
    lines = sources.Jsonl(server.url("a.jsonl"))
    assert server.sent_bytes - before < len(FILES["a.tar"]) / 2, "the index is read instead of the file"
    assert_same(tar, sources.Tar(str(tmp_path / "local/a.tar"), fields=("bin", "cls")))
    assert_same(lines, sources.Jsonl(str(tmp_path / "local/a.jsonl")))


def test_index_of_other_bytes_is_not_taken_or_an_error(server: RemoteServer, tmp_path: pathlib.Path) -> None:
    run("index", server.url("a.jsonl"), "--to", str(tmp_path))
    server.files["short.jsonl"] = FILES["a.jsonl"][:-2]
    server.files["other.jsonl"] = b"\n" * 50 + FILES["a.jsonl"][:-50]
    for name in ("short", "other"):
        server.files[f"{name}.jsonl.hri"] = (tmp_path / "a.jsonl.hri").read_bytes()
    with pytest.warns(UserWarning, match=r"saved indexes \(\.hri\) are not used"):
        assert len(sources.Lines(server.url("short.jsonl"))) == 3000
    lines = sources.Lines(server.url("other.jsonl"))
    with pytest.raises((OSError, ValueError)):
        lines[5]


def test_indexes_of_all_are_asked_for_if_the_first_has_one(server: RemoteServer, tmp_path: pathlib.Path) -> None:
    names = [f"part-{number:02}.jsonl" for number in range(12)]
    server.files.update(dict.fromkeys(names, FILES["a.jsonl"]))
    url = server.url("part-{00..11}.jsonl")
    assert len(sources.Jsonl(url)) == 36_000
    assert asked_for(server, ".hri") == ["part-00.jsonl.hri"]
    assert run("index", url, "--to", str(tmp_path / "out")).returncode == 0
    for name in names[:1] + names[5:]:
        server.files[f"{name}.hri"] = (tmp_path / "out" / f"{name}.hri").read_bytes()
    forget(tmp_path / "remote")
    server.requests.clear()
    before = server.sent_bytes
    assert len(sources.Jsonl(url)) == 36_000
    assert asked_for(server, ".hri") == [f"{name}.hri" for name in names]
    assert server.sent_bytes - before < 8 * len(FILES["a.jsonl"]), "4 files of 12 were read"


def test_damaged_objects_are_reported(server: RemoteServer, tmp_path: pathlib.Path) -> None:
    server.files["cut.tar"] = FILES["a.tar"][:100_000]
    server.files["zip.tar"] = b"\x1f\x8b" + bytes(2000)
    result = run("index", server.url("cut.tar"), server.url("zip.tar"), "--to", str(tmp_path / "out"))
    assert (result.returncode, result.stdout.partition(" samples")[2]) == (1, "; 1 failed\n")
    assert "cut.tar, offset" in result.stderr and "these are in the index" in result.stderr
    assert "zip.tar: it is compressed" in result.stderr
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["cut.tar.hri"]
    with pytest.raises(ValueError, match="it is compressed"):
        sources.Tar(server.url("zip.tar"))


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["https://host/a.tar"], 2, "give a folder for the indexes of remote objects"),
        (["a.tar", "--to", "out"], 2, "a.tar is no URL"),
        (["{url}a.tar", "{url}x/a.tar", "--to", "out"], 1, "would have the same index, a.tar.hri"),
        (["{url}none.tar", "--to", "out"], 1, "none.tar does not exist"),
        (["{url}a.tar", "--to", "out", "--storage", "none.json"], 2, "cannot read none.json"),
        (["{url}a.tar", "--to", "/proc/none"], 1, "No such file"),
    ],
)
def test_wrong_use_of_index_is_explained(
    words: list[str],
    code: int,
    text: str,
    server: RemoteServer,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    server.files["x/a.tar"] = FILES["a.tar"]
    result = run("index", *(word.replace("{url}", server.url("")) for word in words))
    assert text in result.stderr and result.returncode in (code, 2)
    assert result.stdout == ""


# ---- what is kept ----


def read_all(source: Any) -> None:
    for index in range(len(source)):
        source[index]


def rows_of(*words: str) -> list[dict[str, Any]]:
    result = run("cache", "ls", "--json", *words)
    assert result.returncode == 0, result.stderr
    return [row for row in json.loads(result.stdout) if row["state"] in ("remote", "damaged")]


def test_kept_objects_are_listed_verified_and_removed(server: RemoteServer, remote_folder: pathlib.Path) -> None:
    assert rows_of() == [] and not remote_folder.exists(), "a look makes no folder"
    url = server.url("a.bin", "?X-Amz-Signature=word")
    tokens = sources.Tokens(url, length=500, storage={})
    read_all(tokens)
    (row,) = rows_of()
    assert (row["name"], row["bytes"], row["kept_bytes"]) == (server.url("a.bin"), 600_000, 600_000)
    assert "1 remote objects, 585.9 KiB of 585.9 KiB kept" in run("cache", "ls").stdout
    info = run("cache", "info", url)
    assert "kept       585.9 KiB (100 %)" in info.stdout and "open       in a process" in info.stdout
    assert json.loads(run("cache", "info", url, "--json").stdout)["open"] is True
    checked = run("cache", "verify", url)
    assert checked.returncode == 0
    assert checked.stdout.endswith("/a.bin: 600000 of 600000 bytes are kept, no damage found\n")
    refused = run("cache", "rm", url)
    assert refused.returncode == 1 and "is in use" in refused.stderr and pathlib.Path(row["path"]).exists()
    with open(row["path"], "r+b") as file:
        file.seek(200_000)
        file.write(b"xx")
    damaged = run("cache", "verify", url)
    assert damaged.returncode == 1 and "65536 bytes from offset 196608 on differ" in damaged.stderr
    (found,) = json.loads(run("cache", "verify", url, "--json").stdout)
    assert found["ok"] is False and found["bytes"] == 600_000
    assert run("cache", "rm", "--force", url).stdout == f"removed {server.url('a.bin')}\n"
    assert rows_of() == [] and run("cache", "verify", url).returncode == 1
    again = sources.Tokens(url, length=500, storage={})
    read_all(again)  # of a new file
    assert run("cache", "verify", url).returncode == 0


def test_object_that_is_not_kept_is_an_error(server: RemoteServer) -> None:
    for command in ("info", "verify", "rm"):
        result = run("cache", command, "s3://bucket/none.tar")
        assert (result.returncode, result.stdout) == (1, "")
        assert result.stderr == "headrace: nothing is kept of s3://bucket/none.tar; headrace cache ls lists what is\n"


def test_reader_of_a_removed_object_gets_the_same_bytes(server: RemoteServer, tmp_path: pathlib.Path) -> None:
    write_files(tmp_path / "local")
    local = sources.Tar(str(tmp_path / "local/a.tar"), fields=("bin", "cls"))
    remote = sources.Tar(server.url("a.tar"), fields=("bin", "cls"))
    for seed in range(4):
        assert_same(remote, local, seed)
        assert_same(pickle.loads(pickle.dumps(remote)), local, seed)  # which opens a new file
        if seed == 1:
            kill_fetchers(tmp_path / "remote")
        assert run("cache", "rm", "--force", server.url("a.tar")).returncode == 0


def test_gc_removes_what_is_not_in_use(
    server: RemoteServer, remote_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    names = [f"objects/{number:02}.dat" for number in range(1, 6)]
    for name in names:
        read_all(sources.Objects(server.url(name)))
    _core.remote_close()
    until(lambda: not fetchers_of(tmp_path / "remote"))
    for age, row in enumerate(sorted(rows_of(), key=lambda row: row["name"])):
        os.utime(row["path"], (0, row["used"] - 1000 * (9 - age)))
    assert run("cache", "gc").stdout.endswith("deleted 0 remote objects, 0 bytes; " + _left(rows_of()) + " remain\n")
    dry = run("cache", "gc", "--older", "8500s", "--dry-run").stdout
    assert "would delete" in dry and names[0] in dry and names[1] not in dry and len(rows_of()) == 5
    assert run("cache", "gc", "--older", "8500s").returncode == 0
    assert [row["name"].rpartition("/")[2] for row in _by_name()] == ["02.dat", "03.dat", "04.dat", "05.dat"]
    limit = sum(row["disk_bytes"] for row in _by_name()[2:])
    found = json.loads(run("cache", "gc", "--remote-quota", str(limit), "--json").stdout)["remote"]
    assert [one["name"].rpartition("/")[2] for one in found["deleted"]] == ["02.dat", "03.dat"]
    assert found["bytes_left"] == limit
    opened = sources.Objects(server.url(names[4]))
    read_all(opened)
    result = run("cache", "gc", "--remote-quota", "0")
    assert result.returncode == 1 and "the other remote objects are in use" in result.stderr
    assert [row["name"].rpartition("/")[2] for row in rows_of()] == ["05.dat"]


def _by_name() -> list[dict[str, Any]]:
    return sorted(rows_of(), key=lambda row: str(row["name"]))


def _left(rows: list[dict[str, Any]]) -> str:
    return f"{sum(row['disk_bytes'] for row in rows) / 1024:.1f} KiB"


# ---- warm ----


def test_warm_fetches_each_byte_once(server: RemoteServer, tmp_path: pathlib.Path) -> None:
    urls = [server.url("{a,b}.bin"), server.url("a.tar", "?X-Amz-Signature=word")]
    result = run("cache", "warm", *urls, "--json")
    found = json.loads(result.stdout)
    total = sum(len(FILES[name]) for name in ("a.bin", "b.bin", "a.tar"))
    assert result.returncode == 0 and (found["objects"], found["bytes"]) == (3, total)
    assert total - 3 * 65536 <= found["fetched_bytes"] <= total
    sent = server.sent_bytes
    assert total <= sent < total + 3 * 70_000, "all, and the first bytes of each at most twice"
    again = run("cache", "warm", *urls)
    assert again.returncode == 0 and "; 0 bytes fetched" in again.stdout
    write_files(tmp_path / "local")
    assert_same(
        sources.Tar(server.url("a.tar"), fields=("bin", "cls")),
        sources.Tar(str(tmp_path / "local/a.tar"), fields=("bin", "cls")),
    )
    assert server.sent_bytes - sent < 5 * 70_000, "sizes only, which come with the first bytes"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_warm_that_was_stopped_continues(number: int, server: RemoteServer, tmp_path: pathlib.Path) -> None:
    server.files["huge.bin"] = token_bytes(40_000_000)
    server.latency_s = 0.3
    words = [PROGRAM, "cache", "warm", server.url("huge.bin")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        until(lambda: server.sent_bytes > 10_000_000)
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stdout) == (130, "")
    assert stderr.endswith("headrace: stopped; what was fetched is kept, run the command again to continue\n")
    until(lambda: not fetchers_of(tmp_path / "remote"))
    kept = rows_of()[0]["kept_bytes"]
    assert 0 < kept < 80_000_000
    server.latency_s = 0
    before = server.sent_bytes
    assert run(*words[1:]).returncode == 0
    assert server.sent_bytes - before <= 80_000_000 - kept + 70_000
    assert rows_of()[0]["kept_bytes"] == 80_000_000 and run("cache", "verify", words[3]).returncode == 0


def test_warm_without_room_says_so(server: RemoteServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_REMOTE_QUOTA", "1M")
    result = run("cache", "warm", server.url("big.bin"))
    assert (result.returncode, result.stdout) == (1, "")
    assert "is not kept as a whole: the disk is full, or the quota is used up" in result.stderr


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["https://host/a", "b.npy"], 2, "b.npy is no URL; give --name NAME"),
        (["{url}none.bin"], 1, "none.bin does not exist"),
        (["{url}a.bin", "--storage", "keys.json"], 1, "storage has unknown settings ['word']"),
    ],
)
def test_wrong_use_of_warm_is_explained(
    words: list[str],
    code: int,
    text: str,
    server: RemoteServer,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "keys.json").write_text('{"word": "sEcReT9"}')
    result = run("cache", "warm", *(word.replace("{url}", server.url("")) for word in words))
    assert result.returncode == code and text in result.stderr and "sEcReT9" not in result.stderr


# ---- the hub ----


def test_files_of_the_hub_are_found_without_their_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    repo, other = "datasets/owner/name", "datasets/owner/other"
    with HubServer() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        first = hub.commit(repo, {"a.bin": token_bytes(5000), "b.bin": token_bytes(6000)})
        hub.commit(other, {"a.bin": token_bytes(7000)})
        assert run("cache", "warm", f"hf://{repo}@main/{{a,b}}.bin", f"hf://{other}/a.bin").returncode == 0
        second = hub.commit(repo, {"a.bin": token_bytes(8000)})
        for pid in fetchers_of(pathlib.Path(os.environ["HEADRACE_REMOTE"])):  # it knows the commit for a minute
            os.kill(pid, signal.SIGTERM)
        assert run("cache", "warm", f"hf://{repo}/a.bin").returncode == 0
    both = [f"hf://{repo}@{commit}/a.bin" for commit in sorted((first, second))]
    for url in (f"hf://{repo}/a.bin", f"hf://{repo}@main/a.bin", f"hf://{repo}@v1/a.bin"):
        result = run("cache", "info", url)
        shown = [line.partition(": remote object")[0] for line in result.stdout.splitlines() if "remote obj" in line]
        assert (result.returncode, shown) == (0, both), result.stderr
    assert run("cache", "info", both[0]).stdout.count("remote object") == 1
    assert run("cache", "verify", f"hf://{repo}").stdout.count("no damage found") == 3
    assert "nothing is kept of hf://datasets/owner/nam;" in run("cache", "info", "hf://datasets/owner/nam").stderr
    removed = run("cache", "rm", f"hf://{repo}/a.bin")
    assert removed.stdout.splitlines() == [f"removed {url}" for url in both], removed.stderr
    left = sorted(row["name"] for row in rows_of())
    assert left[0] == f"hf://{repo}@{first}/b.bin" and left[1].endswith("/a.bin") and other in left[1]
