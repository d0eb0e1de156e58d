"""A Ray cluster on this machine: nodes as processes of their own, on loopback and free ports, ended by id."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parent.parent.parent
RAY = Path(sys.executable).parent / "ray"
SETTINGS = {
    "RAY_DISABLE_DOCKER_CPU_WARNING": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",  # whatever token the home of whoever runs this holds
    "RAY_memory_monitor_refresh_ms": "0",  # others use this machine's memory too
    "RAY_health_check_initial_delay_ms": "500",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "4",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS": "0",
    "OMP_NUM_THREADS": "1",
}
START_SECONDS = 90


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def install_stand_in(folder: Path) -> None:
    """What pip leaves of a package that offers the stand-in as a backbone."""
    info = folder / "number_cluster-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: number-cluster\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[anchorfold.backbones]\nnumber-cluster = tests.cluster.stand_in:BACKBONE\n")


class Nodes:
    """A head and other nodes with one CPU each. Use as a context manager.

    Args:
        seconds: that the stand-in takes for a page.
        hosts: the addresses of the head and of the other nodes.
        prefix: of the command that starts another node.
        **variables: of the nodes' environment.
    """

    def __init__(
        self,
        seconds: float = 0.0,
        hosts: tuple[str, str] = ("127.0.0.1", "127.0.0.1"),
        prefix: Sequence[str] = (),
        **variables: str,
    ) -> None:
        self.hosts, self.prefix = hosts, prefix
        # Sockets below it have names of at most 107 characters.
        self.folder = Path(tempfile.mkdtemp(prefix="afr-", dir="/tmp"))
        install_stand_in(self.folder / "site")
        self.path = os.pathsep.join(map(str, (ROOT / "src", ROOT, self.folder / "site")))
        self.environment = {**os.environ, **SETTINGS, "PYTHONPATH": self.path, "STAND_IN_SECONDS": str(seconds)}
        self.environment |= variables
        self.address = f"{hosts[0]}:{free_port()}"
        self.processes: list[subprocess.Popen] = []

    def __enter__(self) -> "Nodes":
        host, port = self.address.split(":")
        self._start(
            (),
            "--head",
            f"--node-ip-address={self.hosts[0]}",
            f"--port={port}",
            f"--temp-dir={self.folder}",
            f"--ray-client-server-port={free_port()}",
            "--include-dashboard=false",
        )
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            try:
                socket.create_connection((host, int(port)), 1).close()
                return self
            except OSError:
                time.sleep(0.2)
        self.__exit__()
        raise TimeoutError("the head node does not start")

    def _start(self, prefix: Sequence[str], *options: str) -> None:
        command = [
            *prefix, str(RAY), "start", *options, "--block", "--num-cpus=1", "--num-gpus=0",
            "--object-store-memory=80000000", "--min-worker-port=0", "--max-worker-port=0",
            "--include-log-monitor=false",
        ]  # fmt: skip
        with open(self.folder / f"node{len(self.processes)}.log", "wb") as log:
            streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT}
            self.processes.append(subprocess.Popen(command, env=self.environment, start_new_session=True, **streams))

    def add(self) -> None:
        """One more node; returns at once."""
        self._start(self.prefix, f"--address={self.address}", f"--node-ip-address={self.hosts[1]}")

    def below(self, number: int) -> list[psutil.Process]:
        """All processes of a node, from the head (0) on."""
        try:
            return psutil.Process(self.processes[number].pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def raylet(self, number: int) -> psutil.Process:
        return next(process for process in self.below(number) if process.name() == "raylet")

    def kill_raylet(self, number: int) -> None:
        self.raylet(number).kill()

    def stop(self, number: int) -> None:
        """End a node and all that it started."""
        left = self.below(number)
        self.processes[number].terminate()
        try:
            self.processes[number].wait(10)
        except subprocess.TimeoutExpired:
            self.processes[number].kill()
            self.processes[number].wait()
        for process in left:
            try:
                process.send_signal(signal.SIGCONT)
                process.kill()
            except psutil.NoSuchProcess:
                pass
        psutil.wait_procs(left, 10)

    def __exit__(self, *_: object) -> None:
        for number in reversed(range(len(self.processes))):
            self.stop(number)
        shutil.rmtree(self.folder, ignore_errors=True)
