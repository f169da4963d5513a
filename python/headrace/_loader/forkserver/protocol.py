# SPDX-License-Identifier: Apache-2.0
"""The data that the trainer and the fork server send each other. client.py and server.py import it, so that the trainer
need not import the server's code."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from multiprocessing import forkserver
from typing import Any

NUMBER = forkserver.SIGNED_STRUCT  # how a pid and an exit code are sent; multiprocessing reads the exit code
STALE = -1  # sent instead of a pid: modules have read environment variables that have changed since
MAX_FDS = 253  # the kernel's limit for one message
MAX_REQUEST_BYTES = 1 << 16


@dataclass(frozen=True)
class ImportPaths:
    """The places that a process imports modules from, and what they see of the command line."""

    sys_path: tuple[str, ...]
    sys_argv: tuple[str, ...]
    folder: str
    main_path: str | None
    main_name: str | None

    @classmethod
    def of(cls, data: dict[str, Any]) -> ImportPaths:
        """Takes it from multiprocessing's preparation data."""
        return cls(
            tuple(map(str, data["sys_path"])),
            tuple(map(str, data["sys_argv"])),
            str(data["dir"]),
            data.get("init_main_from_path"),
            data.get("init_main_from_name"),
        )


@dataclass
class Setup:
    """The data that the server gets at its start."""

    paths: ImportPaths
    preload: list[str]  # the modules that the user wants to be preloaded
    modules: list[str]  # the modules of headrace
    needed_modules: list[str]  # the modules of the dataset and its parts
    is_interrupted: bool  # has the trainer not blocked SIGINT?
    trainer: int  # its process ID


@dataclass
class Verdict:
    """The judgement of a process that has imported the user's modules on itself, which the report shows.

    kept: "all" if workers are forked from a process with all modules, "part" if they import the rest themselves,
    "nothing" if they import everything. hazards: why it is not all. unkept: the modules with a hazard, and the seconds
    that the import of each took. seconds: of the import of everything. error: the exception of the import, or "". pids:
    the server's processes: the root, and the zygote if it exists.
    """

    kept: str = "nothing"
    hazards: list[str] = field(default_factory=list)
    unkept: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    error: str = ""
    pids: list[int] = field(default_factory=list)

    @property
    def is_fit(self) -> bool:
        return not self.hazards and not self.error

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)
