# SPDX-License-Identifier: Apache-2.0
"""Sources over files behind https: the samples are those of the same files on the disk, each byte is fetched once, and
what a server does wrong gives right bytes or an error."""

from __future__ import annotations

import copy
import pathlib
import pickle
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from certificates import make_certificate, needs_openssl
from headrace import _core, sources
from processes import until
from remote_runs import (
    BIG,
    FILES,
    QUICK,
    SOURCES,
    as_text,
    assert_same,
    end_fetchers,
    kill_fetchers,
    token_bytes,
    write_files,
)
from remote_server import LYING, PASSING, Faults, RemoteServer


@pytest.fixture
def server() -> Any:
    with RemoteServer({**FILES, "big.bin": token_bytes(BIG)}) as found:
        yield found


def open_both(name: str, server: RemoteServer, folder: pathlib.Path, storage: Any = None) -> tuple[Any, Any]:
    write_files(folder / "local")
    make, files = SOURCES[name]
    local = make([str(folder / "local" / file) for file in files], None)
    return make([server.url(file) for file in files], storage), local


@pytest.mark.parametrize("name", SOURCES)
def test_samples_are_those_of_local_files(name: str, server: RemoteServer, tmp_path: pathlib.Path) -> None:
    remote, local = open_both(name, server, tmp_path)
    assert_same(remote, local)
    assert remote[-1] is not None
    assert server.url("")[:-1] in repr(remote) and server.url("")[:-1] in remote.where(0)
    total = sum(len(FILES[file]) for file in SOURCES[name][1])
    openings = sum(min(len(FILES[file]), 65536) for file in SOURCES[name][1])
    assert server.sent_bytes <= total + openings + 65536
    before = server.sent_bytes
    assert_same(SOURCES[name][0]([server.url(file) for file in SOURCES[name][1]], None), local, seed=1)
    assert_same(remote, local, seed=2)
    assert server.sent_bytes == before  # sizes are known for a minute, and the bytes are kept


@pytest.mark.parametrize("quota", ["0", "200K"])
@pytest.mark.parametrize("name", SOURCES)
def test_samples_are_right_without_room(
    name: str, quota: str, server: RemoteServer, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_REMOTE_QUOTA", quota)
    assert_same(*open_both(name, server, tmp_path))


@pytest.mark.parametrize(("quota", "is_named"), [("200K", True), ("0", False), ("1G", False)])
def test_objects_that_do_not_fit_are_a_warning(
    quota: str,
    is_named: bool,
    server: RemoteServer,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    recwarn: pytest.WarningsRecorder,
) -> None:
    monkeypatch.setenv("HEADRACE_REMOTE_QUOTA", quota)
    open_both("Tokens", server, tmp_path)
    found = [str(one.message) for one in recwarn if "HEADRACE_REMOTE_QUOTA" in str(one.message)]
    assert len(found) == is_named
    for text in found:
        assert f"{tmp_path}/remote/v1/remote keeps 200.0 KiB at most" in text


def test_full_disk_gives_right_samples(
    server: RemoteServer, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_FAIL", "blocks_write:ENOSPC")
    assert_same(*open_both("Tar", server, tmp_path))


# ---- faults ----


@pytest.mark.parametrize("kind", PASSING)
def test_passing_faults_are_tried_again(kind: str, server: RemoteServer, tmp_path: pathlib.Path) -> None:
    """Half of the answers are wrong."""
    server.faults = Faults(seed=3, kinds=(kind,), share=0.5, most=8)
    for name in SOURCES if kind not in ("stall", "stall_before") else ("Jsonl",):
        if kind.startswith("stall"):
            server.faults = Faults(seed=3, kinds=(kind,), share=0.5, most=2)
        assert_same(*open_both(name, server, tmp_path, {**QUICK, "retry_s": 60}))
    assert server.faults.drawn[kind] > 0


@pytest.mark.parametrize("name", SOURCES)
def test_mixed_faults_give_right_samples(name: str, server: RemoteServer, tmp_path: pathlib.Path) -> None:
    kinds = tuple(kind for kind in PASSING if not kind.startswith("stall"))
    server.faults = Faults(seed=11, kinds=kinds, share=0.4, most=40)
    assert_same(*open_both(name, server, tmp_path, {**QUICK, "retry_s": 60}))


@pytest.mark.parametrize("kind", LYING)
@pytest.mark.parametrize("name", SOURCES)
def test_lying_server_gives_an_error_or_right_samples(
    name: str, kind: str, server: RemoteServer, tmp_path: pathlib.Path
) -> None:
    """A server that gives bytes of another version, of another size or compressed."""
    server.faults = Faults(seed=5, kinds=(kind,))
    try:
        assert_same(*open_both(name, server, tmp_path, QUICK))
    except OSError as error:
        assert "127.0.0.1" in str(error)
    except ValueError as error:  # a size that cannot be
        assert kind == "other_size" and "127.0.0.1" in str(error)
    else:
        assert kind in ("no_range", "weak_etag")  # a weak ETag is a version, and small objects are read as a whole


@pytest.mark.parametrize("kind", ["other_etag", "weak_etag", "no_etag", "other_size", "gzip"])
def test_server_that_begins_to_lie_gives_an_error(kind: str, server: RemoteServer) -> None:
    remote = sources.Tokens(server.url("big.bin"), length=500, storage=QUICK)
    server.faults = Faults(seed=5, kinds=(kind,))
    with pytest.raises(OSError, match=r"was replaced|compressed"):
        remote[3000]
    server.faults = Faults()
    assert remote[3000].astype("uint16").tobytes() == server.files["big.bin"][3_000_000:3_001_000]


def test_replaced_object_is_an_error_and_opened_again_right(server: RemoteServer) -> None:
    remote = sources.Tokens(server.url("big.bin"), length=500, storage=QUICK)
    server.files["big.bin"] = token_bytes(BIG, seed=1)
    with pytest.raises(OSError, match="was replaced since it was opened") as caught:
        remote[3000]
    assert caught.value.errno == 116
    again = sources.Tokens(server.url("big.bin"), length=500, storage=QUICK)
    assert again[3000].astype("uint16").tobytes() == server.files["big.bin"][3_000_000:3_001_000]


def test_replaced_object_is_noticed_without_if_match(server: RemoteServer) -> None:
    server.ignores_if_match = True
    remote = sources.Tokens(server.url("big.bin"), length=500, storage=QUICK)
    server.files["big.bin"] = token_bytes(BIG, seed=1)
    with pytest.raises(OSError, match="was replaced since it was opened"):
        remote[3000]


@pytest.mark.parametrize("refuses", [False, True])
def test_empty_object_has_a_version(server: RemoteServer, refuses: bool) -> None:
    """Some servers refuse the first part of it without an ETag."""
    server.refuses_without_etag = refuses
    server.files["empty"] = b""
    objects = sources.Objects(server.url("{empty,a.bin}"), storage=QUICK)
    assert [bytes(objects[index]) for index in range(2)] == [b"", server.files["a.bin"]]


def test_absent_and_refused_objects_are_errors_at_once(server: RemoteServer) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.bin does not exist \(status 404\).*remote-absent"):
        sources.Tokens(server.url("none.bin"), length=5)
    server.refused.add("a.bin")
    with pytest.raises(PermissionError, match=r"status 403.*no credentials.*remote-refused"):
        sources.Tokens(server.url("a.bin"), length=5)


def test_errors_that_last_end_after_retry_s(server: RemoteServer) -> None:
    server.faults = Faults(kinds=("503",))
    with pytest.raises(TimeoutError, match=r"tries; the last one: status 503"):
        sources.Tokens(server.url("a.bin"), length=5, storage={"retry_s": 1})


def test_redirects_are_followed_without_credentials(server: RemoteServer, tmp_path: pathlib.Path) -> None:
    server.redirects["moved.bin"] = server.url("a.bin", host="localhost")
    storage = {"headers": {"Authorization": "Bearer word"}}
    remote = sources.Tokens(server.url("moved.bin"), length=500, storage=storage)
    assert remote[0].astype("uint16").tobytes() == FILES["a.bin"][:1000]
    sent = {path: headers.get("Authorization") for path, headers in server.requests if ".idx" not in path}
    assert sent == {"/moved.bin": "Bearer word", "/a.bin": None}
    server.redirects["moved.bin"] = "ftp://host/x"
    with pytest.raises(OSError, match="redirects to no address of http"):
        sources.Tokens(server.url("moved.bin", "?again=1"), length=500)


def test_certificates_names_and_plain_http_are_checked(server: RemoteServer) -> None:
    with pytest.raises(OSError, match="is not encrypted"):
        sources.Tokens("http://host.invalid/a.bin", length=5)
    with pytest.raises(TimeoutError, match="the name of the host is not known"):
        sources.Tokens("https://host.invalid/a.bin", length=5, storage={"retry_s": 0.2})
    with pytest.raises(OSError, match="does not speak https at this port"):
        sources.Tokens(server.url("a.bin").replace("http:", "https:"), length=5)
    for url in ("ftp://host/a.bin", "HTTPS://host/a.bin"):
        with pytest.raises(ValueError, match="a URL begins with https://"):
            sources.Tokens(url, length=5)


@needs_openssl
def test_https_checks_the_certificate(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, trusted = make_certificate(tmp_path)
    with RemoteServer(dict(FILES), str(certificate)) as server:
        with pytest.raises(PermissionError, match=r"the certificate of localhost:.* is not valid: self.signed"):
            sources.Tokens(server.url("a.bin", host="localhost"), length=500)
        monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
        remote = sources.Tokens(server.url("a.bin", host="localhost"), length=500)
        assert remote[500].astype("uint16").tobytes() == FILES["a.bin"][500_000:501_000]
        with pytest.raises(PermissionError, match="is not valid: IP address mismatch"):
            sources.Tokens(server.url("a.bin"), length=500)  # another name than that of it


# ---- secrets ----

SECRET = "sEcReT9"


def test_secrets_are_in_no_file_message_repr_or_pickle(
    server: RemoteServer, tmp_path: pathlib.Path, remote_folder: pathlib.Path
) -> None:
    url = server.url("big.bin", f"?X-Amz-Signature={SECRET}&id=1", user=f"user:{SECRET}@")
    storage = {**QUICK, "headers": {"X-Key": SECRET}}
    remote = sources.Tokens(url, length=500, storage=storage)
    remote[5]
    texts = [repr(remote), remote.where(5), str(remote.report()), str(vars(remote))]
    server.refused.add("*")
    with pytest.raises(PermissionError) as caught:
        remote[3000]
    texts.append(str(caught.value))
    server.refused.clear()
    server.files["big.bin"] = token_bytes(BIG, seed=1)
    with pytest.raises(OSError) as stale:
        remote[3000]
    texts.append(str(stale.value))
    for bad in (f"https://host/a b?{SECRET}", f"https:///x?{SECRET}", f"http://host.invalid/x?key={SECRET}"):
        with pytest.raises((OSError, ValueError)) as refused:
            sources.Tokens(bad, length=5, storage={**storage, "retry_s": 0})
        texts.append(str(refused.value))
    assert SECRET not in "".join(texts) and SECRET.encode() not in pickle.dumps(remote)
    for path in [*remote_folder.rglob("*"), *tmp_path.rglob("*")]:
        assert SECRET not in path.name
        if path.is_file():
            assert SECRET.encode() not in path.read_bytes(), path
    assert any(dict(headers).get("X-Key") == SECRET for _, headers in server.requests)
    assert any("Basic" in dict(headers).get("Authorization", "") for _, headers in server.requests)


def test_query_that_counts_makes_another_object(server: RemoteServer) -> None:
    one = sources.Tokens(server.url("a.bin", "?id=1"), length=500)
    other = sources.Tokens(server.url("a.bin", "?id=2"), length=500)
    signed = sources.Tokens(server.url("a.bin", "?id=1&X-Amz-Signature=9"), length=500)
    assert one.where(0) != other.where(0) and one.where(0) == signed.where(0)


def test_pickle_and_copy_know_the_object(server: RemoteServer) -> None:
    remote = sources.Tokens(server.url("big.bin"), length=500)
    for other in (pickle.loads(pickle.dumps(remote)), copy.deepcopy(remote)):
        assert (other[7] == remote[7]).all()
    server.files["big.bin"] = token_bytes(BIG, seed=1)
    other = pickle.loads(pickle.dumps(remote))
    with pytest.raises(OSError, match="replaced"):
        other[3000]


# ---- arguments ----


@pytest.mark.parametrize(
    ("storage", "error"),
    [
        ({"word": 1}, "unknown settings"),
        ({"version": "md5"}, "should be"),
        ({"retry_s": -1}, "number of seconds"),
        ({"headers": {"a": 1}}, "dict of texts"),
        ({"headers": {"a": "b\r\nc"}}, "line feed"),
        ([1], "should be a dict"),
        ({"region": 3}, "should be a str"),
    ],
)
def test_wrong_settings_are_refused(storage: Any, error: str) -> None:
    with pytest.raises((TypeError, ValueError), match=error):
        sources.Tokens("https://host/a.bin", length=5, storage=storage)


def test_storage_without_urls_and_patterns_of_https_are_refused(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"1234")
    with pytest.raises(ValueError, match="storage is for URLs"):
        sources.Tokens(str(tmp_path / "a.bin"), length=1, storage={})
    with pytest.raises(ValueError, match="https cannot list files"):
        sources.Tokens("https://host/a-*.bin", length=1)


def test_megatrons_index_and_saved_indexes_are_found(server: RemoteServer, tmp_path: pathlib.Path) -> None:
    from token_files import write_megatron

    write_megatron(tmp_path / "m", [[[1, 2, 3], [4, 5]], [[6]]])
    for name in ("m.bin", "m.idx"):
        server.files[name] = (tmp_path / name).read_bytes()
    assert_same(sources.Tokens(server.url("m.bin")), sources.Tokens(str(tmp_path / "m.bin")))

    (tmp_path / "a.tar").write_bytes(FILES["a.tar"])
    sources._index.save_index(_core.INDEX_TAR, str(tmp_path / "a.tar"))  # type: ignore[attr-defined]
    server.files["big.tar"] = FILES["a.tar"]
    server.files["big.tar.hri"] = (tmp_path / "a.tar.hri").read_bytes()
    before = server.sent_bytes
    remote = sources.Tar(server.url("big.tar"), fields=("bin", "cls"))
    assert server.sent_bytes - before < len(FILES["a.tar"]) / 2  # the index was read instead of the file
    assert_same(remote, sources.Tar(str(tmp_path / "a.tar"), fields=("bin", "cls")))


class Meeting(dict[str, bytes]):
    """Files of a server, of which some are given when all of them are asked for at the same time, the first time."""

    def __init__(self, files: dict[str, bytes], names: set[str]) -> None:
        super().__init__(files)
        self.left = names
        self._barrier = threading.Barrier(len(names))

    def get(self, name: str, otherwise: Any = None) -> Any:
        if name in self.left:
            self._barrier.wait(60)
            self.left.discard(name)
        return super().get(name, otherwise)


@pytest.mark.parametrize("absent", [None, "x2.tar.hri"])
def test_saved_indexes_are_looked_for_at_once(absent: str | None, server: RemoteServer, tmp_path: pathlib.Path) -> None:
    """If one of them does not exist, its file is read."""
    (tmp_path / "a.tar").write_bytes(FILES["a.tar"])
    sources._index.save_index(_core.INDEX_TAR, str(tmp_path / "a.tar"))  # type: ignore[attr-defined]
    names = [f"x{number}.tar" for number in range(4)]
    files = dict.fromkeys(names, FILES["a.tar"])
    files |= {f"{name}.hri": (tmp_path / "a.tar.hri").read_bytes() for name in names if f"{name}.hri" != absent}
    server.files = meeting = Meeting(files, {f"{name}.hri" for name in names[1:]})
    before = server.sent_bytes
    remote = sources.Tar([server.url(name) for name in names], fields=("bin", "cls"))
    assert not meeting.left and len(remote) == 4 * 60
    read = (server.sent_bytes - before) / len(FILES["a.tar"])
    assert read < 1 if absent is None else 1 <= read < 2
    assert as_text(remote[130]) == as_text(sources.Tar(str(tmp_path / "a.tar"), fields=("bin", "cls"))[10])


def test_fetcher_of_the_environment_is_used(
    server: RemoteServer, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_FETCHER", f"{sys.executable} -m headrace._remote")
    assert (sources.Tokens(server.url("a.bin"), length=500)[3] >= 0).all()
    kill_fetchers(tmp_path / "remote")
    _core.remote_close()
    monkeypatch.setenv("HEADRACE_FETCHER", "/bin/false")
    with pytest.raises(OSError, match=r"the fetcher ended when it was started \(exit code 1\).*remote-fetcher"):
        sources.Tokens(server.url("b.bin"), length=500)
    monkeypatch.setenv("HEADRACE_FETCHER", "/no/such/program")
    with pytest.raises(OSError, match="cannot start the fetcher, /no/such/program"):
        sources.Tokens(server.url("b.bin"), length=500)


@pytest.mark.parametrize("quota", ["word", "-1", "9" * 30])
def test_wrong_quota_is_an_error(quota: str, server: RemoteServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_REMOTE_QUOTA", quota)
    with pytest.raises(OSError, match=r"HEADRACE_REMOTE_QUOTA is .*; give"):
        sources.Tokens(server.url("a.bin"), length=500)


def test_folder_of_300_characters_is_used(
    server: RemoteServer, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "remote" / ("x" * 150) / ("y" * 150)
    monkeypatch.setenv("HEADRACE_REMOTE", str(folder))
    assert (sources.Tokens(server.url("a.bin"), length=500)[500] >= 0).all()
    _core.remote_close()
    end_fetchers(folder)


def test_folder_on_nfs_is_refused(server: RemoteServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_FAIL", "statfs_nfs:EIO")
    with pytest.raises(OSError, match=r"is on NFS.*remote-folder"):
        sources.Tokens(server.url("a.bin"), length=500)


def test_killed_fetchers_are_replaced(server: RemoteServer, tmp_path: pathlib.Path) -> None:
    remote = sources.Tokens(server.url("big.bin"), length=500)
    killed = 0
    for index in range(100, len(remote), 400):
        wanted = server.files["big.bin"][1000 * index : 1000 * index + 1000]
        assert remote[index].astype("uint16").tobytes() == wanted
        killed += len(kill_fetchers(tmp_path / "remote"))
    assert killed > 3


def test_host_that_does_not_answer_holds_up_no_other(server: RemoteServer, tmp_path: pathlib.Path) -> None:
    """All threads of the fetcher wait before another try to one host: half for readers, and half for what was asked
    for."""
    contents = {f"{number}.dat": bytes(300_000) for number in range(150)}
    with RemoteServer(contents) as dead:
        waiting = sources.Objects([dead.url(name) for name in contents], storage={"retry_s": 300})
        dead.faults = Faults(seed=1, kinds=("503",))
        waiting.prepare(list(range(50, 150)))
        readers = [threading.Thread(target=lambda at=at: waiting[at], daemon=True) for at in range(40)]
        for one in readers:
            one.start()
        assert until(lambda: dead.faults.drawn["503"] >= 64, 60)
        remote, local = open_both("Tokens", server, tmp_path)
        assert as_text(remote[len(local) - 1]) == as_text(local[len(local) - 1])
        assert all(one.is_alive() for one in readers)
        dead.faults = Faults()
        for one in readers:
            one.join(60)
        assert not any(one.is_alive() for one in readers)


def test_host_that_stalls_holds_back_no_other(server: RemoteServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seventy readers wait for a host that accepts connections and sends nothing: more than it gets threads. Nothing is
    kept, so each of them has a request of its own."""
    monkeypatch.setenv("HEADRACE_REMOTE_QUOTA", "0")
    unit = 65536
    data = token_bytes(71 * unit // 2, seed=7)
    with RemoteServer({"stalls.bin": data}) as stalling:
        waited = sources.Tokens(stalling.url("stalls.bin"), length=unit // 2, storage={"timeout_s": 300})
        other = sources.Tokens(server.url("a.bin"), length=500)
        stalling.latency_s = 1000
        before = len(stalling.requests)
        with ThreadPoolExecutor(70) as pool:
            reads = [pool.submit(waited.__getitem__, index) for index in range(1, 71)]
            assert until(lambda: len(stalling.requests) - before >= 64, 60)
            assert other[299].astype(np.uint16).tobytes() == FILES["a.bin"][299_000:300_000]
            assert len(sources.Tokens(server.url("b.bin"), length=500)) == 600
            assert len(stalling.requests) - before == 64 and not any(read.done() for read in reads)
            stalling.release()
            found = [read.result().astype(np.uint16).tobytes() for read in reads]
        assert b"".join(found) == data[unit:]


def test_reader_that_comes_late_has_its_own_time(server: RemoteServer) -> None:
    """Two read the same unit, and the second one when the first one was tried several times already."""
    remote = sources.Tokens(server.url("big.bin"), length=500, storage={"retry_s": 4})
    server.faults = Faults(kinds=("503",))
    before = len(server.requests)

    def read() -> float:
        begin = time.monotonic()
        with pytest.raises(TimeoutError, match=r"could not be read in \d+ s and \d+ tries; the last one: status 503"):
            remote[3000]
        return time.monotonic() - begin

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(read)
        assert until(lambda: len(server.requests) - before >= 5)
        second = pool.submit(read)
        assert first.result() >= 4 and second.result() >= 4
