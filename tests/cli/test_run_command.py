# SPDX-License-Identifier: Apache-2.0
"""The command lines of `headrace run` and `headrace exec`: what is refused, what is noted, and what is started.

tests/c/unit/test_run_read.c and test_run_plan.c have the grammar and each option; these tests have what a user types
and sees.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from program import PROGRAM, run

PAGE = Path(__file__).parents[2] / "docs/launch.md"


def clean(**variables: str) -> dict[str, str]:
    """Returns the environment without what changes a launch, and with `variables`."""
    changes = ("PET_", "TORCH", "PYTHON", "CUDA_", "HIP_", "ROCR_", "RANK", "WORLD_SIZE", "HEADRACE_")
    return {name: value for name, value in os.environ.items() if not name.startswith(changes)} | variables


def here(**variables: str) -> dict[str, str]:
    """Returns an environment in which ranks use the interpreter of the tests."""
    return clean(PYTHON_EXEC=sys.executable, **variables)


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text("print('started')\n")
    return str(path)


def write_program(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o700)
    return str(path)


def assert_refused(result: subprocess.CompletedProcess[str], *texts: str) -> None:
    """Asserts one line that starts with headrace: and has the texts, exit code 2, and that nothing was started."""
    assert (result.returncode, result.stdout) == (2, "")
    assert re.fullmatch(r"headrace: [^\n]+\n", result.stderr), result.stderr
    for text in texts:
        assert text in result.stderr


# ---- help ----


@pytest.mark.parametrize("command", ["run", "exec"])
def test_help_goes_to_stdout_and_fits_a_terminal(command: str) -> None:
    result = run(command, "--help")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith(f"Usage: headrace {command} [OPTION...] ")
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert run(command, "-h").stdout == result.stdout


def options_of(text: str) -> set[str]:
    return set(re.findall(r"^  (?:-\w, )?(--[a-z-]+)", text, re.MULTILINE))


def test_documentation_has_the_options_of_the_help() -> None:
    documented = set(re.findall(r"^\| `(?:-\w, )?(--[a-z-]+)", PAGE.read_text(), re.MULTILINE))
    assert documented == options_of(run("run", "--help").stdout)
    assert options_of(run("exec", "--help").stdout) < documented


def test_help_has_each_option_of_torchrun() -> None:
    parser = pytest.importorskip("torch.distributed.run").get_args_parser()
    torchs = {name for action in parser._actions for name in action.option_strings if name.startswith("--")}
    elsewhere = {"--print-completion"}  # of torch 2.15: headrace completion
    assert {name for name in torchs if "_" not in name} - elsewhere <= options_of(run("run", "--help").stdout)


# ---- what is refused ----


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("--nproc 0", "--nproc-per-node is '0'; give a number from 1 to 4096, or auto, cpu, gpu or xpu"),
        ("--nproc -1", "--nproc-per-node is '-1'; give a number from 1 to 4096"),
        ("--nproc 10000", "--nproc-per-node is '10000'; give a number from 1 to 4096"),
        ("--nproc abc", "--nproc-per-node is 'abc'; give a number from 1 to 4096"),
        ("--nprocs 2", "there is no option --nprocs; did you mean --nproc?"),
        ("--lr 0.1", "there is no option --lr; options of the script go after it"),
        ("--r 3", "--r can be one of --run-path, --redirects, --role, "),
        ("--standalone=yes", "--standalone takes no value"),
        ("--grace 5s", "--grace is '5s'; give seconds"),
        ("-r 4", "--redirects is '4'; give 0, 1 (stdout), 2 (stderr) or 3 (both)"),
        ("-m --no-python", "--module and --no-python exclude each other"),
        ("--nnodes 0", "--nnodes is '0'"),
        ("--nnodes 2 --node-rank 2", "--node-rank is '2'; give a number from 0 to 1"),
        ("--master-port 70000", "--master-port is '70000'; give a number from 0 to 65535"),
        ("--rdzv-endpoint host", "--rdzv-endpoint is 'host'; give HOST:PORT"),
        ("--stdin 1", "--stdin is '1'; give a local rank from 0 to 0, or none"),
        ("--prefix always", "--prefix is 'always'; give auto or never"),
        ("--signals-to-handle SIGKILL", "--signals-to-handle names SIGKILL"),
    ],
)
def test_wrong_option_is_refused(words: str, text: str, script: str) -> None:
    assert_refused(run("run", *words.split(), script, env=here()), text)


def test_wrong_variable_is_named(script: str) -> None:
    assert_refused(run("run", script, env=here(PET_NPROC_PER_NODE="0")), "PET_NPROC_PER_NODE is '0'")
    assert_refused(run("run", script, env=here(PET_STANDALONE="x")), "PET_STANDALONE is 'x'")


@pytest.mark.parametrize("words", [["run"], ["run", "--nproc", "2"], ["exec"], ["exec", "--grace", "3"]])
def test_missing_script_is_refused_with_the_usage(words: list[str]) -> None:
    assert_refused(run(*words), f"; headrace {words[0]} [OPTION...] ")


def test_script_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.py")
    assert_refused(run("run", missing, env=here()), f"cannot read the script '{missing}': No such file or directory")
    assert_refused(run("run", str(tmp_path), env=here()), f"'{tmp_path}' is a directory without __main__.py")


def test_missing_interpreter_is_refused(script: str, tmp_path: Path) -> None:
    assert_refused(
        run("run", script, env=clean(PYTHON_EXEC="/no/python")),
        "PYTHON_EXEC is '/no/python', which cannot be executed: No such file or directory",
    )
    assert_refused(run("run", script, env=clean(PYTHON_EXEC=str(tmp_path))), "cannot be executed: Is a directory")
    lone = Path(shutil.copy2(PROGRAM, tmp_path))
    result = run("run", script, program=lone, env=clean(PATH="/no/folder"))
    assert_refused(result, "there is no Python interpreter", "PYTHON_EXEC=")


def test_files_that_cannot_be_written_are_refused(script: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    assert_refused(run("run", "--log-dir", str(file), script, env=here()), str(file), "--log-dir")
    assert_refused(run("run", "--report", f"{tmp_path}/no/report", script, env=here()), f"{tmp_path}/no/report")
    assert_refused(run("exec", "--report", str(tmp_path), "true", env=clean()), str(tmp_path))


def test_port_that_is_taken_is_refused(script: str) -> None:
    with socket.create_server(("", 0)) as server:
        port = str(server.getsockname()[1])
        assert_refused(run("run", "--nproc", "2", "--master-port", port, script, env=here()), port)


def test_shortage_of_descriptors_is_not_the_command_lines_fault(script: str) -> None:
    limited = ["sh", "-c", 'ulimit -n 16; exec "$@"', "sh", PROGRAM, "run", "--nproc", "64", script]
    result = subprocess.run(limited, env=here(), capture_output=True, text=True, timeout=100)
    assert (result.returncode, result.stdout) == (125, "")
    assert result.stderr.startswith("headrace: ")


# ---- GPUs ----


def make_nvml(folder: Path, count: int) -> str:
    """Builds an NVML library that shows `count` GPUs, or that cannot be initialized (-1). Returns its folder."""
    folder.mkdir(exist_ok=True)
    source = folder / "nvml.c"
    source.write_text(
        f"int nvmlInit_v2(void) {{ return {int(count < 0)}; }}\n"
        f"int nvmlDeviceGetCount_v2(unsigned *count) {{ *count = {max(count, 0)}; return 0; }}\n"
        "int nvmlShutdown(void) { return 0; }\n"
    )
    subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / "libnvidia-ml.so.1", source], check=True, timeout=100)
    return str(folder)


def test_gpu_without_gpus_is_refused(script: str, tmp_path: Path) -> None:
    none = make_nvml(tmp_path / "none", -1)
    python = write_program(tmp_path / "python3", "echo; echo headrace 0")
    variables = {"LD_LIBRARY_PATH": none, "PYTHON_EXEC": python}
    assert_refused(
        run("run", "--nproc", "gpu", script, env=clean(**variables)),
        f"--nproc-per-node is 'gpu', and the torch of {python} has 0; give a number, or cpu",
    )
    assert_refused(
        run("run", "--nproc", "gpu", script, env=clean(**variables, CUDA_VISIBLE_DEVICES="")),
        "--nproc-per-node is 'gpu', and CUDA_VISIBLE_DEVICES='' has 0",
    )
    write_program(tmp_path / "python3", "echo 'ModuleNotFoundError: torch' >&2; exit 1")
    assert_refused(
        run("run", "--nproc", "xpu", script, env=clean(**variables)),
        f"--nproc-per-node is 'xpu': {python} cannot count them: ModuleNotFoundError: torch; give a number",
    )


def count_ranks(kind: str, env: dict[str, str]) -> int:
    result = run("run", "--nproc", kind, "--prefix", "never", "--no-python", "echo", "a rank", env=env)
    assert result.returncode == 0
    return result.stdout.splitlines().count("a rank")


def test_gpus_are_counted_without_torch(tmp_path: Path) -> None:
    env = clean(LD_LIBRARY_PATH=make_nvml(tmp_path, 3), PYTHON_EXEC="/no/python")
    assert count_ranks("gpu", env) == 3
    assert count_ranks("auto", env) == 3
    assert count_ranks("gpu", env | {"CUDA_VISIBLE_DEVICES": "2,0"}) == 2
    assert count_ranks("gpu", env | {"CUDA_VISIBLE_DEVICES": "0,3,1"}) == 1
    assert count_ranks("gpu", env | {"CUDA_VISIBLE_DEVICES": "MIG-a,MIG-b,MIG-c,MIG-d"}) == 4


def test_auto_without_gpus_counts_cores(tmp_path: Path) -> None:
    env = clean(LD_LIBRARY_PATH=make_nvml(tmp_path, -1), PYTHON_EXEC=write_program(tmp_path / "py", "echo headrace 0"))
    cores = len(os.sched_getaffinity(0))
    assert count_ranks("auto", env) == count_ranks("cpu", env) == cores


# ---- what is started ----


def test_script_runs_in_each_rank_with_its_arguments(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        "import os, sys\nprint(os.environ['RANK'], os.environ['WORLD_SIZE'], sys.argv[1:], sys.executable)\n"
    )
    words = ["run", "--nproc", "2", str(path), "--role", "3", "${local_rank}", "$$x"]
    result = run(*words, env=here())
    assert (result.returncode, result.stderr) == (0, "")
    assert sorted(result.stdout.splitlines()) == [
        f"[{rank}] {rank} 2 ['--role', '3', '{rank}', '$x'] {sys.executable}" for rank in range(2)
    ]


def test_module_and_run_path_run_in_the_interpreter(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(__name__, __file__)\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/__main__.py").write_text("print('folder')\n")
    assert run("run", "-m", "train", cwd=tmp_path, env=here()).stdout == f"__main__ {tmp_path}/train.py\n"
    assert "__main__" in run("run", "--run-path", f"{tmp_path}/train.py", env=here()).stdout
    assert run("run", "folder", cwd=tmp_path, env=here()).stdout == "folder\n"


def test_interpreter_next_to_headrace_is_used_if_it_has_torch(script: str, tmp_path: Path) -> None:
    for folder in ("env/bin", "env/lib/python3.99/site-packages/torch", "path", "empty"):
        (tmp_path / folder).mkdir(parents=True)
    lone = Path(shutil.copy2(PROGRAM, tmp_path / "env/bin"))
    write_program(tmp_path / "env/bin/python3", "echo next to headrace")
    write_program(tmp_path / "path/python3", "echo in PATH")

    def interpreter(path: str) -> str:
        return run("run", script, program=lone, env=clean(PATH=f"{tmp_path}/{path}")).stdout

    assert interpreter("path") == "in PATH\n"
    assert interpreter("empty") == "next to headrace\n"
    (tmp_path / "env/lib/python3.99/site-packages/torch/__init__.py").write_text("")
    assert interpreter("path") == "next to headrace\n"


def test_variables_of_torchrun_are_defaults(script: str) -> None:
    result = run("run", "--prefix", "never", script, env=here(PET_NPROC_PER_NODE="3"))
    assert result.stdout == "started\n" * 3


@pytest.mark.parametrize("words", [["run", "--no-python"], ["exec"], ["exec", "--"]])
def test_exit_code_of_the_command_is_returned(words: list[str]) -> None:
    assert run(*words, "sh", "-c", "exit 7", env=clean()).returncode == 7
    assert run(*words, "true", env=clean()).returncode == 0


@pytest.mark.parametrize("words", [["run", "--no-python"], ["exec"]])
def test_command_that_cannot_be_executed_is_refused(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "text").write_text("")
    for command, code, why in (
        ("/no/program", 127, "No such file or directory"),
        ("no-program", 127, "No such file or directory"),
        (str(tmp_path), 126, "Is a directory"),
        (str(tmp_path / "text"), 126, "Permission denied"),
    ):
        result = run(*words, command, env=clean())
        assert (result.returncode, result.stdout) == (code, "")
        assert result.stderr == f"headrace: cannot execute '{command}': {why}\n"
    result = run(*words, "text", env=clean(), cwd=tmp_path)
    assert result.returncode == 127 and result.stderr.endswith("for the file in this directory, write ./text\n")


def test_interrupt_ends_headrace_by_the_signal() -> None:
    command = [PROGRAM, "run", "--no-python", "sh", "-c", "echo ready; exec sleep 1000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=clean()) as process:
        assert process.stdout and process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(100) == -signal.SIGINT


# ---- notes ----


def test_notes_are_given_once_on_stderr(script: str) -> None:
    result = run("run", "--monitor-interval", "1", script, env=here(PET_START_METHOD="fork"))
    assert (result.returncode, result.stdout) == (0, "started\n")
    assert result.stderr == "headrace: note: --monitor-interval, PET_START_METHOD have no effect\n"


def test_logs_without_a_folder_go_to_a_temporary_one(script: str, tmp_path: Path) -> None:
    result = run("run", "-t", "3", script, env=here(TMPDIR=str(tmp_path)))
    found = re.search(r"^headrace: note: logs are in (\S+);", result.stderr, re.MULTILINE)
    assert result.returncode == 0 and found
    assert [path.read_text() for path in Path(found[1]).glob("*/attempt_0/0/stdout.log")] == ["started\n"]


# ---- jobs that torch.distributed.run starts ----


def test_job_of_several_machines_is_handed_on(tmp_path: Path) -> None:
    script = write_program(tmp_path / "train.py", "")
    python = write_program(tmp_path / "python3", 'echo "$PET_MODULE"; for word; do echo "$word"; done; exit 3')
    words = ["--nnodes", "2", "--rdzv-backend=c10d", "--rdzv-endpoint", "host:1", "--grace", "2", script, "--x"]
    result = run("run", *words, env=clean(PYTHON_EXEC=python, PET_MODULE="0"))
    assert result.returncode == 3
    assert result.stdout.splitlines() == [
        *("", "-m", "torch.distributed.run", "--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=host:1"),
        *("--no-python", "--", str(PROGRAM.resolve()), "exec", "--grace=2", "--", python, "-u", script, "--x"),
    ]
    assert "note: torch.distributed.run starts the ranks of this job, because several machines need" in result.stderr


def test_torch_starts_ranks_under_headrace_exec(tmp_path: Path) -> None:
    pytest.importorskip("torch.distributed.run")
    path = tmp_path / "train.py"
    path.write_text("import os\nos.write(1, 'rank {RANK} of {WORLD_SIZE}\\n'.format(**os.environ).encode())\n")
    words = ["--standalone", "--nproc", "2", "--duplicate-stdout-filters", "x", "-m", "train"]
    result = run("run", *words, cwd=tmp_path, env=here(PYTHONPATH=str(tmp_path)))
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == ["rank 0 of 2", "rank 1 of 2"]
