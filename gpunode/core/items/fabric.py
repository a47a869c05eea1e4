"""What belongs to many GPUs: DCGM, the addresses of an IMEX domain, and the services of both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpunode.core.items.activation import ServiceItem, enabled_of, services_of
from gpunode.core.items.activation import step as activation_step
from gpunode.core.items.file import File
from gpunode.core.items.item import Found, HostCase, Item, ItemKey, Question
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
    for unit in fabric.services:
        yield ServiceItem(role="fabric", unit=unit)


def activation_value(case: HostCase, role: str, mine: Sequence[Item]) -> dict[str, Any]:
    """Services to start; IMEX again where it runs, and its nodes are others than when it started.

    Without the GPUs they are only enabled.
    """
    if not case.spec.image.load:
        return {"enable": enabled_of(mine)}
    nodes = case.items.get(ItemKey("fabric", "files", IMEX_NODES))
    stale = nodes is not None and case.pending(nodes)
    again = [_IMEX] if stale and case.have[ServiceItem(role="fabric", unit=_IMEX).key].startswith("active") else []
    return {"services": services_of(mine), **({"restart": again} if again else {})}


ACTIVATION = activation_step(activation_value)
