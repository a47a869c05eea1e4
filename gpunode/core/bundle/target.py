"""What a bundle is made for: a distribution on an architecture, and the packages that provision would install there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gpunode.core.errors import InputError
from gpunode.core.items.item import Question
from gpunode.core.items.package import PackageItem
from gpunode.core.knowledge import DistroRow, Knowledge
from gpunode.core.late import dataclass, regex
from gpunode.core.model import Distro, Kernel, NodeFacts, PackageWant, PciDevice, Repository, Solution
from gpunode.core.plan.steps import wanted
from gpunode.core.solve.packages import headers_fit
from gpunode.core.spec import Spec

MANAGERS = {"ubuntu": "apt", "debian": "apt", "rhel": "dnf", "suse": "zypper"}
_TARGET = regex(r"(?P<distro>[a-z][a-z0-9-]*(:[\w.]+)?)/(?P<arch>x86_64|aarch64)\Z")


@dataclass(frozen=True, kw_only=True, order=True)
class BundleTarget:
    """debian:12 on x86_64."""

    distro: str
    arch: str

    def __str__(self) -> str:
        return f"{self.distro}/{self.arch}"

    @property
    def folder(self) -> str:
        """Its part of a path, as the placeholders {distro}/{machine} of an address have it."""
        return f"{self.distro.replace(':', '-')}/{self.arch}"


@dataclass(frozen=True, kw_only=True)
class Wants:
    """What is to be in a target's repositories: the packages asked for, the pins, and the vendors' repositories.

    A version may end in `*`.  `streams` are those of dnf's modules that are enabled.
    """

    packages: tuple[PackageWant, ...]
    repositories: tuple[Repository, ...]
    streams: tuple[str, ...] = ()

    @property
    def patterns(self) -> tuple[str, ...]:
        """Versions asked for: any package that exists in one of them is taken in it (as on the node)."""
        return tuple(dict.fromkeys(p.version for p in self.packages if p.version))


def parse_target(text: str, knowledge: Knowledge) -> BundleTarget:
    """DISTRO:RELEASE/ARCH → Target.  Raises InputError."""
    match = _TARGET.match(text.strip())
    if not match:
        raise InputError(f"target {text!r}", expected="DISTRIBUTION:RELEASE/ARCH such as ubuntu:24.04/x86_64")
    row = knowledge.distro(match["distro"])
    if row is None or row.family not in knowledge.packages:
        raise InputError(
            f"distribution {match['distro']!r} is not known", expected=f"one of {', '.join(knowledge.solved_distros())}"
        )
    if row.family not in MANAGERS:
        raise InputError(
            f"target {text!r}: there are no bundles for {row.family}", fix="give its nodes a mirror in their own lists"
        )
    return BundleTarget(distro=row.key, arch=match["arch"])


def bare_node(
    target: BundleTarget, row: DistroRow, knowledge: Knowledge, gpus: Sequence[str], kernels: Sequence[str]
) -> NodeFacts:
    """A machine of that kind without any software: with these GPUs (PCI ids), and the kernels that are its own."""
    name, _, version = target.distro.partition(":")
    family = knowledge.packages[row.family]
    switches = [gpu for gpu in gpus if gpu in knowledge.nvswitches]
    cards = [gpu for gpu in gpus if gpu not in knowledge.nvswitches]
    return NodeFacts(
        arch=target.arch,
        distro=Distro(id=name, version_id=version),
        init="systemd",
        root=True,
        package_manager=MANAGERS[row.family],
        gpus=tuple(_device(at, gpu, "0302") for at, gpu in enumerate(cards)),
        nvswitches=tuple(_device(at + 64, switch, "0680") for at, switch in enumerate(switches)),
        kernels=tuple(Kernel(release=k, image=True) for k in kernels if headers_fit(row, family, k)),
    )


def _device(number: int, pci_id: str, kind: str) -> PciDevice:
    return PciDevice(slot=f"0000:{number + 16:02x}:00.0", id=pci_id, class_code=kind)


def wants_of(facts: NodeFacts, spec: Spec, solution: Solution, templates: Mapping[str, str]) -> Wants:
    """What provision would have installed on that machine, whatever is there already."""
    items = wanted(Question(facts=facts, spec=spec, solution=solution, templates=templates)).items
    packages = [i.package for i in items.values() if i.option == "packages" and isinstance(i, PackageItem)]
    stream = solution.driver.stream if solution.driver else ""
    return Wants(
        packages=tuple(dict.fromkeys(packages)),
        repositories=tuple(solution.repositories),
        streams=(stream,) if stream else (),
    )


def together(found: Sequence[Wants], more: Sequence[str]) -> Iterator[Wants]:
    """Each different one once, with the packages asked for besides."""
    extra = tuple(PackageWant(name=name, version=version) for name, _, version in (m.partition("=") for m in more))
    seen: list[Wants] = []
    for wants in found:
        if wants not in seen:
            seen.append(wants)
            yield Wants(packages=(*wants.packages, *extra), repositories=wants.repositories, streams=wants.streams)
