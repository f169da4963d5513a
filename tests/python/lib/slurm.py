# SPDX-License-Identifier: Apache-2.0
"""A cluster of Slurm on this machine: its daemons, from packages that are unpacked and not installed. Two nodes are two
daemons with ports of their own."""

from __future__ import annotations

import contextlib
import os
import pathlib
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator

NODES, CPUS = 2, 4  # of each node; more than this machine may have
LIBRARIES = "usr/lib/x86_64-linux-gnu"
CONFIGURATION = """\
ClusterName=headrace
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
SlurmctldPort={port}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket
PluginDir={root}/usr/lib/x86_64-linux-gnu/slurm-wlm
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
MpiDefault=none
ReturnToService=2
KillWait=5
{nodes}
PartitionName=test Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


class Cluster:
    """A running cluster: `root` has the unpacked packages, `folder` the state and the logs."""

    def __init__(self, root: pathlib.Path, folder: pathlib.Path) -> None:
        self.root, self.folder = root, folder
        self.variables = {
            "SLURM_CONF": str(folder / "slurm.conf"),
            "LD_LIBRARY_PATH": f"{root / LIBRARIES}:{root / LIBRARIES}/slurm-wlm",
        }
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
        self.environment |= self.variables
        self.daemons: list[subprocess.Popen[bytes]] = []

    def program(self, name: str) -> str:
        return next(str(path) for place in ("bin", "sbin") for path in (self.root / "usr" / place).glob(name))

    def start_daemon(self, *command: str) -> None:
        log = (self.folder / "daemons.log").open("ab")
        with log:
            daemon = subprocess.Popen(command, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.daemons.append(daemon)

    def configure(self) -> None:
        host = socket.gethostname()
        port, *ports = free_ports(1 + NODES)
        nodes = "\n".join(
            f"NodeName=node{number} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={CPUS} State=UNKNOWN"
            for number, port in enumerate(ports)
        )
        text = CONFIGURATION.format(host=host, port=port, folder=self.folder, root=self.root, nodes=nodes)
        (self.folder / "slurm.conf").write_text(text)
        (self.folder / "state").mkdir()
        for number in range(NODES):
            (self.folder / f"spool-node{number}").mkdir()
        key = self.folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(128))

    def start(self) -> None:
        self.configure()
        files = {"socket": "munge.socket", "key-file": "munge.key", "pid-file": "munge.pid", "log-file": "munge.log"}
        files["seed-file"] = "munge.seed"
        options = [f"--{name}={self.folder / file}" for name, file in files.items()]
        self.start_daemon(self.program("munged"), "--force", "--foreground", *options)
        self.wait_for(lambda: (self.folder / "munge.socket").exists())
        self.start_daemon(self.program("slurmctld-wlm"), "-D", "-c")
        stepd = self.program("slurmstepd-wlm")
        for number in range(NODES):
            self.start_daemon(self.program("slurmd-wlm"), "-D", "-N", f"node{number}", "-d", stepd)
        self.wait_for(lambda: self.run("sinfo", "-h", "-o", "%T %D").stdout == f"idle {NODES}\n")

    def wait_for(self, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 100
        while not is_so():
            ended = [daemon.args for daemon in self.daemons if daemon.poll() is not None]
            assert not ended and time.monotonic() < deadline, (ended, self.logs())
            time.sleep(0.1)

    def logs(self) -> str:
        return "\n".join(f"{path}:\n{path.read_text(errors='replace')}" for path in self.folder.glob("*.log"))

    def run(self, name: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        command, environment = [self.program(name), *arguments], {**self.environment, **variables}
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)

    def stop(self) -> None:
        for daemon in reversed(self.daemons):
            daemon.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(20)
            daemon.kill()
            daemon.wait()


@contextlib.contextmanager
def cluster(root: pathlib.Path, folder: pathlib.Path) -> Iterator[Cluster]:
    one = Cluster(root, folder)
    try:
        one.start()
        yield one
    finally:
        one.stop()
