"""Two machines made of namespaces (network, processes, mounts), joined by a cable that can be pulled; ranks for them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
PORT = 29533
# Seconds until a rank without an answer ends; ranks that start beside other work come tens of seconds apart.
LIMIT = 60
CABLE = ("ghsc0", "ghsc1")
RANK = Path(__file__).with_name("two_machines_rank.py")


def missing_privilege() -> str:
    """Why machines cannot be made here, or nothing."""
    for program in ("unshare", "nsenter", "ip"):
        if shutil.which(program) is None:
            return f"there is no {program} here"
    tried = subprocess.run(
        ["unshare", "--net", "--mount", "--pid", "--fork", "ip", "link", "add", CABLE[0], "type", "veth"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return (
        f"namespaces and veth need CAP_SYS_ADMIN and CAP_NET_ADMIN: {tried.stderr.strip()}" if tried.returncode else ""
    )


class Machine:
    """A shell in namespaces of its own: own network, own process numbers, own temporary directory, own name."""

    def __init__(self, number: int, directory: Path) -> None:
        self.number, self.log = number, directory / f"machine{number}.log"
        self.address = f"10.99.26.{number + 1}"
        go = directory / "go"
        script = f"""
hostname machine{number}
mount -t tmpfs tmpfs /dev/shm && mount -t tmpfs tmpfs "$TMPDIR" || exit 1
until [ -e {go} ]; do sleep 0.1; done
ip link set lo up && ip addr add {self.address}/24 dev {CABLE[number]} && ip link set {CABLE[number]} up || exit 1
export GLOO_SOCKET_IFNAME={CABLE[number]}
exec {sys.executable} -m torch.distributed.run --nnodes 2 --nproc_per_node 2 --node_rank {number} --max_restarts 0 \
    --master_addr 10.99.26.1 --master_port {PORT} {RANK} {directory}/data {directory}
"""
        variables = {
            **os.environ,
            "PYTHONPATH": str(REPO),
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
            "TMPDIR": str(directory / "tmp"),
            "SIMPLETUNER_PROCESS_GROUP_TIMEOUT_SECONDS": str(LIMIT),
        }
        spaces = ["--net", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child", "--mount-proc"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                ["unshare", *spaces, "bash", "-c", script], env=variables, stdout=log, stderr=log, cwd=directory
            )

    def inside(self, *command: str) -> None:
        subprocess.run(["nsenter", "-t", str(self.process.pid), "-n", *command], check=True)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


class Machines:
    def __init__(self, directory: Path) -> None:
        (directory / "tmp").mkdir()
        self.directory = directory
        self.both = [Machine(number, directory) for number in range(2)]
        # Until unshare has made the network of its own, the cable would end in ours.
        until = time.monotonic() + 30
        own = os.readlink("/proc/self/ns/net")
        while any(os.readlink(f"/proc/{one.process.pid}/ns/net") == own for one in self.both):
            assert time.monotonic() < until, "the namespaces were not made"
            time.sleep(0.05)
        first, second = (str(one.process.pid) for one in self.both)
        subprocess.run(
            ["ip", "link", "add", CABLE[0], "netns", first, "type", "veth", "peer", "name", CABLE[1], "netns", second],
            check=True,
        )
        (directory / "go").touch()

    def pull_the_cable(self) -> None:
        self.both[1].inside("ip", "link", "set", CABLE[1], "down")

    def printed(self) -> str:
        return "\n".join(one.log.read_text(errors="replace")[-8000:] for one in self.both)

    def end(self) -> None:
        for one in self.both:
            one.end()
