"""The lab's network, and the package repository that is served on it.

The repository is served by a container of its own, so that nodes and this machine reach it under one URL.  Network and
server belong to one state folder: labs of another user, or of another state folder, have their own.
"""

from __future__ import annotations

import ipaddress
import json
import time
import urllib.error
import urllib.request
from pathlib import Path

from gpunode.core.errors import GpunodeError
from gpunode.lab.machine import Log, places, podman

LABEL = "gpunode.lab"  # of every node's container: the lab it belongs to
SERVED = "gpunode-lab-serves"  # label of the repository's container: the folder it serves
REPOSITORY_HOSTS = range(10, 16)  # its host number: the first that podman does not count as taken


def network_name() -> str:
    return f"gpunode-lab{places().suffix}"


def repository_name() -> str:
    return f"gpunode-lab-repository{places().suffix}"


def ensure_network() -> ipaddress.IPv4Network:
    """The lab's network, made when it is not there; podman chooses a subnet that is free on this machine."""
    name = network_name()
    if podman("network", "exists", name, check=False).returncode:
        podman("network", "create", name)
    found = json.loads(podman("network", "inspect", name).stdout)
    return ipaddress.IPv4Network(found[0]["subnets"][0]["subnet"])


def address_of(container: str) -> str:
    """The address that podman gave a running container on the lab's network."""
    found = json.loads(podman("inspect", container).stdout)
    return str(found[0]["NetworkSettings"]["Networks"][network_name()]["IPAddress"])


def ensure_repository(image: str, directory: Path, network: ipaddress.IPv4Network, *, log: Log) -> str:
    """Serve `directory` on the lab's network, by a container of `image`; gives back its URL.

    A server that podman counts as running and that does not answer is started again: podman does not notice when a
    container and the process that watches it were killed together.
    """
    directory.mkdir(parents=True, exist_ok=True)
    wanted = f"true {directory}"
    state = '{{.State.Running}} {{index .Config.Labels "' + SERVED + '"}}'
    if podman("inspect", "--format", state, repository_name(), check=False).stdout.strip() == wanted:
        url = f"http://{address_of(repository_name())}"
        if _why_no_answer(url, seconds=5) is None:
            return url
        log("the lab's package repository does not answer: starting it again")
    for seconds in (15, 30):
        url = f"http://{_start_repository(image, directory, network)}"
        log(f"serving the lab's package repository at {url}")
        error = _why_no_answer(url, seconds=seconds)
        if error is None:
            return url
    raise GpunodeError(f"the lab's repository at {url} does not answer: {error}; {_state_of_repository()}")


def _start_repository(image: str, directory: Path, network: ipaddress.IPv4Network) -> ipaddress.IPv4Address:
    """Start the server in place of the one before; its address: a plain `podman rm` leaves the one before allocated."""
    *others, last = (network[host] for host in REPOSITORY_HOSTS)
    for address in others:
        _remove_repository()
        if not podman(*_repository_command(image, directory, address), check=False).returncode:
            return address
    _remove_repository()
    podman(*_repository_command(image, directory, last))
    return last


def _repository_command(image: str, directory: Path, address: ipaddress.IPv4Address) -> tuple[str, ...]:
    return (
        "run",
        "-d",
        "--name",
        repository_name(),
        f"--network={network_name()}",
        f"--ip={address}",
        f"--mac-address={_mac_of(address)}",
        "-v",
        f"{directory}:/srv:ro",
        "--restart=always",
        "--stop-timeout=0",
        f"--label={SERVED}={directory}",
        image,
        *("busybox", "httpd", "-f", "-p", "80", "-h", "/srv"),  # every image has it, also one without Python
    )


def _mac_of(address: ipaddress.IPv4Address) -> str:
    """The same for each server at an address: who has spoken to the one before knows the next one's.

    >>> _mac_of(ipaddress.IPv4Address("10.89.0.10"))
    '02:47:0a:59:00:0a'
    """
    return ":".join(f"{byte:02x}" for byte in (0x02, 0x47, *address.packed))  # 02: administered locally


def _remove_repository() -> None:
    """Podman may need a second try for a container whose processes were killed behind its back."""
    for left in (2, 1, 0):
        done = podman("rm", "--force", "--ignore", "--time=0", repository_name(), check=not left)
        if not done.returncode:
            return
        time.sleep(1)


def _why_no_answer(url: str, *, seconds: float) -> OSError | None:
    """What the last try met after so many seconds; None as soon as the server answers."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            with urllib.request.urlopen(f"{url}/", timeout=5):  # noqa: S310 - our own http URL
                return None
        except urllib.error.HTTPError:
            return None  # it does not list folders, and says so
        except OSError as error:
            if time.monotonic() > deadline:
                return error
            time.sleep(0.1)


def _state_of_repository() -> str:
    """What podman knows of the server that does not answer, for the message."""
    shape = "{{.State.Status}}, exit code {{.State.ExitCode}}, started {{.RestartCount}} times again"
    state = podman("inspect", "--format", shape, repository_name(), check=False).stdout.strip()
    fetch = ("busybox", "wget", "-q", "-O", "/dev/null", "http://127.0.0.1/")
    inside = podman("exec", repository_name(), *fetch, check=False)
    log = podman("logs", "--tail=5", repository_name(), check=False)
    last = "; ".join((inside.stderr + log.stdout + log.stderr).split("\n")).strip("; ")
    return f"its container: {state or 'none'}" + (f"; in it: {last}" if last else "; in it the server answers")


def remove_if_unused() -> None:
    """Stop serving and remove the network, unless a container (one that Molecule started, say) still uses it."""
    on_it = ("--filter", f"network={network_name()}", "--filter", f"label={LABEL}")
    if {*podman("ps", "--all", "--format={{.Names}}", *on_it, check=False).stdout.split()} - {repository_name()}:
        return  # the server's own image may be a node's that was committed, with its label
    _remove_repository()
    podman("network", "rm", network_name(), check=False)
