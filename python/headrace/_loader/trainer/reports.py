# SPDX-License-Identifier: Apache-2.0
"""Writes what a user reads when a worker dies or stalls. The crew calls it with a snapshot of the worker."""

from __future__ import annotations

import os
import signal
import textwrap
import time
from collections.abc import Sequence
from typing import Any

from headrace._base.help_key import help_on
from headrace._base.units import in_duration, in_units
from headrace._loader.trainer.snapshot import WorkerSnapshot
from headrace._loader.worker.main import INTERRUPTED
from headrace._samples.names import name_sample, name_samples, replay_command, shorten

STDERR_LINES = 20  # how many lines of a worker's stderr a report shows
_MAIN = os.path.join(os.sep, *"headrace._loader.worker.main".split(".")) + ".py"
_RERUN_ADVICE = "Rerunning with num_workers=0 may give a better error trace."
_OUT_OF_MEMORY = (
    "Out of memory: lower num_workers, prefetch_factor or batch_size, or raise the memory limit of the container or of "
    "the job."
)
_ADVICE: dict[int, str] = {
    signal.SIGKILL: "Some process sent it SIGKILL: most often the kernel, because memory ran out (then `dmesg` says "
    "so): lower num_workers, prefetch_factor or batch_size.",
    signal.SIGTERM: "Some process asked it to end: often the job's scheduler, at a time limit or before a preemption.",
    signal.SIGBUS: "A memory-mapped file may have become shorter, or the disk or /dev/shm may be full. "
    + _RERUN_ADVICE,
}
_NOT_STARTED = (
    "It ended before it could start, and its own error is printed above. With spawn and forkserver workers import the "
    "script, so it must be a file that can be imported: put the code that it runs under `if __name__ == '__main__':`, "
    "and the classes and functions that workers need above it."
)
_EXIT_CODE_UNKNOWN = (
    " with an unknown exit code: this process already read it (os.wait() or os.waitpid(-1) in a SIGCHLD handler or a "
    "thread), or it ignores SIGCHLD"
)


def _place(worker: WorkerSnapshot, indices: Any) -> str:
    """Describes where a worker is: phase, batch and sample."""
    if worker.is_starting:
        return "starting: importing modules, or unpickling the dataset"
    if worker.is_waiting:
        return "waiting for a task" if worker.phase_since_ns else "in worker_init_fn, or waiting for its first task"
    since = in_duration(max(0.0, time.monotonic() - worker.phase_since_ns / 1e9))
    is_fetching = worker.is_fetching
    if worker.making:
        if is_fetching:
            return f"in the dataset for {since}, {name_samples(worker.task, indices, worker.making, in_order=True)}"
        return f"making images for {since}, {name_samples(worker.task, indices, worker.making)}"
    position = worker.sample if is_fetching else None
    if is_fetching and position is not None and isinstance(indices, (list, tuple)) and position >= len(indices):
        is_fetching = False  # the fetcher calls a collate function of the user's
    where = "in the dataset" if is_fetching else "collating"
    return f"{where} for {since}, at {name_sample(worker.task, indices, position)}"


def _indented(text: str) -> str:
    return textwrap.indent(text, "    ")


def _own_frames(lines: list[str]) -> list[str]:
    """Returns a dump of faulthandler without the frames that called the worker's main function, and without the list of
    extension modules."""
    kept, is_caller = [], False
    for line in lines:
        is_caller = is_caller and line.startswith("  ")
        if not is_caller and not line.startswith("Extension modules:"):
            kept.append(line)
        is_caller = is_caller or (line.endswith("in main") and _MAIN in line)
    return kept


def _stack(worker: WorkerSnapshot, start: int = 0) -> str:
    text = "\n".join(_own_frames(worker.stack[start:].splitlines())).strip()
    if not text:
        return ""
    cut = "\n    ... (cut at 64 KiB)" if worker.stack_is_cut else ""
    return f"\n  its stacks:\n{_indented(text)}{cut}"


def _stderr(worker: WorkerSnapshot) -> str:
    lines = worker.stderr.rstrip().splitlines()[-STDERR_LINES:]
    return f"\n  the end of its stderr:\n{_indented(chr(10).join(lines))}" if lines else ""


def _in_flight(worker: WorkerSnapshot, tasks: dict[int, Any]) -> str:
    is_at_one = not worker.is_starting and not worker.is_waiting
    others = [number for number in tasks if not is_at_one or number != worker.task]
    return f"\n  it {'also had' if is_at_one else 'had'} batches {shorten(others)} to make" if others else ""


def _memory(worker: WorkerSnapshot) -> str:
    text = f"\n  memory: {in_units(worker.rss_bytes)} when last seen" if worker.rss_bytes else ""
    if not worker.oom_kills:
        return text
    kernel = f"the kernel killed {worker.oom_kills} of this cgroup's processes because memory ran out while it ran"
    return f"{text}; {kernel}" if text else f"\n  memory: {kernel}"


def _describe_kill(worker: WorkerSnapshot, number: int, advice: str) -> str:
    name = signal.strsignal(number) or f"signal {number}"
    return f"DataLoader worker (pid {worker.pid}) is killed by signal: {name}. {advice}"


def cause_at_start(worker: WorkerSnapshot, exit_code: int | None) -> tuple[int, str] | None:
    """Returns a value that is equal for two deaths before a first task if they have the same cause. Returns None for
    later deaths, and for those that another process caused."""
    has_had_task = not worker.is_starting and (not worker.is_waiting or worker.phase_since_ns)
    if has_had_task or exit_code in (None, -signal.SIGKILL, -signal.SIGTERM, INTERRUPTED):
        return None
    return exit_code, _stderr(worker)


def shorten_failed_start(report: str) -> str:
    """Shortens the report of a death before the first task. If the next worker ends in the same way, an error shows all
    of it."""
    first = report.splitlines()[0].partition(". ")[0].rstrip(".")
    return f"{first} before its first task\n  if the next worker ends in the same way, an error says why"


def describe_repeated_death(worker: WorkerSnapshot) -> str:
    """Describes a death whose cause the user has read in the report on an earlier one."""
    return f"DataLoader worker (pid(s) {worker.pid}) ended before its first task, in the same way as one before"


def describe_group_signal(ended: int, workers: int) -> str:
    """Describes to which processes a SIGTERM was sent. The exit status does not name the sender, but the number of
    workers that the signal ended shows this."""
    if workers < 2 or ended < workers:
        return ""
    return (
        f"\n  it ended all {workers} workers at the same time: it was sent to their whole process group (by `timeout`, "
        "a shell, or the job's scheduler), or to each of them"
    )


def _first_line(worker: WorkerSnapshot, exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        is_oom = exit_code == -signal.SIGKILL and worker.oom_kills
        return _describe_kill(worker, -exit_code, _OUT_OF_MEMORY if is_oom else _ADVICE.get(-exit_code, _RERUN_ADVICE))
    how = _EXIT_CODE_UNKNOWN if exit_code is None else f" with exit code {exit_code}"
    advice = _NOT_STARTED if worker.is_starting else _RERUN_ADVICE
    if exit_code == INTERRUPTED:
        advice = "It was interrupted (by a SIGINT of the trainer or the worker itself, or by a KeyboardInterrupt)."
    return f"DataLoader worker (pid(s) {worker.pid}) exited unexpectedly{how}. {advice}"


def page_on_death(worker: WorkerSnapshot, exit_code: int | None) -> str:
    """Returns the end of a message about a death. A worker that was not killed before its first task has most often
    failed to import the script."""
    is_by_itself = exit_code is not None and exit_code >= 0 and exit_code != INTERRUPTED
    return help_on("main-guard") if worker.is_starting and is_by_itself else help_on("worker-died")


def describe_end_of_stall(worker: WorkerSnapshot) -> str:
    """Describes the end of a worker that on_stall="restart" has killed. The user has read describe_stall before."""
    return _describe_kill(worker, signal.SIGKILL, "headrace sent it, because the worker had stalled.")


def describe_hang_at_start(worker: WorkerSnapshot) -> str:
    """Describes a forked worker that headrace has killed because it could not start."""
    return (
        f"headrace: worker {worker.number} (pid {worker.pid}) could not start: when it was forked, another thread "
        "of this process held a lock, and nothing in the worker can release that lock; "
        'multiprocessing_context="forkserver" avoids this'
    )


def describe_death(
    worker: WorkerSnapshot,
    exit_code: int | None,
    tasks: dict[int, Any],
    seeding: tuple[int, int] | None,
    draws: Sequence[int] = (),
) -> str:
    """Describes why a worker died. The first line has torch's words. `tasks`: the indices of its outstanding tasks, by
    number. `seeding`, `draws`: see replay_command."""
    indices = tasks.get(worker.task)
    is_at_one = not worker.is_starting and (worker.is_fetching or worker.place is not None)
    command = replay_command(indices, worker.place, seeding, draws) if is_at_one else ""
    return (
        _first_line(worker, exit_code)
        + f"\n  worker {worker.number} had been {_place(worker, indices)}"
        + _in_flight(worker, tasks)
        + _memory(worker)
        + _stack(worker)
        + _stderr(worker)
        + (f"\n  {command}" if command else "")
    )


def _state(worker: WorkerSnapshot) -> str:
    if worker.tracer_pid:
        return f"is in a debugger (it is traced by process {worker.tracer_pid})"
    return {
        "T": f"is stopped (by Ctrl-Z or SIGSTOP; `kill -CONT {worker.pid}` lets it go on)",
        "D": "waits for a disk or the network",
        "R": "computes",
    }.get(worker.state, "waits")


def _no_stack(worker: WorkerSnapshot) -> str:
    call = worker.system_call.split()[0] if worker.system_call else ""
    seen = [
        f"in {worker.kernel_function}" if worker.kernel_function else "",
        f"system call {call}" if call.isdecimal() else call,
        f"{worker.threads} threads" if worker.threads > 1 else "1 thread",
    ]
    if worker.is_deadlocked:
        seen.append("it waits for a thread that it does not have")
    return (
        f"\n  it does not write its stacks; the kernel says: {', '.join(filter(None, seen))} "
        f"(`py-spy dump --pid {worker.pid}` or `gdb -p {worker.pid}` may tell more)"
    )


def describe_wait(worker: WorkerSnapshot, tasks: dict[int, Any]) -> str:
    """Describes what a worker is doing now, and for how long."""
    place = _place(worker, tasks.get(worker.task))
    return f"worker {worker.number} (pid {worker.pid}) {_state(worker)}; it has been {place}"


def describe_stall(
    worker: WorkerSnapshot, seconds: float, tasks: dict[int, Any], stack_from: int, hazards: list[str]
) -> str:
    """Describes what a worker is doing that has made no progress for `seconds`. A halted worker cannot write its
    stacks, so the text has no stacks. `hazards`: what the fork may have to do with it."""
    text = f"headrace: no batch for {in_duration(seconds)}: {describe_wait(worker, tasks)}"
    if worker.is_halted:
        return text
    return text + (_stack(worker, stack_from) or _no_stack(worker)) + "".join(f"\n  {hazard}" for hazard in hazards)
