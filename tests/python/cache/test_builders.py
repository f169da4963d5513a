# SPDX-License-Identifier: Apache-2.0
"""headrace.cache in several processes: one builds, the others wait; builders that fail, die, or need each other."""

from __future__ import annotations

import os
import pathlib
import signal
import threading
from typing import Any

import headrace
import numpy as np
import pytest
from cache_scripts import Scripts, sleeping_in
from processes import until

BUILD = """
def build():
    note(f"build-{os.getpid()}")
    return np.arange(1000)
found = headrace.cache("rows", build)
assert found.sum() == 499500
"""
SLOW = """
def build():
    note("began")
    headrace.cache.progress(1, 4)
    await_("go")
    {}
    return np.arange(1000)
headrace.cache("rows", build, version=1)
"""


def test_processes_that_start_together_build_once(scripts: Scripts, tmp_path: pathlib.Path) -> None:
    processes = [scripts.start(BUILD) for _ in range(8)]
    for process in processes:
        scripts.end(process)
    assert len(list((tmp_path / "events").glob("build-*"))) == 1


def test_threads_build_once(root: pathlib.Path, tmp_path: pathlib.Path) -> None:
    calls = tmp_path / "calls"
    found: list[Any] = []

    def build() -> Any:
        with calls.open("a") as file:
            file.write("x")
        return np.arange(10)

    threads = [threading.Thread(target=lambda: found.append(headrace.cache("rows", build))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert calls.read_text() == "x"
    assert len({array.__array_interface__["data"][0] for array in found}) == 1


def test_waiting_says_who_builds_and_how_far(scripts: Scripts) -> None:
    builder = scripts.start(SLOW.format(""))
    scripts.await_("began")
    with pytest.raises(TimeoutError, match=rf"process {builder.pid} \(.*\) has been building it for .*, 25 % done"):
        headrace.cache("rows", lambda: 1, version=1, timeout=0.1)
    os.kill(builder.pid, signal.SIGSTOP)
    assert until(lambda: pathlib.Path(f"/proc/{builder.pid}/stat").read_text().split(") ")[1][0] == "T")
    with pytest.raises(TimeoutError, match="it is stopped"):
        headrace.cache("rows", lambda: 1, version=1, timeout=0.1)
    os.kill(builder.pid, signal.SIGCONT)
    scripts.note("go")
    scripts.end(builder)
    assert headrace.cache("rows", version=1).sum() == 499500


WAIT = """
try:
    headrace.cache("rows", lambda: np.zeros(1), version=1)
except Exception as error:
    print(type(error).__module__, type(error).__name__, error, *getattr(error, "__notes__", []))
"""


def _wait_for_failure(scripts: Scripts, how: str) -> tuple[str, str]:
    builder = scripts.start(SLOW.format(how))
    scripts.await_("began")
    waiting = scripts.start(WAIT)
    assert until(lambda: "nanosleep" in sleeping_in(waiting.pid), 60)  # it has found the builder
    scripts.note("go")
    _, errors = scripts.end(builder, 1)
    return scripts.end(waiting)[0], errors


def test_exception_of_the_builder_reaches_those_that_wait(scripts: Scripts) -> None:
    output, errors = _wait_for_failure(scripts, 'raise FileNotFoundError(2, "gone", "a.npy")')
    assert "FileNotFoundError" in errors
    assert output.startswith("builtins FileNotFoundError [Errno 2] gone: 'a.npy'")
    assert 'raise FileNotFoundError(2, "gone", "a.npy")' in output or "in build" in output
    assert "This process waited for it." in output
    assert headrace.cache("rows", lambda: np.ones(1), version=1)[0] == 1  # a later call builds


def test_exception_that_does_not_pickle_arrives_as_text(scripts: Scripts) -> None:
    output, _ = _wait_for_failure(scripts, 'raise type("Odd", (Exception,), {})("odd text")')
    assert "odd text" in output and "Traceback" in output


def test_builder_that_is_killed_hands_over(scripts: Scripts) -> None:
    builder = scripts.start(SLOW.format(""))
    scripts.await_("began")
    next_one = scripts.start(SLOW.replace('"began"', '"again"').format(""))
    builder.kill()
    scripts.await_("again")
    scripts.note("go")
    scripts.end(next_one)
    assert headrace.cache("rows", version=1).sum() == 499500
    scripts.end(builder, -9)


@pytest.mark.parametrize("how", ["raise KeyboardInterrupt", "sys.exit(3)"])
def test_interrupted_builder_hands_over(scripts: Scripts, how: str) -> None:
    builder = scripts.start(SLOW.format(how))
    scripts.await_("began")
    scripts.note("go")
    assert headrace.cache("rows", lambda: np.ones(1), version=1)[0] == 1
    builder.communicate()


def test_third_dead_builder_is_an_error(scripts: Scripts) -> None:
    die = SLOW.replace('note("began")', "note(f\"began-{os.environ['NUMBER']}\")").replace(
        'await_("go")', "await_('go'); os.kill(os.getpid(), 9)"
    )
    die = die.replace("{}", "pass")
    processes = [scripts.start(die, NUMBER="first")]
    scripts.await_("began-first")
    processes += [scripts.start(die, NUMBER=str(number)) for number in range(4)]
    ticket = headrace._core.Cache(None).ask("rows", "1", "stamp", "value", 1)
    assert ticket.wait(0.05) is None
    waits = lambda: sum("nanosleep" in sleeping_in(process.pid) for process in processes)  # noqa: E731
    assert until(lambda: waits() >= 4, 60)
    scripts.note("go")
    outcomes = [(process.communicate(timeout=60), process.returncode) for process in processes]
    assert sorted(code for _, code in outcomes) == [-9, -9, -9, 1, 1]
    errors = [err for (_, err), code in outcomes if code == 1]
    assert all("3 processes in a row died while they built 'rows'" in err for err in errors)
    with pytest.raises(headrace.CacheError, match="3 processes in a row died"):
        ticket.wait(10)
    del ticket
    assert headrace.cache("rows", lambda: np.ones(1), version=1)[0] == 1


def test_builder_that_needs_its_own_name_is_named(root: pathlib.Path) -> None:
    def build() -> Any:
        return headrace.cache("rows", build)

    with pytest.raises(headrace.CacheError, match="the function that builds 'rows' asks for 'rows' itself"):
        headrace.cache("rows", build)


def test_builders_that_need_each_other_are_named(scripts: Scripts) -> None:
    text = """
    def build():
        note("{0}")
        await_("{1}")
        return headrace.cache("{1}", lambda: np.zeros(1))
    try:
        headrace.cache("{0}", build)
    except headrace.CacheError as error:
        print(error)
    """
    one, two = scripts.start(text.format("a", "b")), scripts.start(text.format("b", "a"))
    outputs = scripts.end(one)[0] + scripts.end(two)[0]
    assert "and the other way round" in outputs


def test_source_that_changes_while_it_is_built(root: pathlib.Path, tmp_path: pathlib.Path) -> None:
    source = tmp_path / "source"
    source.write_text("1")

    def build() -> Any:
        text = source.read_text()
        source.write_text(text + "2")
        return [text]

    assert headrace.cache("text", build, sources=source) == ["1"]
    assert headrace.cache("text", build, sources=source) == ["12"]


def test_job_objects_end_with_the_process(scripts: Scripts) -> None:
    process = scripts.start('kept = headrace.cache("rows", lambda: np.ones(9), keep="job"); note("up"); await_("go")')
    scripts.await_("up")
    array = headrace.cache("rows")
    scripts.note("go")
    scripts.end(process)
    assert [entry.name for entry in headrace.cache.ls()] == ["rows"]
    assert array[0] == 1
    del array
    assert headrace.cache.ls() == []


def test_job_object_of_a_killed_job_is_not_taken(scripts: Scripts) -> None:
    process = scripts.start('kept = headrace.cache.put("rows", [1], keep="job"); note("up"); await_("go")')
    scripts.await_("up")
    process.kill()
    process.communicate()
    with pytest.raises(KeyError):
        headrace.cache("rows")
    assert headrace.cache.ls() == []


def test_removed_root_leaves_a_private_copy(root: pathlib.Path, capfd: pytest.CaptureFixture[str]) -> None:
    import shutil

    def build() -> Any:
        shutil.rmtree(root)
        return np.ones(5)

    with pytest.raises(OSError):
        headrace.cache("rows", build)
    assert headrace.cache("rows", lambda: np.ones(5)).sum() == 5  # the folder is made again
