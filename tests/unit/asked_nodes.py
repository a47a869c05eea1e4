"""Nodes that do not exist, whose package manager is the real apt with the real archive of their release."""

from __future__ import annotations

import functools
import os
import subprocess
from collections.abc import Callable, Mapping

from apt_roots import Root

from gpunode.core.model import Distro, Kernel, NodeFacts, PackageWant, PciDevice, Repository
from gpunode.core.plan.question import Request
from gpunode.core.remote import program
from gpunode.core.spec import Spec
from gpunode.edge.ask import Talk, settle
from gpunode.edge.desired import DesiredState, Planned
from gpunode.node import script

KEY = b"-----BEGIN PGP PUBLIC KEY BLOCK-----\n\n-----END PGP PUBLIC KEY BLOCK-----\n"


class Offline(DesiredState):
    """The planner, but for the signing keys."""

    def _key(self, repository: Repository, spec: Spec) -> bytes:
        return KEY


@functools.cache
def desired() -> DesiredState:
    return Offline({"runtimes": {"containerd": {"manage": "ignore"}, "docker": {"manage": "ignore"}}})


def node(distro: str, gpu: str, kernels: tuple[str, ...], *, secure_boot: bool) -> NodeFacts:
    """A fresh node; its first kernel runs."""
    name, _, version = distro.partition(":")
    return NodeFacts(
        hostname="gpu1",
        arch="x86_64",
        distro=Distro(id=name, version_id=version),
        init="systemd",
        root=True,
        user="root",
        package_manager="apt",
        secure_boot=secure_boot,
        kernels=tuple(Kernel(release=release, running=n == 0, image=True) for n, release in enumerate(kernels)),
        gpus=(PciDevice(slot="0000:17:00.0", id=gpu, class_code="0302"),),
    )


def answer(there: Root, request: Request) -> tuple[str, int]:
    """What packages.sh says in check mode, of a machine with nothing installed."""
    empty = there.home / "dpkg"
    empty.mkdir(exist_ok=True)
    (empty / "status").touch()
    environment = {**os.environ, "APT_CONFIG": str(there.home / "apt.conf"), "DPKG_ADMINDIR": str(empty)}
    done = subprocess.run(
        ["sh", "-s"], input=program(script("packages.sh"), request), env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    return done.stdout, done.returncode


def quick_answer(there: Root, request: Request) -> tuple[str, int]:
    """The same, with apt's own word about the transaction, which is asked for once."""
    stated, _ = answer(there, {name: data for name, data in request.items() if name not in ("install", "remove")})
    lines = [line for line in stated.splitlines(keepends=True) if line.split("\t")[1:2] in (["offer"], ["fresh"])]
    rows = [line.split() for line in request.get("install", b"").decode().splitlines()]
    wants = [PackageWant(name=name, version="" if version == "-" else version) for name, version, _ in rows]
    why = there.fault(wants)
    end = (
        [f"unresolvable\t{' '.join(why.split())}", "status\tfailed", "message\twords for a person"]
        if why
        else ["status\tchanged"]
    )
    return "".join([*lines, *(f"gpunode\t{line}\n" for line in end)]), 1 if why else 0


def planned(there: Root, facts: NodeFacts, by: Callable[[Root, Request], tuple[str, int]] = answer) -> Planned:
    """The plan as it stands after the archive was asked."""
    talk = Talk(
        planned=desired().plan("gpu1", facts),
        knowledge=desired().knowledge,
        replan=lambda archive: desired().plan("gpu1", facts, archive=archive),
    )

    def ask(requests: Mapping[int, Request]) -> dict[int, tuple[str, int]]:
        return {number: by(there, request) for number, request in requests.items()}

    settle([talk], ask)
    return talk.planned
