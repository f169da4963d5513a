# SPDX-License-Identifier: Apache-2.0
"""The worker processes of a loader: multiprocessing starts them, libheadrace watches, describes and ends them."""

from __future__ import annotations

import contextlib
import errno
import logging
import multiprocessing.process
import os
import signal
import sys
import threading
import time
import warnings
import weakref
from multiprocessing import connection
from typing import Any, Protocol

from headrace import _core
from headrace._engine import reports, restart_state
from headrace._errors.exception_text import ForkWarning
from headrace._inspect import this_process
from headrace._options import Policy
from headrace._samples.random_numbers import text_of
from headrace._samples.refill import indices_of
from headrace._start import contexts, forkserver, gc_pause, signals, transport
from headrace._worker import diagnostics, main

_LIMITS = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)  # a limit of the machine's or the user's
EXIT_CODE_S = 1.0  # for the exit code of a dead worker to arrive
GROUP_S = 0.2  # for the other workers to end by a signal that ended one
STACK_S = 1.0  # for a worker to write its stacks
DEATHS_OF_A_SAMPLE = 2  # after which it is not tried again
SLICE_S = 1.0  # a wait is looked at this often
STILLBIRTHS = 8  # in the life of an iterator, after which a worker that hangs as it is forked is waited for

_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep
_TORCHS = os.path.join("torch", "utils", "data", "dataloader.py")
log = logging.getLogger("headrace")


class Host(Protocol):
    """What a crew asks of the iterator that it works for, without keeping it."""

    def job_of(self, worker: int) -> main.Job:
        """What worker number `worker` does; pickled unless it is started by fork."""


def _level_of_user() -> int:
    """The stacklevel that makes a warning of `tell` name the line that iterates a loader."""
    frame, level = sys._getframe(2), 2
    while frame.f_back is not None and _is_inside(frame.f_code.co_filename):
        frame, level = frame.f_back, level + 1
    return level


def _is_inside(path: str) -> bool:
    return path.startswith(_PACKAGE) or path.endswith(_TORCHS)


def tell(text: str, category: type[Warning] = UserWarning) -> None:
    """For people: as a warning, and for the logger `headrace`."""
    log.info(text)
    warnings.warn(text, category, stacklevel=_level_of_user())


class Crew:
    """Starts worker processes, replaces dead ones as the policy allows, and ends all. OSError where none can be
    started; whatever pickling a job raises. The processes are daemons."""

    def __init__(
        self,
        core: _core.Loader,
        workers: int,
        context: Any,
        policy: Policy,
        way: str | None,
        seed: int,
        blame: restart_state.Blame,
    ) -> None:
        self.processes: list[Any] = []
        self._core = core
        self._count = workers
        self._context = context
        self._policy = policy
        self._way = way
        self._seed = seed
        self._blame = blame
        self._counted: dict[int, int] = {}  # by worker: the pid of the dead one that stands there
        self._states: dict[int, restart_state.Notes] = {}
        self._threads = 0  # of this process, when it last forked a worker
        self._causes: dict[int, Any] = {}  # pid of a worker -> why the one before it died, if before its first task
        self._stalled: set[int] = set()  # pids of workers that were killed for that
        self._stillborn: set[int] = set()  # likewise, for they could not begin
        self._uncounted = 0  # of those, the ones that were replaced
        self.has_unborn = False  # may a forked worker be there that has not begun?
        self._deadlocked: set[int] = set()  # pids of those that can never begin, as they were seen last
        self._next_look_s = 0.0
        self.slice_s = min(SLICE_S, policy.stall_after / 4)

    def start(self, host: Host, epoch: int) -> None:
        self._epoch = epoch
        warn_of_fork(self._context)
        forkserver.ensure_sockets(self._context)
        for worker in range(self._count):
            self._start(worker, host, restart_state.Beginning(epoch=epoch, banned=self._blame.banned))

    def begin_epoch(self, epoch: int) -> restart_state.Beginning:
        """Iterable data sets start anew. Returns what the workers that go on are to be told."""
        self._epoch = epoch
        self._states.clear()
        return restart_state.Beginning(epoch=epoch, banned=self._blame.banned)

    def keep_state(self, notes: restart_state.Notes) -> None:
        """The state of a worker's iterable data set, after the batch that was delivered last."""
        self._states[notes.worker] = notes

    # ---- starting ----

    def _start(self, worker: int, host: Host, beginning: restart_state.Beginning) -> None:
        opener = main.Pass(*self._core.open_pass(worker))
        cargo = transport.Cargo((host.job_of(worker), beginning))
        try:
            args = (opener, cargo, not signals.is_blocked())
            process = self._context.Process(target=main.main, args=args)
            contexts.check_process(process)
            process.daemon = True
            _fail_at("fork")
            self._threads = this_process.count_threads()
            signals.without_signals(lambda: self._start_process(worker, process, opener))
        except AssertionError as error:
            contexts.explain_daemon(error)
            raise
        except OSError as error:
            forkserver.explain_sockets(error, self._context)
            if error.errno not in _LIMITS:
                raise
            raise _explain_start(error) from error
        finally:
            cargo.close()
            opener.close()

    def _start_process(self, worker: int, process: Any, opener: main.Pass) -> None:
        with signals.blocked(self._context), gc_pause.resting_at_birth(process, self._context):
            process.start()
            contexts.check_child(process.pid)
            opener.guard(process.pid)
            _workers.add(process)
            self.processes[worker : worker + 1] = [process]
        self._core.adopt(worker, process.pid, process.sentinel)
        self.has_unborn = self._context.get_start_method() == "fork"
        self._next_look_s = time.monotonic() + self.slice_s

    # ---- a death ----

    def replace(self, worker: int, host: Host) -> None:
        """Worker `worker` is dead: starts another in its place. RuntimeError with the reason of its death where the
        policy, or the data set, does not allow that."""
        look = self._core.look(worker)
        exit_code = self._reap(worker, look)
        pid, report = look["pid"], self._report_of_end(look, exit_code)
        is_restart = pid not in self._stillborn
        cause = reports.cause_at_start(look, exit_code) if is_restart else None
        if is_restart and (why_not := self._why_final(pid, cause) or self._why_not_again()):
            raise RuntimeError(report + why_not)
        if cause in self._causes.values():
            report = reports.of_same_death(look)  # the rest was told with the first one
        delivered, published, _ = self._core.replace(worker)
        beginning = restart_state.Beginning(epoch=self._epoch, banned=self._blame.banned)
        if worker in self._states:
            beginning.state, beginning.made = self._states[worker].state, self._states[worker].made
        if self._way != restart_state.REDO:
            beginning.discard = delivered + published - beginning.made
        try:
            self._start(worker, host, beginning)
        except Exception:
            tell(f"{report}\n  headrace could not start another in its place; asking for the next batch tries again")
            raise
        self._stalled.discard(pid)
        self._stillborn.discard(pid)
        self._uncounted += not is_restart
        if cause is not None:
            self._causes[self.processes[worker].pid] = cause
        count = f" (restart {self._restarts()} of {self._policy.max_restarts})" if is_restart else ""
        tell(f"{report}\n  headrace replaces it{count}")

    def _report_of_end(self, look: dict[str, Any], exit_code: int | None) -> str:
        if look["pid"] in self._stillborn:
            return reports.of_stillbirth(look)
        tasks = self._tasks(look["worker"])
        if look["pid"] in self._stalled and exit_code == -signal.SIGKILL:
            report = reports.of_end_of_stall(look)
        else:
            report = reports.of_death(look, exit_code, tasks, self._policy.seeding(self._seed, self._epoch))
            if exit_code == -signal.SIGTERM:
                report += reports.of_group_signal(self._terminated(), self._count)
        # A KeyboardInterrupt, which Ctrl-C raises too, is no fault of the sample's.
        return report if exit_code == reports.INTERRUPTED else report + self._suspect(look, tasks)

    def _terminated(self) -> int:
        """Counts the workers that SIGTERM has ended. One that was sent to all ends them at the same time."""
        deadline = time.monotonic() + GROUP_S
        while any(process.is_alive() for process in self.processes) and time.monotonic() < deadline:
            time.sleep(GROUP_S / 20)
        return sum(process.exitcode == -signal.SIGTERM for process in self.processes)

    def _tasks(self, worker: int) -> dict[int, Any]:
        """Returns the indices of a worker's outstanding tasks, by the tasks' numbers."""
        return {number: indices_of(task) for number, task in self._core.tasks(worker).items()}

    def _reap(self, worker: int, look: dict[str, Any]) -> int | None:
        process = self.processes[worker]
        if not _has_ended(process, time.monotonic() + EXIT_CODE_S):
            _reap_later([process])
        if process.exitcode is not None:
            return int(process.exitcode)
        if look["is_end_known"]:
            return -look["signal"] if look["signal"] else int(look["exit_code"])
        return None

    def _suspect(self, look: dict[str, Any], tasks: dict[int, Any]) -> str:
        """Counts the deaths of a sample, and bans one that died often enough."""
        task, position, indices = look["task"], look["sample"], tasks.get(look["task"])
        if not self._policy.max_restarts:
            return ""  # nobody tries again but the user
        is_fetching = look["own_pid"] == look["pid"] and look["phase"] == _core.PHASE_FETCH
        if not is_fetching or not reports.has_indices(indices):
            return ""
        if not isinstance(indices, (list, tuple)):
            text, name = text_of(indices), f"sample {reports.shorten(indices)}"
        elif position is None:
            text, name = text_of(indices), f"batch {task}, of {reports.shorten(indices)},"
        elif position < len(indices):
            text, name = text_of(indices[position]), f"sample {reports.shorten(indices[position])}"
        else:
            return ""  # it was collating
        if text in self._blame.banned:
            return ""  # it was not trying
        if self._counted.get(look["worker"]) == look["pid"]:
            return ""  # its successor could not be started
        self._counted[look["worker"]] = look["pid"]
        deaths = self._blame.deaths[text] = self._blame.deaths.get(text, 0) + 1
        if deaths < DEATHS_OF_A_SAMPLE:
            return ""
        reason = f"making {name} killed its worker {deaths} times"
        self._blame.banned[text] = reason
        return f"\n  {reason}: it is not tried again"

    def _restarts(self) -> int:
        """Those that the policy counts."""
        return int(self._core.report()["restarts"]) - self._uncounted

    def _why_final(self, pid: int, cause: Any) -> str:
        """Says that no restart helps, if a worker died before its first task for the same reason as the one before."""
        if cause is None or self._causes.get(pid) != cause:
            return ""
        return (
            "\n  headrace does not replace it again: the worker before it ended in the same way, before its first task"
        )

    def _why_not_again(self) -> str:
        if self._way is None:
            return (
                "\n  headrace cannot replace it: an iterable data set is continued only if it has state_dict and "
                "load_state_dict, or an attribute `replayable` that is true (then it is iterated from the start again)"
            )
        if self._restarts() < self._policy.max_restarts:
            return ""
        if self._policy.max_restarts:
            return f"\n  headrace cannot replace it: max_restarts={self._policy.max_restarts} are used up"
        return "\n  max_restarts=N lets headrace replace up to N workers and go on"

    # ---- a stall ----

    def end_stillborn(self) -> bool:
        """Kills forked workers that hang, before they could begin, on a lock which another thread of this process held
        as they were forked: that of CPython's list of threads, which threads of C++ hold without the GIL (CPython's
        issue 112275), or one that a fork handler takes. They have done nothing yet, so others can take their place.
        To be called often while `has_unborn`: it looks once in a slice, and who is seen twice hangs. Were there any?"""
        now_s = time.monotonic()
        if not self.has_unborn or now_s < self._next_look_s:
            return False
        self._next_look_s = now_s + self.slice_s
        unborn = [look for look in map(self._core.look, range(self._count)) if reports.is_starting(look)]
        seen = {look["pid"]: look for look in unborn if look["is_deadlocked"]}
        room = STILLBIRTHS - self._uncounted - len(self._stillborn)
        hanging = sorted(self._deadlocked & seen.keys() - self._stillborn)[:room]
        for pid in hanging:
            self._stillborn.add(pid)
            self._signal(seen[pid], signal.SIGKILL)
        self.has_unborn, self._deadlocked = bool(unborn), set(seen)
        return bool(hanging)

    def progress(self) -> list[tuple[Any, ...]]:
        """Changes as long as the workers that are waited for get on."""
        return [(look["pid"], look["batches"], look["task"], look["phase"], look["sample"]) for look in self._awaited()]

    def _awaited(self) -> list[dict[str, Any]]:
        awaited = self._core.awaited()
        return [self._core.look(worker) for worker in (range(self._count) if awaited is None else [awaited])]

    def report_stall(self, seconds: float) -> None:
        """Says what keeps the worker that is waited for, then does as the policy says."""
        busy = [look for look in self._awaited() if look["phase"] != _core.PHASE_WAIT] or self._awaited()
        look = min(busy, key=lambda one: one["phase_since_ns"])
        start = len(look["stack"])
        is_halted = reports.is_halted(look)
        if not is_halted:
            look = self._with_stacks(look)
        tasks = self._tasks(look["worker"])
        report = reports.of_stall(look, seconds, tasks, start, self._hazards())
        if self._policy.on_stall == "restart":
            self._kill(look, report)
        elif is_halted:
            tell(f'{report}\n  headrace waits on (on_stall="restart" would replace it)')
        elif self._policy.on_stall == "raise":
            raise RuntimeError(report)
        else:
            tell(f'{report}\n  headrace waits on (on_stall="wait"; "raise" and "restart" would not)')

    def _kill(self, look: dict[str, Any], report: str) -> None:
        if why_not := self._why_not_again():
            raise RuntimeError(report + why_not)
        tell(f'{report}\n  headrace kills and replaces it (on_stall="restart")')
        self._stalled.add(look["pid"])
        self._signal(look, signal.SIGKILL)

    def _signal(self, look: dict[str, Any], number: int) -> None:
        with contextlib.suppress(OSError):  # it has just ended by itself
            self._core.signal(look["worker"], number)

    def _with_stacks(self, look: dict[str, Any]) -> dict[str, Any]:
        """The same look, with what the worker writes on STACK_SIGNAL; the signal may let it go on."""
        worker = look["worker"]
        if not look["caught_signals"] >> (diagnostics.STACK_SIGNAL - 1) & 1:
            return look  # nobody listens: the signal would kill it
        deaf = diagnostics.threads_without_ear(look["pid"])
        self._signal(look, diagnostics.STACK_SIGNAL)
        deadline = time.monotonic() + STACK_S
        before = last = look["stack"]
        while time.monotonic() < deadline:
            time.sleep(0.02)
            now = self._core.look(worker)["stack"]
            if now != before and now == last and diagnostics.threads_without_ear(look["pid"]) <= deaf:
                break
            last = now
        return {**look, "stack": last, "stack_is_cut": self._core.look(worker)["stack_is_cut"]}

    def _hazards(self) -> list[str]:
        if self._context.get_start_method() != "fork" or self._threads < 2:
            return []
        return [
            f"it was forked from a process with {self._threads} threads: a lock that one of them held then stays held "
            "in the worker, and thread pools (OpenCV, OpenMP, BLAS) may wait for threads that it does not have; "
            'multiprocessing_context="forkserver" avoids that'
        ]


def close(core: _core.Loader, processes: list[Any], timeout: float) -> None:
    """Ends the workers within `timeout` seconds and frees what no batch holds. Signals that arrive meanwhile are
    handled afterwards."""
    deadline = time.monotonic() + timeout
    signals.without_signals(lambda: _close(core, processes, deadline))


def _close(core: _core.Loader, processes: list[Any], deadline: float) -> None:
    for worker, process in enumerate(processes):
        if core.look(worker)["own_pid"] != process.pid:
            # It would see only after its imports that it shall end. SIGTERM would be left to a handler of the
            # trainer's, which a forked worker still has: one that saves the training's state, or cannot run.
            process.kill()
    core.stop(max(0.1, deadline - time.monotonic()))
    end = min(deadline, time.monotonic() + EXIT_CODE_S)
    late = [process for process in processes if not _has_ended(process, end)]
    core.close()
    if late:
        _reap_later(late)


def _has_ended(process: Any, deadline: float) -> bool:
    """Reaps a process: at once, or when the fork server tells its exit code, a moment after its end. Not by join, which
    waits without end for one that has ended and cannot be reaped, as a debugger holds it."""
    if process.is_alive():
        connection.wait([process.sentinel], max(0.0, deadline - time.monotonic()))
    return not process.is_alive()


def _reap_later(processes: list[Any]) -> None:
    """They were killed, and may die in a moment, or never if they hang in the kernel: nobody waits for that."""
    multiprocessing.process._children.difference_update(processes)  # type: ignore[attr-defined]  # exit would wait

    def reap() -> None:
        for process in processes:
            process.join()

    with contextlib.suppress(RuntimeError):  # the interpreter ends, and starts no threads any more
        threading.Thread(target=reap, name=this_process.REAP_THREAD, daemon=True).start()


_workers: weakref.WeakSet[Any] = weakref.WeakSet()


def _disown() -> None:
    """In a forked child, whose multiprocessing would terminate the trainer's workers at its exit as if they were its
    own."""
    multiprocessing.process._children.difference_update(_workers)  # type: ignore[attr-defined]


os.register_at_fork(after_in_child=_disown)


def _fail_at(point: str) -> None:
    """A failpoint for what Python does: $HEADRACE_FAIL="fork:EAGAIN"."""
    if not _core.FAILPOINTS:
        return
    for item in os.environ.get("HEADRACE_FAIL", "").split(","):
        name, _, code = item.partition(":")
        if name == point:
            number = getattr(errno, code, errno.EIO)
            raise OSError(number, os.strerror(number))


def _explain_start(error: OSError) -> OSError:
    return OSError(
        error.errno,
        f"headrace: cannot start a worker process: {error.strerror or error}; look at the limits of processes "
        "(ulimit -u, the cgroup's pids.max), of open files (ulimit -n) and of memory, or lower num_workers",
    )


def calm_libraries() -> None:
    """In a worker, before worker_init_fn: torch uses one thread, as in torch's own workers, and so does OpenCV, unless
    the user has set how many. To OpenCV 0 says that: 1 would wait for the threads of a pool that a fork left behind."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)
    cv2 = this_process.opencv()
    if cv2 is not None and not this_process.opencv_threads_set():
        cv2.setNumThreads(0)


def warn_of_fork(context: Any) -> None:
    """Once per process, of several ranks in the first one: what it has that forked workers may hang or fail by."""
    if context.get_start_method() != "fork":
        return
    torch = sys.modules.get("torch")
    hazards = []
    if torch is not None and torch.cuda.is_initialized():
        hazards.append("CUDA is initialised, and forked processes cannot use it")
    if names := this_process.other_threads():
        others = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        hazards.append(
            f"other threads run ({others}), and a lock that one of them holds now stays locked in the workers"
        )
    if this_process.opencv_threads_set() > 1:
        hazards.append("OpenCV has a thread pool, which may hang in them (cv2.setNumThreads(0) here avoids that)")
    if "polars" in sys.modules and any(name.startswith("polars-") for name in this_process.thread_names()):
        hazards.append("polars has a thread pool, which they do not have, and wait for")
    if hazards and not _warned and this_process.is_first_rank():
        _warned.append(True)
        tell(
            f"headrace: workers are forked from this process, where {'; '.join(hazards)}. "
            'multiprocessing_context="forkserver" avoids this',
            ForkWarning,
        )


_warned: list[bool] = []
