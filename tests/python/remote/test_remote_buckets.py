# SPDX-License-Identifier: Apache-2.0
"""Buckets: objects of a server that speaks S3 (moto), read by obstore. Listings, keys, versions and errors."""

from __future__ import annotations

import logging
import pathlib
import pickle
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from headrace import _core, sources
from headrace.sources import _places
from headrace.sources._index import save_index
from remote_runs import BIG, FILES, SOURCES, assert_same, kill_fetchers, token_bytes, write_files

pytest.importorskip("obstore", reason="it is installed by requirements-remote.txt")
moto_server = pytest.importorskip("moto.server", reason="it is installed by requirements-remote.txt")

KEYS = {"access_key_id": "one", "secret_access_key": "sEcReT9", "region": "us-east-1"}


def client_of(endpoint: str) -> Any:
    import boto3

    keys = {"aws_access_key_id": "one", "aws_secret_access_key": "two", "region_name": "us-east-1"}
    return boto3.client("s3", endpoint_url=endpoint, **keys)


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    logging.getLogger("werkzeug").disabled = True
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    client = client_of(f"http://{host}:{port}")
    client.create_bucket(Bucket="bucket")
    for name, data in FILES.items():
        client.put_object(Bucket="bucket", Key=f"some/{name}", Body=data)
    client.put_object(Bucket="bucket", Key="some/objects/", Body=b"")  # a folder, as consoles make them
    for number in range(15):
        client.put_object(Bucket="bucket", Key=f"many/part-{number:02}.txt", Body=b"line %d\n" % number)
    client.put_object(Bucket="bucket", Key="odd/a b%20c+?#.bin", Body=FILES["a.bin"])
    client.close()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.mark.parametrize("name", SOURCES)
def test_samples_are_those_of_local_files(name: str, endpoint: str, tmp_path: pathlib.Path) -> None:
    write_files(tmp_path / "local")
    make, files = SOURCES[name]
    remote = make([f"s3://bucket/some/{file}" for file in files], {**KEYS, "endpoint": endpoint})
    local = make([str(tmp_path / "local" / file) for file in files], None)
    assert_same(remote, local)
    kill_fetchers(tmp_path / "remote")
    assert_same(remote, local, seed=1)


def test_environment_has_keys_and_endpoint(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "one")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "sEcReT9")
    lines = sources.Lines("s3://bucket/many/part-{00..14}.txt")
    assert [lines[i] for i in range(15)] == [f"line {i}" for i in range(15)]
    other = pickle.loads(pickle.dumps(lines))
    assert other[3] == "line 3" and b"sEcReT9" not in pickle.dumps(lines)


def test_patterns_and_folders_are_listed(endpoint: str) -> None:
    storage = {**KEYS, "endpoint": endpoint}
    assert len(sources.Lines("s3://bucket/many/part-*.txt", storage=storage)) == 15
    assert len(sources.Lines("s3://bucket/many/part-0[1-3].txt", storage=storage)) == 3
    assert len(sources.Lines("s3://bucket/**/part-?4.txt", storage=storage)) == 2
    objects = sources.Objects("s3://bucket/some/objects/", storage=storage)
    wanted = sorted(name for name in FILES if name.startswith("objects/"))
    assert [objects[i] for i in range(len(objects))] == [FILES[name] for name in wanted]
    assert objects.path(1).endswith("/some/objects/01.dat") or "01.dat?" in objects.path(1)
    assert len(sources.Objects("s3://bucket/some/", suffixes=".tar", storage=storage)) == 1
    with pytest.raises(FileNotFoundError, match="no object matches"):
        sources.Lines("s3://bucket/none-*.txt", storage=storage)
    with pytest.raises(FileNotFoundError, match="no file has a name that ends with"):
        sources.Objects("s3://bucket/some/", suffixes=(".png", ".gif"), storage=storage)


def test_indexes_are_found_in_the_listing(
    endpoint: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first object has none, and no object is asked for."""
    client = client_of(endpoint)
    for number in range(3):
        path = tmp_path / f"part-{number}.jsonl"
        path.write_bytes(FILES["a.jsonl"])
        client.put_object(Bucket="bucket", Key=f"indexed/{path.name}", Body=path.read_bytes())
        if number:
            save_index(_core.INDEX_LINES, str(path))
            index = (tmp_path / f"{path.name}.hri").read_bytes()
            client.put_object(Bucket="bucket", Key=f"indexed/{path.name}.hri", Body=index)
    client.close()
    asked: list[Any] = []
    monkeypatch.setattr(_places, "_look_for", lambda urls, storage: asked.extend(urls) or [])
    places = _places.Places("s3://bucket/indexed/part-*.jsonl", "Jsonl", {**KEYS, "endpoint": endpoint}, next_to=".hri")
    found = [path.partition("?")[0] for path in places.remote.paths if ".hri" in path]
    assert found == [f"s3://bucket/indexed/part-{number}.jsonl.hri" for number in (1, 2)] and asked == []
    remote = sources.Jsonl("s3://bucket/indexed/part-*.jsonl", storage={**KEYS, "endpoint": endpoint})
    assert_same(remote, sources.Jsonl(f"{tmp_path}/part-*.jsonl"))


def test_odd_keys_are_read(endpoint: str) -> None:
    remote = sources.Tokens(
        "s3://bucket/odd/a b%20c+?#.bin", length=500, dtype="uint16", storage={**KEYS, "endpoint": endpoint}
    )
    assert remote[400].astype("uint16").tobytes() == FILES["a.bin"][400_000:401_000]
    with pytest.raises(ValueError, match="which obstore refuses"):
        sources.Tokens("s3://bucket/odd//x.bin", length=5, storage={**KEYS, "endpoint": endpoint})


def test_replaced_and_absent_objects_are_errors(endpoint: str) -> None:
    storage = {**KEYS, "endpoint": endpoint}
    client = client_of(endpoint)
    client.put_object(Bucket="bucket", Key="new.bin", Body=token_bytes(BIG))
    remote = sources.Tokens("s3://bucket/new.bin", length=500, storage=storage)
    client.put_object(Bucket="bucket", Key="new.bin", Body=token_bytes(BIG, seed=1))
    client.close()
    with pytest.raises(OSError, match="was replaced since it was opened") as caught:
        remote[3000]
    assert caught.value.errno == 116 and "sEcReT9" not in str(caught.value) and "Signature" not in str(caught.value)
    with pytest.raises(FileNotFoundError, match=r"s3://bucket/none\.bin does not exist"):
        sources.Tokens("s3://bucket/none.bin", length=5, storage=storage)


def test_dead_endpoint_is_a_timeout(endpoint: str) -> None:
    with pytest.raises(TimeoutError, match="the last one: the server refuses the connection"):
        sources.Tokens(
            "s3://bucket/a.bin", length=5, storage={**KEYS, "endpoint": "http://127.0.0.1:9", "retry_s": 0.5}
        )


def test_equal_names_in_two_stores_are_two_objects(endpoint: str) -> None:
    one = sources.Tokens("s3://bucket/some/a.bin", length=500, storage={**KEYS, "endpoint": endpoint})
    other = sources.Tokens("s3://bucket/some/a.bin", length=500, storage={**KEYS, "endpoint": endpoint + "/"})
    assert one.where(0) == other.where(0)
    third = endpoint.replace("127.0.0.1", "localhost")
    far = sources.Tokens("s3://bucket/some/a.bin", length=500, storage={**KEYS, "endpoint": third})
    assert far.where(0) != one.where(0) and (far[3] == one[3]).all()


def test_without_obstore_a_bucket_is_an_import_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    for path in ("s3://bucket/a.bin", "s3://bucket/*.bin"):
        with pytest.raises(ImportError, match=r"Tokens: buckets need obstore: pip install 'headrace\[remote\]'"):
            sources.Tokens(path, length=5)


def test_keys_are_in_no_file(endpoint: str, tmp_path: pathlib.Path, remote_folder: pathlib.Path) -> None:
    remote: Any = sources.Tokens("s3://bucket/some/a.bin", length=500, storage={**KEYS, "endpoint": endpoint})
    remote[400]
    assert "sEcReT9" not in repr(remote) + str(vars(remote)) and b"sEcReT9" not in pickle.dumps(remote)
    for path in [*remote_folder.rglob("*"), *tmp_path.rglob("*")]:
        if path.is_file():
            assert b"sEcReT9" not in path.read_bytes(), path
