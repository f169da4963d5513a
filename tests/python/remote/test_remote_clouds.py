# SPDX-License-Identifier: Apache-2.0
"""Buckets of Google and containers of Azure, by a server that answers as they do: samples, listings, versions."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest
from bucket_server import BucketServer
from certificates import make_certificate, needs_openssl
from headrace import sources
from remote_runs import BIG, FILES, QUICK, SOURCES, assert_same, kill_fetchers, token_bytes, write_files

pytest.importorskip("obstore", reason="it is installed by requirements-remote.txt")

SCHEMES = ("gs", "az")


@pytest.fixture
def server() -> Any:
    lines = {f"many/part-{number:02}.txt": b"line %d\n" % number for number in range(15)}
    odd = {"odd/a b%20c+?#.bin": FILES["a.bin"], "big.bin": token_bytes(BIG)}
    with BucketServer({**{f"some/{name}": data for name, data in FILES.items()}, **lines, **odd}) as found:
        yield found


def storage_of(server: BucketServer, **more: Any) -> dict[str, Any]:
    return {**QUICK, "endpoint": server.endpoint, "anonymous": True, "account_name": "account", **more}


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_samples_are_those_of_local_files(scheme: str, name: str, server: BucketServer, tmp_path: pathlib.Path) -> None:
    write_files(tmp_path / "local")
    make, files = SOURCES[name]
    remote = make([f"{scheme}://bucket/some/{file}" for file in files], storage_of(server))
    local = make([str(tmp_path / "local" / file) for file in files], None)
    assert_same(remote, local)
    kill_fetchers(tmp_path / "remote")
    assert_same(remote, local, seed=1)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_patterns_and_folders_are_listed(scheme: str, server: BucketServer) -> None:
    """The list comes in pages of five."""
    storage = storage_of(server)
    assert len(sources.Lines(f"{scheme}://bucket/many/part-*.txt", storage=storage)) == 15
    assert len(sources.Lines(f"{scheme}://bucket/**/part-?4.txt", storage=storage)) == 2
    objects = sources.Objects(f"{scheme}://bucket/some/objects/", storage=storage)
    wanted = sorted(name for name in FILES if name.startswith("objects/"))
    assert [objects[i] for i in range(len(objects))] == [FILES[name] for name in wanted]
    texts = sources.Objects(f"{scheme}://bucket/many/", decode="auto", storage=storage)  # by the endings of the names
    assert texts[3] == "line 3\n"
    with pytest.raises(FileNotFoundError, match="no object matches"):
        sources.Lines(f"{scheme}://bucket/none-*.txt", storage=storage)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_list_and_single_look_find_one_version(scheme: str, server: BucketServer, tmp_path: pathlib.Path) -> None:
    storage = storage_of(server)
    listed = sources.Tokens(f"{scheme}://bucket/some/a.b*", length=500, storage=storage)
    assert_same(listed, listed)
    assert len(kill_fetchers(tmp_path / "remote")) == 1
    looked = sources.Tokens(f"{scheme}://bucket/some/a.bin", length=500, storage=storage)
    before = server.sent_bytes
    assert_same(looked, listed)
    assert server.sent_bytes == before


@pytest.mark.parametrize("scheme", SCHEMES)
def test_odd_keys_are_read(scheme: str, server: BucketServer) -> None:
    url = f"{scheme}://bucket/odd/a b%20c+?#.bin"
    remote = sources.Tokens(url, length=500, dtype="uint16", storage=storage_of(server))
    assert remote[400].astype("uint16").tobytes() == FILES["a.bin"][400_000:401_000]


@pytest.mark.parametrize("ignores", [False, True])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_replaced_objects_are_errors(scheme: str, ignores: bool, server: BucketServer) -> None:
    server.ignores_if_match = ignores
    remote = sources.Tokens(f"{scheme}://bucket/big.bin", length=500, storage=storage_of(server))
    assert remote[3000].astype("uint16").tobytes() == server.files["big.bin"][3_000_000:3_001_000]
    server.files["big.bin"] = token_bytes(BIG, seed=1)
    with pytest.raises(OSError, match="was replaced since it was opened") as caught:
        remote[1500]
    assert caught.value.errno == 116


@pytest.mark.parametrize("scheme", SCHEMES)
def test_absent_objects_are_errors(scheme: str, server: BucketServer) -> None:
    with pytest.raises(FileNotFoundError, match=rf"{scheme}://bucket/none\.bin does not exist"):
        sources.Tokens(f"{scheme}://bucket/none.bin", length=5, storage=storage_of(server))


@pytest.mark.parametrize(("scheme", "variable"), [("gs", "STORAGE_EMULATOR_HOST"), ("az", "AZURE_STORAGE_ENDPOINT")])
def test_environment_has_the_endpoint(
    scheme: str, variable: str, server: BucketServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, server.endpoint if scheme == "az" else f"127.0.0.1:{server.port}")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    lines = sources.Lines(f"{scheme}://bucket/many/part-{{00..14}}.txt", storage={"anonymous": True})
    assert [lines[i] for i in range(15)] == [f"line {i}" for i in range(15)]


def test_container_needs_an_account_which_makes_it_another_one(server: BucketServer) -> None:
    storage = storage_of(server)
    one, other = (
        sources.Lines("az://bucket/many/part-01.txt", storage={**storage, "account_name": name}) for name in "ab"
    )
    assert one.where(0) != other.where(0) and one[0] == other[0]
    del storage["account_name"]
    with pytest.raises(ValueError, match=r"the name of its storage account.*remote-credentials"):
        sources.Lines("az://bucket/many/part-01.txt", storage=storage)


@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
def test_plain_http_to_another_machine_is_refused(scheme: str) -> None:
    storage = {"endpoint": "http://host.invalid", "account_name": "account", "anonymous": True}
    with pytest.raises(OSError, match="is not encrypted"):
        sources.Lines(f"{scheme}://bucket/a.txt", storage=storage)


@needs_openssl
@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
def test_untrusted_certificate_is_refused_at_once(
    scheme: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, trusted = make_certificate(tmp_path)
    with BucketServer({"a.bin": FILES["a.bin"]}, str(certificate)) as server:
        storage = {"endpoint": server.endpoint, "anonymous": True, "account_name": "account"}
        with pytest.raises(PermissionError, match=r"the certificate of localhost:\d+ is not valid: unknown issuer"):
            sources.Tokens(f"{scheme}://bucket/a.bin", length=500, storage=storage)
        monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
        assert len(sources.Tokens(f"{scheme}://bucket/a.bin", length=500, storage=storage)) > 0
        storage["endpoint"] = server.endpoint.replace("localhost", "127.0.0.1")
        with pytest.raises(PermissionError, match=r"the certificate of 127\.0\.0\.1:\d+ .* not valid for name"):
            sources.Tokens(f"{scheme}://bucket/a.bin", length=500, storage=storage)


@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
def test_store_that_does_not_speak_https_is_refused_at_once(scheme: str, server: BucketServer) -> None:
    storage = storage_of(server, endpoint=server.endpoint.replace("http:", "https:"), retry_s=120)
    with pytest.raises(OSError, match=r"remote: 127\.0\.0\.1:\d+ does not speak https at this port"):
        sources.Tokens(f"{scheme}://bucket/a.bin", length=500, storage=storage)


def test_failed_connections_say_why() -> None:
    for endpoint, why in {"https://none.invalid": "name of the host", "http://127.0.0.1:9": "refuses"}.items():
        storage = {"endpoint": endpoint, "anonymous": True, "retry_s": 0.3}
        with pytest.raises(TimeoutError, match=f"the last one: .*{why}"):
            sources.Tokens("s3://bucket/a.bin", length=5, storage=storage)
