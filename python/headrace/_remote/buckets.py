# SPDX-License-Identifier: Apache-2.0
"""Reads objects in buckets of S3, Google and Azure, and lists them, with obstore. The checks of an answer are ours:
obstore takes the bytes of another version or fewer bytes without an error.

Each set of settings, with the variables of the process that asks, has a store of its own for each bucket: the accounts
of two jobs do not mix. A store is made again before its credentials end, and once if a server says that they have
expired.

obstore does not try again here: the fetcher does, for all its sources in one way. The texts of its exceptions have
signatures, so only their classes and the status in them are used.
"""

from __future__ import annotations

import errno
import importlib
import math
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from headrace._base.help_key import help_on
from headrace._remote import accounts, addresses, failures, https, settings
from headrace._remote.accounts import Account
from headrace._remote.addresses import Address
from headrace._remote.failures import Failed, Passing
from headrace._remote.https import Found

Result = TypeVar("Result")

LISTED_AT_ONCE = 1000
_CLASSES = {"s3": "S3Store", "gs": "GCSStore", "az": "AzureStore"}
_DEFAULT_REGION = "us-east-1"
_EARLY_S = 300.0  # before their end, other credentials are asked for
_RENEWED_S = 60.0  # for which new credentials that a server refuses are not asked for again
_STATUS = re.compile(r"status code: (\d{3})\b")
_PASSING = (408, 425, 429, 500, 502, 503, 504, 509)
# What obstore's text says of a failed connection, in the words of the Rust libraries below it.
_PLACE = re.compile(r"Error performing \w+ \w+://(?:[^/\s@]*@)?([^/?#\s]+)")
_UNTRUSTED = re.compile(r"InvalidCertificate\(\s*(\w+)")
_NOT_ENCRYPTED = "InvalidContentType"
_NO_CONNECTION = {
    "dns error": failures.UNKNOWN_HOST,
    "ConnectionRefused": "the server refuses the connection",
    "ConnectionReset": failures.CUT,
    "TimedOut": failures.SILENT,
}
_EXPIRED = ("ExpiredToken", "TokenRefreshRequired", "RequestExpired", "ExpiredTokenException")


@dataclass
class _Store:
    """A store of obstore. end_s: time.monotonic() after which another one is made. renewed_s: when it was made because
    a server said that the credentials of the one before had expired."""

    store: Any
    account: Account
    end_s: float | None
    renewed_s: float = -math.inf


_stores: dict[tuple[str, str, str], _Store] = {}
_locks: dict[tuple[str, str, str], threading.Lock] = {}
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


# ---- stores ----


def _store_of(address: Address, bucket: str, text: str, given: Mapping[str, Any], old: _Store | None = None) -> _Store:
    """Returns the store of a bucket with these settings. old: one whose credentials have expired."""
    key = (address.scheme, bucket, text)
    with _lock:
        lock = _locks.setdefault(key, threading.Lock())
    with lock:  # credentials are asked for once
        found = _stores.get(key)
        now = time.monotonic()
        if found is None or found is old or (found.end_s is not None and found.end_s < now):
            account = accounts.find(address.scheme, given)
            left_s = None if account.ends_s is None else account.ends_s - time.time()
            end_s = None if left_s is None else now + max(left_s - _EARLY_S, left_s / 2, 1.0)
            renewed_s = now if old is not None and found is old else -math.inf
            found = _stores[key] = _Store(_make_store(address, bucket, given, account), account, end_s, renewed_s)
        return found


def _make_store(address: Address, bucket: str, given: Mapping[str, Any], account: Account) -> Any:
    try:
        need_obstore()
        store_module = importlib.import_module("obstore.store")
    except ImportError as error:
        raise Failed(errno.ENOSYS, f"remote: {error}") from None
    config = {**account.config, **_config_of(address.scheme, given, account), **given.get("config", {})}
    options = _options_of(address, given)
    make = getattr(store_module, _CLASSES[address.scheme])
    try:
        return make(bucket, client_options=options, retry_config={"max_retries": 0}, **config)
    except Exception as error:
        raise Failed(
            errno.EINVAL,
            f"remote: the settings of the bucket {bucket}, or {account.kind}, are not valid ({type(error).__name__})",
        ) from None


def _config_of(scheme: str, given: Mapping[str, Any], account: Account) -> dict[str, Any]:
    """Returns where a bucket is, in obstore's settings."""
    endpoint = settings.endpoint_of(given, scheme)
    if scheme == "gs":
        return {"base_url": endpoint} if endpoint else {}
    if scheme == "az":
        name = settings.azure_account(given)
        if not name:
            raise Failed(
                errno.EINVAL,
                "remote: a container of Azure needs the name of its storage account: "
                'storage={"account_name": ...}, or AZURE_STORAGE_ACCOUNT_NAME' + help_on("remote-credentials"),
            )
        return {"account_name": name, **({"endpoint": endpoint} if endpoint else {})}
    environment = given.get("environment", {})
    region = given.get("region") or environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
    return {"region": region or account.region or _DEFAULT_REGION, **({"endpoint": endpoint} if endpoint else {})}


def _options_of(address: Address, given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of connections: times, proxies and certificates."""
    endpoint = settings.endpoint_of(given, address.scheme) or "https://"
    https.check_encryption(f"the endpoint of {address.shown}", endpoint, given)
    options: dict[str, Any] = {
        "timeout": "600s",
        "read_timeout": f"{max(1.0, float(given.get('timeout_s', settings.TIMEOUT_S))):.0f}s",
        "connect_timeout": "10s",
    }
    if endpoint.startswith("http://"):
        options["allow_http"] = True
    return options | https.proxy_options(endpoint, given)


# ---- errors ----


def _ask(
    address: Address, bucket: str, text: str, given: Mapping[str, Any], request: Callable[[Any], Result]
) -> Result:
    """Returns request(store). If the server says that the credentials have expired, others are asked for, once."""
    store = _store_of(address, bucket, text, given)
    try:
        return request(store.store)
    except (Failed, Passing):
        raise
    except Exception as error:
        is_second = time.monotonic() - store.renewed_s < _RENEWED_S
        if is_second or not (store.account.is_renewed and _has_expired(error)):
            raise _judge(address, store.account, error) from None
    store = _store_of(address, bucket, text, given, old=store)
    try:
        return request(store.store)
    except (Failed, Passing):
        raise
    except Exception as error:
        raise _judge(address, store.account, error) from None


def _status_of(error: Exception) -> int:
    found = _STATUS.search(str(error))
    return int(found[1]) if found else 0


def _is_of_service(error: Exception) -> bool:
    """Returns True for a failure of the service that gives obstore credentials. Only it is asked by POST."""
    return "Error performing POST " in str(error)


def _has_expired(error: Exception) -> bool:
    text = str(error)
    if _is_of_service(error):
        return False
    if any(f"<Code>{code}</Code>" in text for code in _EXPIRED):
        return True
    return type(error).__name__ == "UnauthenticatedError" or _status_of(error) == 401


def _judge(address: Address, account: Account, error: Exception) -> Exception:
    """Returns our exception for one of obstore, whose text is not passed on."""
    kind, status = type(error).__name__, _status_of(error)
    if not status and (unusable := _judge_encryption(account, error)):
        return unusable
    if _is_of_service(error):
        return accounts.judge(account.kind, status)
    if isinstance(error, FileNotFoundError) or kind == "NotFoundError":
        return failures.is_absent(address.shown, 404)
    if any(f"<Code>{code}</Code>" in str(error) for code in _EXPIRED):
        return failures.is_refused(address.shown, status or 403, account.kind + ", which have expired")
    if (
        kind in ("PermissionDeniedError", "UnauthenticatedError")
        or isinstance(error, PermissionError)
        or status in (401, 403)
    ):
        return failures.is_refused(address.shown, status or 403, account.kind)
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
    found = next((text for word, text in _NO_CONNECTION.items() if word in str(error)), "")
    return Passing(found or f"no answer ({kind})")


def _judge_encryption(account: Account, error: Exception) -> Failed | None:
    """Returns our exception if a server has no valid certificate, or does not speak https."""
    text = str(error)
    place = _PLACE.search(text)
    host = place[1] if place else f"the service for {account.kind}"
    if found := _UNTRUSTED.search(text):
        words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", found[1].removesuffix("Context")).lower()
        return failures.is_untrusted(host, words)
    return failures.is_not_encrypted(host) if _NOT_ENCRYPTED in text else None


# ---- objects ----


def look(address: Address, text: str, given: Mapping[str, Any]) -> Found:
    """Asks for size and version of an object. Raises Failed and Passing."""
    bucket, key = split(address)

    def request(store: Any) -> Any:
        try:
            return need_obstore().head(store, key)
        except Exception as error:
            if _status_of(error) != 400:
                raise
        return need_obstore().get(store, key).meta  # an answer to HEAD does not say why: S3's to expired keys is 400

    meta = _ask(address, bucket, text, given, request)
    return Found(int(meta["size"]), _version(address, meta, given), b"")


def _version(address: Address, meta: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    version = addresses.version_of(_etag_of(address, meta), _time_of(meta), given.get("version"))
    if version is None:
        raise failures.is_unusable(address.shown, "the store gives it neither an ETag nor a time")
    return version


def _etag_of(address: Address, meta: Mapping[str, Any]) -> str | None:
    """Returns the ETag of an object. Azure's listing has it without the quotes of its other answers."""
    etag = meta.get("e_tag")
    return f'"{etag}"' if etag and address.scheme == "az" and '"' not in etag else etag


def _time_of(meta: Mapping[str, Any]) -> str | None:
    """Returns the time of an object; None: the store gives none, for which obstore gives 1970."""
    moment = meta.get("last_modified")
    return moment.isoformat() if moment is not None and moment.timestamp() > 0 else None


def read(address: Address, text: str, given: Mapping[str, Any], version: str, size: int, at: int, count: int) -> Any:
    """Returns the bytes [at, at + count) of an object of this version and size. Raises Failed and Passing."""
    bucket, key = split(address)
    options: dict[str, Any] = {"range": (at, at + count)}
    etag = addresses.strong_etag(version)
    if etag is not None:
        options["if_match"] = etag

    def request(store: Any) -> Any:
        answer = need_obstore().get(store, key, options=options)
        _check_answer(address, answer, version, size, at, count)
        return answer.bytes()

    data = _ask(address, bucket, text, given, request)
    if len(data) != count:
        raise Passing(f"{len(data):,} bytes instead of {count:,}")
    return data


def _check_answer(address: Address, answer: Any, version: str, size: int, at: int, count: int) -> None:
    meta, found, attributes = answer.meta, answer.range, dict(answer.attributes)
    if not addresses.is_same_version(version, _etag_of(address, meta), _time_of(meta)):
        raise failures.is_replaced(address.shown, "the store has another version of it")
    if int(meta["size"]) != size:
        raise failures.is_replaced(address.shown, f"it had {size:,} bytes, and now has {int(meta['size']):,}")
    if any(str(name).lower() == "content-encoding" and value != "identity" for name, value in attributes.items()):
        raise failures.is_unusable(address.shown, "it is stored with a Content-Encoding; store it without")
    if tuple(found) != (at, at + count):
        raise Passing(f"bytes {found[0]}-{found[1]} instead of {at}-{at + count}")


def _address_of(url: str, given: Mapping[str, Any]) -> Address:
    try:
        return settings.address_of(url, given)
    except ValueError as error:
        raise Failed(errno.EINVAL, f"remote: {url!r}: {error}") from None


def list_objects(address: Address, text: str, given: Mapping[str, Any]) -> list[tuple[str, Found]]:
    """Returns the URLs of the objects whose keys begin with that of an address, in the order of the store, with their
    sizes and versions. A prefix that ends in the middle of a name is cut, because obstore knows whole names only."""
    bucket, _, prefix = address.url.partition("://")[2].partition("/")
    folder = prefix[: prefix.rfind("/") + 1]

    def request(store: Any) -> list[tuple[str, Found]]:
        found = []
        for page in need_obstore().list(store, prefix=folder or None, chunk_size=LISTED_AT_ONCE):
            for meta in page:
                key = str(meta["path"])
                is_folder = key.endswith("/") and not meta["size"]
                if key.startswith(prefix) and not is_folder:
                    url = f"{address.scheme}://{bucket}/{key}"
                    found.append((url, Found(int(meta["size"]), _version(_address_of(url, given), meta, given), b"")))
        return found

    return _ask(address, bucket, text, given, request)
