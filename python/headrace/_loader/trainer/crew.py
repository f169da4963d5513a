# SPDX-License-Identifier: Apache-2.0
"""The worker processes of a loader. multiprocessing starts them; libheadrace watches them, describes them and ends
them.

How a worker is replaced. The engine waits for an answer, and the wait reports that a worker has died.
1. `replace` takes a snapshot of the dead worker and reads its exit code, and writes the report on its death.
2. A sample at which workers died DEATHS_OF_A_SAMPLE times is banned (SampleDeaths): no worker tries it again.
3. The settings and the dataset decide whether another worker can go on (restart_mode: see restart_state). If none can,
   or if the worker before it died in the same way before its first task, the report is raised as a RuntimeError.
4. Otherwise _core.Loader.replace gives the tasks that the dead worker had not answered to its successor.
5. The successor gets a StartState: with sample_threads, how many tasks it makes without threads, so that the sample is
   known if it dies again; the state of its iterable dataset after the batch that was delivered last, and how
   many batches after that have been made already, which it makes again and discards.
6. The user gets the report as a warning, and the engine goes on waiting.
A worker that stalls is killed first if on_stall="restart"; one that hangs because of the fork always is
(kill_hung_at_start). Both are then replaced as above.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import signal
import time
from collections.abc import Callable
from typing import Any, Protocol

from headrace import _core
from headrace._base import signals, this_process
from headrace._base.help_key import help_on
from headrace._base.warn import warn_user
from headrace._loader.forkserver import client
from headrace._loader.forkserver import context as fork_context
from headrace._loader.start import blocking, contexts, fork_hazards, gc_pause, transport
from headrace._loader.trainer import reports, restart_state, shutdown
from headrace._loader.trainer.snapshot import WorkerSnapshot
from headrace._loader.worker import diagnostics, main
from headrace._loader.worker.batch_maker import BatchMaker, BatchNotes
from headrace._loader.worker.descriptors import WorkerDescriptors
from headrace._options import Settings
from headrace._remote import waits
from headrace._samples.names import has_indices, shorten
from headrace._samples.random_numbers import text_of
from headrace._samples.refill import draws_of, indices_of
from headrace._samples.start_state import StartState

# A limit of the machine or of the user, and where to look.
_LIMITS = {
    errno.EAGAIN: "look at the limits on processes (ulimit -u, the cgroup's pids.max)",
    errno.ENOMEM: "look at the free memory and the limits on it (ulimit -v, the cgroup's memory.max)",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
    errno.ENFILE: "the machine has too many open files (sysctl fs.file-max)",
}
GROUP_S = 0.2  # how long to wait for the other workers to end by a signal that ended one
STACK_S = 1.0  # how long to wait for a worker to write its stacks
DEATHS_OF_A_SAMPLE = 2  # a sample that killed so many workers is not tried again
SLICE_S = 1.0  # a wait is interrupted this often, to check the workers
# An iterator kills at most so many workers that hang because of the fork. It waits for further ones, as for any stall.
MAX_HUNG_AT_START = 8


class BatchMakers(Protocol):
    """The iterator that a crew works for. It is passed to each call, and the crew keeps no reference to it."""

    def batch_maker_of(self, worker: int) -> BatchMaker:
        """Returns the batch maker of worker number `worker`. It is pickled unless the worker is started by fork."""


class Crew:
    """Starts worker processes and replaces dead ones as the settings allow. They are daemons.

    Raises OSError if no process can be started, and any exception of pickling a batch maker. `restart_mode`: how
    another worker continues the dataset of a dead one (see restart_state), or None.
    """

    def __init__(
        self,
        core: _core.Loader,
        context: Any,
        settings: Settings,
        restart_mode: str | None,
        seed: int,
        sample_deaths: restart_state.SampleDeaths,
    ) -> None:
        self.processes: list[Any] = []
        self._core = core
        self._context = fork_context.resolve(context)
        self._settings = settings
        self._restart_mode = restart_mode
        self._seed = seed
        self._sample_deaths = sample_deaths
        self._counted: dict[int, int] = {}  # worker number -> pid of its dead process that sample_deaths has counted
        self._states: dict[int, BatchNotes] = {}  # worker number -> the latest state of its iterable dataset
        self._threads = 0  # how many threads this process had when it last forked a worker
        self._causes: dict[int, Any] = {}  # pid of a worker -> why the one before it died, if before its first task
        self._stalled: set[int] = set()  # pids of workers that were killed because they stalled
        self._hung_at_start: set[int] = (
            set()
        )  # pids of workers that were killed because they were deadlocked by the fork
        self._hung_replaced = 0  # how many of those have been replaced; they do not count as restarts
        self.has_starting_workers = False  # may a forked worker exist that has not opened its port yet?
        self._deadlocked: set[int] = set()  # pids of the workers that looked deadlocked in the last check
        self._next_check_s = 0.0
        self.slice_s = min(SLICE_S, settings.stall_after / 4)

    def start(self, makers: BatchMakers, epoch: int, starts: list[StartState] | None, count: int) -> None:
        """Starts the first `count` workers. starts: where they start in an iterable dataset whose epoch is
        continued."""
        self._epoch = self._start_epoch = epoch
        self._starts = starts
        fork_hazards.warn_of_fork(self._context)
        for worker in range(count):
            self._start(worker, makers, self._first_start(worker), _call)

    def start_next(self, makers: BatchMakers) -> None:
        """Starts one more worker in this epoch."""
        worker = len(self.processes)
        self._start(worker, makers, self._first_start(worker), signals.without_signals)

    def is_last_ready(self) -> bool:
        """Returns True if the worker that was started last is ready for tasks."""
        return not WorkerSnapshot.of(self._core, len(self.processes) - 1).is_starting

    def _first_start(self, worker: int) -> StartState:
        """Returns where a worker starts in this epoch."""
        start = StartState(epoch=self._epoch) if self._starts is None else dataclasses.replace(self._starts[worker])
        start.banned = self._sample_deaths.banned
        return start

    def begin_epoch(self, epoch: int) -> StartState:
        """Forgets the states of iterable datasets, which start again. Returns what the running workers are sent."""
        self._epoch = epoch
        self._states.clear()
        if epoch != self._start_epoch:
            self._starts = None
        return StartState(epoch=epoch, banned=self._sample_deaths.banned)

    def keep_state(self, notes: BatchNotes) -> None:
        """Keeps the state of a worker's iterable dataset after the batch that was delivered last."""
        self._states[notes.worker] = notes

    def report_server(self) -> dict[str, Any] | None:
        """Returns what the fork server says of itself, or None if the workers have another start method."""
        return client.report() if contexts.is_headrace(self._context) else None

    # ---- starting ----

    def _start(self, worker: int, makers: BatchMakers, start: StartState, call: Callable[..., None]) -> None:
        """Starts one worker. `call` calls a function whose steps must not be interrupted if the crew is used later."""
        descriptors = WorkerDescriptors(*self._core.open_worker_fds(worker))
        arguments = transport.WorkerArguments((makers.batch_maker_of(worker), start))
        try:
            args = (descriptors, arguments, not blocking.is_blocked())
            process = self._context.Process(target=main.main, args=args)
            contexts.check_process(process)
            process.daemon = True
            _fail_at("fork")
            self._threads = this_process.count_threads()
            call(lambda: self._start_process(worker, process, descriptors))
        except AssertionError as error:
            contexts.explain_daemon(error)
            raise
        except OSError as error:
            if error.errno not in _LIMITS:
                raise
            raise _explain_start(error) from error
        finally:
            arguments.close()
            descriptors.close()

    def _start_process(self, worker: int, process: Any, descriptors: WorkerDescriptors) -> None:
        with blocking.blocked(self._context), gc_pause.paused_from_start(process, self._context):
            process.start()
            contexts.check_child(process.pid)
            descriptors.guard(process.pid)
            shutdown.register(process)
            self.processes[worker : worker + 1] = [process]
        self._core.adopt(worker, process.pid, process.sentinel)
        self.has_starting_workers = self._context.get_start_method() == "fork"
        self._next_check_s = time.monotonic() + self.slice_s

    # ---- a death ----

    def replace(self, worker: int, makers: BatchMakers) -> None:
        """Starts a new process in the place of worker number `worker`, which is dead. Raises RuntimeError with the
        reason of its death if the settings or the dataset do not allow that."""
        dead = WorkerSnapshot.of(self._core, worker)
        exit_code = self._reap(dead)
        report = self._describe_end(dead, exit_code)
        is_restart = dead.pid not in self._hung_at_start
        page = "\n " + (reports.page_on_death(dead, exit_code) if is_restart else help_on("fork-unsafe"))
        cause = reports.cause_at_start(dead, exit_code) if is_restart else None
        if is_restart and (why_not := self._why_final(dead.pid, cause) or self._why_not_again()):
            raise RuntimeError(report + why_not + page)
        if cause is not None:
            is_known = cause in self._causes.values()
            report = reports.describe_repeated_death(dead) if is_known else reports.shorten_failed_start(report)
        start = self._take_over_tasks(worker)
        try:
            self._start(worker, makers, start, signals.without_signals)
        except Exception:
            warn_user(f"{report}\n  headrace could not start a new worker; the next call of next() tries again{page}")
            raise
        self._stalled.discard(dead.pid)
        self._hung_at_start.discard(dead.pid)
        self._hung_replaced += not is_restart
        if cause is not None:
            self._causes[self.processes[worker].pid] = cause
        count = f" (restart {self._count_restarts()} of {self._settings.max_restarts})" if is_restart else ""
        warn_user(f"{report}\n  headrace replaces it{count}{page}")

    def _take_over_tasks(self, worker: int) -> StartState:
        """Moves the tasks of a dead worker to the process that comes next, and returns where that one starts."""
        delivered, published, open_count = self._core.replace(worker)
        start = self._first_start(worker)
        if self._settings.sample_threads > 1:
            start.alone = open_count
        before = start.made + start.discard  # batches that were delivered before this process
        if worker in self._states:
            notes = self._states[worker]
            start.state, start.made, start.is_ended = notes.state, notes.made, notes.is_end
        if self._restart_mode != restart_state.REDO and not start.is_ended:
            start.discard = before + delivered + published - start.made
        return start

    def _describe_end(self, dead: WorkerSnapshot, exit_code: int | None) -> str:
        if dead.pid in self._hung_at_start:
            return reports.describe_hang_at_start(dead)
        tasks = self._tasks(dead.number)
        if dead.pid in self._stalled and exit_code == -signal.SIGKILL:
            report = reports.describe_end_of_stall(dead)
        else:
            seeding = self._settings.seeding(self._seed, self._epoch)
            draws = draws_of(self._core.tasks(dead.number).get(dead.task))
            report = reports.describe_death(dead, exit_code, tasks, seeding, draws)
            if exit_code == -signal.SIGTERM:
                report += reports.describe_group_signal(self._count_terminated(), len(self.processes))
        # The sample is not the cause of a KeyboardInterrupt, which a SIGINT of the trainer raises in the worker.
        return report if exit_code == main.INTERRUPTED else report + self._suspect(dead, tasks)

    def _count_terminated(self) -> int:
        """Counts the workers that SIGTERM has ended. A SIGTERM that was sent to all of them ends them at the same
        time."""
        deadline = time.monotonic() + GROUP_S
        while any(process.is_alive() for process in self.processes) and time.monotonic() < deadline:
            time.sleep(GROUP_S / 20)
        return sum(process.exitcode == -signal.SIGTERM for process in self.processes)

    def _tasks(self, worker: int) -> dict[int, Any]:
        """Returns the indices of a worker's outstanding tasks, by the numbers of the tasks."""
        return {number: indices_of(task) for number, task in self._core.tasks(worker).items()}

    def _reap(self, dead: WorkerSnapshot) -> int | None:
        """Returns the exit code of a dead worker, or None if it is not known."""
        process = self.processes[dead.number]
        if not shutdown.has_ended(process, time.monotonic() + shutdown.EXIT_CODE_S):
            shutdown.reap_later([process])
        if process.exitcode is not None:
            return int(process.exitcode)
        if dead.is_end_known:
            return -dead.signal if dead.signal else dead.exit_code
        return None

    def _suspect(self, dead: WorkerSnapshot, tasks: dict[int, Any]) -> str:
        """Counts the deaths of workers at a sample, and bans a sample that killed enough of them. Returns the line that
        says so, or ""."""
        if not self._settings.max_restarts:
            return ""  # no worker tries again unless the user starts a new loop
        if self._settings.sample_threads > 1 and dead.sample is None:
            return ""  # several threads made samples: its successor makes the same ones without threads
        suspect = _find_suspect(dead, tasks.get(dead.task))
        if suspect is None:
            return ""
        text, name = suspect
        if text in self._sample_deaths.banned:
            return ""  # the worker was not making it
        if self._counted.get(dead.number) == dead.pid:
            return ""  # this death was counted already, and then no successor could be started
        self._counted[dead.number] = dead.pid
        deaths = self._sample_deaths.counts[text] = self._sample_deaths.counts.get(text, 0) + 1
        if deaths < DEATHS_OF_A_SAMPLE:
            return ""
        reason = f"making {name} killed its worker {deaths} times"
        self._sample_deaths.banned[text] = reason
        return f"\n  {reason}: it is not tried again"

    def _count_restarts(self) -> int:
        """Returns the number of restarts that max_restarts counts."""
        return int(self._core.report()["restarts"]) - self._hung_replaced

    def _why_final(self, pid: int, cause: Any) -> str:
        """Says that no restart helps, if a worker died before its first task for the same reason as the one before."""
        if cause is None or self._causes.get(pid) != cause:
            return ""
        return (
            "\n  headrace does not replace it again: the worker before it ended in the same way, before its first task"
        )

    def _why_not_again(self) -> str:
        if self._restart_mode is None:
            return (
                "\n  headrace cannot replace it: an iterable dataset is continued only if it has state_dict and "
                "load_state_dict, or an attribute `replayable` that is true (then it is iterated from the start again)"
            )
        if self._count_restarts() < self._settings.max_restarts:
            return ""
        if most := self._settings.max_restarts:
            return f"\n  headrace cannot replace it: the limit max_restarts={most} is reached; raise it to allow more"
        return "\n  max_restarts=N lets headrace replace up to N workers and go on"

    # ---- a stall ----

    def kill_hung_at_start(self) -> bool:
        """Kills forked workers that hang before they could start. Each waits for a lock which another thread of this
        process held when it forked: the lock of CPython's list of threads, which threads of C++ hold without the GIL
        (CPython's issue 112275), or a lock that a fork handler takes. They have done nothing yet, so new workers can
        take their place.

        Call it often while has_starting_workers is true. It checks the workers once per slice and kills those that
        looked deadlocked in two checks. Returns True if it killed any."""
        now_s = time.monotonic()
        if not self.has_starting_workers or now_s < self._next_check_s:
            return False
        self._next_check_s = now_s + self.slice_s
        starting = [one for one in self._snapshots() if one.is_starting]
        deadlocked = {one.pid: one for one in starting if one.is_deadlocked}
        room = MAX_HUNG_AT_START - self._hung_replaced - len(self._hung_at_start)
        hanging = sorted(self._deadlocked & deadlocked.keys() - self._hung_at_start)[:room]
        for pid in hanging:
            self._hung_at_start.add(pid)
            self._signal(deadlocked[pid], signal.SIGKILL)
        self.has_starting_workers, self._deadlocked = bool(starting), set(deadlocked)
        return bool(hanging)

    def progress(self) -> list[tuple[Any, ...]]:
        """Returns a value that changes as long as the workers that the engine waits for make progress."""
        return [(one.pid, one.batches, one.task, one.phase, one.sample, one.making) for one in self._awaited()]

    def _snapshots(self) -> list[WorkerSnapshot]:
        return [WorkerSnapshot.of(self._core, worker) for worker in range(len(self.processes))]

    def _awaited(self) -> list[WorkerSnapshot]:
        worker = self._core.awaited()
        return self._snapshots() if worker is None else [WorkerSnapshot.of(self._core, worker)]

    def _longest_awaited(self) -> WorkerSnapshot:
        """Returns the worker, of those that the engine waits for, that has been in its place for the longest time."""
        busy = [one for one in self._awaited() if not one.is_waiting] or self._awaited()
        return min(busy, key=lambda one: one.phase_since_ns)

    def describe_wait(self) -> str:
        """Describes what the worker that the engine waits for is doing, without its stacks."""
        awaited = self._longest_awaited()
        return reports.describe_wait(awaited, self._tasks(awaited.number))

    def report_stall(self, seconds: float) -> None:
        """Reports what the worker that the engine waits for is doing, then acts as on_stall says."""
        stalled = self._longest_awaited()
        start = len(stalled.stack)
        if not stalled.is_halted:
            stalled = self._with_stacks(stalled)
        report = reports.describe_stall(stalled, seconds, self._tasks(stalled.number), start, self._hazards())
        page = "\n " + help_on("worker-stalled")
        if waits.waits_for_network(stalled.pid):
            what = "\n  it waits for a remote object, so headrace waits on"
            warn_user(report + what + waits.describe() + "\n " + help_on("remote-slow"))
        elif self._settings.on_stall == "restart":
            self._kill(stalled, report, page)
        elif stalled.is_halted:
            warn_user(f'{report}\n  headrace waits on (on_stall="restart" would replace it){page}')
        elif self._settings.on_stall == "raise":
            raise RuntimeError(report + page)
        else:
            warn_user(f'{report}\n  headrace waits on (on_stall="wait"; "raise" and "restart" would not){page}')

    def _kill(self, stalled: WorkerSnapshot, report: str, page: str) -> None:
        if why_not := self._why_not_again():
            raise RuntimeError(report + why_not + page)
        warn_user(f'{report}\n  headrace kills and replaces it (on_stall="restart"){page}')
        self._stalled.add(stalled.pid)
        self._signal(stalled, signal.SIGKILL)

    def _signal(self, one: WorkerSnapshot, number: int) -> None:
        with contextlib.suppress(OSError):  # the worker has just ended by itself
            self._core.signal(one.number, number)

    def _with_stacks(self, stalled: WorkerSnapshot) -> WorkerSnapshot:
        """Returns the same snapshot with the stacks that the worker writes when it gets STACK_SIGNAL. The signal may
        end its stall."""
        if not stalled.caught_signals >> (diagnostics.STACK_SIGNAL - 1) & 1:
            return stalled  # it has no handler, so the signal would kill it
        blocking = diagnostics.threads_that_block_stack_signal(stalled.pid)
        self._signal(stalled, diagnostics.STACK_SIGNAL)
        deadline = time.monotonic() + STACK_S
        before = last = stalled.stack
        while time.monotonic() < deadline:
            time.sleep(0.02)
            # In this order: a thread that stops writing between the two has written more.
            is_quiet = diagnostics.threads_that_block_stack_signal(stalled.pid) <= blocking
            now = WorkerSnapshot.of(self._core, stalled.number).stack
            if is_quiet and before != now == last:
                break
            last = now
        is_cut = WorkerSnapshot.of(self._core, stalled.number).stack_is_cut
        return stalled._replace(stack=last, stack_is_cut=is_cut)

    def _hazards(self) -> list[str]:
        if self._context.get_start_method() != "fork" or self._threads < 2:
            return []
        return [
            f"it was forked from a process with {self._threads} threads: a lock that one of them held then stays held "
            "in the worker, and thread pools (OpenCV, OpenMP, BLAS) may wait for threads that it does not have; "
            'multiprocessing_context="forkserver" avoids that'
        ]


def _call(function: Callable[[], None]) -> None:
    function()


def _find_suspect(dead: WorkerSnapshot, indices: Any) -> tuple[str, str] | None:
    """Returns what a worker was fetching when it died, or of which sample it made the image: the text of its indices,
    and its name for messages. Returns None if there is no such sample, or if the dataset has no indices."""
    if dead.is_starting or not has_indices(indices) or not (dead.is_fetching or dead.place is not None):
        return None
    if not isinstance(indices, (list, tuple)):
        return text_of(indices), f"sample {shorten(indices)}"
    if dead.place is None:
        return text_of(indices), f"batch {dead.task}, of {shorten(indices)},"
    if dead.place < len(indices):
        return text_of(indices[dead.place]), f"sample {shorten(indices[dead.place])}"
    return None  # it was collating


def _fail_at(point: str) -> None:
    """Raises the error that a test asks for at this point with $HEADRACE_FAIL, for example "fork:EAGAIN". It is a
    failpoint for what Python does."""
    if not _core.FAILPOINTS:
        return
    for item in os.environ.get("HEADRACE_FAIL", "").split(","):
        name, _, code = item.partition(":")
        if name == point:
            number = getattr(errno, code, errno.EIO)
            raise OSError(number, os.strerror(number))


def _explain_start(error: OSError) -> OSError:
    limit = _LIMITS[error.errno or 0]
    return OSError(
        error.errno,
        f"headrace: cannot start a worker process: {error.strerror or error}; {limit}, or lower num_workers"
        + help_on("cannot-start"),
    )
