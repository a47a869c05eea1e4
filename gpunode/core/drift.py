"""What has drifted since the node was set up, as far as one probe tells and no plan would mend by itself, as checks."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpunode.core.model import Check, NodeFacts

_FABRIC = re.compile(r"(nvidia-fabric-?manager|libnvidia-nscq|nvidia-imex)(-\d{3})?\Z")


def drift_checks(facts: NodeFacts) -> Iterator[Check]:
    """The fabric manager's version, kernels without the module, unattended upgrades that would change the driver."""
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
    missing = [k.release for k in facts.kernels if k.image and not k.module and not k.running]
    if loaded and missing:
        yield Check(
            id="boot.modules",
            status="warning",
            message=f"no nvidia module for {', '.join(missing)}: the GPU is gone after a boot into it",
            fix="gpunode check-boot says why; gpunode provision builds it",
        )
    active = facts.services.get("unattended-upgrades")
    loose = sorted(
        n
        for n, p in facts.packages.items()
        if not p.held and re.match(r"(nvidia-driver|nvidia-open|cuda-drivers)\b", n)
    )
    if active and active.active == "active" and loose and loaded:
        yield Check(
            id="driver.held",
            status="warning",
            message=f"unattended upgrades run, and {', '.join(loose)} is not held: a new driver may come by itself",
            fix="driver.hold: true, then gpunode provision",
        )
