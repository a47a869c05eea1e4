"""What belongs to many GPUs: DCGM, the addresses of an IMEX domain, and the services of both."""

from __future__ import annotations

from dataclasses import replace

from gpunode.core.items.activation import STEP as activation_step
from gpunode.core.items.activation import Masked, ServiceItem
from gpunode.core.items.file import File
from gpunode.core.items.item import Found, Question
from gpunode.core.items.package import NoPackage, PackageItem
from gpunode.core.solve.fabric import IMEX_NODES

_IMEX = "nvidia-imex.service"


def wanted(question: Question) -> Found:
    """What the solution has of it."""
    fabric = question.solution.fabric
    if fabric is None:
        return
    for package in fabric.packages:
        yield PackageItem(role="fabric", package=package)
    for name in fabric.remove:
        yield NoPackage(role="fabric", package=name)
    if fabric.imex_nodes:
        yield File(role="fabric", path=IMEX_NODES, text="".join(f"{node}\n" for node in fabric.imex_nodes))
    yield from (Masked(role="fabric", unit=unit) for unit in fabric.masked)
    for unit in fabric.services:
        yield ServiceItem(role="fabric", unit=unit, reads=(IMEX_NODES,) if unit == _IMEX else ())


ACTIVATION = replace(activation_step, base=lambda case, role: {"services": []} if case.spec.image.load else {})
