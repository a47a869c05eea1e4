"""`detect` of 2,000 logical hosts over 20 real sshds, against OpenSSH's own `ssh HOST true`, as many at once.

The sshds stand on this machine; each logical host is a name for one of them, and answers with a recorded probe text, so
that the probe's own time on a node is not in the figures, but both ends of every connection are.  After that the same
for a tenth of them under a profiler, whose top costs are told on standard error.
`python -m benchmarks.fleet_scan 200`: so many hosts.
"""

from __future__ import annotations

import io
import json
import os
import pstats
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import yaml

from benchmarks.measure import GPUNODE, log, row, run, seconds

HOSTS, SSHDS, FORKS = 2000, 20, 50
ANSWER = Path("tests/cases/probes/debian12-h100-provisioned/probe.txt")
# SHLVL: bash reads no ~/.bashrc then, which may take longer than the login
CONFIG = """Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host
PidFile none
AuthorizedKeysFile {folder}/user.pub
PasswordAuthentication no
StrictModes no
UsePAM no
PermitRootLogin yes
MaxStartups 200
SetEnv SHLVL=1
ForceCommand [ "$SSH_ORIGINAL_COMMAND" = true ] || {{ read -r mark; eval "$mark"; cat >/dev/null; exec cat {answer}; }}
"""
CLIENT = """Host *
  HostName 127.0.0.1
  UserKnownHostsFile {folder}/known_hosts
  GlobalKnownHostsFile none
  IdentitiesOnly yes
  IdentityFile {folder}/user
"""


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextmanager
def sshds(folder: Path, count: int) -> Iterator[list[int]]:
    """Ports of so many sshds with one host key; `folder` gets the keys, known_hosts and a client's configuration."""
    binary = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    assert binary, "needs sshd: apt-get install openssh-server"
    Path("/run/sshd").mkdir(exist_ok=True)
    for name in ("host", "user"):
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name)
    ports = [free_port() for _ in range(count)]
    key = " ".join((folder / "host.pub").read_text().split()[:2])
    (folder / "known_hosts").write_text("".join(f"[127.0.0.1]:{port} {key}\n" for port in ports))
    (folder / "ssh_config").write_text(CLIENT.format(folder=folder))
    with ExitStack() as stack:
        for port in ports:
            config = folder / f"sshd.{port}"
            config.write_text(CONFIG.format(port=port, folder=folder, answer=ANSWER.resolve()))
            daemon = subprocess.Popen([binary, "-D", "-e", "-f", config], stderr=subprocess.DEVNULL)
            stack.callback(daemon.wait)
            stack.callback(daemon.terminate)
        yield ports


def inventory(folder: Path, ports: list[int], hosts: int) -> Path:
    """An inventory of so many names, dealt out to the ports."""
    args = {"ansible_host": "127.0.0.1", "ansible_ssh_common_args": f"-F {folder}/ssh_config"}
    names = {f"gpu{n:04}": args | {"ansible_port": ports[n % len(ports)]} for n in range(hosts)}
    path = folder / f"{hosts}.yml"
    path.write_text(yaml.safe_dump({"all": {"hosts": names}}))
    return path


def scan(hosts: Path, *gpunode: object) -> None:
    """`gpunode detect` of an inventory; every host has to answer."""
    reported = json.loads(run(*(gpunode or (GPUNODE,)), "detect", "-i", hosts, "--forks", FORKS, "--format", "json"))
    assert not any("error" in host for host in reported["hosts"])


def bare(folder: Path, ports: list[int], hosts: int) -> None:
    """`ssh HOST true` to as many, as many at once."""
    lines = "".join(f"{ports[n % len(ports)]}\n" for n in range(hosts))
    command = ["xargs", "-P", str(FORKS), "-I", "{}", "ssh", "-F", str(folder / "ssh_config"), "-p", "{}", "h", "true"]
    subprocess.run(command, input=lines, text=True, check=True)


def cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main(hosts: int) -> None:
    with tempfile.TemporaryDirectory() as tmp, sshds(Path(tmp), SSHDS) as ports:
        folder = Path(tmp)
        all_hosts, some = inventory(folder, ports, hosts), inventory(folder, ports, max(hosts // 10, SSHDS))
        scan(some)  # warm
        before = cpu_of_children()
        ours = seconds(lambda: scan(all_hosts))
        cpu = cpu_of_children() - before
        ssh = seconds(lambda: bare(folder, ports, hosts))
        profile = folder / "profile"
        scan(some, sys.executable, "-m", "benchmarks.profiled", profile)
        text = io.StringIO()
        pstats.Stats(str(profile), stream=text).sort_stats("tottime").print_stats(12)
        log(text.getvalue())
    row(
        f"`detect` of {hosts:,} logical hosts over {SSHDS} real sshds against `ssh HOST true` to each, {FORKS} at once",
        f"{ours / ssh:.2f} × ({ours:.0f} s against {ssh:.0f} s, the sshds' part included)",
    )
    row("the same, the controller's CPU time per host", f"{1000 * cpu / hosts:.0f} ms")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else HOSTS)
