"""The lab's network, and the package repository that is served on it.

The repository is served by a container of its own, so that nodes and this machine reach it under one URL.
"""

from __future__ import annotations

import ipaddress
import json
import random
import time
import urllib.error
import urllib.request
from collections.abc import Iterable
from pathlib import Path

from gpunode.core.errors import GpunodeError
from gpunode.lab.machine import Log, podman

NETWORK = "gpunode-lab"
REPOSITORY = "gpunode-lab-repository"
LABEL = "gpunode.lab"  # of every node's container: the lab it belongs to
SERVED = "gpunode-lab-serves"  # label of the repository's container: the folder it serves
REPOSITORY_HOST = 10  # its host number; .100 and up are nodes, podman itself hands out the lowest ones


def ensure_network() -> ipaddress.IPv4Network:
    """The lab's network, made when it is not there; podman chooses a subnet that is free on this machine."""
    if podman("network", "exists", NETWORK, check=False).returncode:
        podman("network", "create", NETWORK)
    found = json.loads(podman("network", "inspect", NETWORK).stdout)
    return ipaddress.IPv4Network(found[0]["subnets"][0]["subnet"])


def free_address(network: ipaddress.IPv4Network, taken: Iterable[str]) -> str:
    """An address for a node, chosen at random: nothing should come to rely on a particular one."""
    free = {str(network[host]) for host in range(100, 250)} - set(taken)
    if not free:
        raise GpunodeError("all 150 addresses of the lab are taken", fix="gpunode lab down --all")
    return random.choice(sorted(free))  # noqa: S311 - not a secret


def repository_url(network: ipaddress.IPv4Network) -> str:
    return f"http://{network[REPOSITORY_HOST]}"


def ensure_repository(image: str, directory: Path, network: ipaddress.IPv4Network, *, log: Log) -> str:
    """Serve `directory` on the lab's network, by a container of `image`; gives back its URL."""
    url = repository_url(network)
    wanted = f"true {directory}"
    state = '{{.State.Running}} {{index .Config.Labels "' + SERVED + '"}}'
    if podman("inspect", "--format", state, REPOSITORY, check=False).stdout.strip() != wanted:
        log(f"serving the lab's package repository at {url}")
        podman("rm", "--force", "--ignore", "--time=0", REPOSITORY)
        mount = f"{directory}:/srv:ro"
        address = str(network[REPOSITORY_HOST])
        serve = ("busybox", "httpd", "-f", "-p", "80", "-h", "/srv")  # every image has it, also one without Python
        keep = ("--restart=always", "--stop-timeout=0", "--log-driver=none", f"--label={SERVED}={directory}")
        podman(
            "run",
            "-d",
            "--name",
            REPOSITORY,
            f"--network={NETWORK}",
            f"--ip={address}",
            "-v",
            mount,
            *keep,
            image,
            *serve,
        )
    _wait_until_it_answers(url)
    return url


def _wait_until_it_answers(url: str) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            with urllib.request.urlopen(f"{url}/", timeout=5):  # noqa: S310 - our own http URL
                return
        except urllib.error.HTTPError:
            return  # it does not list folders, and says so
        except OSError as error:
            if time.monotonic() > deadline:
                said = podman("logs", "--tail=5", REPOSITORY, check=False).stderr
                raise GpunodeError(f"the lab's repository at {url} does not answer: {error} {said}") from error
            time.sleep(0.1)


def remove_if_unused() -> None:
    """Stop serving and take the network away, unless some node is still there (that of another user's state, say)."""
    if podman("ps", "--all", "--quiet", "--filter", f"label={LABEL}").stdout:
        return
    podman("rm", "--force", "--ignore", "--time=0", REPOSITORY)
    podman("network", "rm", NETWORK, check=False)
