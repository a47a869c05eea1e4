"""Machines prepared without their GPU: what runs at the first boot with one, and what verify says of it.

The program is one text, left on the node by the action `first_boot` and run there by a systemd unit; it needs neither
a controller nor Python.  Format of the record that it writes: node/activate/firstboot.sh.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

from gpunode.core.items import activation, cdi, smoke
from gpunode.core.model import Check, NodeFacts
from gpunode.core.remote import program
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


def program_hash(value: Mapping[str, Any], scripts: Mapping[str, str]) -> str:
    """sha256 (hex) of the program, as the probe has it of the one on the node."""
    return hashlib.sha256(first_boot_program(value, scripts)).hexdigest()


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
        said = "; ".join(found.failed) or found.message
        text = f"the first boot with a GPU ({found.at}) did not prove the driver: {said}"
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
