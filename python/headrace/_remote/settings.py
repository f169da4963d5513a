# SPDX-License-Identifier: Apache-2.0
"""The settings of remote objects: what the user gives as storage=, and what the environment has."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

RETRY_S = 120.0
TIMEOUT_S = 30.0

_OWN = ("retry_s", "timeout_s", "version", "allow_http", "headers", "config")
_PLAIN = ("region", "endpoint", "retry_s", "timeout_s", "version", "allow_http", "anonymous")  # no secrets
_KEYS = ("access_key_id", "secret_access_key", "session_token", "region", "endpoint", "anonymous")
_VERSIONS = ("modified", "size")
# What the fetcher would not have: it may have been started by another job.
_ENVIRONMENT = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "HTTPS_PROXY",
    "https_proxy",
    "http_proxy",
    "NO_PROXY",
    "no_proxy",
    "SSL_CERT_FILE",
)


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
    try:
        return json.dumps({**found, "environment": environment}, sort_keys=True)
    except (TypeError, ValueError):
        raise TypeError("storage should have texts and numbers only") from None


def without_secrets(text: str) -> str:
    """Returns the settings that a pickle may have, as JSON."""
    return json.dumps({key: value for key, value in json.loads(text).items() if key in _PLAIN}, sort_keys=True)


def with_environment(text: str) -> str:
    """Adds the environment of this process to settings of another one."""
    return _as_json({key: value for key, value in json.loads(text).items() if key != "environment"})


def endpoint_of(settings: Mapping[str, Any]) -> str:
    """Returns the address of the store that has a bucket; "": that of AWS."""
    environment = settings.get("environment", {})
    found = settings.get("endpoint") or environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")
    return str(found or "").rstrip("/")
