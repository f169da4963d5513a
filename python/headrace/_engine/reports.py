# SPDX-License-Identifier: Apache-2.0
"""What a user reads when a worker dies or stalls."""

from __future__ import annotations

import ast
import operator
import os
import reprlib
import shlex
import signal
import textwrap
import time
from typing import Any

from headrace import _core
from headrace._inspect import lookup
from headrace._inspect.units import in_units


class _Short(reprlib.Repr):
    """Of any index, one whose own __repr__ raises included."""

    def repr1(self, x: Any, level: int) -> str:
        try:
            return super().repr1(x, level)
        except Exception:
            return f"<{type(x).__name__}>"


_short = _Short()
_short.maxlist = _short.maxtuple = 8
_short.maxstring = _short.maxother = 80
SAID_LINES = 20

INTERRUPTED = 128 + signal.SIGINT  # the exit code of a worker that a Ctrl-C has ended, as shells say it
_LOOK_CLOSER = "Rerunning with num_workers=0 may give a better error trace."
_OUT_OF_MEMORY = (
    "Out of memory: lower num_workers, prefetch_factor or batch_size, or raise the memory limit of the container or of "
    "the job."
)
_ADVICE: dict[int, str] = {
    signal.SIGKILL: "Some process sent it SIGKILL: most often the kernel, because memory ran out (then `dmesg` says "
    "so): lower num_workers, prefetch_factor or batch_size.",
    signal.SIGTERM: "Some process asked it to end: often the job's scheduler, at a time limit or before a preemption.",
    signal.SIGBUS: "A memory-mapped file may have become shorter, or the disk or /dev/shm be full. " + _LOOK_CLOSER,
}
_NOT_STARTED = (
    "It ended before it could begin, and its own error stands above. With spawn and forkserver the script must be a "
    "file that can be imported: what it does belongs under `if __name__ == '__main__':`."
)
_TAKEN = (
    "; how is not known, for this process took its exit code (by os.wait or os.waitpid(-1), in a handler of SIGCHLD or "
    "a thread) or ignores SIGCHLD"
)


def shorten(indices: Any) -> str:
    """A batch's indices, the first eight of them."""
    text = _short.repr(indices)
    return f"{text}, {len(indices)} in all" if isinstance(indices, (list, tuple)) and len(indices) > 8 else text


def has_indices(indices: Any) -> bool:
    """False for an iterable data set's, which are None."""
    return any(one is not None for one in indices) if isinstance(indices, (list, tuple)) else indices is not None


def _since(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def is_starting(look: dict[str, Any]) -> bool:
    """Has nothing of the user's run in the worker yet, but for imports and fork handlers?"""
    return bool(look["own_pid"] != look["pid"])


def _place(look: dict[str, Any], indices: Any) -> str:
    """Where a worker is: phase, batch and sample."""
    if is_starting(look):
        return "starting: importing modules, or unpickling the data set"
    if look["phase"] == _core.PHASE_WAIT:
        return "waiting for a task" if look["phase_since_ns"] else "in worker_init_fn, or waiting for its first task"
    is_fetching = look["phase"] == _core.PHASE_FETCH
    position = look["sample"] if is_fetching else None
    if is_fetching and position is not None and isinstance(indices, (list, tuple)) and position >= len(indices):
        is_fetching = False  # a collate function of the user's
    since = _since(max(0.0, time.monotonic() - look["phase_since_ns"] / 1e9))
    where = "in the data set" if is_fetching else "collating"
    return f"{where} for {since}, at {name_sample(look['task'], indices, position)}"


def name_sample(batch: int, indices: Any, position: int | None) -> str:
    """A batch's number in the epoch, the indices where the data set has some, and which one is meant, where `position`
    says it: it is past the last one while they are collated."""
    if not has_indices(indices):
        return f"batch {batch}"
    if not isinstance(indices, (list, tuple)):
        return f"sample {_short.repr(indices)}, batch {batch}"
    if position is not None and position < len(indices):
        return f"sample {_short.repr(indices[position])} of batch {batch}, {shorten(indices)}"
    return f"batch {batch}, samples {shorten(indices)}"


def name_odd_one(indices: Any, place: int) -> str:
    """The first sample of a batch that does not collate."""
    if has_indices(indices):
        name = f"sample {_short.repr(indices[place])}"
    else:
        name = f"the sample at place {place} of the batch"
    return f"{name} does not collate" + (" with those before it" if place else "")


def _plain(index: Any) -> Any:
    """numpy's 3 is 3."""
    return operator.index(index) if lookup.has_special(index, "__index__") else index


def replay(indices: Any, position: int | None, seeding: tuple[int, int] | None) -> str:
    """The command that makes a batch's sample in the foreground; "" where it is not known which one, or where a command
    line cannot say it. `seeding`: the seed and the epoch of samples' own random numbers, with rng="sample"."""
    if isinstance(indices, (list, tuple)):
        if position is None or position >= len(indices):
            return ""
        index = indices[position]
    else:
        index = indices
    try:
        index = tuple(map(_plain, index)) if type(index) is tuple else _plain(index)
        text = repr(index)
        is_literal = len(text) <= _short.maxstring and ast.literal_eval(text) == index
    except Exception:  # of its own, or a number of thousands of digits, or no literal
        return ""
    if not is_literal or not isinstance(index, (int, str, tuple)):
        return ""
    quoted = f'"{text}"' if isinstance(index, str) and not set(text) & set('"$`\\!') else shlex.quote(text)
    seeded = "" if seeding is None else f" --seed {seeding[0]} --epoch {seeding[1]}"
    return f"to make it alone: headrace replay YOUR_MODULE:MAKE_DATASET {quoted}{seeded} --pdb"


def _indented(text: str) -> str:
    return textwrap.indent(text, "    ")


def _own_frames(lines: list[str]) -> list[str]:
    """A dump of faulthandler's without what stands below the worker's main function, and without the list of extension
    modules."""
    kept, is_below = [], False
    for line in lines:
        is_below = is_below and line.startswith("  ")
        if not is_below and not line.startswith("Extension modules:"):
            kept.append(line)
        is_below = is_below or (line.endswith("in main") and f"{os.sep}headrace{os.sep}_worker.py" in line)
    return kept


def _stack(look: dict[str, Any], start: int = 0) -> str:
    text = "\n".join(_own_frames(look["stack"][start:].splitlines())).strip()
    if not text:
        return ""
    cut = "\n    ... (cut at 64 KiB)" if look["stack_is_cut"] else ""
    return f"\n  its stacks:\n{_indented(text)}{cut}"


def _said(look: dict[str, Any]) -> str:
    lines = look["said"].rstrip().splitlines()[-SAID_LINES:]
    return f"\n  the end of its stderr:\n{_indented(chr(10).join(lines))}" if lines else ""


def _in_flight(look: dict[str, Any], tasks: dict[int, Any]) -> str:
    is_at_one = not is_starting(look) and look["phase"] != _core.PHASE_WAIT
    others = [number for number in tasks if not is_at_one or number != look["task"]]
    return f"\n  it {'also had' if is_at_one else 'had'} batches {shorten(others)} to make" if others else ""


def _memory(look: dict[str, Any]) -> str:
    text = f"\n  memory: {in_units(look['rss_bytes'])} when last seen" if look["rss_bytes"] else ""
    if not look["oom_kills"]:
        return text
    kernel = f"the kernel killed {look['oom_kills']} of this cgroup's processes for want of memory while it ran"
    return f"{text}; {kernel}" if text else f"\n  memory: {kernel}"


def _killed(look: dict[str, Any], number: int, advice: str) -> str:
    name = signal.strsignal(number) or f"signal {number}"
    return f"DataLoader worker (pid {look['pid']}) is killed by signal: {name}. {advice}"


def cause_at_start(look: dict[str, Any], exit_code: int | None) -> tuple[int, str] | None:
    """What deaths before a first task that have the same cause have in common; None for other deaths, and for those
    that another process caused."""
    has_begun = not is_starting(look) and (look["phase"] != _core.PHASE_WAIT or look["phase_since_ns"])
    if has_begun or exit_code in (None, -signal.SIGKILL, -signal.SIGTERM, INTERRUPTED):
        return None
    return exit_code, _said(look)


def of_same_death(look: dict[str, Any]) -> str:
    """Describes a death whose cause was told with an earlier one."""
    return f"DataLoader worker (pid(s) {look['pid']}) ended before its first task, in the same way as one before"


def of_group_signal(ended: int, workers: int) -> str:
    """Says what is known of the sender of a SIGTERM: it is not in the exit status, but how many workers it ended is."""
    if workers < 2 or ended < workers:
        return ""
    return (
        f"\n  it ended all {workers} workers at the same time: it was sent to their whole process group (by `timeout`, "
        "a shell, or the job's scheduler), or to each of them"
    )


def _first_line(look: dict[str, Any], exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        is_oom = exit_code == -signal.SIGKILL and look["oom_kills"]
        return _killed(look, -exit_code, _OUT_OF_MEMORY if is_oom else _ADVICE.get(-exit_code, _LOOK_CLOSER))
    how = _TAKEN if exit_code is None else f" with exit code {exit_code}"
    advice = _NOT_STARTED if is_starting(look) else _LOOK_CLOSER
    if exit_code == INTERRUPTED:
        advice = "It was interrupted (by Ctrl-C, or SIGINT)."
    return f"DataLoader worker (pid(s) {look['pid']}) exited unexpectedly{how}. {advice}"


def of_end_of_stall(look: dict[str, Any]) -> str:
    """Of a worker that on_stall="restart" has killed, after `of_stall`."""
    return _killed(look, signal.SIGKILL, "That was headrace, for it had stalled.")


def of_stillbirth(look: dict[str, Any]) -> str:
    """Of a forked worker that headrace has killed because it could not begin."""
    return (
        f"headrace: worker {look['worker']} (pid {look['pid']}) could not begin: it waited for a lock that a thread of "
        "this process held as it was forked, and that nothing in it could release; "
        'multiprocessing_context="forkserver" avoids this'
    )


def of_death(
    look: dict[str, Any], exit_code: int | None, tasks: dict[int, Any], seeding: tuple[int, int] | None
) -> str:
    """Why a worker died: its first line is torch's. `tasks` are its outstanding ones: number -> indices. `seeding`: see
    replay."""
    indices = tasks.get(look["task"])
    is_fetching = not is_starting(look) and look["phase"] == _core.PHASE_FETCH
    command = replay(indices, look["sample"], seeding) if is_fetching else ""
    return (
        _first_line(look, exit_code)
        + f"\n  worker {look['worker']} had been {_place(look, indices)}"
        + _in_flight(look, tasks)
        + _memory(look)
        + _stack(look)
        + _said(look)
        + (f"\n  {command}" if command else "")
    )


def _state(look: dict[str, Any]) -> str:
    if look["tracer_pid"]:
        return f"is in a debugger (it is traced by process {look['tracer_pid']})"
    return {
        "T": f"is stopped (by Ctrl-Z or SIGSTOP; `kill -CONT {look['pid']}` lets it go on)",
        "D": "waits for a disk or the network",
        "R": "computes",
    }.get(look["state"], "waits")


def is_halted(look: dict[str, Any]) -> bool:
    """Is the worker stopped, or in a debugger?"""
    return bool(look["tracer_pid"]) or look["state"] in ("T", "t")


def _no_stack(look: dict[str, Any]) -> str:
    call = look["system_call"].split()[0] if look["system_call"] else ""
    seen = [
        f"in {look['kernel_function']}" if look["kernel_function"] else "",
        f"system call {call}" if call.isdecimal() else call,
        f"{look['threads']} threads" if look["threads"] > 1 else "1 thread",
    ]
    if look["is_deadlocked"]:
        seen.append("it waits for a thread that it does not have")
    return (
        f"\n  it does not write its stacks; the kernel says: {', '.join(filter(None, seen))} "
        f"(`py-spy dump --pid {look['pid']}` or `gdb -p {look['pid']}` may tell more)"
    )


def of_stall(look: dict[str, Any], seconds: float, tasks: dict[int, Any], stack_from: int, hazards: list[str]) -> str:
    """What a worker does that has made no progress for `seconds`. A halted one's stacks were not asked for."""
    text = (
        f"headrace: no batch for {_since(seconds)}: worker {look['worker']} (pid {look['pid']}) {_state(look)}; "
        f"it has been {_place(look, tasks.get(look['task']))}"
    )
    if is_halted(look):
        return text
    return text + (_stack(look, stack_from) or _no_stack(look)) + "".join(f"\n  {hazard}" for hazard in hazards)


def of_early_end(came: int, due: str, where: str) -> str:
    """Describes an epoch that a StopIteration of the user's ended. `where`: what is known of its place."""
    return (
        f"headrace: the loop ends after {came} of {due} batches, because the dataset or collate_fn raised "
        "StopIteration, which ends a for loop without an error. Often it comes from next() on an empty iterator: give "
        f"next() a default, or raise another exception.\n{_indented(where)}"
    )


def _of_worker(worker: int | None) -> str:
    return "" if worker is None else f" (worker {worker})"


def of_ended_sampler(count: int, sampler: str, error: str) -> str:
    """Reports that an epoch was shorter than it should be: the sampler's iterator ended by an exception."""
    return (
        f"headrace: this epoch ended after {count} batches, because the iterator of the {sampler}, raised an exception "
        f"and gave nothing more ({error}). A generator cannot continue after an exception: catch it "
        "there, or write the iterator as a class with __next__"
    )


def of_bad_samples(bad: list[Any], shown: int = 10) -> str:
    """The samples that an epoch could not make."""
    lines = [f"  {_short.repr(one.index)}{_of_worker(one.worker)}: {one.error}" for one in bad[:shown]]
    more = [f"  and {len(bad) - shown} more: see report()['bad_samples']"] if len(bad) > shown else []
    count = "1 bad sample" if len(bad) == 1 else f"{len(bad)} bad samples"
    return "\n".join([f"headrace: {count} in this epoch:", *lines, *more])
