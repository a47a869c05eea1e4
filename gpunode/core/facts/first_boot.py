"""The section about the first boot of a prepared machine → value."""

from __future__ import annotations

from gpunode.core.facts.text import Probe
from gpunode.core.model import FirstBoot


def read_first_boot(probe: Probe) -> FirstBoot:
    """The hash of the program, whether its unit is enabled, and the last record (node/activate/firstboot.sh).

    What an earlier program has proven says nothing of the one that is there now.
    """
    name = "first_boot"
    program, armed = probe.value(name, "program"), probe.value(name, "unit") == "enabled"
    if probe.value(name, "ran") != program:
        return FirstBoot(program=program, armed=armed)
    checks = [text.split("|") for text in probe.values(name, "check")]
    return FirstBoot(
        program=program,
        armed=armed,
        status=probe.value(name, "status"),
        at=probe.value(name, "at"),
        message=probe.value(name, "message"),
        failed=tuple(f"{cells[0]}: {cells[2]}" for cells in checks if len(cells) > 2 and cells[1] == "failed"),
    )
