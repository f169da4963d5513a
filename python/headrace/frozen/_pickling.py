# SPDX-License-Identifier: Apache-2.0
"""Pickles views, for other processes and for files.

multiprocessing's pickler sends a handle: the descriptor of frozen data in memory, or the path and digest of a file. Any
other pickle may be read by any process at any time: it contains the data itself, or the path and digest of its file.
Pickles in users' files contain the names of this module and of its functions, so never rename them.
"""

from __future__ import annotations

import collections.abc
import copyreg
import errno
import os
import weakref
from multiprocessing import context, reduction
from typing import Any

from headrace import _core
from headrace._base import memory_file
from headrace._core import Frozen, FrozenError

_opened: weakref.WeakValueDictionary[bytes, Frozen] = weakref.WeakValueDictionary()  # by id: each is mapped once
# What this process got when it was started. All handles of one have the same descriptor, which is read once.
_inherited: dict[bytes, Frozen] = {}
# Up to this size, embedded frozen data is loaded into ordinary memory: a pickle may have many, and descriptors are few.
_SMALL_BYTES = 1 << 20
_sent_descriptors: weakref.WeakKeyDictionary[Any, dict[bytes, Any]] = (
    weakref.WeakKeyDictionary()
)  # by the process that is being started


def remember(frozen: Frozen, path: str | None) -> None:
    frozen.path = path
    _opened[frozen.id] = frozen


def open_file(path: str, verify: bool, trust: bool) -> Frozen:
    frozen = _core.open_frozen(os.fsencode(path), verify, trust)
    known = _opened.get(frozen.id)
    if known is not None and known.path == path and known.trusted == trust:
        return known
    remember(frozen, path)
    return frozen


# ---- frozen data ----


def _attach(identity: bytes, fd: int, what: str) -> Frozen:
    return _take(_core.attach_frozen(fd, "frozen data", True), identity, what)


def _take(frozen: Frozen, identity: bytes, what: str) -> Frozen:
    if frozen.id != identity:
        raise FrozenError(f"headrace: {what} is not the frozen data that was sent; send it again")
    remember(frozen, None)
    return frozen


def _load_inherited(identity: bytes, sent: Any) -> Frozen:
    """Loads frozen data from the process that started this one."""
    known = _inherited.get(identity)
    if known is None:
        fd = sent.detach()
        try:
            known = _opened.get(identity) or _attach(identity, fd, "an inherited descriptor")
        finally:
            os.close(fd)
        _inherited[identity] = known
    return known


def _load_sent(identity: bytes, sent: Any) -> Frozen:
    """Loads frozen data that was sent through a queue or pipe. The sender keeps the descriptor for one fetch."""
    known = _opened.get(identity)
    try:
        fd = sent.detach()
    except (OSError, EOFError) as error:
        if known is not None:
            return known
        raise FrozenError(
            f"headrace: the frozen data that another process sent cannot be fetched from it ({error}); it must live "
            "until its message has been received, once"
        ) from error
    try:
        return known or _attach(identity, fd, "what another process sent")
    finally:
        os.close(fd)


def _load_file(path: str, digest: bytes, trust: bool) -> Frozen:
    for known in list(_opened.values()):
        if known.path == path and known.digest == digest and known.trusted == trust:
            return known
    try:
        frozen = open_file(path, False, trust)
    except FileNotFoundError as error:
        raise FrozenError(
            f"headrace: the frozen file {path}, which this pickle refers to, is missing; bring it there"
        ) from error
    if frozen.digest != digest:
        raise FrozenError(
            f"headrace: {path} is another frozen file than this pickle refers to; bring the right one there"
        )
    return frozen


def _load_embedded(data: bytes, identity: bytes) -> Frozen:
    known = _opened.get(identity)
    if known is not None:
        return known
    if len(data) <= _SMALL_BYTES:
        return _take(_core.copy_frozen(data, True), identity, "this pickle")
    try:
        with memory_file.create("headrace-frozen") as file:
            file.write(data)
            file.flush()
            return _attach(identity, file.fileno(), "this pickle")
    except OSError as error:
        if error.errno != errno.EFBIG:  # larger than the limit on file sizes, which does not apply to ordinary memory
            raise
        return _take(_core.copy_frozen(data, True), identity, "this pickle")


def _load_part(data: bytes, identity: bytes, small_items: int = 0) -> Any:
    frozen = _load_embedded(data, identity)
    frozen.small_items = small_items
    return frozen.root()


def _descriptor(frozen: Frozen) -> int:
    """Returns the descriptor of frozen data in memory. If it has none, makes one that lives as long as it."""
    if frozen.fd >= 0:
        return frozen.fd
    if not hasattr(frozen, "file"):
        file = memory_file.create("headrace-frozen")
        buffer: Any = frozen
        file.write(buffer)
        file.flush()
        frozen.file = file
        weakref.finalize(frozen, file.close)
    return frozen.file.fileno()


def _sent_descriptor(frozen: Frozen) -> Any:
    """Returns the frozen data's descriptor, duplicated once per process that is being started."""
    popen = context.get_spawning_popen()
    sent = _sent_descriptors.setdefault(popen, {})
    if frozen.id not in sent:
        sent[frozen.id] = reduction.DupFd(_descriptor(frozen))
    return sent[frozen.id]


def _with_state(frozen: Frozen, function: Any, *arguments: Any) -> Any:
    """Returns a reduction that sets how small containers of the frozen data are read."""
    state = (None, {"small_items": frozen.small_items}) if frozen.small_items else None
    return function, arguments, state


def _reduce_frozen_by_handle(frozen: Frozen) -> Any:
    if hasattr(frozen, "handle"):  # an object of a cache
        return frozen.handle
    if frozen.path is not None:
        return _load_file, (frozen.path, frozen.digest, frozen.trusted)
    if context.get_spawning_popen() is not None:
        return _with_state(frozen, _load_inherited, frozen.id, _sent_descriptor(frozen))
    return _with_state(frozen, _load_sent, frozen.id, reduction.DupFd(_descriptor(frozen)))


def _reduce_frozen_plainly(frozen: Frozen) -> Any:
    if frozen.path is not None:
        return _load_file, (frozen.path, frozen.digest, frozen.trusted)
    buffer: Any = frozen
    return _with_state(frozen, _load_embedded, bytes(buffer), frozen.id)


# ---- views ----


def _view(frozen: Frozen, value: int, part: slice | None) -> Any:
    view = frozen.at(value)
    return view if part is None else view[part]


def _reduce_by_handle(view: Any) -> Any:
    frozen, value, part = _core.where(view)
    return _view, (frozen, value, part)


def reduce_plainly(view: Any) -> Any:
    """Reduces a view for any pickle. Of frozen data in memory, it includes only the part that the view needs."""
    frozen, value, part = _core.where(view)
    if frozen.path is None and (value != frozen.root_value or part is not None):
        small, _ = _core.freeze(view, None, True)
        buffer: Any = small
        # not the frozen data object: the memo of the pickler would keep every part alive
        return _load_part, (bytes(buffer), small.id, *([frozen.small_items] if frozen.small_items else []))
    return _view, (frozen, value, part)


copyreg.pickle(Frozen, _reduce_frozen_plainly)
reduction.ForkingPickler.register(Frozen, _reduce_frozen_by_handle)
for _type, _abc in (
    (_core.FrozenList, collections.abc.Sequence),
    (_core.FrozenTuple, collections.abc.Sequence),
    (_core.FrozenDict, collections.abc.Mapping),
    (_core.FrozenSet, collections.abc.Set),
    (_core.FrozenKeys, collections.abc.KeysView),
    (_core.FrozenItems, collections.abc.ItemsView),
    (_core.FrozenValues, collections.abc.ValuesView),
):
    _abc.register(_type)
    if _type not in (_core.FrozenKeys, _core.FrozenItems, _core.FrozenValues):
        reduction.ForkingPickler.register(_type, _reduce_by_handle)
