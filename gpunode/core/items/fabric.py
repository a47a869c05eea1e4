"""What belongs to many GPUs: DCGM, the addresses of an IMEX domain, and the services of both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpunode.core.items import gpu_settings, gpudirect, host_settings
from gpunode.core.items.activation import Masked, Module, ServiceItem, enabled_of, services_of
from gpunode.core.items.activation import step as activation_step
from gpunode.core.items.file import File
from gpunode.core.items.item import Found, HostCase, Item, ItemKey, Question
from gpunode.core.items.package import NoPackage, PackageItem
from gpunode.core.solve.fabric import IMEX_NODES

_IMEX = "nvidia-imex.service"


def wanted(question: Question) -> Found:
    """What the solution has of it, and the settings of the GPUs."""
    yield from gpu_settings.wanted(question)
    yield from host_settings.wanted(question)
    yield from gpudirect.wanted(question)
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
        yield ServiceItem(role="fabric", unit=unit)


def activation_value(case: HostCase, role: str, mine: Sequence[Item]) -> dict[str, Any]:
    """Services to start; IMEX again where it runs and its nodes are others than when it started, settings as well.

    Without the GPUs they are only enabled.
    """
    if not case.spec.image.load:
        return {"enable": enabled_of(mine)}
    nodes = case.items.get(ItemKey("fabric", "files", IMEX_NODES))
    stale = {_IMEX: nodes is not None and case.pending(nodes)}
    stale |= {gpu_settings.UNIT: gpu_settings.stale(case), host_settings.UNIT: host_settings.stale(case)}
    states = {unit: case.have.get(ServiceItem(role="fabric", unit=unit).key, "") for unit, due in stale.items() if due}
    again = [unit for unit, state in states.items() if state.startswith("active")]
    masked = [item.unit for item in mine if isinstance(item, Masked)]
    load = [item.module for item in mine if isinstance(item, Module)]
    found = {"load": load, "restart": again, "mask": masked}
    return {"services": services_of(mine), **{key: units for key, units in found.items() if units}}


ACTIVATION = activation_step(activation_value)
