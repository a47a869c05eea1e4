"""What has drifted since the node was set up, as far as one probe tells and no plan would mend by itself, as checks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from gpunode.core.items.sources import revoked_files, set_up_twice
from gpunode.core.model import Check, NodeFacts

_FABRIC = re.compile(r"(nvidia-fabric-?manager|libnvidia-nscq|nvidia-imex)(-\d{3})?\Z")
_DRIVER = re.compile(r"(nvidia-driver|nvidia-open|cuda-drivers|linux-modules-nvidia)\b")
_AUTOMATIC = ("unattended-upgrades", "dnf-automatic.timer")  # units that install what is new by themselves


def drift_checks(facts: NodeFacts, revoked: Sequence[str] = ()) -> Iterator[Check]:
    """Versions that are unequal, kernels without the module, locks that are lost, repositories that rival.

    `revoked` are fingerprints of keys that their vendors have revoked.
    """
    yield from _fabric(facts)
    yield from _kernels(facts)
    yield from _locks(facts)
    yield from _repositories(facts, revoked)


def _fabric(facts: NodeFacts) -> Iterator[Check]:
    loaded = facts.driver.loaded
    for name, package in facts.packages.items():
        version = package.version.rpartition(":")[2]
        if _FABRIC.match(name) and loaded and not re.match(rf"{re.escape(loaded)}(?![\d.])", version):
            yield Check(
                id="fabric.version",
                status="failed",
                message=f"{name} is {version}, the loaded driver {loaded}: unequal, GPUs do not join NVLink",
                fix="gpunode provision installs the driver's own version",
            )


def _kernels(facts: NodeFacts) -> Iterator[Check]:
    """Kernels that would come up without the GPU: no module, or one that user space does not go with."""
    driver = facts.driver.userspace or facts.driver.loaded
    others = [kernel for kernel in facts.kernels if kernel.image and not kernel.running]
    missing = [f"{k.release} ({k.dkms} in DKMS)" if k.dkms else k.release for k in others if not k.module]
    if driver and missing:
        yield Check(
            id="boot.modules",
            status="warning",
            message=f"no nvidia module for {', '.join(missing)}: the GPU is gone after a boot into it",
            fix="gpunode check-boot says why; gpunode provision builds it",
        )
    unequal = [f"{k.release} has {k.module}" for k in others if k.module and driver and k.module != driver]
    if unequal:
        yield Check(
            id="boot.versions",
            status="warning",
            message=f"user space is {driver}, the module for {', '.join(unequal)}: nvidia-smi would fail",
            fix="gpunode check-boot says why; gpunode provision builds it",
        )


def _locks(facts: NodeFacts) -> Iterator[Check]:
    units = [facts.services[name] for name in _AUTOMATIC if name in facts.services]
    running = [unit.name for unit in units if unit.active == "active"]
    loose = sorted(n for n, p in facts.packages.items() if not p.held and _DRIVER.match(n))
    if running and loose and facts.driver.loaded:
        yield Check(
            id="driver.held",
            status="warning",
            message=f"{', '.join(running)} runs, and {', '.join(loose)} is not held: a new driver may come by itself",
            fix="driver.hold: true, then gpunode provision",
        )


def _repositories(facts: NodeFacts, revoked: Sequence[str]) -> Iterator[Check]:
    for path in revoked_files(facts, revoked):
        yield Check(
            id="repository.key-revoked",
            status="failed",
            message=f"{path} holds a key that its vendor has revoked: whoever has it can sign packages for this node",
            fix=f"gpunode provision removes it, or: rm {path}",
        )
    for url, paths in set_up_twice(facts).items():
        yield Check(
            id="repository.twice",
            status="warning",
            message=f"{url} is set up by {' and '.join(paths)}: with two keys apt refuses both",
            fix="gpunode provision removes files that name nothing else; take it out of one of these",
        )
