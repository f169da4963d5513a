# SPDX-License-Identifier: Apache-2.0
"""Credentials: where they are found, which of them an error names, what happens when they expire, and that accounts do
not mix. A secret is in no file of the folder."""

from __future__ import annotations

import json
import pathlib
import pickle
import stat
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from bucket_server import BucketServer
from certificates import make_certificate, make_key, needs_openssl
from headrace import sources
from headrace._remote import accounts, settings
from identity_server import IdentityServer
from processes import until
from remote_runs import BIG, QUICK, fetchers_of, kill_fetchers, token_bytes

pytest.importorskip("obstore", reason="it is installed by requirements-remote.txt")

SECRETS = (b"sEcReT9", b"tOkEn9")
DATA = token_bytes(BIG)
EXPIRED = {"s3": "expired", "gs": "unknown", "az": "unknown"}

AZURE_CLIENT = {"AZURE_CLIENT_ID": "one", "AZURE_TENANT_ID": "two", "AZURE_AUTHORITY_HOST": "http://{}"}

# Services of clouds: the scheme, variables with the address of the service, and what errors call it.
SERVICES = {
    "aws-instance": ("s3", {"AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://{}", "AWS_EC2_METADATA_DISABLED": "false"}),
    "aws-pod": (
        "s3",
        {
            "AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://{}/container",
            "AWS_CONTAINER_AUTHORIZATION_TOKEN": "word-of-the-pod",
        },
    ),
    "google-instance": ("gs", {"GCE_METADATA_HOST": "{}"}),
    "azure-instance": ("az", {"AZURE_MSI_ENDPOINT": "http://{}/metadata/identity/oauth2/token"}),
    "azure-client": ("az", {**AZURE_CLIENT, "AZURE_CLIENT_SECRET": "sEcReT9"}),
    "azure-pod": ("az", {**AZURE_CLIENT, "AZURE_FEDERATED_TOKEN_FILE": "/proc/self/comm"}),
}

KIND = r"the (identity of the (instance|pod)|client of the environment)"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[BucketServer]:
    with BucketServer({f"{name}.bin": DATA for name in "abc"}) as found:
        for name in ("AWS_ENDPOINT_URL", "STORAGE_EMULATOR_HOST", "AZURE_STORAGE_ENDPOINT"):
            monkeypatch.setenv(name, found.endpoint)
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
        yield found


@pytest.fixture(autouse=True)
def no_secret_is_kept(remote_folder: pathlib.Path) -> Iterator[None]:
    yield
    for path in remote_folder.rglob("*"):
        if path.is_file():
            assert not any(secret in path.read_bytes() for secret in SECRETS), path


def open_source(scheme: str, name: str = "a", **storage: Any) -> Any:
    return sources.Tokens(f"{scheme}://bucket/{name}.bin", length=500, dtype="uint16", storage={**QUICK, **storage})


def assert_reads(source: Any, index: int = 3000) -> None:
    assert source[index].astype("uint16").tobytes() == DATA[1000 * index : 1000 * index + 1000]


def use_service(name: str, identity: IdentityServer, monkeypatch: pytest.MonkeyPatch) -> str:
    scheme, variables = SERVICES[name]
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value.format(identity.address))
    return scheme


# ---- accounts do not mix ----


def test_two_accounts_share_one_fetcher(
    server: BucketServer, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keys of one are in storage=, those of the other one in the variables of the process."""
    server.accounts = {"one": "", "two": ""}
    first = open_source("s3", access_key_id="one", secret_access_key="sEcReT9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "two")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "sEcReT9")
    second = open_source("s3")
    for index in range(500, 3900, 400):
        assert_reads(first, index)
        assert_reads(second, index + 200)
    assert len(fetchers_of(tmp_path / "remote")) == 1
    server.accounts["one"] = "refused"
    with pytest.raises(PermissionError, match=r"status 403\).*the keys of storage=.*remote-refused"):
        open_source("s3", "b", access_key_id="one", secret_access_key="sEcReT9")
    assert_reads(open_source("s3", "b"))
    server.accounts.update({"one": "", "two": "expired"})
    with pytest.raises(PermissionError, match=r"the keys of the environment \(AWS_ACCESS_KEY_ID\), which have expired"):
        open_source("s3", "c")
    assert_reads(open_source("s3", "c", access_key_id="one", secret_access_key="sEcReT9"))


@pytest.mark.parametrize(
    ("scheme", "storage", "account", "kind"),
    [
        ("s3", {"access_key_id": "one", "secret_access_key": "sEcReT9"}, "one", "the keys of storage="),
        ("gs", {"token": "tOkEn9"}, "tOkEn9", "the token of storage="),
        ("az", {"token": "tOkEn9"}, "tOkEn9", "the token of storage="),
        ("az", {"account_key": "c0VjUmVUOQ=="}, "account", "the account key of storage="),
        ("az", {"sas_key": "sv=1&sig=tOkEn9"}, "tOkEn9", "the shared access signature of storage="),
    ],
)
def test_keys_of_storage_are_used_and_named(
    scheme: str, storage: dict[str, str], account: str, kind: str, server: BucketServer
) -> None:
    server.accounts = {account: ""}
    source = open_source(scheme, **storage)
    assert_reads(source)
    texts = repr(source) + str(vars(source)) + source.where(0) + str(pickle.dumps(source))
    server.accounts[account] = "refused"
    with pytest.raises(PermissionError, match=f"the request had {kind}") as caught:
        open_source(scheme, "b", **storage)
    assert not any(secret.decode() in texts + str(caught.value) for secret in SECRETS)


@pytest.mark.parametrize(
    ("scheme", "variables", "account", "kind"),
    [
        ("az", {"AZURE_STORAGE_ACCOUNT_KEY": "c0VjUmVUOQ=="}, "account", "the account key of the environment"),
        ("az", {"AZURE_STORAGE_SAS_TOKEN": "sv=1&sig=tOkEn9"}, "tOkEn9", "the shared access signature of the env"),
        ("gs", {}, "", "no credentials; give a service account"),
        ("az", {}, "", "no credentials; give account_key"),
        ("s3", {}, "", "no credentials; give keys"),
    ],
)
def test_keys_of_the_environment_are_used_and_named(
    scheme: str,
    variables: dict[str, str],
    account: str,
    kind: str,
    server: BucketServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    server.accounts = {account: ""}
    assert_reads(open_source(scheme))
    server.accounts = {account: "refused"}
    with pytest.raises(PermissionError, match=f"the request had {kind}"):
        open_source(scheme, "b")


# ---- identities of instances and pods ----


@pytest.mark.parametrize("name", SERVICES)
def test_service_is_asked_once(name: str, server: BucketServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with IdentityServer("tOkEn9-1") as identity:
        scheme = use_service(name, identity, monkeypatch)
        server.accounts = {"tOkEn9-1": ""}
        source = open_source(scheme)
        for index in range(0, 3900, 300):
            assert_reads(source, index)
        assert sum(identity.asked.values()) == 1


@pytest.mark.parametrize("name", SERVICES)
def test_expired_credentials_are_asked_for_once_more(
    name: str, server: BucketServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_REMOTE_QUOTA", "0")  # each sample is a request
    with IdentityServer("tOkEn9-1", "tOkEn9-2") as identity:
        scheme = use_service(name, identity, monkeypatch)
        server.accounts = {"tOkEn9-1": "", "tOkEn9-2": ""}
        source = open_source(scheme)
        server.accounts["tOkEn9-1"] = EXPIRED[scheme]
        assert_reads(source)
        assert sum(identity.asked.values()) == 2
        server.accounts["tOkEn9-2"] = EXPIRED[scheme]
        with pytest.raises(PermissionError, match=f"the request had {KIND}"):
            source[1500]
        assert sum(identity.asked.values()) == 2  # not again and again


def test_credentials_are_asked_for_before_they_end(server: BucketServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_REMOTE_QUOTA", "0")  # each sample is a request
    with IdentityServer("tOkEn9-1", "tOkEn9-2") as identity:
        identity.lifetime_s = 1.0
        scheme = use_service("google-instance", identity, monkeypatch)
        server.accounts = {"tOkEn9-1": "", "tOkEn9-2": ""}
        source = open_source(scheme)
        assert until(lambda: assert_reads(source) or sum(identity.asked.values()) > 1, 60)


@pytest.mark.parametrize("name", SERVICES)
def test_service_that_refuses_is_an_error(name: str, server: BucketServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.accounts = {"none": ""}
    with IdentityServer("tOkEn9") as identity:
        scheme = use_service(name, identity, monkeypatch)
        identity.status = 403
        with pytest.raises(PermissionError, match=r"gives no credentials \(status 403\).*remote-credentials"):
            open_source(scheme)
        identity.status = 500
        with pytest.raises(TimeoutError, match=f"{KIND}.*: status 500"):
            open_source(scheme, retry_s=0.5)


def test_public_bucket_asks_no_service(server: BucketServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with IdentityServer("tOkEn9") as identity:
        for name in SERVICES:
            scheme = use_service(name, identity, monkeypatch)
            assert_reads(open_source(scheme, anonymous=True))
        assert not identity.requests


# ---- what is signed ----


@needs_openssl
def test_certificates_and_roles_of_web_identities_are_used(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store and the service that gives keys have a certificate that only SSL_CERT_FILE makes valid."""
    certificate, trusted = make_certificate(tmp_path)
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::1:role/one")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
    with (
        BucketServer({"a.bin": DATA}, str(certificate)) as server,
        IdentityServer("two", certificate=str(certificate)) as identity,
    ):
        server.accounts = {"two": ""}
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", identity.url("", host="localhost"))
        with pytest.raises(PermissionError, match=r"the token for the role of a web identity cannot be read \(FileNot"):
            open_source("s3")
        (tmp_path / "token").write_text("tOkEn9")
        with pytest.raises(
            PermissionError, match=r"the service for the role of a web identity .*is not valid: unknown issuer"
        ):
            open_source("s3")
        monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
        assert_reads(open_source("s3"))
        assert sum(identity.asked.values()) == 1


@needs_openssl
def test_service_accounts_of_google_sign_their_tokens(
    server: BucketServer, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.accounts = {"one@project": ""}
    key = {"type": "service_account", "client_email": "one@project", "private_key_id": "1"}
    text = json.dumps({**key, "private_key": make_key()})
    assert_reads(open_source("gs", service_account_key=text))
    (tmp_path / "key.json").write_text(text)
    monkeypatch.chdir(tmp_path)
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT"):
        monkeypatch.setenv(name, "key.json")
        assert_reads(open_source("gs"))
    server.accounts["one@project"] = "refused"
    with pytest.raises(PermissionError, match=r"the service account of the environment \(GOOGLE_SERVICE_ACCOUNT\)"):
        open_source("gs", "b")
    with pytest.raises(ValueError, match="the service account of storage="):
        open_source("gs", "b", service_account_key="{}")


# ---- profiles, by boto3 ----


@pytest.fixture
def profiles(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A file of profiles: keys, and a process that gives keys, of which it writes down each run."""
    pytest.importorskip("boto3", reason="it is installed by requirements-remote.txt")
    program = tmp_path / "give-keys"
    ends = (datetime.now(timezone.utc) + timedelta(hours=1)).isoformat()
    keys = {"Version": 1, "AccessKeyId": "two", "SecretAccessKey": "sEcReT9", "SessionToken": "tOkEn9"}
    text = json.dumps({**keys, "Expiration": ends})
    lines = [f"#!{sys.executable}", f"open({str(tmp_path / 'runs')!r}, 'a').write('x')", f"print({text!r})", ""]
    program.write_text("\n".join(lines))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    path = tmp_path / "profiles"
    path.write_text(
        "[profile keys]\naws_access_key_id = one\naws_secret_access_key = sEcReT9\nregion = eu-west-3\n"
        f"[profile process]\ncredential_process = {program}\n[profile dead]\ncredential_process = /bin/false\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(path))
    return tmp_path / "runs"


def test_profiles_are_used(profiles: pathlib.Path, server: BucketServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.accounts = {"one": "", "two": ""}
    assert_reads(open_source("s3", profile="keys"))
    assert any("/eu-west-3/s3/" in str(headers) for _, headers in server.requests)
    monkeypatch.setenv("AWS_PROFILE", "process")
    source = open_source("s3", "b")
    for index in range(0, 3900, 300):
        assert_reads(source, index)
    assert profiles.read_text() == "x"
    server.accounts["two"] = "expired"
    with pytest.raises(
        PermissionError, match=r"the profile 'process', by boto3 \(custom-process\), which have expired"
    ):
        open_source("s3", "c")
    assert profiles.read_text() == "xx"


@pytest.mark.parametrize(("profile", "why"), [("none", "ProfileNotFound"), ("dead", "CredentialRetrievalError")])
def test_profile_that_gives_no_keys_is_an_error(
    profile: str, why: str, profiles: pathlib.Path, server: BucketServer
) -> None:
    with pytest.raises(PermissionError, match=rf"boto3 gets no credentials of the profile '{profile}' \({why}\)"):
        open_source("s3", profile=profile)


def test_profile_without_boto3_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounts, "has_boto", lambda: False)
    monkeypatch.setenv("AWS_PROFILE", "one")
    given = json.loads(settings.write(None, "Tokens"))
    with pytest.raises(Exception, match="the profile 'one' needs boto3: pip install boto3"):
        accounts.find("s3", given)


# ---- Google's files ----


def test_google_file_of_another_kind_is_an_error(
    server: BucketServer, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "credentials.json"
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    with pytest.raises(PermissionError, match=r"GOOGLE_APPLICATION_CREDENTIALS cannot be read \(FileNotFoundError\)"):
        open_source("gs")
    path.write_text(json.dumps({"type": "external_account", "secret": "sEcReT9"}))
    with pytest.raises(PermissionError, match="are not of a service account or a user"):
        open_source("gs")


def test_file_of_gcloud_is_not_read_for_a_public_bucket(server: BucketServer, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "HOME" / ".config" / "gcloud" / "application_default_credentials.json"
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    with pytest.raises(PermissionError, match="the credentials of gcloud's file are not of a service account"):
        open_source("gs")
    assert_reads(open_source("gs", anonymous=True))


# ---- the fetcher's own variables ----


def test_variables_of_the_first_job_are_not_used(
    server: BucketServer, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fetcher is started by a job with keys. A job without keys, which asks the same fetcher, has none."""
    server.accounts = {"one": ""}
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "one")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "sEcReT9")
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    assert_reads(open_source("s3"))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "HTTPS_PROXY"):
        monkeypatch.delenv(name)
    with pytest.raises(PermissionError, match="the request had no credentials"):
        open_source("s3", "b")
    assert len(kill_fetchers(tmp_path / "remote")) == 1
