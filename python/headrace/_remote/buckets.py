# SPDX-License-Identifier: Apache-2.0
"""Reads objects in buckets, and lists them, with obstore. The checks of an answer are ours: obstore takes the bytes of
another version or fewer bytes without an error.

obstore does not try again here: the fetcher does, for all its sources in one way. The texts of its exceptions have
signatures, so only their classes and the status in them are used.
"""

from __future__ import annotations

import errno
import importlib
import re
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from headrace._remote import addresses, failures, settings
from headrace._remote.addresses import Address
from headrace._remote.failures import Failed, Passing
from headrace._remote.https import Found

LISTED_AT_ONCE = 1000
_KEYS = ("access_key_id", "secret_access_key", "session_token", "region")
_FROM_ENVIRONMENT = {
    "access_key_id": ("AWS_ACCESS_KEY_ID",),
    "secret_access_key": ("AWS_SECRET_ACCESS_KEY",),
    "session_token": ("AWS_SESSION_TOKEN",),
    "region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
}
_DEFAULT_REGION = "us-east-1"
_STATUS = re.compile(r"status code: (\d{3})\b")
_PASSING = (408, 425, 429, 500, 502, 503, 504, 509)
_EXPIRED = ("ExpiredToken", "TokenRefreshRequired", "RequestExpired", "ExpiredTokenException")

_stores: dict[tuple[str, str], Any] = {}
_lock = threading.Lock()


def need_obstore() -> Any:
    """Imports obstore. Raises ImportError that says what to install."""
    try:
        return importlib.import_module("obstore")
    except ImportError as error:
        raise ImportError(f"buckets need obstore: pip install 'headrace[remote]' ({error})") from None


def split(address: Address) -> tuple[str, str]:
    """Returns the bucket and the key of an address. Raises Failed for keys that obstore would change."""
    bucket, _, key = address.url.partition("://")[2].partition("/")
    if "//" in key or key.startswith("/") or any(part in (".", "..") for part in key.split("/")):
        raise Failed(errno.EINVAL, f"remote: {address.shown} has '//', '.' or '..' in its key, which obstore refuses")
    return bucket, key


def _store_of(bucket: str, text: str, given: Mapping[str, Any]) -> Any:
    with _lock:
        store = _stores.get((bucket, text))
        if store is None:
            store = _stores[bucket, text] = _make_store(bucket, given)
        return store


def _make_store(bucket: str, given: Mapping[str, Any]) -> Any:
    try:
        obstore = need_obstore()
        store_module = importlib.import_module("obstore.store")
    except ImportError as error:
        raise Failed(errno.ENOSYS, f"remote: {error}") from None
    del obstore
    config = _config_of(given)
    endpoint = settings.endpoint_of(given)
    options: dict[str, Any] = {
        "timeout": "600s",
        "read_timeout": f"{_timeout_of(given):.0f}s",
        "connect_timeout": "10s",
    }
    if endpoint.startswith("http://"):
        host = endpoint.removeprefix("http://").partition("/")[0].rpartition(":")[0]
        if not given.get("allow_http") and host not in ("127.0.0.1", "localhost", "[::1]"):
            raise Failed(
                errno.EPERM, 'remote: the endpoint is not encrypted; use https, or storage={"allow_http": True}'
            )
        options["allow_http"] = True
    if endpoint:
        config["endpoint"] = endpoint
    try:
        return store_module.S3Store(bucket, client_options=options, retry_config={"max_retries": 0}, **config)
    except Exception as error:
        raise Failed(
            errno.EINVAL, f"remote: the settings of the bucket {bucket} are not valid ({type(error).__name__})"
        ) from None


def _timeout_of(given: Mapping[str, Any]) -> float:
    return max(1.0, float(given.get("timeout_s", settings.TIMEOUT_S)))


def _config_of(given: Mapping[str, Any]) -> dict[str, Any]:
    environment = given.get("environment", {})
    found: dict[str, Any] = {}
    has_own_keys = any(key in given for key in ("access_key_id", "secret_access_key", "session_token"))
    for key in _KEYS:
        if key in given:
            found[key] = given[key]
            continue
        if has_own_keys and key != "region":
            continue  # the keys of two accounts do not belong together
        value = next((environment[name] for name in _FROM_ENVIRONMENT[key] if name in environment), None)
        if value:
            found[key] = value
    found.setdefault("region", _DEFAULT_REGION)
    if given.get("anonymous") or "access_key_id" not in found:
        found["skip_signature"] = True
        for key in ("access_key_id", "secret_access_key", "session_token"):
            found.pop(key, None)
    return {**found, **given.get("config", {})}


def _describe_credentials(given: Mapping[str, Any]) -> str:
    if given.get("anonymous"):
        return 'no credentials (storage={"anonymous": True})'
    if "access_key_id" in given:
        return "the keys of storage="
    environment = given.get("environment", {})
    if "AWS_ACCESS_KEY_ID" in environment:
        kind = ", with a session token" if "AWS_SESSION_TOKEN" in environment else ""
        return f"the keys of the environment (AWS_ACCESS_KEY_ID{kind})"
    return "no credentials; give keys in storage= or the environment. They are in no pickle except for workers"


def _judge(address: Address, given: Mapping[str, Any], error: Exception) -> Exception:
    """Returns our exception for one of obstore, whose text is not passed on."""
    kind, text = type(error).__name__, str(error)
    found = _STATUS.search(text)
    status = int(found[1]) if found else 0
    expired = any(f"<Code>{code}</Code>" in text for code in _EXPIRED)
    if isinstance(error, FileNotFoundError) or kind == "NotFoundError":
        return failures.is_absent(address.shown, 404)
    if expired:
        return failures.is_refused(address.shown, status or 403, _describe_credentials(given) + ", which have expired")
    if (
        kind in ("PermissionDeniedError", "UnauthenticatedError")
        or isinstance(error, PermissionError)
        or status in (401, 403)
    ):
        return failures.is_refused(address.shown, status or 403, _describe_credentials(given))
    if kind == "PreconditionError" or status == 412:
        return failures.is_replaced(address.shown, "the store has another version of it (status 412)")
    if status == 416:
        return failures.is_replaced(address.shown, "the part that is wanted is behind its end (status 416)")
    if status in _PASSING:
        return Passing(f"status {status}")
    if status:
        return failures.is_unusable(address.shown, f"the store answered with status {status}")
    if kind in ("InvalidPathError", "NotSupportedError", "UnknownConfigurationKeyError"):
        return failures.is_unusable(address.shown, f"obstore refuses it ({kind})")
    return Passing(f"no answer ({kind})")


# ---- objects ----


def look(address: Address, text: str, given: Mapping[str, Any]) -> Found:
    """Asks for size and version of an object. Raises Failed and Passing."""
    bucket, key = split(address)
    store = _store_of(bucket, text, given)
    try:
        meta = need_obstore().head(store, key)
    except Exception as error:
        raise _judge(address, given, error) from None
    return Found(int(meta["size"]), _version(address, meta, given), b"")


def _version(address: Address, meta: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    version = addresses.version_of(meta.get("e_tag"), _time_of(meta), given.get("version"))
    if version is None:
        raise failures.is_unusable(address.shown, "the store gives it neither an ETag nor a time")
    return version


def _time_of(meta: Mapping[str, Any]) -> str | None:
    """Returns the time of an object; None: the store gives none, for which obstore gives 1970."""
    time = meta.get("last_modified")
    return time.isoformat() if time is not None and time.timestamp() > 0 else None


def read(address: Address, text: str, given: Mapping[str, Any], version: str, size: int, at: int, count: int) -> Any:
    """Returns the bytes [at, at + count) of an object of this version and size. Raises Failed and Passing."""
    bucket, key = split(address)
    store = _store_of(bucket, text, given)
    options: dict[str, Any] = {"range": (at, at + count)}
    etag = addresses.strong_etag(version)
    if etag is not None:
        options["if_match"] = etag
    try:
        answer = need_obstore().get(store, key, options=options)
        meta, found, attributes = answer.meta, answer.range, dict(answer.attributes)
    except Exception as error:
        raise _judge(address, given, error) from None
    if not addresses.is_same_version(version, meta.get("e_tag"), _time_of(meta)):
        raise failures.is_replaced(address.shown, "the store has another version of it")
    if int(meta["size"]) != size:
        raise failures.is_replaced(address.shown, f"it had {size:,} bytes, and now has {int(meta['size']):,}")
    if any(str(name).lower() == "content-encoding" and value != "identity" for name, value in attributes.items()):
        raise failures.is_unusable(address.shown, "it is stored with a Content-Encoding; store it without")
    if tuple(found) != (at, at + count):
        raise Passing(f"bytes {found[0]}-{found[1]} instead of {at}-{at + count}")
    try:
        data = answer.bytes()
    except Exception as error:
        raise _judge(address, given, error) from None
    if len(data) != count:
        raise Passing(f"{len(data):,} bytes instead of {count:,}")
    return data


def list_objects(address: Address, text: str, given: Mapping[str, Any]) -> Iterator[tuple[str, Found]]:
    """Yields the URLs of the objects whose keys begin with that of an address, in the order of the store, with their
    sizes and versions. A prefix that ends in the middle of a name is cut, because obstore knows whole names only."""
    bucket, _, prefix = address.url.partition("://")[2].partition("/")
    folder = prefix[: prefix.rfind("/") + 1]
    store = _store_of(bucket, text, given)
    try:
        for page in need_obstore().list(store, prefix=folder or None, chunk_size=LISTED_AT_ONCE):
            for meta in page:
                key = str(meta["path"])
                is_folder = key.endswith("/") and not meta["size"]
                if key.startswith(prefix) and not is_folder:
                    one = addresses.parse(f"s3://{bucket}/{key}", settings.endpoint_of(given))
                    yield one.url, Found(int(meta["size"]), _version(one, meta, given), b"")
    except (Failed, ValueError):
        raise
    except Exception as error:
        raise _judge(address, given, error) from None
