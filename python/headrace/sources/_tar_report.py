# SPDX-License-Identifier: Apache-2.0
"""Says what an index of tar files has found: damage, members that are in no sample, and the report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from headrace import _core
from headrace._base.help_key import help_on
from headrace._base.warn import warn_user
from headrace._remote.addresses import is_remote
from headrace.sources._index import FileIndex

_UNPACK = (
    (b"\x1f\x8b", "gzip -d"),
    (b"BZh", "bzip2 -d"),
    (b"\xfd7zXZ", "xz -d"),
    (b"\x28\xb5\x2f\xfd", "zstd -d"),
    (b"\x04\x22\x4d\x18", "lz4 -d"),
    (b"PK\x03\x04", "unzip"),
)
_POINTER = b"version https://git-lfs.github.com/spec/"
_SKIPPED = {
    "folders": _core.TAR_FOLDERS,
    "links": _core.TAR_LINKS,
    "others": _core.TAR_OTHERS,
    "without_field": _core.TAR_NAMELESS,
    "metadata": _core.TAR_METADATA,
}
_DAMAGE = {
    _core.DAMAGE_EMPTY: "it is empty",
    _core.DAMAGE_HEADER: "there is no header of a member of tar, or it has a wrong checksum",
    _core.DAMAGE_TRUNCATED: "it ends within a member, so it was not written or copied to its end",
    _core.DAMAGE_SPARSE: "a member is sparse (tar --sparse), which is not supported; write the file again without that",
    _core.DAMAGE_REFUSED: "a header is not supported: it has more than 63 KiB, a global path or size, or data of 1 TB",
    _core.DAMAGE_FIELDS: "it has more than 4,096 different fields; a field is the part of a name behind its first dot",
}
_SHOWN = 3


def _begin_of(path: str, count: int) -> bytes:
    """Returns the first bytes of a file; b"": it is a remote object."""
    if is_remote(path):
        return b""
    with open(path, "rb") as file:
        return file.read(count)


def _how_to_unpack(path: str) -> str:
    begin = _begin_of(path, 8)
    command = next((command for magic, command in _UNPACK if begin.startswith(magic)), "the program that packed it for")
    return f"it is compressed, so that its samples cannot be read at random; unpack it: {command} {path!r}"


def _pointer_hint(path: str) -> str:
    """Returns what to do about a pointer of Git LFS, which is in place of a file that was not fetched."""
    is_pointer = _begin_of(path, len(_POINTER)) == _POINTER
    return ", but a pointer of Git LFS; fetch the file: git lfs pull" if is_pointer else ""


def describe_damage(file: dict[str, Any]) -> str:
    """Returns what is wrong with a file, which has its path and the fields of struct hr_index_file."""
    if file["damage"] == _core.DAMAGE_COMPRESSED:
        return f"{file['path']}: {_how_to_unpack(file['path'])}"
    if file["damage"] == _core.DAMAGE_HEADER and file["good_bytes"] == 0:
        return f"{file['path']}: it is no tar file" + _pointer_hint(file["path"])
    return (
        f"{file['path']}, offset {file['good_bytes']:,}: {_DAMAGE[file['damage']]}; {file['samples']:,} samples before "
        "it are good"
    )


def _all(files: FileIndex) -> Iterator[dict[str, Any]]:
    return (files.file(number) for number in range(len(files.paths)))


def check_damage(files: FileIndex, is_skipped: bool) -> None:
    """Raises ValueError for damaged files, or warns of them if what is behind the damage is skipped."""
    damaged = [file for file in _all(files) if file["damage"]]
    if not damaged:
        return
    found = "; ".join(describe_damage(file) for file in damaged[:_SHOWN])
    more = f"; and {len(damaged) - _SHOWN:,} more files" if len(damaged) > _SHOWN else ""
    if not is_skipped:
        raise ValueError(
            f"Tar: {len(damaged):,} of {len(files.paths):,} files cannot be read to their end: {found}{more}. "
            'damaged="skip" takes the good samples' + help_on("damaged-files")
        )
    warn_user(
        f"headrace: sources.Tar: {len(damaged):,} files are not read to their end: {found}{more}"
        + help_on("damaged-files")
    )


def describe_skipped(files: FileIndex) -> Iterator[str]:
    """Yields texts about what a user may not expect: links, archives that were joined, files without an end."""
    for count, what in (
        (_core.TAR_LINKS, "links are skipped; give tar the option --dereference to pack what they refer to"),
        (
            _core.TAR_BEHIND,
            "bytes behind the end of an archive are not read, as with tar; files that were joined by cat "
            "have to be unpacked and packed again, or given one by one",
        ),
        (_core.TAR_ENDLESS, "files have no mark of their end; they may have been cut between two members"),
    ):
        found = [file for file in _all(files) if file["counts"][count]]
        if found:
            total = sum(file["counts"][count] for file in found)
            yield f"{total:,} {what} (in {len(found):,} files, such as {found[0]['path']})"


def describe_empty(files: FileIndex) -> str:
    """Returns a text about files without samples, which are hardly meant, or ""."""
    empty = [file for file in _all(files) if not file["samples"] and not file["damage"]]
    if not empty:
        return ""
    counts = {name.replace("_", " a "): empty[0]["counts"][count] for name, count in _SKIPPED.items()}
    found = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count) or "no members"
    return f"{len(empty):,} of {len(files.paths):,} files have no sample, such as {empty[0]['path']}, which has {found}"


def report_of(files: FileIndex, names: Sequence[str]) -> dict[str, Any]:
    """Returns the part of Tar.report() that the index has."""
    known = list(_all(files))
    return {
        "members": sum(file["entries"] for file in known),
        "bytes": sum(file["data_bytes"] for file in known),
        "fields": list(dict.fromkeys(names)),
        "skipped": {name: sum(file["counts"][count] for file in known) for name, count in _SKIPPED.items()},
        "repeated_keys": sum(file["counts"][_core.TAR_REPEATS] for file in known),
        "files": [
            {
                "path": file["path"],
                "samples": file["samples"],
                "members": file["entries"],
                "bytes": file["data_bytes"],
                "damage": describe_damage(file) if file["damage"] else "",
            }
            for file in known
        ],
    }
