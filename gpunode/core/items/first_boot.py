"""Machines prepared without their GPU: what is left for the first boot with one, and what verify says of it.

The program is one text, left on the node by the action `first_boot` and run there by a systemd unit; it needs neither
a controller nor Python.  Format of the record that it writes: node/activate/firstboot.sh.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

from gpunode.core.items import activation, cdi, smoke
from gpunode.core.items.activation import Enabled
from gpunode.core.items.file import FILES, File
from gpunode.core.items.item import ABSENT, Found, HostCase, Item, ItemKey, Program, Question, StepKind, merged
from gpunode.core.late import dataclass
from gpunode.core.model import Check, DriverChoice, NodeFacts, Problem
from gpunode.core.remote import program
from gpunode.core.sharing.rules import mig_profiles
from gpunode.core.spec import Spec
from gpunode.core.validation import check_value, mapping

PROGRAM = "/usr/lib/gpunode/first-boot"
UNIT = "gpunode-firstboot.service"
UNIT_PATH = f"/etc/systemd/system/{UNIT}"
SCRIPTS = ("firstboot.sh", "activate.sh", "cdi.sh", "smoke.sh")  # node scripts that it is made of
SHAPE = mapping(
    "What a machine without its GPU does at the first boot with one.",
    activate=activation.SHAPE,
    cdi=cdi.SHAPE,
    smoke=smoke.SHAPE,
)
_REQUESTS = {"activate": activation.activate_request, "cdi": cdi.cdi_request, "smoke": smoke.smoke_files}
_HEAD = f"#!/bin/sh\n# Written by gpunode: {UNIT} runs it at the first boot with a GPU.\n"


def first_boot_program(value: Mapping[str, Any], scripts: Mapping[str, str]) -> bytes:
    """{activate, cdi, smoke}, each as its action takes it, and the texts of SCRIPTS → the program.

    Raises InputError.
    """
    check_value("first boot", value, SHAPE)
    parts = {
        key: program(scripts[f"{key}.sh"], request(value[key])).encode()
        for key, request in _REQUESTS.items()
        if value.get(key)
    }
    return (_HEAD + program(scripts["firstboot.sh"], parts)).encode()


@dataclass(frozen=True, kw_only=True)
class FirstBootProgram(Program):
    """What the first boot runs: once it has done its work, what it was is as good as what it would be today."""

    NAME = PROGRAM
    BACK = (FILES,)
    role: str = "driver"
    option: str = "first_boot"

    def actual(self, facts: NodeFacts) -> str:
        return self.wanted if facts.first_boot.status == "passed" else facts.first_boot.program or ABSENT


@dataclass(frozen=True, kw_only=True)
class Armed(Enabled):
    """The unit of the first boot: one that has done its work and is disabled since is as good as enabled."""

    role: str = "driver"
    unit: str = UNIT

    def actual(self, facts: NodeFacts) -> str:
        return self.wanted if facts.first_boot.status == "passed" else super().actual(facts)


def without_loading(items: Mapping[ItemKey, Item], driver: DriverChoice, question: Question) -> Iterator[Item]:
    """The items of a machine with its GPU → those of the same machine before.

    The first boot counts the GPUs itself.
    """
    case = HostCase(**vars(question), items=items, have=dict.fromkeys(items, ""), key_of=lambda _: b"")
    kept = [item for item in items.values() if item.role != "sharing"]
    yield from (item for item in kept if not item.first_boot)
    parts = {name: [item for item in kept if item.first_boot == name] for name in ("activate", "cdi")}
    services = [item.request(case).get("services", ()) for item in parts["activate"] if item.role == "fabric"]
    separate = [unit for units in services for unit in units]
    value = {
        name: merged(SHAPE.keys[name], {}, (item.request(case) for item in mine))
        for name, mine in parts.items()
        if mine
    }
    # no registry is needed at boot
    value["smoke"] = {**smoke.smoke_request(case.facts, case.spec, case.solution), "gpus": "found", "image": ""}
    yield File(role="driver", path=UNIT_PATH, text=question.templates["firstboot.service.j2"])
    text = first_boot_program(value, question.templates)
    yield FirstBootProgram(value=value, sha256=hashlib.sha256(text).hexdigest())  # as the probe has it of that there
    for unit in driver.services:
        yield Enabled(role="driver", unit=unit)
    yield Armed()
    for unit in separate:  # their packages come after the driver's
        yield Enabled(role="fabric", unit=unit)


STEP = StepKind(shape=SHAPE, action="first_boot", argument="first_boot")


def prepares(spec: Spec) -> bool:
    """Whether the spec is about GPUs that are still to come."""
    return bool(spec.image.gpus) or not spec.image.load


def wanted(question: Question) -> Found:
    """What contradicts itself about GPUs to come, and what is not done without the driver."""
    spec, here = question.spec, question.facts.gpus
    if spec.image.load:
        if spec.image.gpus and not here:
            yield Problem(
                what="the machine has no GPU, so the driver for the GPUs to come cannot be loaded",
                fix="add --no-load, or image.load: false in gpunode.yml: it is loaded and proven at the first boot",
            )
        return
    if not here and not spec.image.gpus:
        yield Problem(
            what="nothing is to be loaded, and it is not said for which GPU: the machine has none",
            fix="add --for-gpu 10de:…, or image.gpus in gpunode.yml",
        )
    if spec.driver.method == "runfile":
        yield Problem(
            what="a runfile's installer loads the driver that it has built, which it cannot without its GPU",
            fix="set driver.method to packages for machines that are prepared before their GPU is there",
        )
    if spec.sharing.mode.on_host or mig_profiles(spec.sharing):
        why = "GPUs are shared when the driver is loaded; gpunode provision does it then"
        yield f"sharing.strategy {spec.sharing.strategy}: {why}"


def prepared(facts: NodeFacts) -> bool:
    """Whether the machine still waits for its first boot with a GPU."""
    return facts.first_boot.armed and bool(facts.first_boot.program) and not facts.driver.loaded


def first_boot_checks(facts: NodeFacts) -> Iterator[Check]:
    """image.first-boot: what the first boot with a GPU has proven; nothing on other machines."""
    found = facts.first_boot
    if not found.program:
        return
    name = "image.first-boot"
    if found.status == "failed":
        stated = "; ".join(found.failed) or found.message
        text = f"the first boot with a GPU ({found.at}) did not prove the driver: {stated}"
        fix = f"journalctl -u {UNIT} on the node; it tries again at the next boot, or: systemctl start {UNIT}"
        yield Check(id=name, status="failed", message=text, fix=fix)
    elif found.armed:
        text = found.message if found.status == "waiting" else "it has not booted with a GPU since"
        fix = f"boot it on a machine with its GPU: {UNIT} loads and proves the driver"
        yield Check(id=name, status="not-proven", message=f"prepared, not proven: {text}", fix=fix)
    elif found.status == "passed":
        yield Check(id=name, status="passed", message=f"the first boot with a GPU ({found.at}): {found.message}")
    else:
        text = f"{PROGRAM} is there, and {UNIT} is not enabled: nothing proves the driver at the first boot"
        yield Check(id=name, status="warning", message=text, fix=f"systemctl enable {UNIT}, or gpunode provision")
