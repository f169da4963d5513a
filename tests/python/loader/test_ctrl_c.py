# SPDX-License-Identifier: Apache-2.0
"""SIGINT in workers: a Ctrl-C is the trainer's alone, and a worker that gets one is described as that."""

from __future__ import annotations

import multiprocessing
import os
import pathlib
import re
import signal

import datasets as d
import pytest
from loaders import Headrace, only_headrace
from processes import Script, run

INTERRUPTED = """
import multiprocessing, multiprocessing.process
import datasets as d
from loaders import Headrace
if __name__ == "__main__":
    start = multiprocessing.process.BaseProcess.start
    def start_and_tell(process):
        start(process)
        print("started", flush=True)
    multiprocessing.process.BaseProcess.start = start_and_tell
    context = multiprocessing.get_context({method!r})
    for _ in Headrace(d.Gate(9, 0, context.Event()), num_workers=1, multiprocessing_context=context):
        pass
"""


@only_headrace
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_ctrl_c_while_workers_start_is_the_trainers_alone(tmp_path: pathlib.Path, method: str) -> None:
    with Script(tmp_path, INTERRUPTED.format(method=method)) as script:
        assert script.line() == "started"
        os.killpg(script.process.pid, signal.SIGINT)
        assert script.finish() == -signal.SIGINT, script.stderr
        assert re.findall("^KeyboardInterrupt", script.stderr, re.MULTILINE) == ["KeyboardInterrupt"]
        # The command line of a spawned worker, and a forked worker's name; what dataclasses make is in "<string>", too.
        assert 'File "<string>", line 1, in <module>' not in script.stderr and "Process-" not in script.stderr
        assert script.left() == []


@only_headrace
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_an_interrupted_worker_is_called_that(method: str) -> None:
    context = multiprocessing.get_context(method)
    reached = context.Event()
    gate = d.Gate(9, 0, context.Event(), reached)
    iterator = iter(Headrace(gate, num_workers=1, multiprocessing_context=context))
    assert reached.wait(60)
    os.kill(iterator._workers[0].pid, signal.SIGINT)
    with pytest.raises(RuntimeError, match=r"exit code 130. It was interrupted \(by a SIGINT of the trainer"):
        next(iterator)


BOOTSTRAPPED = """
import os, signal
from multiprocessing import util
from headrace import Loader
class Anything:
    pass
anything = Anything()
if __name__ != "__main__":  # in a worker: a registered function runs while multiprocessing prepares the process
    util.register_after_fork(anything, lambda _: os.kill(os.getpid(), signal.SIGINT))
else:
    try:
        list(Loader([1], num_workers=1, multiprocessing_context="forkserver", max_restarts=0))
    except RuntimeError:
        print("ended")
"""


@only_headrace
def test_ctrl_c_before_a_worker_has_begun_ends_it_in_silence(tmp_path: pathlib.Path) -> None:
    assert run(tmp_path, BOOTSTRAPPED) == "ended\n"


BLOCKED = """
import signal
from loaders import Headrace
class Mask:
    def __len__(self):
        return 1
    def __getitem__(self, index):
        return signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())
if __name__ == "__main__":
    for how in (signal.SIG_UNBLOCK, signal.SIG_BLOCK):
        signal.pthread_sigmask(how, {{signal.SIGINT}})
        loader = Headrace(Mask(), batch_size=None, num_workers=1, multiprocessing_context={method!r})
        print(*loader, Mask()[0])
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_worker_has_sigint_blocked_if_the_trainer_has(tmp_path: pathlib.Path, method: str) -> None:
    assert run(tmp_path, BLOCKED.format(method=method)) == "False False\nTrue True\n"
