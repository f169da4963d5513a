# SPDX-License-Identifier: Apache-2.0
"""headrace record and the option record: what a recording has of a job, however that or its recorder ends."""

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from headrace import _core
from processes import alive, run_python, start_python, until
from program import PROGRAM, run

DEADLINE_S = 60
ROW_S = 2.0  # a second of a recording is written so late at most, on a machine that is busy
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
STRACE = shutil.which("strace")

# Writes the step and the time after each step to a file, which two processes of a job may do.
SCRIPT = """
import os, sys, time
import numpy as np
import headrace

class Data:
    def __len__(self):
        return {count}
    def __getitem__(self, index):
        time.sleep(0.12 if index == 17 else 0.002)
        return np.zeros(100)

def main():
    loader = headrace.Loader(Data(), batch_size=4, num_workers={workers}, persistent_workers={persistent}, **{options})
    step = 0
    for epoch in range({epochs}):
        for batch in loader:
            step += 1
            with open({steps!r}, "a") as file:
                print(step, time.monotonic_ns(), file=file)

if __name__ == "__main__":
    main()
"""


def script(
    folder: Path, count: int = 40, epochs: int = 1, workers: int = 2, persistent: bool = False, **options: Any
) -> Path:
    path = folder / "train.py"
    persistent = persistent and workers > 0
    path.write_text(
        SCRIPT.format(
            count=count,
            epochs=epochs,
            workers=workers,
            persistent=persistent,
            options=repr(options),
            steps=str(folder / "steps"),
        )
    )
    return path


def files(folder: Path) -> list[Any]:
    return [_core.Recording(path) for path in sorted(folder.glob("*.hrr"))]


def finished_files(folder: Path) -> list[Any]:
    """Returns the files, or nothing while the recorder makes one."""
    try:
        return files(folder)
    except ValueError:
        return []


def the_file(folder: Path) -> Any:
    (file,) = files(folder)
    return file


def recorders(folder: Path) -> list[int]:
    """Returns the recorders that loaders have started for a folder."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path("/proc", name, "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"record" in words and os.fsencode(folder) in words:
            found.append(int(name))
    return found


def wait_for_end(folder: Path) -> None:
    until(lambda: not recorders(folder), DEADLINE_S)


def read_steps(folder: Path) -> list[tuple[int, int]]:
    """Returns the steps that the script in a folder has done, with their times."""
    path = folder / "steps"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(int(step), int(at)) for step, at in map(str.split, lines)]


def wait_for_steps(folder: Path, more: int = 10) -> None:
    """Waits until the script in a folder has done so many more steps."""
    before = len(read_steps(folder))
    until(lambda: len(read_steps(folder)) >= before + more, DEADLINE_S)


def check_slowest(file: Any) -> None:
    """Sample 17 takes 0.12 s, and is among the slowest. On a busy machine it is not always the first."""
    times = [ns for ns, *_ in file.slowest]
    assert times == sorted(times, reverse=True)
    assert max(ns for ns, index, *_ in file.slowest if index == 17) >= 0.12e9


def end(job: "subprocess.Popen[str]") -> None:
    job.kill()
    job.communicate()


# ---- what is recorded ----


@pytest.mark.parametrize("workers", [0, 2])
def test_all_of_a_job_is_recorded(tmp_path: Path, workers: int) -> None:
    """Epochs whose workers do not persist have memory of their own, each; they take over a quarter of a second."""
    folder = tmp_path / "run1"
    done = run_python(tmp_path, str(script(tmp_path, 300, 4, workers, record=str(folder))))
    assert (done.returncode, done.stderr) == (0, "")
    wait_for_end(folder)
    file = the_file(folder)
    assert (file.ended, file.torn) == ("the job ended", 0)
    identity = file.identity
    assert (identity["workers"], identity["rank"], identity["loader"]) == (workers, 0, 1)
    assert identity["name"].startswith("train.py:") and identity["command"]
    seconds = file.seconds
    assert sum(seconds["batches"]) == 300
    assert sum(seconds["samples"]) == 1200
    assert sum(seconds["starts"]) == 4
    assert sum(file.minutes["batches"]) == 300
    steps = set(zip(file.steps["epoch"], file.steps["step"], strict=True))
    assert len(steps) >= 280  # the last ones of an epoch may be unseen when the next one begins
    assert (3, 75) in steps
    if not workers:
        return
    assert len(file.batches["task"]) >= 280
    assert sum(map(sum, (samples for _, samples, _ in file.histograms))) >= 1000
    check_slowest(file)
    (busy_ns, all_ns) = (sum(file.second_workers[0]["fetch_ns"]), sum(seconds["length_ns"]))
    assert 0 < busy_ns < 1.5 * all_ns


WITHOUT_COMMAND = """
import headrace._base.program
headrace._base.program.find = lambda: None
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_program_without_the_command_records_itself(tmp_path: Path, workers: int) -> None:
    """A frozen or embedded program has no command headrace."""
    folder = tmp_path / "run1"
    path = script(tmp_path, 300, 2, workers, record=str(folder))
    path.write_text(WITHOUT_COMMAND + path.read_text())
    done = run_python(tmp_path, str(path))
    assert (done.returncode, done.stderr) == (0, "")
    file = the_file(folder)
    assert (file.ended, file.torn, file.identity["workers"]) == ("the job ended", 0, workers)
    assert sum(file.seconds["batches"]) == 150
    assert sum(file.seconds["starts"]) == 2
    if workers:
        check_slowest(file)


def test_forked_children_have_recordings_of_their_own(tmp_path: Path) -> None:
    code = """
import multiprocessing, os, time
import numpy as np, headrace

def child():
    links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    open_files = [os.readlink(link) for link in links if os.path.lexists(link)]
    assert not any(name.endswith(".hrr") for name in open_files), open_files
    loader = headrace.Loader(np.arange(8), batch_size=4)
    assert len(list(loader)) == 2
    time.sleep(1)  # longer than between two looks

if __name__ == "__main__":
    loader = headrace.Loader(np.arange(8), batch_size=4, num_workers=1, multiprocessing_context="fork")
    iterator = iter(loader)
    next(iterator)
    time.sleep(1)
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join()
    assert process.exitcode == 0
    next(iterator)
"""
    (tmp_path / "nested.py").write_text(WITHOUT_COMMAND + code)
    done = run_python(tmp_path, "nested.py", HEADRACE_RECORD="run1")
    assert (done.returncode, done.stderr) == (0, "")
    found = files(tmp_path / "run1")
    assert len({file.identity["pid"] for file in found}) == len(found) == 2
    assert [sum(file.seconds["batches"]) for file in found] == [2, 2]


def test_all_loaders_of_a_script_are_recorded(tmp_path: Path) -> None:
    """Workers have loaders of their own, which are not recorded; a forked child is another process of the job."""
    code = """
import multiprocessing, os, time
import numpy as np, headrace

def use(seconds):
    loader = headrace.Loader(np.arange(8), batch_size=4)
    found = [len(batch) for batch in loader]
    time.sleep(seconds)
    return found

class Nested:
    def __len__(self): return 8
    def __getitem__(self, index):
        return sum(use(0.05))

if __name__ == "__main__":
    before = len(os.listdir("/proc/self/fd"))
    loader = headrace.Loader(Nested(), batch_size=4, num_workers=1)
    first = list(loader)
    use(1)
    assert len(os.listdir("/proc/self/fd")) <= before + 4, os.listdir("/proc/self/fd")  # pages and names of loaders
    child = multiprocessing.get_context("fork").Process(target=use, args=(1,))
    child.start()
    child.join()
"""
    folder = tmp_path / "run1"
    (tmp_path / "nested.py").write_text(code)
    done = run_python(tmp_path, "nested.py", HEADRACE_RECORD="run1")
    assert (done.returncode, done.stderr) == (0, "")
    wait_for_end(folder)
    found = files(folder)
    pids = [file.identity["pid"] for file in found]
    assert len(found) == 3
    assert len(set(pids)) == 2


@pytest.mark.parametrize("with_run", [False, True])
def test_relative_folders_stay_when_the_script_changes_its_own(tmp_path: Path, with_run: bool) -> None:
    """Scripts of hydra do so. Under headrace run, headrace is imported later, too."""
    code = """
import os, time
if LATE:
    os.makedirs("elsewhere", exist_ok=True)
    os.chdir("elsewhere")
import headrace

class Slow:
    def __len__(self): return 60
    def __getitem__(self, index):
        time.sleep(0.01)
        return index

if __name__ == "__main__":
    own = headrace.Loader(Slow(), batch_size=4, num_workers=1, record=OWN)
    for fold in ("fold0", "fold1"):
        os.makedirs(fold)
        os.chdir(fold)
        list(headrace.Loader(Slow(), batch_size=4, num_workers=1))
    list(own)
    headrace.cache("name", lambda: b"data")
    print(os.environ["HEADRACE_CACHE"])
"""
    code = code.replace("LATE", str(with_run)).replace("OWN", repr(str(tmp_path / "own") if with_run else "own"))
    (tmp_path / "train.py").write_text(code)
    env = {**os.environ, "HEADRACE_RECORD": "run1", "HEADRACE_CACHE": "cache"}
    command = [PROGRAM, "run", "train.py"] if with_run else [sys.executable, "train.py"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stderr
    assert str(tmp_path / "cache") in done.stdout
    for name, count in (("run1", 2), ("own", 1)):
        wait_for_end(tmp_path / name)
        assert len(list((tmp_path / name).glob("*.hrr"))) == count
    assert sorted(one.name for one in tmp_path.rglob("*.hrr")) == sorted(
        one.name for name in ("run1", "own") for one in (tmp_path / name).iterdir()
    )


def test_torchs_loaders_are_recorded(tmp_path: Path) -> None:
    code = """
import glob, time, torch, headrace.torch
from headrace.torch import DataLoader

class Data(torch.utils.data.Dataset):
    def __init__(self, folder): self.folder = folder
    def __len__(self): return 200
    def __getitem__(self, index):
        while index == 100 and not glob.glob(self.folder + "/*.hrr"): time.sleep(0.01)
        return torch.zeros(3)

if __name__ == "__main__":
    list(DataLoader(Data("own"), 4, num_workers=1, record="own"))
    headrace.torch.install(record="all")
    list(torch.utils.data.DataLoader(Data("all"), 4, num_workers=1))
"""
    (tmp_path / "train.py").write_text(code)
    done = run_python(tmp_path, "train.py")
    assert (done.returncode, done.stderr) == (0, "")
    for name, line in (("own", "train.py:13"), ("all", "train.py:15")):
        wait_for_end(tmp_path / name)
        file = the_file(tmp_path / name)
        assert (file.identity["name"], sum(file.seconds["batches"])) == (line, 50)


def test_ranks_have_their_own_files(tmp_path: Path) -> None:
    path = script(tmp_path, 400, record="run1")
    done = run("run", "--nproc-per-node", "2", str(path), cwd=tmp_path, env={**os.environ, "HEADRACE_RUN_TEST": "1"})
    assert done.returncode == 0, done.stderr
    wait_for_end(tmp_path / "run1")
    found = files(tmp_path / "run1")
    assert sorted(file.identity["rank"] for file in found) == [0, 1]
    assert [file.ended for file in found] == ["the job ended"] * 2
    assert [sum(file.seconds["batches"]) for file in found] == [100, 100]


def test_a_running_job_is_recorded(tmp_path: Path) -> None:
    """With the loaders that its child makes later. Each of the two waits until it is recorded."""
    code = """
import glob, subprocess, sys, time
import train

IS_CHILD = len(sys.argv) > 1
WAITS_AT, FILES = (0, 2) if IS_CHILD else (100, 1)

class Watched(train.Data):
    def __getitem__(self, index):
        while index == WAITS_AT and len(glob.glob("run1/*.hrr")) < FILES:
            time.sleep(0.01)
        return super().__getitem__(index)

train.Data = Watched
train.main()
if not IS_CHILD:
    subprocess.run([sys.executable, "both.py", "child"], check=True)
"""
    script(tmp_path, 200, 4)
    (tmp_path / "both.py").write_text(code)
    job = start_python(tmp_path, "both.py")
    wait_for_steps(tmp_path)
    recorder = subprocess.Popen(
        [PROGRAM, "record", "-o", "run1", str(job.pid)], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    assert recorder.communicate(timeout=DEADLINE_S)[0] == "headrace: recorded 2 loaders in run1\n"
    assert recorder.returncode == 0
    job.communicate()
    first, second = sorted(files(tmp_path / "run1"), key=lambda file: file.identity["opened_ns"])
    assert sum(second.seconds["batches"]) == 200
    assert 0 < sum(first.seconds["batches"]) <= 190
    assert second.identity["pid"] != job.pid


def test_a_sample_that_hangs_is_recorded(tmp_path: Path) -> None:
    """The worker never measures it, because it is killed before it has it."""
    code = """
import os, signal, time
import headrace

class Data:
    def __len__(self): return 8
    def __getitem__(self, index):
        if index == 5:
            print("hangs", flush=True)
            time.sleep(1000)
        return 1.0

if __name__ == "__main__":
    list(headrace.Loader(Data(), batch_size=2, num_workers=1, record="run1"))
"""
    (tmp_path / "train.py").write_text(code)
    job = start_python(tmp_path, "train.py")
    assert job.stdout is not None and job.stdout.readline() == "hangs\n"
    folder = tmp_path / "run1"
    until(lambda: any(index == 5 for file in files(folder) for _, index, _, _ in file.slowest), DEADLINE_S)
    end(job)
    wait_for_end(folder)
    slowest = the_file(folder).slowest
    assert slowest[0][1] == 5 and slowest[0][0] >= 1e9


# ---- ends ----


def test_a_job_that_is_killed_is_recorded_to_its_end(tmp_path: Path) -> None:
    folder = tmp_path / "run1"
    job = start_python(tmp_path, str(script(tmp_path, 100000, record=str(folder), persistent=True)))
    wait_for_steps(tmp_path, 400)
    end(job)
    wait_for_end(folder)
    file = the_file(folder)
    assert (file.ended, file.torn) == ("the job ended", 0)
    assert abs(sum(file.seconds["batches"]) - len(read_steps(tmp_path))) <= 1


@pytest.mark.parametrize("kills_job", [False, True])
def test_a_recorder_that_is_killed_loses_a_second(tmp_path: Path, kills_job: bool) -> None:
    folder = tmp_path / "run1"
    job = start_python(tmp_path, str(script(tmp_path, 100000, record=str(folder), persistent=True)))
    wait_for_steps(tmp_path)
    (recorder,) = until(lambda: recorders(folder), DEADLINE_S)
    until(lambda: finished_files(folder) and len(files(folder)[0].seconds["at_ns"]) >= 3, DEADLINE_S)
    os.kill(recorder, signal.SIGSTOP)  # it must not see that the job has ended
    if kills_job:
        job.kill()
    os.kill(recorder, signal.SIGKILL)
    killed_ns = time.monotonic_ns()
    until(lambda: not alive(recorder), DEADLINE_S)
    assert kills_job or job.poll() is None
    if not kills_job:
        wait_for_steps(tmp_path)  # the job goes on
    end(job)
    file = the_file(folder)
    assert file.ended == ""
    last_ns = file.seconds["at_ns"][-1]
    assert last_ns >= killed_ns - ROW_S * 1e9
    assert abs(sum(file.seconds["batches"]) - sum(at < last_ns for _, at in read_steps(tmp_path))) <= 2
    assert max(file.batches["began_ns"]) >= last_ns - 1e9


def test_ctrl_c_ends_the_recorder_and_not_the_job(tmp_path: Path) -> None:
    job = start_python(tmp_path, str(script(tmp_path, 100000)))
    wait_for_steps(tmp_path)
    folder = tmp_path / "run1"
    recorder = subprocess.Popen([PROGRAM, "record", "-o", folder, str(job.pid)], stdout=subprocess.PIPE, text=True)
    until(lambda: finished_files(folder), DEADLINE_S)
    recorder.send_signal(signal.SIGINT)
    assert recorder.communicate(timeout=DEADLINE_S)[0] == f"headrace: recorded 1 loader in {folder}\n"
    assert recorder.returncode == 0
    wait_for_steps(tmp_path)
    end(job)
    assert the_file(folder).ended == "it was stopped"


def test_the_recorder_of_a_job_outlives_its_signals(tmp_path: Path) -> None:
    """Ctrl-C and the SIGTERM of schedulers reach the recorder before the job has saved its state."""
    folder = tmp_path / "run1"
    job = start_python(tmp_path, str(script(tmp_path, 100000, record=str(folder))))
    wait_for_steps(tmp_path)
    (recorder,) = until(lambda: recorders(folder), DEADLINE_S)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(recorder, number)
    wait_for_steps(tmp_path, 100)
    assert recorders(folder) == [recorder]
    end(job)
    wait_for_end(folder)
    assert abs(sum(the_file(folder).seconds["batches"]) - len(read_steps(tmp_path))) <= 1


# ---- what goes wrong ----


def test_a_file_limit_ends_the_recording_and_not_the_job(tmp_path: Path) -> None:
    job = start_python(tmp_path, str(script(tmp_path, 100000)))
    wait_for_steps(tmp_path)
    done = subprocess.run(
        [PROGRAM, "record", "-o", tmp_path / "run1", str(job.pid)],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20)),
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("headrace: recording: cannot write ") and done.stderr.count("\n") == 1
    assert "File too large; the recording ends here, and the job goes on" in done.stderr
    wait_for_steps(tmp_path)
    end(job)
    assert the_file(tmp_path / "run1").ended == "disk full"


@AS_ROOT
def test_a_full_disk_ends_the_recording_and_not_the_job(tmp_path: Path) -> None:
    """The recorder has a disk of 40 kB, which only it sees."""
    job = start_python(tmp_path, str(script(tmp_path, 100000)))
    wait_for_steps(tmp_path)
    disk, kept = tmp_path / "disk", tmp_path / "kept"
    disk.mkdir()
    kept.mkdir()
    commands = f"mount -t tmpfs -o size=40k none {disk} && {PROGRAM} record -o {disk} {job.pid}; cp {disk}/*.hrr {kept}"
    done = subprocess.run(["unshare", "-m", "sh", "-c", commands], capture_output=True, text=True, timeout=DEADLINE_S)
    if "unshare" in done.stderr or "mount" in done.stderr:
        end(job)
        pytest.skip("mounts are not allowed here")
    assert done.stderr.count("\n") == 1 and "No space left on device; the recording ends here" in done.stderr
    wait_for_steps(tmp_path)
    end(job)
    assert the_file(kept).ended == "disk full"


def test_a_folder_that_cannot_be_made_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "run1").write_text("a file")
    done = run_python(tmp_path, str(script(tmp_path, record="run1")))
    assert done.returncode == 0
    assert "the loaders of this process are not recorded: File exists: " in done.stderr
    assert len(read_steps(tmp_path)) == 10


def test_two_recorders_write_to_one_folder(tmp_path: Path) -> None:
    folder = tmp_path / "run1"
    job = start_python(tmp_path, str(script(tmp_path, 1000, record=str(folder))))
    wait_for_steps(tmp_path)
    assert run("record", "-o", str(folder), str(job.pid)).returncode == 0
    job.communicate()
    wait_for_end(folder)
    assert len(files(folder)) == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "headrace: there is no folder to write to; give '-o FOLDER'; see headrace record --help\n"),
        (("-o", "run1"), "headrace: there is no process to record; give 'PID'; see headrace record --help\n"),
        (("-o",), "headrace: a folder is missing after '-o'; see headrace record --help\n"),
        (("-o", "run1", "x"), "headrace: this is no process ID: 'x'; see headrace record --help\n"),
        (("--fast",), "headrace: unknown option '--fast'; see headrace record --help\n"),
    ],
)
def test_wrong_words_are_refused(tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    done = run("record", *words, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", message)
    assert os.listdir(tmp_path) == []


def test_a_process_that_does_not_exist_is_named(tmp_path: Path) -> None:
    done = run("record", "-o", "run1", "999999999", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (1, "headrace: there is no process 999999999\n")
    (tmp_path / "file").write_text("")
    done = run("record", "-o", "file", str(os.getpid()), cwd=tmp_path)
    assert done.returncode == 1 and "cannot make the folder file: Not a directory" in done.stderr


def test_a_process_without_a_loader_is_waited_for(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "600"]) as job:
        command = [PROGRAM, "record", "-o", "run1", str(job.pid)]
        with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as one:
            assert one.stderr
            said = one.stderr.readline()
            one.send_signal(signal.SIGINT)
            printed, rest = one.communicate(timeout=DEADLINE_S)
        job.kill()
    assert said == "headrace: there is no loader in these processes yet; waiting for one (Ctrl-C ends)\n"
    assert (one.returncode, printed, rest) == (0, "headrace: recorded 0 loaders in run1\n", "")


# ---- what it costs ----


@pytest.mark.skipif(not STRACE, reason="strace is not installed")
def test_a_recorded_job_makes_no_further_system_calls(tmp_path: Path) -> None:
    """The calls that start the recorder are a few hundred, whatever the number of batches is."""
    code = """
import sys
import numpy as np, headrace
for _ in range(3):
    for batch in headrace.Loader(np.arange(20000), batch_size=2, record=sys.argv[1] if len(sys.argv) > 1 else None):
        pass
"""
    (tmp_path / "train.py").write_text(code)
    counts = []
    for words in ((), (str(tmp_path / "run1"),)):
        out = tmp_path / "calls"
        command = [str(STRACE), "-c", "-o", str(out), sys.executable, "train.py", *words]
        subprocess.run(command, cwd=tmp_path, check=True, timeout=DEADLINE_S)
        total = next(line for line in reversed(out.read_text().splitlines()) if line.endswith("total"))
        counts.append(int(total.split()[3]))
    wait_for_end(tmp_path / "run1")
    assert counts[1] - counts[0] < 1000  # of 30,000 batches
