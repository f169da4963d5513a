# SPDX-License-Identifier: Apache-2.0
"""Gets files of Debian's unstable release, without changing this machine: apt, with lists and settings of its own.

The address of the mirror is the one that this machine's apt uses.
"""

import hashlib
import shutil
from functools import cache
from pathlib import Path

from wheels.commands import fail, run

KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
SETTINGS = """\
Dir::State "{folder}/state";
Dir::State::status "/dev/null";
Dir::Cache "{folder}/cache";
Dir::Etc::sourcelist "{folder}/sources.list";
Dir::Etc::sourceparts "-";
APT::Sandbox::User "root";
APT::Architectures {{"amd64"; "arm64";}};
Acquire::Languages "none";
"""


class Debian:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = folder / "files"

    def is_here(self) -> bool:
        return bool(shutil.which("apt-get") and KEYS.exists() and find_mirror())

    def get_source(self, package: str, version: str, file: str, sha256: str) -> Path:
        """Returns the path of a source archive, from an earlier run or from Debian."""
        path = self.files / file
        if not path.exists():
            if not self.is_here():
                fail(f"no Debian, from which {file} could be had; put a copy with sha256 {sha256} at {path}")
            self._apt("source", "--download-only", "--tar-only", f"{package}={version}")
        if hashlib.sha256(path.read_bytes()).hexdigest() != sha256:
            fail(f"{path} is not the file with sha256 {sha256}; remove it, so that it is loaded again")
        return path

    def unpack(self, packages: list[str], target: Path) -> None:
        """Unpacks packages ("libpython3.14-dev:arm64") into a folder. None of their programs is run."""
        target.mkdir(parents=True, exist_ok=True)
        self._apt("download", *packages)
        for package in packages:
            name, _, architecture = package.partition(":")
            newest = max(self.files.glob(f"{name}_*_{architecture}.deb"), key=lambda path: path.stat().st_mtime)
            run("dpkg", "-x", newest, target)

    def has(self, package: str) -> bool:
        return "Candidate: (none)" not in (found := self._ask("policy", package)) and "Candidate:" in found

    def _apt(self, *words: str) -> None:
        run("apt-get", "-q", *words, cwd=self.files, env=self._environment())

    def _ask(self, *words: str) -> str:
        return run("apt-cache", *words, env=self._environment())

    def _environment(self) -> dict[str, str]:
        settings = self.folder / "apt.conf"
        if not settings.exists():
            for name in ("state/lists/partial", "cache/archives/partial", "files"):
                (self.folder / name).mkdir(parents=True, exist_ok=True)
            lines = [f"{kind} [signed-by={KEYS}] {find_mirror()} sid main\n" for kind in ("deb", "deb-src")]
            (self.folder / "sources.list").write_text("".join(lines))
            part = settings.with_suffix(".part")
            part.write_text(SETTINGS.format(folder=self.folder))
            run("apt-get", "-q", "update", env={"APT_CONFIG": str(part)})
            part.rename(settings)
        return {"APT_CONFIG": str(settings)}


@cache
def find_mirror() -> str:
    """Returns the address from which this machine gets Debian's packages; "": it has none."""
    targets = run("apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages").split()
    return next((address for address in targets if address.rstrip("/").endswith("/debian")), "")
