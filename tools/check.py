# SPDX-License-Identifier: Apache-2.0
"""Runs the checks of `make check`: one line for each, and a line that counts them.

`check.py NAME...` runs these only (`make check ONLY="format-c tidy"`); --list prints their names. Two run at the same
time. One that held for the same inputs, in this checkout or another one, is not run again (kept.py), and neither is
clang-tidy of a single file; `make check FRESH=1` runs everything.
"""

import base64
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import kept
from common import ROOT, Tally, list_files

BUILD = ROOT / "build"
TOOLS = ROOT / "tools"
DEV_LIBRARY = BUILD / "dev/src/libheadrace.a"
FUZZ_SECONDS = 4
PATIENCE = 6  # .ci/run runs the checks at the same time as the tests, at a low priority: much slower than alone
AT_ONCE = 2
COLOUR = re.compile("\x1b\\[[0-9;]*m")
C_OPTIONS = ["-Dwerror=true", "-Dfailpoints=true", "-Dtests=enabled"]
SANITIZER_OPTIONS = [*C_OPTIONS, "-Dpython=disabled", "-Db_lundef=false", "-Db_ndebug=false"]


class Failed(Exception):
    """A check that does not hold; its text is what to show."""


def run(*command: str | Path, env: dict[str, str] | None = None) -> str:
    words = [str(word) for word in command]
    everything = {**os.environ, **(env or {})}
    try:
        result = subprocess.run(words, cwd=ROOT, env=everything, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    except OSError as error:
        raise Failed(f"$ {' '.join(words)}\n{error}") from error
    output = COLOUR.sub("", result.stdout.decode(errors="replace"))
    if result.returncode:
        raise Failed(f"$ {' '.join(words)}\n{output.rstrip()}\n(exit status {result.returncode})")
    return output


def run_script(name: str, *arguments: str | Path) -> None:
    run(sys.executable, TOOLS / name, *arguments)


def list_c_files() -> list[Path]:
    return [path for path in list_files(ROOT) if path.suffix in (".c", ".h")]


_building = threading.Lock()  # a build uses all cores


def build_with_clang(name: str, *options: str) -> Path:
    """Builds in a folder of its own, which is configured again if its options have changed."""
    with _building:
        return configure_and_build(BUILD / name, *options)


# ccache keeps object files by the content of what they are made of, for every checkout.
CCACHE = {"CCACHE_BASEDIR": str(ROOT), "CCACHE_NOHASHDIR": "1", **({"CCACHE_DISABLE": "1"} if kept.IS_FRESH else {})}


def configure_and_build(folder: Path, *options: str) -> Path:
    compiler = "ccache clang" if shutil.which("ccache") else "clang"
    stamp = folder / "options.txt"
    wanted = "\n".join([compiler, *options])
    if not stamp.exists() or stamp.read_text() != wanted:
        wipe = ["--wipe"] if (folder / "meson-private").exists() else []
        run("meson", "setup", folder, *wipe, *options, env={"CC": compiler})
        stamp.write_text(wanted)
    run("meson", "compile", "-C", folder, env=CCACHE)
    return folder


def run_c_tests(folder: Path, *options: str, prefix: tuple[str, ...] = ()) -> None:
    patience = f"--timeout-multiplier={PATIENCE}"
    output = run(*prefix, "meson", "test", "-C", folder, "--no-rebuild", "--print-errorlogs", patience, *options)
    if not re.search(r"^Ok: +[1-9]", output, re.MULTILINE):
        raise Failed(f"no test ran:\n{output}")


def format_c() -> None:
    run("clang-format", "--dry-run", "-Werror", *list_c_files())


def build_clang() -> Path:
    return build_with_clang("clang", *C_OPTIONS, "-Dpython=enabled", "-Dbench=true")


def clang() -> None:
    """Everything compiles with it; the tests run in what it makes for the sanitizers."""
    build_clang()


# The analyzer follows a ninth of the paths that it would by default: the rest takes several times as long.
TIDY_WORDS = [f"--extra-arg={word}" for word in ("-Xclang", "-analyzer-config", "-Xclang", "max-nodes=25000")]


def list_dependencies(folder: Path) -> dict[Path, list[Path]]:
    """Returns the headers that each C source was compiled with, as ninja has noted them, with the source itself."""
    found: dict[Path, list[Path]] = {}
    for block in run("ninja", "-C", folder, "-t", "deps").split("\n\n"):
        paths = [Path(os.path.normpath(folder / line.strip())) for line in block.splitlines()[1:]]
        sources = [path for path in paths if path.suffix == ".c"]
        if sources:
            found.setdefault(sources[0], paths)
    return found


def tidy_key(command: dict[str, str], paths: list[Path]) -> str:
    """Returns the key of clang-tidy's result for a source: of its options and of all that it includes."""
    words = [kept.output_of("clang-tidy", "--version"), *TIDY_WORDS, command["command"].replace(str(ROOT), "")]
    files = [ROOT / ".clang-tidy", *paths]
    return kept.digest("tidy", words, [(str(path).replace(str(ROOT), ""), path) for path in files])


def tidy_file(folder: Path, source: Path, key: str) -> str:
    """Returns what clang-tidy complains about, or ""."""
    try:
        run("clang-tidy", "-quiet", *TIDY_WORDS, "-p", folder, source)
    except Failed as failure:
        return str(failure)
    kept.keep(key)
    return ""


def tidy() -> None:
    folder = build_clang()
    commands = json.loads((folder / "compile_commands.json").read_text())
    by_source = {Path(os.path.normpath(folder / one["file"])): one for one in commands}
    dependencies = list_dependencies(folder)
    rooms = [ROOT / name for name in ("src", "cli", "python")]
    sources = [path for path in by_source if any(room in path.parents for room in rooms)]
    if not sources:
        raise Failed("clang-tidy: no source is built")
    keys = {path: tidy_key(by_source[path], dependencies[path]) for path in sources}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        new = [path for path in sources if not kept.has(keys[path])]
        complaints = pool.map(lambda path: tidy_file(folder, path, keys[path]), new)
        if text := "\n".join(filter(None, complaints)):
            raise Failed(text)


def asan() -> None:
    run_c_tests(build_with_clang("asan", *SANITIZER_OPTIONS, "-Db_sanitize=address,undefined"))


def tsan() -> None:
    folder = build_with_clang("tsan", *SANITIZER_OPTIONS, "-Db_sanitize=thread")
    still = ("setarch", "-R")  # older ThreadSanitizers cannot place their shadow under a much randomised layout
    can_hold_still = subprocess.run([*still, "true"], capture_output=True).returncode == 0
    run_c_tests(folder, "--no-suite", "without-tsan", prefix=still if can_hold_still else ())


def unpack_corpus(kept: Path, folder: Path) -> None:
    """Writes the inputs of earlier runs, kept as lines of base64, as the files that libFuzzer reads."""
    for line in kept.read_text().splitlines() if kept.exists() else []:
        data = base64.b64decode(line)
        (folder / hashlib.sha1(data).hexdigest()).write_bytes(data)


def fuzz() -> None:
    folder = build_with_clang("fuzz", "-Dpython=disabled", "-Dfuzz=true", "-Db_lundef=false", "-Db_sanitize=address")
    programs = sorted(path for path in (folder / "fuzz").glob("fuzz_*") if path.is_file())
    if not programs:
        raise Failed(f"no fuzzer in {folder}/fuzz")
    for program in programs:
        corpus = folder / "corpus" / program.name
        corpus.mkdir(parents=True, exist_ok=True)
        unpack_corpus(ROOT / "fuzz/corpus" / f"{program.name.removeprefix('fuzz_')}.txt", corpus)
        limits = [f"-max_total_time={FUZZ_SECONDS}", "-timeout=10", f"-artifact_prefix={corpus.parent}/{program.name}-"]
        run(program, *limits, corpus)


def headers() -> None:
    run_script("check_headers.py")


def c_reference() -> None:
    run_script("c_reference.py")


def layers() -> None:
    run_script("check_layers.py")


def files() -> None:
    run_script("check_files.py")


def docs() -> None:
    run_script("check_docs.py")


def shortcuts() -> None:
    run_script("check_shortcuts.py")


def words() -> None:
    run_script("check_words.py")


def imports() -> None:
    run_script("check_imports.py")


def names() -> None:
    run_script("check_names.py")


def cpython() -> None:
    run_script("check_cpython.py")


def symbols() -> None:
    packages = Path(sysconfig.get_path("platlib")) / "headrace"
    for extension in packages.glob("_core.*.so"):
        run_script("check_symbols.py", DEV_LIBRARY, extension)
        return
    raise Failed(f"no extension in {packages}")


def lint_python() -> None:
    run("ruff", "check", "--no-cache")


def format_python() -> None:
    run("ruff", "format", "--check", "--no-cache")


def run_mypy(module: str, *arguments: str | Path) -> None:
    """mypy keeps its results by content itself."""
    folder = BUILD / module if kept.IS_FRESH else kept.CACHES / "headrace-mypy" / module
    run(sys.executable, "-m", module, *arguments, env={"MYPY_CACHE_DIR": str(folder)})


def types() -> None:
    run_mypy("mypy")  # pyproject.toml says: the package, strictly
    run_mypy("mypy", ROOT / "src/launch/what_ended.py")  # a module of the package that libheadrace contains, too
    run_mypy("mypy", *sorted(TOOLS.glob("*.py")), ROOT / "bench/run.py")


def stubs() -> None:
    run_mypy("mypy.stubtest", "headrace._core")


def package() -> None:
    run_script("check_package.py")


# Those that take longest come first. The short ones run at the same time.
CHECKS: list[Callable[[], None]] = [
    tidy,
    tsan,
    asan,
    fuzz,
    types,
    stubs,
    package,
    clang,
    files,
    words,
    layers,
    imports,
    names,
    cpython,
    headers,
    c_reference,
    docs,
    shortcuts,
    format_c,
    format_python,
    lint_python,
    symbols,
]
BY_NAME = {check.__name__.replace("_", "-"): check for check in CHECKS}


# The inputs of checks that take long: folders and files. tidy keeps its results by itself.
C_INPUTS = ["src", "include", "cli", "meson.build", "meson.options"]
INPUTS = {
    "tsan": [*C_INPUTS, "tests/c", "tests/meson.build", "examples/c"],
    "asan": [*C_INPUTS, "tests/c", "tests/meson.build", "examples/c"],
    "fuzz": [*C_INPUTS, "fuzz"],
    "types": ["python", "tools", "bench", "src/launch", "pyproject.toml"],
    "stubs": ["python", *C_INPUTS],
    "package": [*C_INPUTS, "python", "pyproject.toml", "README.md", "LICENSE"],
}


def describe_machine() -> list[str]:
    """Returns what checks depend on apart from files: the kernel, Python, the compiler and libraries."""
    libraries = kept.output_of("pkg-config", "--modversion", "libjpeg", "zlib", "cmocka")
    return [os.uname().release, sys.version, *platform.libc_ver(), kept.output_of("clang", "--version"), libraries]


def key_of(name: str, paths: list[Path]) -> str:
    """Returns the key of a check: of what it reads, with the check itself and the requirements of its tools."""
    inputs = [ROOT / one for one in [*INPUTS[name], "tools/check.py", "requirements-dev.txt"]]
    inputs += (ROOT / "tools").glob(f"*{name}*.py")
    files = [path for path in paths if path in inputs or any(one in path.parents for one in inputs)]
    return kept.digest(name, describe_machine(), [(path.relative_to(ROOT).as_posix(), path) for path in files])


def run_check(name: str) -> tuple[bool, str]:
    """Returns whether a check holds, and the text to show."""
    start = time.monotonic()
    try:
        BY_NAME[name]()
    except Failed as failure:
        return False, f"FAIL  {name}\n{failure}"
    return True, f"ok    {name} ({time.monotonic() - start:.1f} s)"


def run_if_new(name: str, paths: list[Path]) -> tuple[bool, str]:
    """Runs a check, unless it has held for the same inputs."""
    if name not in INPUTS:
        return run_check(name)
    key = key_of(name, paths)
    if kept.has(key):
        return True, f"ok    {name} (has held for the same files)"
    holds, text = run_check(name)
    if holds:
        kept.keep(key)
    return holds, text


def main(names: list[str]) -> int:
    if names == ["--list"]:
        print("\n".join(BY_NAME))
        return 0
    if unknown := [name for name in names if name not in BY_NAME]:
        print(f"check.py: no check {', '.join(unknown)}; there is {', '.join(BY_NAME)}", file=sys.stderr)
        return 2
    paths = list_files(ROOT)
    kept.remove_unused()
    tally = Tally()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        runs = [pool.submit(run_check, name) for name in names] or [
            pool.submit(run_if_new, name, paths) for name in BY_NAME
        ]
        for done in as_completed(runs):
            holds, text = done.result()
            print(text, flush=True)
            tally += Tally(passed=1) if holds else Tally(failed=1)
    return tally.finish("check")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
