# SPDX-License-Identifier: Apache-2.0
"""Tar files for tests: made by tarfile, or header by header."""

from __future__ import annotations

import io
import os
import pathlib
import tarfile
from collections.abc import Iterable, Iterator
from typing import Any

BLOCK = 512
Member = tuple[str, bytes]


def write_tar(path: pathlib.Path, members: Iterable[Member | tarfile.TarInfo], format: int = tarfile.PAX_FORMAT) -> str:
    """Writes members in order with tarfile: (name, content), or a TarInfo without content."""
    with tarfile.open(path, "w", format=format, encoding="utf-8", errors="surrogateescape") as tar:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                tar.addfile(member)
                continue
            info = tarfile.TarInfo(member[0])
            info.size = len(member[1])
            tar.addfile(info, io.BytesIO(member[1]))
    return str(path)


def write_samples(path: pathlib.Path, count: int, first: int = 0) -> str:
    """Writes samples with the fields bin (its number 100 times) and cls."""
    return write_tar(path, (member for i in range(first, first + count) for member in sample(i)))


def sample(number: int) -> list[Member]:
    return [(f"{number:06d}.bin", b"%d " % number * 100), (f"{number:06d}.cls", b"%d" % number)]


def special(name: str, kind: bytes, **attributes: Any) -> tarfile.TarInfo:
    """A folder, link or device."""
    info = tarfile.TarInfo(name)
    info.type = kind
    for attribute, value in attributes.items():
        setattr(info, attribute, value)
    return info


def header(name: bytes, size: int | bytes, kind: bytes = b"0", magic: bytes = b"ustar\x0000", **fields: bytes) -> bytes:
    """A header by hand. size: an int, or the 12 bytes of its field. fields: prefix."""
    octal = b"%011o\0" % size if isinstance(size, int) else size
    prefix = fields.get("prefix", b"")
    head = name.ljust(100, b"\0") + b"0000644\0" + b"0000000\0" * 2 + octal + b"00000000000\0" + b" " * 8 + kind
    head = (head.ljust(257, b"\0") + magic).ljust(345, b"\0") + prefix
    head = head.ljust(BLOCK, b"\0")
    return head[:148] + b"%06o\0 " % sum(head) + head[156:]


def padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % BLOCK)


def member(name: bytes, data: bytes, **options: Any) -> bytes:
    return header(name, len(data), **options) + padded(data)


END = b"\0" * 2 * BLOCK


def write_bytes(path: pathlib.Path, *parts: bytes) -> str:
    path.write_bytes(b"".join(parts))
    return str(path)


def by_webdataset(*paths: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Returns the samples as webdataset gives them, without the path that it adds to each."""
    from webdataset.tariterators import tarfile_samples

    found = list(tarfile_samples([{"url": os.fspath(path)} for path in paths]))
    return [{name: value for name, value in one.items() if name not in ("__url__", "__local_path__")} for one in found]


def pax(records: dict[str, str | bytes], kind: bytes = b"x") -> bytes:
    """A header of pax with these records."""
    text = b""
    for key, value in records.items():
        body = b" " + key.encode() + b"=" + (value if isinstance(value, bytes) else value.encode()) + b"\n"
        length = len(body)
        while length != len(body) + len(str(length)):
            length = len(body) + len(str(length))
        text += str(length).encode() + body
    return header(b"././@PaxHeader", len(text), kind=kind) + padded(text)


def gnu_long_name(name: bytes) -> bytes:
    return header(b"././@LongLink", len(name) + 1, kind=b"L", magic=b"ustar  \0") + padded(name + b"\0")


def base256(size: int) -> bytes:
    return b"\x80" + size.to_bytes(11, "big")


def numbers_of(batches: Iterable[Any]) -> Iterator[int]:
    """The numbers of the samples of write_samples in batches of (bin, cls) or dicts."""
    for batch in batches:
        yield from (int(one) for one in (batch["cls"] if isinstance(batch, dict) else batch[1]))
