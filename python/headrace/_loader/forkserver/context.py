# SPDX-License-Identifier: Apache-2.0
"""A context of multiprocessing whose processes are forked from headrace's fork server.

The crew uses it in place of multiprocessing's forkserver context, and `multiprocessing_context="headrace"` asks for it
by name.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import time
from multiprocessing import context, popen_forkserver, reduction, resource_tracker, util
from typing import Any

from headrace._base import program
from headrace._loader.forkserver import client
from headrace._loader.forkserver.protocol import ImportPaths
from headrace._loader.start import contexts


class Popen(popen_forkserver.Popen):
    """Starts a process. It does what its base does with multiprocessing's fork server."""

    def _launch(self, process_obj: Any) -> None:
        data = client.prepare(process_obj._name)
        buffer = io.BytesIO()
        context.set_spawning_popen(self)
        try:
            reduction.dump(_WithEnvironment(data), buffer)
            reduction.dump(process_obj, buffer)
        finally:
            context.set_spawning_popen(None)
        resource_tracker.ensure_running()  # starting it unblocks SIGINT
        with client.sigint_blocked() as is_interrupted:
            fds = self._fds  # type: ignore[attr-defined]
            self.sentinel, data_w, self.pid = client.start_worker(fds, ImportPaths.of(data), is_interrupted)
            # As long as this process has the descriptor open, the child's parent_process() is alive.
            self.finalizer = util.Finalize(self, util.close_fds, (os.dup(data_w), self.sentinel))  # type: ignore[attr-defined]
            with open(data_w, "wb") as file:
                file.write(buffer.getbuffer())


class Process(context.ForkServerProcess):
    """A process that is forked from headrace's fork server."""

    @staticmethod
    def _Popen(process_obj: Any) -> Any:
        return Popen(process_obj)


class Context(context.ForkServerContext):
    """The context with headrace's fork server. Its start method is called forkserver."""

    is_headrace = True
    Process = Process


def called_headrace() -> Any:
    """Returns the context that is called "headrace". A frozen program cannot start headrace's server, so it is one of
    multiprocessing's own there."""
    return multiprocessing.get_context(program.frozen_method()) if program.is_frozen() else Context()


def resolve(given: Any) -> Any:
    """Returns the context to start workers with: this one in place of multiprocessing's forkserver context."""
    return Context() if contexts.uses_headrace_server(given) else given


class _WithEnvironment:
    """The preparation data of a process. Unpickling it first sets the environment variables that the trainer has set
    since the server was started."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data

    def __reduce__(self) -> Any:
        return _set_environment, (client.changed_variables(), self.data)


def _set_environment(changed: dict[str, str | None], data: dict[str, Any]) -> dict[str, Any]:
    for name, value in changed.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    if "TZ" in changed:
        time.tzset()
    return data
