# SPDX-License-Identifier: Apache-2.0
"""headrace doctor without arguments: what it says of machines that are short of something."""

from __future__ import annotations

import json
import multiprocessing
import os
import pathlib
import resource
import subprocess
import sys
import threading
import types
from typing import Any

import headrace
import pytest
from doctors import GIB, doctor, findings, make_machine, needs_cores
from headrace.doctor.machine import fork, limits, system
from loaders import needs_failpoints, only_headrace
from processes import environment

pytestmark = [only_headrace, pytest.mark.timeout(600)]


@needs_cores
@needs_failpoints
def test_small_shm_of_docker_is_fine_and_the_text_says_so(tmp_path: pathlib.Path) -> None:
    result = doctor(HEADRACE_ROOT=make_machine(tmp_path))
    assert result.returncode == 0, result.stdout + result.stderr
    assert "ok       /dev/shm         64.0 MiB   (headrace puts nothing there)" in result.stdout
    assert "headrace does not need docker run --ipc=host or --shm-size" in " ".join(result.stdout.split())
    assert "ok       memory           7.0 GiB available   (the cgroup's limit is 8.0 GiB)" in result.stdout
    assert result.stdout.endswith("\n\nnothing is wrong\n")


@needs_failpoints
@pytest.mark.parametrize(("size", "severity"), [("65536k", "error"), ("8g", "warning"), ("67108864", "error")])
def test_size_of_dev_shm_counts_if_memfd_is_refused(tmp_path: pathlib.Path, size: str, severity: str) -> None:
    root = make_machine(tmp_path, mounts=f"shm /dev/shm tmpfs rw,size={size} 0 0\n")
    found = findings(HEADRACE_ROOT=root, HEADRACE_FAIL="memfd_create:EPERM")
    assert found["/dev/shm"]["severity"] == severity
    assert "docker run --shm-size=8g" in found["/dev/shm"]["fix"]
    assert found["kernel"]["value"].endswith("without memfd")


@needs_failpoints
def test_dev_shm_without_a_limit_is_reported_as_unlimited(tmp_path: pathlib.Path) -> None:
    root = make_machine(tmp_path, mounts=f"shm /dev/shm tmpfs rw,size={1 << 63} 0 0\n")  # the format of gVisor
    assert findings(HEADRACE_ROOT=root)["/dev/shm"]["value"] == "no limit"


@needs_failpoints
def test_nearly_full_container_warns_with_the_option_for_more(tmp_path: pathlib.Path) -> None:
    """The fix is the docker option that gives the container more memory."""
    root = make_machine(tmp_path, memory__current=f"{8 * GIB - (200 << 20)}\n")
    memory = findings(HEADRACE_ROOT=root)["memory"]
    assert memory["severity"] == "warning"
    assert memory["value"] == "200.0 MiB available"
    assert memory["limit"] == "the cgroup's limit is 8.0 GiB"
    assert "If workers need more than is available, the kernel kills them" in memory["consequence"]
    assert memory["fix"].startswith("docker run --memory=16g")


@needs_failpoints
def test_a_full_container_is_an_error(tmp_path: pathlib.Path) -> None:
    root = make_machine(tmp_path, memory__current=f"{8 * GIB}\n")
    assert findings(HEADRACE_ROOT=root)["memory"]["severity"] == "error"
    assert doctor(HEADRACE_ROOT=root).returncode == 2


@needs_failpoints
def test_memory_limit_is_the_lower_of_machine_and_container(tmp_path: pathlib.Path) -> None:
    root = make_machine(tmp_path, meminfo="MemTotal: 4194304 kB\nMemAvailable: 2097152 kB\n")
    memory = findings(HEADRACE_ROOT=root)["memory"]
    assert (memory["value"], memory["limit"]) == ("2.0 GiB available", "of 4.0 GiB in the machine")


@needs_failpoints
def test_cpu_quota_below_the_visible_cores_is_a_warning(tmp_path: pathlib.Path) -> None:
    root = make_machine(tmp_path, cpu__max="50000 100000\n")
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("this machine has one core")
    cores = findings(HEADRACE_ROOT=root)["cores"]
    assert (cores["severity"], cores["value"]) == ("warning", "1 core")
    assert "the cgroup's CPU quota" in cores["limit"]
    assert cores["fix"].startswith("export OMP_NUM_THREADS=1")
    assert findings(HEADRACE_ROOT=root, OMP_NUM_THREADS="1")["cores"]["severity"] != "warning" or os.cpu_count() != 1


def test_more_workers_or_threads_than_cores_are_a_warning() -> None:
    many = len(os.sched_getaffinity(0)) * 4
    cores = findings("--workers", str(many))["cores"]
    assert cores["severity"] == "warning"
    assert f"{many} workers with 1 threads each need {many} cores" in cores["consequence"]
    assert "num_workers=" in cores["fix"]
    threads = findings("--workers", "1", OMP_NUM_THREADS=str(many))["cores"]
    assert f"1 workers with {many} threads each need {many} cores" in threads["consequence"]


def test_affinity_to_one_core_of_several_is_a_warning() -> None:
    allowed = os.sched_getaffinity(0)
    if (os.cpu_count() or 1) < 2:
        pytest.skip("this machine has one core")
    cores = findings(before=lambda: os.sched_setaffinity(0, {min(allowed)}))["cores"]
    assert (cores["severity"], cores["value"]) == ("warning", "1 core")
    assert "by affinity" in cores["limit"]


def test_low_descriptor_limit_is_an_error_with_the_command() -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (70, 4096))

    files = findings("--workers", "16", before=limit)["open files"]
    assert (files["severity"], files["value"], files["limit"]) == ("error", "70", "at most 4,096")
    assert files["fix"].startswith("ulimit -n 4096")


def test_worker_takes_as_many_descriptors_as_documented() -> None:
    def count(workers: int) -> int:
        loader = headrace.Loader([*range(100)], num_workers=workers, multiprocessing_context="fork")
        iterator = iter(loader)
        next(iterator)
        found = len(os.listdir("/proc/self/fd"))
        iterator.close()  # type: ignore[attr-defined]
        return found

    assert count(5) - count(2) == 3 * limits.FDS_OF_A_WORKER


@needs_failpoints
def test_a_cgroup_that_allows_no_more_processes_is_an_error(tmp_path: pathlib.Path) -> None:
    root = make_machine(tmp_path)
    (tmp_path / "sys/fs/cgroup/pids.max").write_text("100\n")
    (tmp_path / "sys/fs/cgroup/pids.current").write_text("90\n")
    found = findings("--workers", "8", HEADRACE_ROOT=root)["processes"]
    assert (found["severity"], found["value"], found["limit"]) == ("error", "10 more", "cgroup's pids.max")
    assert "--pids-limit" in found["fix"]


@needs_cores
@needs_failpoints
@pytest.mark.parametrize(
    ("changes", "name", "fix"),
    [
        ({"shmem_enabled": "always within_size advise [never] deny force\n"}, "huge pages", "echo advise | sudo tee"),
        ({"ptrace_scope": "1\n"}, "debuggers", "sysctl kernel.yama.ptrace_scope=0"),
    ],
)
def test_harmless_fact_is_a_note_and_no_warning(
    tmp_path: pathlib.Path, changes: dict[str, str], name: str, fix: str
) -> None:
    root = make_machine(tmp_path, **changes)
    found = findings(HEADRACE_ROOT=root)[name]
    assert found["severity"] == "note"
    assert fix in found["fix"]
    assert doctor(HEADRACE_ROOT=root).returncode == 0


@needs_failpoints
def test_a_kernel_without_pidfd_is_a_note() -> None:
    found = findings(HEADRACE_FAIL="pidfd_open:ENOSYS")["kernel"]
    assert (found["severity"], found["value"].endswith("without pidfd")) == ("note", True)


@needs_failpoints
def test_a_kernel_whose_pipes_signal_every_close_is_a_note() -> None:
    found = findings(HEADRACE_FAIL="async:ENOSYS")["kernel"]
    assert (found["severity"], found["fix"]) == ("note", "Linux 5.6 or later")
    assert "a busy worker ends when its batch is complete" in found["consequence"]


@needs_failpoints
def test_sandbox_without_partial_release_of_memory_is_a_note() -> None:
    found = findings(HEADRACE_FAIL="remove:ENOSYS")["kernel"]
    assert (found["severity"], found["value"].endswith("without freeing parts of shared memory")) == ("note", True)
    assert "freed as a whole" in found["consequence"]
    assert "another sandbox than gVisor" in found["fix"]


@needs_failpoints
def test_sandbox_in_which_the_engine_cannot_run_is_an_error() -> None:
    found = findings(HEADRACE_FAIL="eventfd:EPERM")["engine"]
    assert (found["severity"], found["value"]) == ("error", "torch's own")


def test_an_engine_that_is_switched_off_is_a_warning() -> None:
    found = findings(HEADRACE_DISABLE="1")["engine"]
    assert (found["severity"], found["fix"]) == ("warning", "unset HEADRACE_DISABLE")


@pytest.mark.parametrize(("version", "severity"), [("2.6.1+cpu", "ok"), ("2.5.0", "note"), ("3.0", "note")])
def test_torch_that_headrace_is_not_made_for_is_a_note(
    monkeypatch: pytest.MonkeyPatch, version: str, severity: str
) -> None:
    monkeypatch.setattr(system.metadata, "version", lambda name: version)
    found = system.torch()
    assert (found.severity, found.value) == (severity, version)
    assert "torch 2.6 to 2.15" in found.limit


def test_unloadable_extension_is_an_error_without_traceback() -> None:
    code = "import sys; sys.modules['headrace._core'] = None; from headrace._commands import doctor; "
    command = [sys.executable, "-c", code + "sys.exit(doctor.main([]))"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment())
    assert result.returncode == 2
    assert result.stdout.startswith("error    engine           not available")
    assert result.stderr == ""


def test_a_job_of_slurm_gets_slurms_option() -> None:
    allowed = os.sched_getaffinity(0)
    if (os.cpu_count() or 1) < 2:
        pytest.skip("this machine has one core")
    options: dict[str, Any] = {"SLURM_JOB_ID": "1", "before": lambda: os.sched_setaffinity(0, {min(allowed)})}
    fix = findings(**options)["cores"]["fix"]
    assert fix in ("sbatch --cpus-per-task=8", "docker run --cpus=8 ... (Kubernetes: resources.limits)")


def test_threads_and_libraries_of_this_process_are_fork_hazards(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = types.SimpleNamespace(cuda=types.SimpleNamespace(is_initialized=lambda: True))
    cv2 = types.SimpleNamespace(getNumThreads=lambda: 8, getNumberOfCPUs=lambda: 4, setNumThreads=lambda count: None)
    monkeypatch.setitem(sys.modules, "torch", torch)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "cv2", cv2)  # type: ignore[arg-type]
    may_end = threading.Event()
    thread = threading.Thread(target=may_end.wait, name="telemetry")
    thread.start()
    found = {finding.name: finding for finding in fork.hazards()}
    may_end.set()
    thread.join()
    assert (found["CUDA"].severity, found["CUDA"].value) == ("error", "initialised")
    assert (found["OpenCV"].severity, found["OpenCV"].value) == ("warning", "8 threads")
    assert "telemetry" in found["threads"].limit
    cv2.getNumberOfCPUs = lambda: 8  # the user set no number, so workers use one
    assert "OpenCV" not in [finding.name for finding in fork.hazards()]


def test_doctor_reports_no_hazard_that_loaders_accept() -> None:
    """The thread that feeds a queue of multiprocessing makes no loader warn, and the doctor does not name it either."""
    queue: Any = multiprocessing.get_context("fork").Queue()
    queue.put(1)
    assert "QueueFeederThread" in [thread.name for thread in threading.enumerate()]
    found = [finding.name for finding in fork.hazards()]
    assert queue.get() == 1
    queue.close()
    queue.join_thread()
    assert "threads" not in found


def test_the_numbers_are_in_the_json_too() -> None:
    machine = json.loads(doctor("--json").stdout)["machine"]
    assert 0 < machine["available_bytes"] <= machine["memory_bytes"]
    assert machine["core_count"] == len(os.sched_getaffinity(0))


@pytest.mark.parametrize("arguments", [["--batches", "0"], ["--workers", "-1"], ["--nonsense"], ["--run"]])
def test_options_that_make_no_sense_are_refused(arguments: list[str]) -> None:
    result = doctor(*arguments)
    assert result.returncode == 2
    assert "headrace doctor: error:" in result.stderr


def test_every_finding_has_a_value_and_every_warning_a_way_out(tmp_path: pathlib.Path) -> None:
    for finding in findings("--workers", "1000").values():
        assert finding["value"]
        assert finding["fix"] or finding["severity"] in ("ok", "note")
