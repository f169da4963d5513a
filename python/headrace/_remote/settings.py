# SPDX-License-Identifier: Apache-2.0
"""The settings of remote objects: what the user gives as storage=, and what the environment has."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from headrace._remote import addresses
from headrace._remote.addresses import Address

RETRY_S = 120.0
TIMEOUT_S = 30.0

_OWN = ("retry_s", "timeout_s", "version", "allow_http", "headers", "config")
_SECRET = (
    "access_key_id",
    "secret_access_key",
    "session_token",
    "token",
    "service_account",
    "service_account_key",
    "account_key",
    "sas_key",
    "client_id",
    "client_secret",
    "tenant_id",
)
_PLACES = ("region", "endpoint", "profile", "account_name")
_KEYS = (*_SECRET, *_PLACES, "anonymous")
_PLAIN = (*_PLACES, "anonymous", "retry_s", "timeout_s", "version", "allow_http")  # no secrets
_VERSIONS = ("modified", "size")
_MOST_TOKEN = 4096  # bytes of the hub's file
_HUB_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
_HUB_FILE = "the hub's file"  # in place of a variable
# Variables with which the fetcher is asked. It may have been started by another job, and uses none of its own.
_ENVIRONMENT = (
    "HOME",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_PROFILE",
    "AWS_DEFAULT_PROFILE",
    "AWS_CONFIG_FILE",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_CA_BUNDLE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_ROLE_ARN",
    "AWS_ROLE_SESSION_NAME",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    "AWS_EC2_METADATA_DISABLED",
    "AWS_EC2_METADATA_SERVICE_ENDPOINT",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AWS_ENDPOINT_URL_STS",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GOOGLE_SERVICE_ACCOUNT",
    "GOOGLE_SERVICE_ACCOUNT_PATH",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
    "GCE_METADATA_HOST",
    "CLOUDSDK_CONFIG",
    "STORAGE_EMULATOR_HOST",
    "AZURE_STORAGE_ACCOUNT_NAME",
    "AZURE_STORAGE_ACCOUNT",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_ACCESS_KEY",
    "AZURE_STORAGE_KEY",
    "AZURE_STORAGE_SAS_TOKEN",
    "AZURE_STORAGE_SAS_KEY",
    "AZURE_STORAGE_TOKEN",
    "AZURE_STORAGE_ENDPOINT",
    "AZURE_CLIENT_ID",
    "AZURE_CLIENT_SECRET",
    "AZURE_TENANT_ID",
    "AZURE_AUTHORITY_HOST",
    "AZURE_FEDERATED_TOKEN_FILE",
    "AZURE_MSI_ENDPOINT",
    "HF_ENDPOINT",
    *_HUB_TOKENS,
    "HTTPS_PROXY",
    "https_proxy",
    "http_proxy",
    "NO_PROXY",
    "no_proxy",
    "SSL_CERT_FILE",
)
_FILES = (
    "AWS_CONFIG_FILE",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_CA_BUNDLE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GOOGLE_SERVICE_ACCOUNT",
    "GOOGLE_SERVICE_ACCOUNT_PATH",
    "CLOUDSDK_CONFIG",
    "AZURE_FEDERATED_TOKEN_FILE",
    "SSL_CERT_FILE",
)
# The fetcher deletes these from its own variables: libraries read them, and the files that HOME has, by themselves.
_ACCOUNTS = ("AWS_", "GOOGLE_", "GCE_", "CLOUDSDK_", "AZURE_", "HF_", "HUGGING_FACE_", "STORAGE_EMULATOR_", "SSL_CERT_")
_MORE_ACCOUNTS = ("HOME", "SERVICE_ACCOUNT", "IDENTITY_ENDPOINT", "IDENTITY_HEADER", "MSI_ENDPOINT", "MSI_SECRET")
_ENDPOINTS = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    "gs": ("STORAGE_EMULATOR_HOST",),
    "az": ("AZURE_STORAGE_ENDPOINT",),
    "hf": ("HF_ENDPOINT",),
}


def write(storage: Any, name: str) -> str:
    """Returns storage= of a source, with the environment of this process, as JSON. name: of the source, for messages.
    Raises TypeError and ValueError, which never have a value of storage."""
    if storage is not None and not isinstance(storage, Mapping):
        raise TypeError(f"{name}: storage should be a dict of settings")
    found = dict(storage or {})
    unknown = [key for key in found if key not in (*_OWN, *_KEYS)]
    if unknown:
        raise ValueError(f"{name}: storage has unknown settings {unknown}; there are {sorted((*_OWN, *_KEYS))}")
    if found.get("version") not in (None, *_VERSIONS):
        raise ValueError(f'{name}: storage["version"] should be "modified" or "size"')
    for key in ("retry_s", "timeout_s"):
        value = found.get(key, 1)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 86400:
            raise ValueError(f"{name}: storage[{key!r}] should be a number of seconds")
    for key in ("headers", "config"):
        texts = found.get(key, {})
        if not isinstance(texts, Mapping) or not all(isinstance(one, str) for pair in texts.items() for one in pair):
            raise TypeError(f"{name}: storage[{key!r}] should be a dict of texts")
        if any("\n" in one or "\r" in one for pair in texts.items() for one in pair):
            raise ValueError(f"{name}: storage[{key!r}] has a line feed")
        if key in found:
            found[key] = dict(texts)
    for key in _KEYS:
        if key in found and key != "anonymous" and not isinstance(found[key], str):
            raise TypeError(f"{name}: storage[{key!r}] should be a str")
    return _as_json(found)


def _as_json(found: dict[str, Any]) -> str:
    environment = {key: os.environ[key] for key in _ENVIRONMENT if os.environ.get(key)}
    for names, settings in ((_FILES, environment), (("service_account",), found)):
        for name in names:
            if name in settings:  # the fetcher has another working directory
                settings[name] = os.path.abspath(os.path.expanduser(settings[name]))
    if found.get("profile") or has_profiles(environment):
        environment["PATH"] = os.environ.get("PATH", os.defpath)  # of the programs that give keys (credential_process)
    if not any(key in environment for key in _HUB_TOKENS):
        token = _token_of_file()
        environment.update({_HUB_FILE: token} if token else {})
    try:
        return json.dumps({**found, "environment": environment}, sort_keys=True)
    except (TypeError, ValueError):
        raise TypeError("storage should have texts and numbers only") from None


def has_profiles(environment: Mapping[str, str]) -> bool:
    """Returns True if the user has profiles of AWS."""
    home = environment.get("HOME", "")
    files = (
        environment.get("AWS_SHARED_CREDENTIALS_FILE") or f"{home}/.aws/credentials",
        environment.get("AWS_CONFIG_FILE") or f"{home}/.aws/config",
    )
    return any(os.path.exists(path) for path in files)


def _token_of_file() -> str:
    """Returns the token that the hub's own program has saved for this user, unless the user says that only a token that
    is given counts."""
    if os.environ.get("HF_HUB_DISABLE_IMPLICIT_TOKEN", "").upper() in ("1", "ON", "YES", "TRUE"):
        return ""
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    home = os.path.expanduser(os.environ.get("HF_HOME") or os.path.join(caches, "huggingface"))
    path = os.environ.get("HF_TOKEN_PATH") or os.path.join(home, "token")
    try:
        with open(path) as file:
            return file.read(_MOST_TOKEN).strip()
    except (OSError, ValueError):
        return ""


def without_secrets(text: str) -> str:
    """Returns the settings that a pickle may have, as JSON."""
    return json.dumps({key: value for key, value in json.loads(text).items() if key in _PLAIN}, sort_keys=True)


def with_environment(text: str) -> str:
    """Adds the environment of this process to settings of another one."""
    return _as_json({key: value for key, value in json.loads(text).items() if key != "environment"})


def forget_environment() -> None:
    """Deletes accounts and proxies of the program that started this process, the fetcher: each request has its own."""
    for name in list(os.environ):
        if name.startswith(_ACCOUNTS) or name in _MORE_ACCOUNTS or name.lower().endswith("_proxy"):
            del os.environ[name]


# ---- what a request needs ----


def address_of(url: str, settings: Mapping[str, Any]) -> Address:
    """Returns the parts of a URL, at the endpoint of the settings. Raises ValueError."""
    scheme = url.partition(":")[0]
    where = endpoint_of(settings, scheme)
    if scheme == "az":  # containers of two accounts have equal names
        where = f"{where} {azure_account(settings)}".strip()
    return addresses.parse(url, where)


def endpoint_of(settings: Mapping[str, Any], scheme: str) -> str:
    """Returns the address of the store that has a bucket or a repository; "": the usual one."""
    environment = settings.get("environment", {})
    found = settings.get("endpoint") if scheme in addresses.LISTED else ""
    for name in _ENDPOINTS.get(scheme, ()):
        found = found or environment.get(name)
    text = str(found or "").rstrip("/")
    return f"http://{text}" if text and "://" not in text else text


def azure_account(settings: Mapping[str, Any]) -> str:
    """Returns the name of the storage account of containers; "": it is not said."""
    environment = settings.get("environment", {})
    names = ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT")
    return str(settings.get("account_name") or next((environment[name] for name in names if name in environment), ""))


def hub_token(settings: Mapping[str, Any]) -> tuple[str, str]:
    """Returns the token for the hub, or "", and in words where it comes from."""
    if settings.get("anonymous"):
        return "", 'no token (storage={"anonymous": True})'
    if settings.get("token"):
        return str(settings["token"]), "the token of storage="
    environment = settings.get("environment", {})
    for name in (*_HUB_TOKENS, _HUB_FILE):
        if environment.get(name):
            return environment[name].strip(), f"the token of {name}"
    return "", "no token (HF_TOKEN)"
