# SPDX-License-Identifier: Apache-2.0
"""Detects the container that this process runs in, and reads files below the root of the machine."""

from __future__ import annotations

import os

from headrace import _core


def root() -> str:
    """Returns what to use instead of /: HEADRACE_ROOT in development builds (as in src/os), "" in others."""
    return os.environ.get("HEADRACE_ROOT", "") if _core.FAILPOINTS else ""


def read(path: str) -> str | None:
    """Returns the text of a file, or None if it cannot be read."""
    try:
        with open(root() + path) as file:
            return file.read()
    except OSError:
        return None


def container() -> str | None:
    """Returns the kind of container, or None."""
    for path, kind in (("/.dockerenv", "docker"), ("/run/.containerenv", "podman")):
        if os.path.exists(root() + path):
            return kind
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        return "kubernetes"
    groups = read("/proc/self/cgroup") or ""
    return next((kind for kind in ("kubepods", "docker", "lxc") if kind in groups), None)


def raise_limit(docker: str, slurm: str, plain: str) -> str:
    """Returns the command that raises a limit here: of docker, of Slurm, or of a plain machine."""
    if container() is not None:
        return f"docker run {docker} ... (Kubernetes: resources.limits)"
    return f"sbatch {slurm}" if slurm and "SLURM_JOB_ID" in os.environ else plain
