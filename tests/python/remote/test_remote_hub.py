# SPDX-License-Identifier: Apache-2.0
"""Files of the Hugging Face hub, by a server that answers as it does: commits, trees, signed URLs that expire, and
tokens."""

from __future__ import annotations

import os
import pathlib
import pickle
import threading
from typing import Any

import headrace
import pytest
from headrace import _core, sources
from headrace._remote import addresses
from headrace._remote import hub as hub_reader
from hub_server import HubServer
from remote_runs import BIG, FILES, QUICK, SOURCES, assert_same, kill_fetchers, token_bytes, write_files
from remote_server import Faults

REPO = "datasets/owner/name"
TOKEN = "hf_sEcReT9"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Any:
    with HubServer() as found:
        monkeypatch.setenv("HF_ENDPOINT", found.endpoint)
        yield found


def restart_fetcher(folder: pathlib.Path) -> None:
    """Ends the fetcher, which knows commits for a minute."""
    kill_fetchers(folder / "remote")
    _core.remote_close()


def lines_of(count: int, word: str = "line") -> bytes:
    return b"".join(b"%s %d\n" % (word.encode(), number) for number in range(count))


@pytest.mark.parametrize("name", SOURCES)
def test_samples_are_those_of_local_files(name: str, hub: HubServer, tmp_path: pathlib.Path) -> None:
    hub.commit(REPO, {f"data/{file}": data for file, data in FILES.items()})
    write_files(tmp_path / "local")
    make, files = SOURCES[name]
    remote = make([f"hf://{REPO}/data/{file}" for file in files], None)
    local = make([str(tmp_path / "local" / file) for file in files], None)
    assert_same(remote, local)
    kill_fetchers(tmp_path / "remote")
    assert_same(remote, local, seed=1)
    assert_same(pickle.loads(pickle.dumps(remote)), local, seed=2)
    assert hub.leaks == 0


def test_patterns_braces_and_folders_find_files(hub: HubServer) -> None:
    """The tree comes in pages of three, whose addresses name another host."""
    files = {f"data/part-{number:02}.txt": lines_of(number) for number in range(1, 12)}
    hub.commit(REPO, {**files, "data/deep/part-99.txt": lines_of(200), "README.md": b"#"})
    assert len(sources.Lines(f"hf://{REPO}/data/part-*.txt")) == sum(range(1, 12))
    assert len(sources.Lines(f"hf://{REPO}/**/part-*.txt")) == sum(range(1, 12)) + 200
    assert len(sources.Lines(f"hf://{REPO}/data/part-{{01..03}}.txt")) == 6
    objects = sources.Objects(f"hf://{REPO}/data/", suffixes=".txt")
    assert [objects[i] for i in range(11)] == [*([lines_of(200)]), *files.values()][:11]
    assert len(objects) == 12
    with pytest.raises(FileNotFoundError, match="no object matches"):
        sources.Lines(f"hf://{REPO}/data/none-*.txt")
    with pytest.raises(FileNotFoundError, match=r"data/none\.txt does not exist"):
        sources.Lines(f"hf://{REPO}/data/none.txt")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        sources.Lines("hf://datasets/owner/other/data/none.txt", storage=QUICK)


def test_models_and_odd_names_are_read(hub: HubServer) -> None:
    hub.commit("models/owner/name", {"a b%20c+#.txt": lines_of(300), "small.txt": lines_of(3)})
    for start in ("hf://models/owner/name", "hf://owner/name"):
        assert sources.Lines(f"{start}/a b%20c+#.txt")[299] == "line 299"
        assert len(sources.Lines(f"{start}/small.txt")) == 3


def test_branch_becomes_a_commit_once(hub: HubServer, tmp_path: pathlib.Path) -> None:
    url = f"hf://{REPO}/a.bin"
    old, new = token_bytes(BIG), token_bytes(BIG, seed=1)
    first = hub.commit(REPO, {"a.bin": old})
    remote = sources.Tokens(url, length=500)
    kept = pickle.dumps(remote)
    hub.commit(REPO, {"a.bin": new})
    restart_fetcher(tmp_path)
    assert f"@{first}/a.bin" in remote.where(0)
    for source in (remote, pickle.loads(kept)):
        assert source[3000].astype("uint16").tobytes() == old[3_000_000:3_001_000]
    assert sources.Tokens(url, length=500)[3000].astype("uint16").tobytes() == new[3_000_000:3_001_000]
    for revision in (first, "main"):
        sources.Tokens(f"hf://{REPO}@{revision}/a.bin", length=500)


@pytest.mark.parametrize("branch", ["refs/convert/parquet", "refs/pr/7", "v1.0"])
def test_revisions_with_slashes_are_found(branch: str, hub: HubServer) -> None:
    hub.commit(REPO, {"a.txt": lines_of(2)})
    hub.commit(REPO, {"a.txt": lines_of(500)}, branch)
    assert len(sources.Lines(f"hf://{REPO}@{branch}/a.txt")) == 500
    assert len(sources.Lines(f"hf://{REPO}@{branch.replace('/', '%2F')}/a.txt")) == 500
    with pytest.raises(FileNotFoundError, match=r"does not exist \(the repository has no such revision; status 404\)"):
        sources.Lines(f"hf://{REPO}@none/a.txt")


def test_file_that_a_commit_left_alone_is_not_fetched_again(hub: HubServer, tmp_path: pathlib.Path) -> None:
    data = token_bytes()
    hub.commit(REPO, {"a.bin": data})
    one = sources.Tokens(f"hf://{REPO}/a.bin", length=500)
    assert_same(one, one)
    parts = hub.parts
    hub.commit(REPO, {"a.bin": data, "b.txt": b"new"})
    restart_fetcher(tmp_path)
    other = sources.Tokens(f"hf://{REPO}/a.bin", length=500)
    assert other.where(0) != one.where(0)
    assert_same(one, other)
    assert hub.parts == parts


def test_signed_url_is_used_until_it_expires(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_REMOTE_QUOTA", "0")  # each sample is a request
    data = token_bytes(BIG)
    hub.commit(REPO, {"a.bin": data})
    remote = sources.Tokens(f"hf://{REPO}/a.bin", length=500, storage=QUICK)
    for index in range(0, 2000, 400):
        assert remote[index].astype("uint16").tobytes() == data[1000 * index : 1000 * index + 1000]
    assert hub.parts > hub.resolved
    before = hub.resolved
    hub.signature = "two"
    for index in range(2000, 4000, 400):
        assert remote[index].astype("uint16").tobytes() == data[1000 * index : 1000 * index + 1000]
    assert hub.resolved > before and hub.leaks == 0


def test_refused_signed_url_and_other_contents_are_errors(hub: HubServer) -> None:
    hub.commit(REPO, {"a.bin": token_bytes(BIG), "b.bin": token_bytes(BIG, seed=1)})
    remote = sources.Tokens(f"hf://{REPO}/a.bin", length=500, dtype="uint16", storage=QUICK)
    hub.refuses_signed = True
    with pytest.raises(PermissionError, match=r"status 403\); the request had a URL that the hub has just signed"):
        remote[3000]
    hub.refuses_signed, hub.lies = False, True
    with pytest.raises(OSError, match="the hub has other contents under this name"):
        sources.Tokens(f"hf://{REPO}/b.bin", length=500, dtype="uint16", storage=QUICK)


def test_faults_of_the_hub_are_tried_again(hub: HubServer) -> None:
    """A page of the tree that fails does not begin the list again: there are three, also for files next to others."""
    hub.commit(REPO, {f"data/{number}.txt": lines_of(300, str(number)) for number in range(8)})
    hub.faults = Faults(seed=2, kinds=("503",), share=0.6, most=6)
    lines = sources.Lines(f"hf://{REPO}/data/*.txt", storage={**QUICK, "retry_s": 60})
    assert lines[2400 - 1] == "7 299" and hub.faults.drawn["503"] == 6 and hub.pages == 3


@pytest.mark.parametrize("place", ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "file", "storage"])
def test_token_is_found_and_goes_to_the_hub_only(
    place: str, hub: HubServer, tmp_path: pathlib.Path, remote_folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.gate, hub.token = "GatedRepo", TOKEN
    hub.commit(REPO, {"a.bin": token_bytes(BIG), "small.txt": lines_of(3)})
    storage = dict(QUICK)
    if place == "file":
        (tmp_path / "HF_HOME").mkdir()
        (tmp_path / "HF_HOME" / "token").write_text(f"{TOKEN}\n")
    elif place == "storage":
        storage["token"] = TOKEN
    else:
        monkeypatch.setenv(place, TOKEN)
    remote: Any = sources.Tokens(f"hf://{REPO}/a.bin", length=500, storage=storage)
    remote[3000]
    assert sources.Lines(f"hf://{REPO}/small.txt", storage=storage)[2] == "line 2"
    assert hub.leaks == 0 and hub.parts > 0
    assert TOKEN not in repr(remote) + str(vars(remote)) and TOKEN.encode() not in pickle.dumps(remote)
    for path in remote_folder.rglob("*"):
        if path.is_file():
            assert TOKEN.encode() not in path.read_bytes(), path


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_have_the_token_and_the_commit(
    method: str, hub: HubServer, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The branch moves, and the fetcher is another one, before the workers read."""
    monkeypatch.setenv("HEADRACE_REMOTE_QUOTA", "0")
    hub.gate, hub.token = "GatedRepo", TOKEN
    hub.commit(REPO, {"a.txt": lines_of(3000)})
    lines = sources.Lines(f"hf://{REPO}/a.txt", storage={**QUICK, "token": TOKEN}, keep="job")
    hub.commit(REPO, {"a.txt": lines_of(3000, "new")})
    restart_fetcher(tmp_path)
    loader = headrace.Loader(lines, 500, num_workers=2, multiprocessing_context=method, collate_fn=list)
    assert [line for batch in loader for line in batch] == [f"line {number}" for number in range(3000)]
    assert hub.leaks == 0


def test_gated_repository_is_an_error_that_names_the_token(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.commit(REPO, {"a.txt": lines_of(3)})
    hub.gate, hub.token = "GatedRepo", "another"
    with pytest.raises(PermissionError, match=r"status 401\).*no token \(HF_TOKEN\); the repository is gated"):
        sources.Lines(f"hf://{REPO}/a.txt")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with pytest.raises(
        PermissionError, match=r"status 403\).*the token of HF_TOKEN; the rep.*remote-refused"
    ) as caught:
        sources.Lines(f"hf://{REPO}/a.txt")
    assert TOKEN not in str(caught.value)
    hub.gate = "RepoNotFound"
    with pytest.raises(PermissionError, match="refuses a repository that does not exist, too"):
        sources.Lines(f"hf://{REPO}/a.txt")


def test_plain_http_to_another_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.invalid")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with pytest.raises(OSError, match=r"the hub \(HF_ENDPOINT\) is not encrypted"):
        sources.Lines(f"hf://{REPO}/a.txt")


@pytest.mark.parametrize("url", ["hf://datasets/name", "hf://owner", "hf://datasets", "hf:///a/b", "hf://o/n@/x"])
def test_addresses_that_are_not_valid_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match="a URL of the hub should be"):
        sources.Lines(url)


def test_parts_of_addresses() -> None:
    place = addresses.hub_place("hf://datasets/o/n@refs/pr/1/a@b/c.txt")
    assert (place.kind, place.repo, place.revision, place.file) == ("datasets", "o/n", "refs/pr/1", "a@b/c.txt")
    assert addresses.split_hub("hf://o/n@x/a/b") == ("hf://o/n@x", "/a/b")
    one, other = (addresses.parse(f"hf://datasets/o/n@{name}/a.txt") for name in ("1", "2"))
    assert one.path != other.path and one.kept == other.kept and os.path.basename(one.path) == "a.txt"


def test_parts_of_a_file_of_the_hub_are_asked_for_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first answer is waited for, because it may be a URL of another host."""
    address, together = addresses.parse("hf://datasets/o/n/a.bin"), threading.Barrier(4)
    asked: list[int] = []

    def ask(one: Any, text: str, given: Any, version: str, size: int, at: int, count: int) -> bytes:
        asked.append(at)
        if at:
            together.wait(60)  # for all parts
        return bytes(count)

    monkeypatch.setattr(hub_reader, "_ask_hub", ask)
    monkeypatch.setattr(hub_reader, "_direct", set())
    parts: list[bytes] = [hub_reader.read(address, "{}", {}, "v", 100, 0, 10)]
    threads = [
        threading.Thread(target=lambda at=at: parts.append(hub_reader.read(address, "{}", {}, "v", 100, at, 10)))
        for at in (10, 20, 30, 40)
    ]
    for one in threads:
        one.start()
    for one in threads:
        one.join(60)
    assert len(parts) == 5 and sorted(asked) == [0, 10, 20, 30, 40]
