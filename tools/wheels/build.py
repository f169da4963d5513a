# SPDX-License-Identifier: Apache-2.0
"""Builds the sdist, and with meson what belongs into each wheel.

There is one build folder for each machine. Another Python changes what stands in for its interpreter, and only the
extension is compiled again: the C library and the program stay as they are.
"""

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from wheels import headers as python_headers
from wheels import libraries, pack, sbom
from wheels.commands import fail, run
from wheels.headers import Headers
from wheels.target import Target

OPTIONS = ["-Dbuildtype=release", "-Dwerror=true", "-Dpython=enabled", "-Djpeg=enabled", "-Dpython.bytecompile=-1"]
INSTALLED = "--tags=runtime,python-runtime"
AUTHOR = ["-c", "user.name=headrace", "-c", "user.email=headrace@localhost", "-c", "commit.gpgsign=false"]


def make_sdist(files: list[Path], root: Path, scratch: Path, dist: Path, epoch: int) -> Path:
    """Packs the files into an sdist. `meson dist` takes what is committed: a commit that has them is made elsewhere."""
    checkout = scratch / "checkout"
    shutil.rmtree(checkout, ignore_errors=True)
    for path in files:
        if path.name == "PKG-INFO":
            continue  # this is an unpacked sdist
        target = checkout / path.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target)
    date = {f"GIT_{who}_DATE": f"{epoch} +0000" for who in ("AUTHOR", "COMMITTER")}
    run("git", "init", "-q", cwd=checkout)
    run("git", "add", "-A", cwd=checkout)
    run("git", *AUTHOR, "commit", "-q", "-m", "The sources", cwd=checkout, env=date)
    hook = "import mesonpy, sys; print(mesonpy.build_sdist(sys.argv[1]))"
    tools = f"{Path(sys.prefix) / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environment = {"SOURCE_DATE_EPOCH": str(epoch), "PATH": tools}
    name = run(sys.executable, "-c", hook, dist, cwd=checkout, env=environment).splitlines()[-1]
    return dist / name


def make_wheel(
    source: Path, inside: Mapping[str, Path], target: Target, headers: Headers, dist: Path, epoch: int
) -> Path:
    """`inside` has the sources of the libraries that are inside, by their names."""
    name, version = source.name.split("-")
    tag = f"cp{headers.python.replace('.', '')}"
    tag = f"{tag}-{tag}-{target.tag}"
    info, data = f"{name}-{version}.dist-info", f"{name}-{version}.data"
    files = pack.collect(install(source, target, headers), info, data)
    bill = sbom.write(name, version, target, headers, epoch)
    metadata = pack.list_metadata(source, inside, tag, bill)
    files |= {f"{info}/{file}": content for file, content in metadata.items()}
    wheel = dist / f"{name}-{version}-{tag}.whl"
    pack.pack(wheel, files, epoch)
    return wheel


def install(source: Path, target: Target, headers: Headers) -> Path:
    """Compiles, and returns the folder into which meson has installed what belongs into the wheel."""
    python_headers.check(headers, target)
    python_headers.stand_in(headers, target)
    folder, stage = target.folder / "build", target.folder / "stage"
    forget_other_sources(source, folder)
    # meson would keep what it has found out about the Python before.
    again = ["--reconfigure", "--clearcache"] if (folder / "build.ninja").exists() else []
    meson = target.tools / "meson"
    cross = [f"--cross-file={target.cross_file}", "--prefix=/"]
    run(meson, "setup", folder, source, *again, *cross, *OPTIONS, env=target.environment)
    check_headers(folder, headers)
    run(meson, "compile", "-C", folder, env=target.environment)
    shutil.rmtree(stage, ignore_errors=True)
    run(meson, "install", "-C", folder, "--no-rebuild", "--destdir", stage, INSTALLED, env=target.environment)
    return stage


def check_headers(folder: Path, headers: Headers) -> None:
    """Fails if the extension would be compiled with the headers of another Python, which no compiler notices."""
    commands = json.loads((folder / "compile_commands.json").read_text())
    found = [entry["command"] for entry in commands if "_core" in Path(entry["file"]).parts]
    wanted = [f"-isystem{headers.folders[0]}", f"-I{headers.folders[0]}"]
    wrong = [command for command in found if not any(option in command.split() for option in wanted)]
    if wrong or not found:
        fail(f"meson does not use the headers in {headers.folders[0]}: {(wrong or ['no extension'])[0]}")


def forget_other_sources(source: Path, folder: Path) -> None:
    """Removes the build of other sources. Files of all sdists have the same time, from which ninja sees no change."""
    digest = hashlib.sha256()
    for path in sorted(path for path in source.rglob("*") if path.is_file()):
        digest.update(str(path).encode() + b"\0" + path.read_bytes())
    stamp = folder / "sources.txt"
    if not stamp.exists() or stamp.read_text() != digest.hexdigest():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        stamp.write_text(digest.hexdigest())


def build_libraries(target: Target, sources: Mapping[str, Path]) -> None:
    target.prepare(sources)
    for library in libraries.LIBRARIES:
        libraries.build(library, target, sources[library.name])
