# SPDX-License-Identifier: Apache-2.0
"""The fork server: what it imports, how often and in which process, and what workers see of the trainer's changes."""

from __future__ import annotations

import importlib.util
import json
import multiprocessing
import os
import pathlib
import signal
import subprocess
import sys
from typing import Any

import pytest
from headrace._loader.start import contexts
from processes import Script, alive, run, until

# Without loaders.py, which imports torch: tests/other_pythons.sh runs these tests too.
pytestmark = pytest.mark.skipif(os.environ.get("HEADRACE_DISABLE") == "1", reason="torch's loader does not do this")
needs_torch = pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="torch is not installed")

# ---- made-up modules: each notes every import of it ----

NOTES = """
import os
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "imports.txt"), "a") as file:
    print(os.getpid(), __name__, file=file)
"""
MODULES = {
    "slow": "import time\ntime.sleep(0.5)\n",
    "later": "",
    "locks": "import multiprocessing\nlock = multiprocessing.get_context('forkserver').Lock()\n",
    "threads": "import threading\nthreading.Thread(target=threading.Event().wait, name='pool', daemon=True).start()\n",
    "opens": "kept_open = open(__file__)\n",
    "opens_for_a_moment": "with open(__file__) as file:\n    import later\n",
    "handlers": "import os\nlog = []\nos.register_at_fork(after_in_child=lambda: log.append(os.getpid()))\n",
    "reads": "import os\nVALUE = os.environ.get('SOME_HOME', 'unset')\n",
    "native": (
        "import ctypes\nlibc = ctypes.CDLL(None)\nthread = ctypes.c_ulong()\n"
        "libc.pthread_create(ctypes.byref(thread), None, ctypes.cast(libc.pause, ctypes.c_void_p), None)\n"
    ),
    "needs": "import threads\n",
    "hides": "import importlib\nimportlib.import_module('threads')\n",
    "nested/__init__": "import slow\nfrom nested import first, second\n",
    "nested/first": "",
    "nested/second": "import threads\n",
}
for _name in ("slow", "handlers", "threads", "opens"):
    MODULES[f"around_{_name}/__init__"] = f"from around_{_name} import inner\n"
    MODULES[f"around_{_name}/inner"] = f"import {_name}\n"
NAMED = "libc.pthread_setname_np(thread, b'jemalloc_bg_thd')\n"
SCRIPT = """
import json, os, sys
{imports}
import headrace

class Data:
    def __len__(self):
        return 4
    def __getitem__(self, index):
        {item}

if __name__ == "__main__":
    options = dict(batch_size=None, num_workers=2, multiprocessing_context={context!r})
    loader = headrace.Loader(Data(), **options)
    {change}
    epochs = [list(loader) for _ in range(2)]
    print(json.dumps([epochs, loader.report()["fork_server"], os.getpid()]))
"""


# Lets the server finish, so that it does not depend on the machine how many workers import everything themselves.
WAIT = """
    from headrace._loader.forkserver import client
    import time
    while client.report().get("kept") != "part":
        time.sleep(0.01)
"""


WAIT_FOR_ALL = WAIT.replace('"part"', '"all"')


def write_modules(folder: pathlib.Path) -> None:
    for name, code in {**MODULES, "named": MODULES["native"] + NAMED}.items():
        path = folder / "site-packages" / f"{name}.py"
        path.parent.mkdir(exist_ok=True, parents=True)
        notes = NOTES.replace("abspath(__file__)", f"abspath({str(folder / 'x')!r})")
        path.write_text(notes + code)


def run_script(
    folder: pathlib.Path,
    imports: str,
    *,
    item: str = "return os.getpid(), os.getppid()",
    change: str = "pass",
    context: str = "forkserver",
) -> tuple[Any, Any, int]:
    """Returns the batches of both epochs, the report on the server, and the pid of the trainer."""
    write_modules(folder)
    script = SCRIPT.format(imports=imports, item=item, change=change, context=context)
    output = run(folder, script, PYTHONPATH=str(folder / "site-packages"))
    epochs, report, pid = json.loads(output.splitlines()[-1])
    return epochs, report, pid


def importers(folder: pathlib.Path, trainer: int) -> dict[str, list[int]]:
    """Returns the processes that imported each module, in their order, without the trainer."""
    found: dict[str, list[int]] = {}
    for line in (folder / "imports.txt").read_text().splitlines():
        pid, name = line.split()
        if int(pid) != trainer:
            found.setdefault(name, []).append(int(pid))
    return found


def count_imports(folder: pathlib.Path, trainer: int) -> dict[str, int]:
    return {name: len(pids) for name, pids in importers(folder, trainer).items()}


# ---- what is imported, and where ----

SAFE = ("slow", "handlers", "locks", "opens_for_a_moment", "named")


@pytest.mark.parametrize("name", [*SAFE, *(f"around_{name}" for name in ("slow", "handlers"))])
def test_safe_module_is_imported_once(tmp_path: pathlib.Path, name: str) -> None:
    epochs, report, trainer = run_script(tmp_path, f"import {name}, later")
    assert {tuple(pids) for pids in importers(tmp_path, trainer).values()} == {(report["pid_of_zygote"],)}
    assert (report["kept"], report["hazards"], report["error"]) == ("all", [], "")
    assert report["memory_bytes"] > 0
    workers = [{pid for pid, _ in epoch} for epoch in epochs]
    assert [len(pids) for pids in workers] == [2, 2] and not workers[0] & workers[1]
    parents = {parent for epoch in epochs for _, parent in epoch}
    assert parents == {report["pid_of_zygote"]}


def test_fork_handlers_run_in_each_worker(tmp_path: pathlib.Path) -> None:
    epochs, _, _ = run_script(tmp_path, "import handlers", item="return handlers.log == [os.getpid()]")
    assert epochs == [[True] * 4] * 2


@pytest.mark.parametrize(
    "name, hazard",
    [
        ("threads", "threads starts a thread (pool) when it is imported"),
        ("native", "native starts a thread when it is imported"),
        ("opens", "opens opens a file ({}/site-packages/opens.py) when it is imported"),
    ],
)
def test_unsafe_module_is_imported_by_each_worker_once(tmp_path: pathlib.Path, name: str, hazard: str) -> None:
    """The other modules are kept. The process that found it becomes the first worker."""
    epochs, report, trainer = run_script(tmp_path, f"import slow, {name}, later", change=WAIT)
    pids = importers(tmp_path, trainer)
    assert set(pids[name]) == {pid for epoch in epochs for pid, _ in epoch} and len(pids[name]) == 4
    assert pids["slow"] == pids["later"] == [pids[name][0], report["pid_of_zygote"]]
    assert report["hazards"] == [hazard.format(tmp_path)]
    assert report["kept"] == "part"
    assert list(report["unkept"]) == [name]


@pytest.mark.parametrize("name", ["threads", "opens"])
def test_package_around_one_unsafe_module_is_not_kept(tmp_path: pathlib.Path, name: str) -> None:
    _, report, trainer = run_script(tmp_path, f"import slow, around_{name}, later", change=WAIT)
    inner = {name: 4, f"around_{name}": 4, f"around_{name}.inner": 4}
    assert count_imports(tmp_path, trainer) == {"slow": 2, "later": 2, **inner}
    assert [text.split()[0] for text in report["hazards"]] == [name]


def test_module_that_needs_an_unsafe_one_is_not_kept(tmp_path: pathlib.Path) -> None:
    _, report, trainer = run_script(tmp_path, "import slow, threads, needs, later", change=WAIT)
    assert count_imports(tmp_path, trainer) == {"slow": 2, "threads": 4, "needs": 4, "later": 2}
    assert report["kept"] == "part"


def test_modules_before_the_unsafe_one_are_kept_to_be_sure(tmp_path: pathlib.Path) -> None:
    """The server does not see each need of a module. A process that imports it turns out to be unfit, and another one
    imports only the modules that came before."""
    _, report, trainer = run_script(tmp_path, "import slow, threads, hides, later", change=WAIT)
    assert count_imports(tmp_path, trainer) == {"slow": 3, "threads": 5, "hides": 5, "later": 5}
    assert report["kept"] == "part"


def test_script_that_starts_a_thread_is_named(tmp_path: pathlib.Path) -> None:
    started = (
        "import threading, slow\n"
        "threading.Thread(target=threading.Event().wait, daemon=True, name='own').start()\n"
        "import later"
    )
    _, report, trainer = run_script(tmp_path, started, change=WAIT)
    assert report["hazards"] == ["the script starts a thread (own) when it is imported"]
    assert count_imports(tmp_path, trainer) == {"slow": 2, "later": 2}


def test_package_around_unsafe_module_is_not_kept(tmp_path: pathlib.Path) -> None:
    _, report, trainer = run_script(tmp_path, "import later, nested", change=WAIT)
    counts = count_imports(tmp_path, trainer)
    assert (counts["later"], counts["slow"]) == (2, 2)
    assert {counts[name] for name in ("nested", "nested.first", "nested.second", "threads")} == {4}
    assert report["hazards"] == ["threads starts a thread (pool) when it is imported"]


def test_module_under_the_main_guard_is_imported_once(tmp_path: pathlib.Path) -> None:
    """The server finds the modules of the dataset, which the main module does not import."""
    write_modules(tmp_path)
    (tmp_path / "mine.py").write_text(
        f"import slow, os\n{NOTES}\nclass Mine(list):\n    def __getitem__(self, index):\n        return os.getppid()\n"
    )
    script = """
import headrace, os
if __name__ == "__main__":
    from mine import Mine
    loader = headrace.Loader(Mine(range(4)), batch_size=None, num_workers=2, multiprocessing_context="forkserver")
    print([list(loader) for _ in range(2)], os.getpid())
"""
    trainer = int(run(tmp_path, script, PYTHONPATH=str(tmp_path / "site-packages")).split()[-1])
    assert count_imports(tmp_path, trainer) == {"slow": 1, "mine": 1}


def test_output_of_main_module_appears_once(tmp_path: pathlib.Path) -> None:
    write_modules(tmp_path)
    script = SCRIPT.format(imports="print('imports')", item="return 0", change="pass", context="forkserver")
    output = run(tmp_path, script, PYTHONPATH=str(tmp_path / "site-packages"), PYTHONUNBUFFERED="")
    assert output.count("imports") == 2  # in the trainer and in the server


@needs_torch
def test_import_of_headrace_starts_nothing(tmp_path: pathlib.Path) -> None:
    script = "import headrace, headrace.torch, os\nprint(open(f'/proc/self/task/{os.getpid()}/children').read())"
    assert run(tmp_path, script).strip() == ""


@pytest.mark.parametrize("how", ["-m", "stdin"])
def test_server_serves_scripts_without_a_path(tmp_path: pathlib.Path, how: str) -> None:
    write_modules(tmp_path)
    (tmp_path / "mine.py").write_text("import later\nclass Mine(list):\n    pass\n")
    code = """
import headrace
from mine import Mine
if __name__ == "__main__":
    loader = headrace.Loader(Mine(range(4)), batch_size=None, num_workers=2, multiprocessing_context="forkserver")
    print([list(loader) for _ in range(2)], loader.report()["fork_server"]["kept"])
"""
    (tmp_path / "script.py").write_text(code)
    command = [sys.executable, "-m", "script"] if how == "-m" else [sys.executable, "-"]
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site-packages")},
        cwd=tmp_path,
        input=None if how == "-m" else code,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.stdout, done.stderr) == ("[[0, 1, 2, 3], [0, 1, 2, 3]] all\n", "")


def test_users_own_modules_are_kept_as_a_whole_or_not_at_all(tmp_path: pathlib.Path) -> None:
    """Their values may come from statements of the script between the imports, which only the script runs."""
    write_modules(tmp_path)
    (tmp_path / "config.py").write_text("SCALE = 1\n")
    (tmp_path / "consts.py").write_text("import config\nFACTOR = config.SCALE * 10\n")
    epochs, report, _ = run_script(
        tmp_path,
        "import config; config.SCALE = 5; import consts; import threads",
        item="return consts.FACTOR",
        change=WAIT.replace('!= "part"', "is None"),
    )
    assert epochs == [[50] * 4] * 2
    assert report["kept"] != "all"


@pytest.mark.parametrize("pipes", ["", ", stdin=-1, stdout=-1"])
def test_process_that_a_module_starts_is_not_shared(tmp_path: pathlib.Path, pipes: str) -> None:
    write_modules(tmp_path)
    (tmp_path / "starts.py").write_text(f"import subprocess\nchild = subprocess.Popen(['sleep', '3']{pipes})\n")
    _, report, _ = run_script(tmp_path, "import starts", change="starts.child.kill(); starts.child.wait()")
    assert report["kept"] in ("nothing", "part") and report["hazards"]


@needs_torch
def test_thread_of_gnu_openmp_is_unsafe(tmp_path: pathlib.Path) -> None:
    """Even if the script has just mapped a library that is known as safe."""
    script = """
import headrace, torch
torch.set_num_threads(2)
def work():
    return float(torch.ones(1000, 1000).mul_(2).sum())
work()
class Works(list):
    def __getitem__(self, index):
        return work()
if __name__ == "__main__":
    loader = headrace.Loader(Works(range(4)), batch_size=None, num_workers=2, multiprocessing_context="forkserver")
    print(set(loader) | set(loader), loader.report()["fork_server"]["kept"] == "all")
"""
    assert run(tmp_path, script) == "{2000000.0} False\n"


def test_threads_and_files_that_replace_others_are_found(tmp_path: pathlib.Path) -> None:
    started = (
        "import threading, slow\n"
        "first = threading.Thread(target=slow.time.sleep, args=(0.1,)); first.start()\n"
        "import later\n"
        "first.join(); threading.Thread(target=threading.Event().wait, daemon=True, name='own').start()\n"
    )
    _, report, _ = run_script(tmp_path, started, change=WAIT)
    assert report["hazards"] == ["the script starts a thread (own) when it is imported"]


def test_loader_that_a_module_makes_starts_no_further_server(tmp_path: pathlib.Path) -> None:
    write_modules(tmp_path)
    (tmp_path / "mine.py").write_text(
        f"import os\n{NOTES.replace('__file__', repr(str(tmp_path / 'x')))}import headrace\n"
        "class Mine(list):\n    pass\n"
        "options = dict(batch_size=None, num_workers=1, multiprocessing_context='forkserver')\n"
        "loader = headrace.Loader(Mine(range(2)), **options)\n"
    )
    script = """
import os
if __name__ == "__main__":
    from mine import loader
    print(list(loader), os.getpid())
"""
    output = run(tmp_path, script)
    assert output.startswith("[0, 1]")
    assert count_imports(tmp_path, int(output.split()[-1])) == {"mine": 1}


def test_modules_of_a_later_loader_are_imported_once(tmp_path: pathlib.Path) -> None:
    write_modules(tmp_path)
    for name in ("one", "two"):
        notes = NOTES.replace("__file__", repr(str(tmp_path / "x")))
        (tmp_path / f"{name}.py").write_text(f"{notes}class Mine(list):\n    pass\n")
    script = """
import headrace, os, time
from headrace._loader.forkserver import client
if __name__ == "__main__":
    import one, two
    options = dict(batch_size=None, num_workers=2, multiprocessing_context="forkserver")
    first = headrace.Loader(one.Mine(range(2)), **options)
    print(list(first))
    before = client.report()["pid_of_zygote"]
    second = headrace.Loader(two.Mine(range(2)), **options)
    while client.report()["pid_of_zygote"] == before:
        time.sleep(0.01)
    print(list(first), list(second), list(second), os.getpid())
"""
    output = run(tmp_path, script)
    assert count_imports(tmp_path, int(output.split()[-1])) == {"one": 2, "two": 1}


# ---- the trainer's changes after the server was started ----


def test_workers_see_environment_of_trainer(tmp_path: pathlib.Path) -> None:
    epochs, _, trainer = run_script(
        tmp_path,
        "import slow",
        item="return os.environ.get('CHANGED'), os.environ.get('PATH')",
        change="os.environ['CHANGED'] = 'yes'; del os.environ['PATH']",
    )
    assert {tuple(sample) for epoch in epochs for sample in epoch} == {("yes", None)}
    assert count_imports(tmp_path, trainer) == {"slow": 1}


@pytest.mark.parametrize("name", ["SOME_HOME", "OMP_NUM_THREADS"])
def test_variable_that_an_import_reads_makes_a_new_server(tmp_path: pathlib.Path, name: str) -> None:
    epochs, _, trainer = run_script(
        tmp_path,
        "import reads",
        item="return reads.VALUE, os.environ.get('OMP_NUM_THREADS')",
        change=f"os.environ['{name}'] = '3'",
    )
    expected = ("3", None) if name == "SOME_HOME" else ("unset", "3")
    assert {tuple(sample) for epoch in epochs for sample in epoch} == {expected}
    assert count_imports(tmp_path, trainer) == {"reads": 2}


def test_changed_path_and_folder_reach_the_imports(tmp_path: pathlib.Path) -> None:
    (tmp_path / "other").mkdir()
    epochs, _, trainer = run_script(
        tmp_path,
        "import slow",
        item="return os.getcwd(), sys.path[0]",
        change="os.chdir('other'); sys.path.insert(0, os.getcwd())",
    )
    other = str(tmp_path / "other")
    assert {tuple(sample) for epoch in epochs for sample in epoch} == {(other, other)}
    assert count_imports(tmp_path, trainer) in ({"slow": 1}, {"slow": 2})  # the first server may not get so far


def test_edited_module_is_not_read_again(tmp_path: pathlib.Path) -> None:
    """Workers have what the trainer has, until it is started again, as with fork."""
    edit = "open(later.__file__, 'a').write('EDITED = True\\n')"
    epochs, _, _ = run_script(
        tmp_path, "import later, time", item="return hasattr(later, 'EDITED')", change=f"{WAIT_FOR_ALL}    {edit}"
    )
    assert epochs == [[False] * 4] * 2


def test_frozen_program_uses_multiprocessings_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """An executable of PyInstaller starts multiprocessing's server only."""
    assert contexts.uses_headrace_server(multiprocessing.get_context("forkserver"))
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    assert not contexts.uses_headrace_server(multiprocessing.get_context("forkserver"))


# ---- the context called "headrace" ----


@needs_torch
@pytest.mark.parametrize("loader", ["headrace.Loader", "headrace.torch.DataLoader"])
def test_headrace_context_uses_the_server(tmp_path: pathlib.Path, loader: str) -> None:
    script = f"""
import headrace, headrace.torch, multiprocessing, os
class Data(list):
    def __getitem__(self, index):
        return os.getppid()
if __name__ == "__main__":
    multiprocessing.set_start_method("fork")
    loader = {loader}(Data(range(2)), batch_size=None, num_workers=1, multiprocessing_context="headrace")
    print(set(loader) == {{os.getpid()}}, loader.report()["fork_server"]["kept"])
"""
    assert run(tmp_path, script) == "False all\n"


def test_unknown_context_names_headrace(tmp_path: pathlib.Path) -> None:
    import headrace

    with pytest.raises(ValueError, match=r"'\w+', 'headrace'\] or a context, but got 'headraces'"):
        headrace.Loader([0], num_workers=1, multiprocessing_context="headraces")


def test_modules_of_a_later_loader_are_kept_after_one_without(tmp_path: pathlib.Path) -> None:
    """A script on stdin has no main module, and the first loader's dataset no module."""
    write_modules(tmp_path)
    notes = NOTES.replace("__file__", repr(str(tmp_path / "x")))
    (tmp_path / "mine.py").write_text(f"{notes}class Mine(list):\n    pass\n")
    script = """
import headrace, os, time
from headrace._loader.forkserver import client
options = dict(batch_size=None, num_workers=1, multiprocessing_context="forkserver")
list(headrace.Loader([1, 2], **options))
from mine import Mine
loader = headrace.Loader(Mine([1, 2]), **options)
while client.report()["kept"] != "all":
    time.sleep(0.01)
print([list(loader) for _ in range(3)], os.getpid())
"""
    command = [sys.executable, "-"]
    done = subprocess.run(command, cwd=tmp_path, input=script, capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("[[1, 2], [1, 2], [1, 2]]"), done.stderr
    assert count_imports(tmp_path, int(done.stdout.split()[-1])) == {"mine": 1}


def test_handlers_of_the_script_run_in_the_trainer_only(tmp_path: pathlib.Path) -> None:
    """A SIGTERM to the whole group runs a handler that saves something once; SIGPIPE at its default ends no server."""
    script = """
import headrace, os, pathlib, signal
saved = pathlib.Path("saved")

def save(*_):
    with saved.open("a") as file:
        print(os.getpid(), file=file)

signal.signal(signal.SIGTERM, save)
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
if __name__ == "__main__":
    options = dict(batch_size=None, num_workers=1, multiprocessing_context="forkserver")
    loader = headrace.Loader([1, 2], **options)
    list(loader)
    os.kill(loader.report()["fork_server"]["pid_of_zygote"], signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGTERM)
    print(list(loader), saved.read_text() == f"{os.getpid()}\\n")
"""
    assert run(tmp_path, script) == "[1, 2] True\n"


def test_report_has_all_names_before_the_imports_end(tmp_path: pathlib.Path) -> None:
    script = """
import headrace
from headrace._loader.forkserver import client
if __name__ == "__main__":
    headrace.Loader([1, 2], num_workers=1, multiprocessing_context="forkserver")
    print(*sorted(client.report()))
"""
    names = "error hazards kept memory_bytes pid pid_of_zygote seconds unkept"
    assert run(tmp_path, script) == f"{names}\n"


# ---- ends ----


@pytest.mark.parametrize("error", ["EOFError('Ran out')", "ValueError('no')"])
def test_exception_of_unpickling_is_printed(tmp_path: pathlib.Path, error: str) -> None:
    script = f"""
import headrace
class Raises(list):
    def __setstate__(self, state):
        raise {error}
if __name__ == "__main__":
    data = Raises([0])
    data.some = "state"
    try:
        list(headrace.Loader(data, batch_size=None, num_workers=1, multiprocessing_context="forkserver"))
    except RuntimeError:
        print("raised")
"""
    (tmp_path / "script.py").write_text(script)
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stdout == "raised\n"
    assert error.replace("('", ": ").replace("')", "") in done.stderr


def test_worker_of_a_replaced_server_keeps_its_exit_code(tmp_path: pathlib.Path) -> None:
    script = """
import headrace, os, signal, sys
class Data(list):
    def __getitem__(self, index):
        return os.getpid()
if __name__ == "__main__":
    options = dict(batch_size=None, num_workers=1, multiprocessing_context="forkserver")
    loader = headrace.Loader(Data(range(4)), persistent_workers=True, max_restarts=0, **options)
    (pid,) = set(loader)
    for number in range(2):
        sys.path.append(f"/nowhere/{number}")
        list(headrace.Loader(Data([0]), **options))
    iterator = iter(loader)
    os.kill(pid, signal.SIGSEGV)
    try:
        list(iterator)
    except RuntimeError as error:
        print("is killed by signal: Segmentation fault" in str(error) or error)
"""
    assert run(tmp_path, script) == "True\n"


KILLED = """
import headrace, os, signal, sys
class Data(list):
    def __getitem__(self, index):
        return os.getppid()
if __name__ == "__main__":
    loader = headrace.Loader(Data(range(2)), batch_size=None, num_workers=1, multiprocessing_context="forkserver")
    zygote = set(loader).pop()
    root = loader.report()["fork_server"]["pid"]
    pidfd = os.pidfd_open({victim})
    os.kill({victim}, signal.SIGKILL)
    import select
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    poll.poll()
    print(len(list(loader)), len(list(loader)), len(set(loader) | set(loader)))
    print(loader.report()["fork_server"]["kept"])
"""


@pytest.mark.parametrize("victim", ["root", "zygote"])
def test_killed_server_is_replaced(tmp_path: pathlib.Path, victim: str) -> None:
    assert run(tmp_path, KILLED.format(victim=victim)) == "2 2 1\nall\n"


IMPORTS_FOREVER = """
import headrace, os, pathlib, time
if __name__ == "__mp_main__":
    pathlib.Path("imports.part").write_text(str(os.getpid()))
    os.rename("imports.part", "imports")
    time.sleep(600)
if __name__ == "__main__":
    print("now", flush=True)
    list(headrace.Loader([0], num_workers=1, multiprocessing_context="forkserver"))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_trainer_that_waits_for_imports_can_be_ended(tmp_path: pathlib.Path, number: signal.Signals) -> None:
    with Script(tmp_path, IMPORTS_FOREVER) as script:
        assert script.line() == "now"
        assert until((tmp_path / "imports").exists, 60)
        importer = int((tmp_path / "imports").read_text())
        os.kill(script.process.pid, number)
        assert script.finish(30) == -number
        assert until(lambda: not alive(importer), 10)
        assert script.left() == []


def test_threads_share_a_server(tmp_path: pathlib.Path) -> None:
    write_modules(tmp_path)
    script = """
import headrace, os, slow, threading
class Data(list):
    def __getitem__(self, index):
        return os.getppid()
def iterate():
    loader = headrace.Loader(Data(range(8)), batch_size=None, num_workers=2, multiprocessing_context="forkserver")
    for _ in range(2):
        parents.update(loader)
if __name__ == "__main__":
    parents = set()
    threads = [threading.Thread(target=iterate) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(len(parents), os.getpid())
"""
    count, trainer = run(tmp_path, script, PYTHONPATH=str(tmp_path / "site-packages")).split()
    assert count == "1"
    assert count_imports(tmp_path, int(trainer)) == {"slow": 1}


def test_forked_child_has_a_server_of_its_own(tmp_path: pathlib.Path) -> None:
    script = """
import headrace, os
class Data(list):
    def __getitem__(self, index):
        return os.getppid()
def parent_of_workers():
    loader = headrace.Loader(Data([0]), batch_size=None, num_workers=1, multiprocessing_context="forkserver")
    return list(loader)[0]
if __name__ == "__main__":
    first = parent_of_workers()
    read, write = os.pipe()
    if os.fork() == 0:
        os.write(write, b"other" if parent_of_workers() != first else b"same")
        os._exit(0)
    os.wait()
    print(os.read(read, 10).decode(), parent_of_workers() == first)
"""
    assert run(tmp_path, script) == "other True\n"


def test_server_has_no_descriptors_of_workers(tmp_path: pathlib.Path) -> None:
    """Neither the server nor a worker keeps descriptors, however many workers were started."""
    script = """
import headrace, os
class Data(list):
    def __getitem__(self, index):
        return len(os.listdir("/proc/self/fd")), os.getppid()
if __name__ == "__main__":
    loader = headrace.Loader(Data([0]), batch_size=None, num_workers=1, multiprocessing_context="forkserver")
    counts = set()
    for _ in range(20):
        (count, parent), = loader
        root = loader.report()["fork_server"]["pid"]
        counts.add(count)
    print(len(counts), *(len(os.listdir(f"/proc/{pid}/fd")) < 16 for pid in (root, parent)))
"""
    assert run(tmp_path, script) == "1 True True\n"


# ---- what a user reads ----


def test_warning_of_an_import_names_the_line_of_the_script(tmp_path: pathlib.Path) -> None:
    """The server's own frames are skipped, as importlib's are."""
    write_modules(tmp_path)
    (tmp_path / "old.py").write_text("import warnings\nwarnings.warn('old is old', stacklevel=2)\n")
    script = SCRIPT.format(imports="import old", item="return 0", change="pass", context="forkserver")
    (tmp_path / "script.py").write_text(script)
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    places = [line for line in done.stderr.splitlines() if "old is old" in line]
    assert len(places) == 2 and set(places) == {f"{tmp_path}/script.py:3: UserWarning: old is old"}


@pytest.mark.parametrize("argument, code", [("", 0), ("0", 0), ("3", 3), ("'text'", 1)])
def test_exit_at_the_top_level_names_its_line(tmp_path: pathlib.Path, argument: str, code: int) -> None:
    script = f"""
import headrace, sys
if __name__ == "__main__":
    try:
        list(headrace.Loader([1], num_workers=1, multiprocessing_context="forkserver"))
    except RuntimeError as error:
        print(error)
sys.exit({argument})
"""
    (tmp_path / "script.py").write_text(script)
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert f"exited unexpectedly with exit code {code}." in done.stdout
    assert f"headrace: {tmp_path}/script.py:8 ends the worker, because it calls sys.exit(" in done.stderr
    assert "put the call under if __name__ == '__main__':" in done.stderr


def test_too_many_descriptors_are_refused_with_advice(tmp_path: pathlib.Path) -> None:
    script = """
import headrace, multiprocessing
if __name__ == "__main__":
    pipes = [multiprocessing.Pipe() for _ in range(150)]
    try:
        list(headrace.Loader(pipes, num_workers=1, multiprocessing_context="forkserver"))
    except ValueError as error:
        print(error)
"""
    output = run(tmp_path, script)
    assert "file descriptors" in output and "at most 250 can be sent; open them in the worker" in output


def test_removed_working_directory_is_named(tmp_path: pathlib.Path) -> None:
    script = """
import headrace, os
if __name__ == "__main__":
    os.mkdir("gone")
    os.chdir("gone")
    os.rmdir("../gone")
    try:
        list(headrace.Loader([1], num_workers=1, multiprocessing_context="forkserver"))
    except FileNotFoundError as error:
        print(*getattr(error, "__notes__", ["change to another one with os.chdir"]))
"""
    assert "change to another one with os.chdir" in run(tmp_path, script)


def test_context_may_be_set_by_name_later() -> None:
    import headrace

    loader = headrace.Loader([1, 2], batch_size=None, num_workers=1)
    loader.multiprocessing_context = "headrace"
    assert list(loader) == [1, 2]
    assert loader.report()["fork_server"] is not None
    with pytest.raises(ValueError, match="should be one of"):
        loader.multiprocessing_context = 3
