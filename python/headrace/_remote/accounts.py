# SPDX-License-Identifier: Apache-2.0
"""Finds the credentials for a bucket: in storage=, in the variables of the process that asks, in the files of the user,
or from the identity of the machine. `buckets` makes one store of each set of settings from what is found here, so the
accounts of several jobs do not mix: nothing here reads the variables of this process, the fetcher.

boto3, if it is there, reads profiles (SSO, credential_process, roles). It runs in a process of its own, with the
variables of the job, because it takes them from its process. The services that give keys or tokens to an instance or a
pod without a signature are asked here. obstore signs what needs it: service accounts, web identities, clients of Azure.
"""

from __future__ import annotations

import errno
import http.client
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from headrace._base.help_key import help_on
from headrace._remote import settings
from headrace._remote.failures import Failed, Passing

_CONNECT_S = 1.0  # to a service of this machine, which may not exist
_ANSWER_S = 10.0
_BOTO_S = 120.0  # SSO and the processes of a profile ask servers
_MOST_BYTES = 1 << 20
_AWS_KEYS = ("access_key_id", "secret_access_key", "session_token")
_AWS_METADATA = "http://169.254.169.254"
_AWS_CONTAINER = "http://169.254.170.2"
_INSTANCE = "the identity of the instance"
_AZURE_METADATA = "http://169.254.169.254/metadata/identity/oauth2/token"
_GOOGLE_METADATA = "metadata.google.internal"
_GOOGLE_TOKEN = "/computeMetadata/v1/instance/service-accounts/default/token"

Environment = Mapping[str, str]


@dataclass
class Account:
    """Credentials. config: settings of obstore's store. kind: what they are, in words. is_renewed: others can be asked
    for when they have expired. ends_s: time.time() when they end; None: obstore asks for others itself, or they are
    given. region: of a profile."""

    kind: str
    config: dict[str, Any] = field(default_factory=dict, repr=False)
    is_renewed: bool = False
    ends_s: float | None = None
    region: str = ""


def find(scheme: str, given: Mapping[str, Any]) -> Account:
    """Returns the credentials for the buckets of a scheme. Raises Failed, and Passing if a service does not answer."""
    if given.get("anonymous"):
        return _none('no credentials (storage={"anonymous": True})')
    environment = given.get("environment", {})
    if scheme == "s3":
        return _find_aws(given, environment)
    return _find_google(given, environment) if scheme == "gs" else _find_azure(given, environment)


def _none(kind: str) -> Account:
    return Account(kind, {"skip_signature": True})


def _fail(text: str) -> Failed:
    return Failed(errno.EACCES, f"remote: {text}" + help_on("remote-credentials"))


# ---- AWS ----


def _find_aws(given: Mapping[str, Any], environment: Environment) -> Account:
    if any(key in given for key in _AWS_KEYS):
        return Account("the keys of storage=", {key: given[key] for key in _AWS_KEYS if key in given})
    profile = given.get("profile")
    if not profile and "AWS_ACCESS_KEY_ID" in environment:
        names = {key: f"AWS_{key.upper()}" for key in _AWS_KEYS}
        more = ", with a session token" if "AWS_SESSION_TOKEN" in environment else ""
        config = {key: environment[name] for key, name in names.items() if name in environment}
        return Account(f"the keys of the environment (AWS_ACCESS_KEY_ID{more})", config)
    profile = profile or environment.get("AWS_PROFILE") or environment.get("AWS_DEFAULT_PROFILE")
    if profile:
        found = _ask_boto(str(profile), environment)
        if found is None:
            raise _fail(f"the profile {profile!r} has no credentials")
        return found
    return _find_aws_identity(environment) or _none(
        "no credentials; give keys in storage= or the environment. They are in no pickle except for workers"
    )


def _find_aws_identity(environment: Environment) -> Account | None:
    if "AWS_WEB_IDENTITY_TOKEN_FILE" in environment and "AWS_ROLE_ARN" in environment:
        path = environment["AWS_WEB_IDENTITY_TOKEN_FILE"]
        _read_token(path, "the role of a web identity")  # or an error that says so
        names = {
            "web_identity_token_file": "AWS_WEB_IDENTITY_TOKEN_FILE",
            "role_arn": "AWS_ROLE_ARN",
            "role_session_name": "AWS_ROLE_SESSION_NAME",
            "endpoint_url_sts": "AWS_ENDPOINT_URL_STS",
        }
        return _renewed("the role of a web identity (AWS_WEB_IDENTITY_TOKEN_FILE)", environment, names)
    if settings.has_profiles(environment) and has_boto():
        found = _ask_boto("", environment)
        if found is not None:
            return found
    return _find_aws_container(environment) or _find_aws_instance(environment)


def _find_aws_container(environment: Environment) -> Account | None:
    relative = environment.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI")
    full = environment.get("AWS_CONTAINER_CREDENTIALS_FULL_URI")
    if not relative and not full:
        return None
    kind = "the identity of the " + ("container" if relative else "pod")
    token = environment.get("AWS_CONTAINER_AUTHORIZATION_TOKEN", "")
    if "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE" in environment:
        token = _read_token(environment["AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"], kind)
    url = f"{_AWS_CONTAINER}{relative}" if relative else str(full)
    return _aws_account(kind, _ask(url, {"Authorization": token} if token else {}))


def _find_aws_instance(environment: Environment) -> Account | None:
    """Asks the service of an instance (IMDSv2); None: it does not answer, or the instance has no role."""
    if environment.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        return None
    metadata = environment.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", _AWS_METADATA).rstrip("/")
    token = _ask(f"{metadata}/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "60"}, "PUT")
    if token is None or token[0] != 200:
        return None
    headers = {"X-aws-ec2-metadata-token": token[1].decode("latin-1").strip()}
    roles = f"{metadata}/latest/meta-data/iam/security-credentials/"
    role = _ask(roles, headers)
    if role is None or role[0] == 404:
        return None
    if role[0] != 200:
        raise judge(_INSTANCE, role[0])
    return _aws_account(_INSTANCE, _ask(roles + quote(role[1].decode("latin-1").strip()), headers))


def _aws_account(kind: str, answer: Answer | None) -> Account:
    found = _json_of(kind, answer)
    try:
        keys = {"access_key_id": str(found["AccessKeyId"]), "secret_access_key": str(found["SecretAccessKey"])}
        ends_s = datetime.fromisoformat(str(found["Expiration"]).replace("Z", "+00:00")).timestamp()
        return Account(kind, {**keys, "session_token": str(found["Token"])}, True, ends_s)
    except (KeyError, TypeError, ValueError):
        raise Passing(f"{kind}: an answer without keys") from None


def _renewed(kind: str, environment: Environment, names: dict[str, str]) -> Account:
    """Returns an account of which obstore gets the credentials. names: variables, by obstore's settings."""
    return Account(kind, {key: environment[name] for key, name in names.items() if name in environment}, True)


def has_boto() -> bool:
    return importlib.util.find_spec("botocore") is not None


# Prints credentials as JSON, or the name of the exception: its text could have secrets.
_BOTO_PROGRAM = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
try:
    import botocore.session
    session = botocore.session.Session(profile=sys.argv[2] or None)
    found = session.get_credentials()
    keys = found.get_frozen_credentials() if found else None
    ends = getattr(found, "_expiry_time", None)
    print(json.dumps({
        "keys": [keys.access_key, keys.secret_key, keys.token] if keys else None,
        "ends_s": ends.timestamp() if ends else None,
        "method": found.method if found else "",
        "region": session.get_config_variable("region") or "",
    }))
except Exception as error:
    print(json.dumps({"error": type(error).__name__}))
"""


def _ask_boto(profile: str, environment: Environment) -> Account | None:
    """Returns the account of a profile; "": the default one. None: it has no credentials."""
    name = f"the profile {profile!r}" if profile else "the default profile"
    if not has_boto():
        raise _fail(f"{name} needs boto3: pip install boto3, or give keys in storage= or the environment")
    found = _run_boto(profile, environment, name)
    if "error" in found:
        raise _fail(f"boto3 gets no credentials of {name} ({found['error']}). For SSO, log in again: aws sso login")
    if not found["keys"]:
        return None
    config = {key: value for key, value in zip(_AWS_KEYS, found["keys"], strict=True) if value}
    kind = f"{name}, by boto3 ({found['method']})"
    return Account(kind, config, found["ends_s"] is not None, found["ends_s"], found["region"])


def _run_boto(profile: str, environment: Environment, name: str) -> Any:
    variables = {**environment, "AWS_EC2_METADATA_DISABLED": "true"}
    command = [sys.executable, "-I", "-c", _BOTO_PROGRAM, json.dumps(sys.path), profile]
    try:
        done = subprocess.run(
            command, env=variables, capture_output=True, stdin=subprocess.DEVNULL, timeout=_BOTO_S, check=False
        )
        return json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise Passing(f"boto3 gave no credentials of {name} ({type(error).__name__})") from None


# ---- Google ----


def _find_google(given: Mapping[str, Any], environment: Environment) -> Account:
    if "token" in given:
        return Account("the token of storage=", {"bearer_token": given["token"]})
    for key in ("service_account_key", "service_account"):
        if key in given:
            return Account(f"the service account of storage= ({key})", {key: given[key]})
    for name in ("GOOGLE_SERVICE_ACCOUNT_KEY", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH"):
        if name in environment:
            key = "service_account_key" if name.endswith("KEY") else "service_account"
            return Account(f"the service account of the environment ({name})", {key: environment[name]})
    folder = environment.get("CLOUDSDK_CONFIG") or os.path.join(environment.get("HOME", ""), ".config", "gcloud")
    usual = os.path.join(folder, "application_default_credentials.json")
    path = environment.get("GOOGLE_APPLICATION_CREDENTIALS") or (usual if os.path.exists(usual) else "")
    if path:
        return _read_google_file(path, environment)
    host = environment.get("GCE_METADATA_HOST") or _GOOGLE_METADATA
    return _ask_google(host) or _none("no credentials; give a service account in storage= or the environment")


def _read_google_file(path: str, environment: Environment) -> Account:
    variable = "GOOGLE_APPLICATION_CREDENTIALS" if "GOOGLE_APPLICATION_CREDENTIALS" in environment else "gcloud's file"
    try:
        with open(path, "rb") as file:
            kind = json.loads(file.read(_MOST_BYTES)).get("type")
    except (OSError, ValueError, AttributeError) as error:
        raise _fail(f"the credentials of {variable} cannot be read ({type(error).__name__})") from None
    if kind not in ("service_account", "authorized_user"):
        raise _fail(
            f"the credentials of {variable} are not of a service account or a user, the kinds that obstore reads"
        )
    return Account(f"the {str(kind).replace('_', ' ')} of {variable}", {"application_credentials": path}, True)


def _ask_google(host: str) -> Account | None:
    """Returns the token of the identity of the instance or the pod; None: this machine has none."""
    answer = _ask(f"http://{host}{_GOOGLE_TOKEN}", {"Metadata-Flavor": "Google"})
    return None if answer is None or answer[0] == 404 else _token_account("bearer_token", answer)


def _token_account(key: str, answer: Answer) -> Account:
    found = _json_of(_INSTANCE, answer)
    try:
        return Account(_INSTANCE, {key: str(found["access_token"])}, True, time.time() + float(found["expires_in"]))
    except (KeyError, TypeError, ValueError):
        raise Passing(f"{_INSTANCE}: an answer without a token") from None


# ---- Azure ----

_AZURE_KINDS = (
    ("token", ("AZURE_STORAGE_TOKEN",), "the token"),
    ("account_key", ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_KEY"), "the account key"),
    ("sas_key", ("AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_SAS_KEY"), "the shared access signature"),
)
_AZURE_CLIENT = ("client_id", "client_secret", "tenant_id")


def _find_azure(given: Mapping[str, Any], environment: Environment) -> Account:
    for key, _, what in _AZURE_KINDS:
        if key in given:
            return Account(f"{what} of storage=", {key: given[key]})
    if any(key in given for key in _AZURE_CLIENT):
        config = {key: given[key] for key in _AZURE_CLIENT if key in given}
        return Account("the client of storage=", {**config, **_authority(environment)}, True)
    for key, names, what in _AZURE_KINDS:
        for name in names:
            if name in environment:
                return Account(f"{what} of the environment ({name})", {key: environment[name]})
    return _find_azure_identity(environment) or _none(
        "no credentials; give account_key, sas_key or token in storage=, or set AZURE_STORAGE_ACCOUNT_KEY"
    )


def _authority(environment: Environment) -> dict[str, str]:
    return {"authority_host": environment["AZURE_AUTHORITY_HOST"]} if "AZURE_AUTHORITY_HOST" in environment else {}


def _find_azure_identity(environment: Environment) -> Account | None:
    client = {key: environment[name] for key in _AZURE_CLIENT if (name := f"AZURE_{key.upper()}") in environment}
    if "client_id" in client and "tenant_id" in client:
        if "AZURE_FEDERATED_TOKEN_FILE" in environment:
            path = environment["AZURE_FEDERATED_TOKEN_FILE"]
            _read_token(path, "the identity of the pod")  # or an error that says so
            config = {**client, "federated_token_file": path}
            config.pop("client_secret", None)
            return Account(
                "the identity of the pod (AZURE_FEDERATED_TOKEN_FILE)", config | _authority(environment), True
            )
        if "client_secret" in client:
            return Account("the client of the environment (AZURE_CLIENT_ID)", client | _authority(environment), True)
    metadata = environment.get("AZURE_MSI_ENDPOINT", _AZURE_METADATA)
    query = {"api-version": "2018-02-01", "resource": "https://storage.azure.com/"}
    query |= {"client_id": client["client_id"]} if "client_id" in client else {}
    answer = _ask(f"{metadata}?{urlencode(query)}", {"Metadata": "true"})
    # 400: an instance without an identity
    return None if answer is None or answer[0] in (400, 404) else _token_account("token", answer)


# ---- services of this machine ----

Answer = tuple[int, bytes]


def _ask(url: str, headers: dict[str, str], method: str = "GET") -> Answer | None:
    """Asks a service of this machine, which needs no proxy. None: there is no connection to it. Raises Passing if it
    does not answer on one."""
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    try:
        connection = kind(parts.hostname or "", parts.port, timeout=_CONNECT_S)
        connection.connect()
    except (OSError, http.client.HTTPException, ValueError):  # ValueError: an address that is not valid
        return None
    try:
        connection.sock.settimeout(_ANSWER_S)
        connection.request(method, parts.path + (f"?{parts.query}" if parts.query else ""), headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read(_MOST_BYTES)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise Passing(f"the service that gives credentials ({type(error).__name__})") from None
    finally:
        connection.close()


def judge(kind: str, status: int) -> Exception:
    """Returns Failed if a service refuses credentials, and Passing if it may give them later. status 0: no answer."""
    if status in (400, 401, 403, 404):
        return _fail(f"{kind} gives no credentials (status {status})")
    return Passing(f"{kind}: status {status}" if status else f"{kind}: its service does not answer")


def _json_of(kind: str, answer: Answer | None) -> Any:
    """Returns what a service says. Raises Failed and Passing."""
    if answer is None or answer[0] != 200:
        raise judge(kind, answer[0] if answer else 0)
    try:
        return json.loads(answer[1])
    except ValueError:
        raise Passing(f"{kind}: an answer that is not JSON") from None


def _read_token(path: str, kind: str) -> str:
    try:
        with open(path) as file:
            return file.read(_MOST_BYTES).strip()
    except (OSError, ValueError) as error:
        raise _fail(f"the token for {kind} cannot be read ({type(error).__name__})") from None
