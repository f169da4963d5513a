# SPDX-License-Identifier: Apache-2.0
"""Writes what a user reads when a worker dies or stalls. The crew calls it with a snapshot of the worker."""

from __future__ import annotations

import os
import signal
import textwrap
import time
from typing import Any

from headrace._engine.snapshot import WorkerSnapshot
from headrace._errors.units import in_duration, in_units
from headrace._samples.names import name_sample, replay_command, shorten
from headrace._worker.main import INTERRUPTED

STDERR_LINES = 20  # how many lines of a worker's stderr a report shows
_MAIN = os.path.join(os.sep, "headrace", "_worker", "main.py")
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
    "It ended before it could start, and its own error is printed above. With spawn and forkserver the script must be "
    "a file that can be imported: put the code that it runs under `if __name__ == '__main__':`."
)
_EXIT_CODE_UNKNOWN = (
    " with an unknown exit code: this process already read it (os.wait() or os.waitpid(-1) in a SIGCHLD handler or a "
    "thread), or it ignores SIGCHLD"
)


def _place(one: WorkerSnapshot, indices: Any) -> str:
    """Describes where a worker is: phase, batch and sample."""
    if one.is_starting:
        return "starting: importing modules, or unpickling the dataset"
    if one.is_waiting:
        return "waiting for a task" if one.phase_since_ns else "in worker_init_fn, or waiting for its first task"
    is_fetching = one.is_fetching
    position = one.sample if is_fetching else None
    if is_fetching and position is not None and isinstance(indices, (list, tuple)) and position >= len(indices):
        is_fetching = False  # the fetcher calls a collate function of the user's
    since = in_duration(max(0.0, time.monotonic() - one.phase_since_ns / 1e9))
    where = "in the dataset" if is_fetching else "collating"
    return f"{where} for {since}, at {name_sample(one.task, indices, position)}"


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


def _stack(one: WorkerSnapshot, start: int = 0) -> str:
    text = "\n".join(_own_frames(one.stack[start:].splitlines())).strip()
    if not text:
        return ""
    cut = "\n    ... (cut at 64 KiB)" if one.stack_is_cut else ""
    return f"\n  its stacks:\n{_indented(text)}{cut}"


def _stderr(one: WorkerSnapshot) -> str:
    lines = one.stderr.rstrip().splitlines()[-STDERR_LINES:]
    return f"\n  the end of its stderr:\n{_indented(chr(10).join(lines))}" if lines else ""


def _in_flight(one: WorkerSnapshot, tasks: dict[int, Any]) -> str:
    is_at_one = not one.is_starting and not one.is_waiting
    others = [number for number in tasks if not is_at_one or number != one.task]
    return f"\n  it {'also had' if is_at_one else 'had'} batches {shorten(others)} to make" if others else ""


def _memory(one: WorkerSnapshot) -> str:
    text = f"\n  memory: {in_units(one.rss_bytes)} when last seen" if one.rss_bytes else ""
    if not one.oom_kills:
        return text
    kernel = f"the kernel killed {one.oom_kills} of this cgroup's processes because memory ran out while it ran"
    return f"{text}; {kernel}" if text else f"\n  memory: {kernel}"


def _describe_kill(one: WorkerSnapshot, number: int, advice: str) -> str:
    name = signal.strsignal(number) or f"signal {number}"
    return f"DataLoader worker (pid {one.pid}) is killed by signal: {name}. {advice}"


def cause_at_start(one: WorkerSnapshot, exit_code: int | None) -> tuple[int, str] | None:
    """Returns a value that is equal for two deaths before a first task if they have the same cause. Returns None for
    later deaths, and for those that another process caused."""
    has_had_task = not one.is_starting and (not one.is_waiting or one.phase_since_ns)
    if has_had_task or exit_code in (None, -signal.SIGKILL, -signal.SIGTERM, INTERRUPTED):
        return None
    return exit_code, _stderr(one)


def describe_repeated_death(one: WorkerSnapshot) -> str:
    """Describes a death whose cause the user has read in the report on an earlier one."""
    return f"DataLoader worker (pid(s) {one.pid}) ended before its first task, in the same way as one before"


def describe_group_signal(ended: int, workers: int) -> str:
    """Describes to which processes a SIGTERM was sent. The exit status does not name the sender, but the number of
    workers that the signal ended shows this."""
    if workers < 2 or ended < workers:
        return ""
    return (
        f"\n  it ended all {workers} workers at the same time: it was sent to their whole process group (by `timeout`, "
        "a shell, or the job's scheduler), or to each of them"
    )


def _first_line(one: WorkerSnapshot, exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        is_oom = exit_code == -signal.SIGKILL and one.oom_kills
        return _describe_kill(one, -exit_code, _OUT_OF_MEMORY if is_oom else _ADVICE.get(-exit_code, _RERUN_ADVICE))
    how = _EXIT_CODE_UNKNOWN if exit_code is None else f" with exit code {exit_code}"
    advice = _NOT_STARTED if one.is_starting else _RERUN_ADVICE
    if exit_code == INTERRUPTED:
        advice = "It was interrupted (by Ctrl-C, or SIGINT)."
    return f"DataLoader worker (pid(s) {one.pid}) exited unexpectedly{how}. {advice}"


def describe_end_of_stall(one: WorkerSnapshot) -> str:
    """Describes the end of a worker that on_stall="restart" has killed. The user has read describe_stall before."""
    return _describe_kill(one, signal.SIGKILL, "headrace sent it, because the worker had stalled.")


def describe_hang_at_start(one: WorkerSnapshot) -> str:
    """Describes a forked worker that headrace has killed because it could not start."""
    return (
        f"headrace: worker {one.worker} (pid {one.pid}) could not start: when it was forked, another thread "
        "of this process held a lock, and nothing in the worker can release that lock; "
        'multiprocessing_context="forkserver" avoids this'
    )


def describe_death(
    one: WorkerSnapshot, exit_code: int | None, tasks: dict[int, Any], seeding: tuple[int, int] | None
) -> str:
    """Describes why a worker died. The first line has torch's words. `tasks`: the indices of its outstanding tasks, by
    number. `seeding`: see replay_command."""
    indices = tasks.get(one.task)
    is_fetching = not one.is_starting and one.is_fetching
    command = replay_command(indices, one.sample, seeding) if is_fetching else ""
    return (
        _first_line(one, exit_code)
        + f"\n  worker {one.worker} had been {_place(one, indices)}"
        + _in_flight(one, tasks)
        + _memory(one)
        + _stack(one)
        + _stderr(one)
        + (f"\n  {command}" if command else "")
    )


def _state(one: WorkerSnapshot) -> str:
    if one.tracer_pid:
        return f"is in a debugger (it is traced by process {one.tracer_pid})"
    return {
        "T": f"is stopped (by Ctrl-Z or SIGSTOP; `kill -CONT {one.pid}` lets it go on)",
        "D": "waits for a disk or the network",
        "R": "computes",
    }.get(one.state, "waits")


def _no_stack(one: WorkerSnapshot) -> str:
    call = one.system_call.split()[0] if one.system_call else ""
    seen = [
        f"in {one.kernel_function}" if one.kernel_function else "",
        f"system call {call}" if call.isdecimal() else call,
        f"{one.threads} threads" if one.threads > 1 else "1 thread",
    ]
    if one.is_deadlocked:
        seen.append("it waits for a thread that it does not have")
    return (
        f"\n  it does not write its stacks; the kernel says: {', '.join(filter(None, seen))} "
        f"(`py-spy dump --pid {one.pid}` or `gdb -p {one.pid}` may tell more)"
    )


def describe_stall(
    one: WorkerSnapshot, seconds: float, tasks: dict[int, Any], stack_from: int, hazards: list[str]
) -> str:
    """Describes what a worker is doing that has made no progress for `seconds`. A halted worker cannot write its
    stacks, so there are none. `hazards`: what the fork may have to do with it."""
    text = (
        f"headrace: no batch for {in_duration(seconds)}: worker {one.worker} (pid {one.pid}) {_state(one)}; "
        f"it has been {_place(one, tasks.get(one.task))}"
    )
    if one.is_halted:
        return text
    return text + (_stack(one, stack_from) or _no_stack(one)) + "".join(f"\n  {hazard}" for hazard in hazards)
