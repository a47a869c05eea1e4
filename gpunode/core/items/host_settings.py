"""Frequency governor and ACS of bridges: a unit that sets them at every boot, and undoes it when it stops."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gpunode.core.facts.pcie import redirects
from gpunode.core.items.activation import ACTIVE, ServiceItem, restarted
from gpunode.core.items.file import File
from gpunode.core.items.item import Found, HostCase, Item, Question
from gpunode.core.late import dataclass
from gpunode.core.model import NodeFacts, TuningChoice

UNIT = "gpunode-host.service"
UNIT_FILE = f"/etc/systemd/system/{UNIT}"
PROGRAM = "/usr/lib/gpunode/host-settings"
VALUES = "/etc/gpunode/host-settings"


@dataclass(frozen=True, kw_only=True)
class _ByUnit(Item):
    """What the unit sets when it starts, and undoes when it stops."""

    BACK = (ACTIVE,)
    role: str = "fabric"
    option: str = "activate"

    def request(self, case: HostCase) -> Mapping[str, Any]:
        return restarted(case, self.role, UNIT) if case.pending(self) else {}


@dataclass(frozen=True, kw_only=True)
class Governor(_ByUnit):
    """The frequency governor of all CPUs."""

    NAME = "frequency governor"
    ASKED_BY = "tuning"
    WANTED = "{governor}"
    governor: str

    def actual(self, facts: NodeFacts) -> str:
        return ", ".join(sorted(facts.tuning.governors))


@dataclass(frozen=True, kw_only=True)
class Acs(_ByUnit):
    """A bridge that does not send what two devices say to each other up to the CPU."""

    NAME = "ACS of {slot}"
    WANTED = "no redirect"
    slot: str

    def actual(self, facts: NodeFacts) -> str:
        acs = next((link.acs for link in facts.pcie if link.slot == self.slot), "")
        return "redirects" if redirects(acs) else self.wanted


def wanted(question: Question) -> Found:
    """The unit and what it sets; without any of it in the spec a unit that is there is left with nothing to set."""
    tuning = question.solution.tuning
    settings = list(_settings(tuning))
    if not settings and VALUES not in question.facts.files:
        return
    lines = [*([f"governor {tuning.governor}"] if tuning.governor else []), *(f"acs {slot}" for slot in tuning.acs)]
    yield File(role="fabric", path=PROGRAM, text=question.templates["host-settings.sh.j2"], mode="0755")
    yield File(role="fabric", path=VALUES, text="# written by gpunode\n" + "".join(f"{line}\n" for line in lines))
    yield File(role="fabric", path=UNIT_FILE, text=question.templates["host.service.j2"])
    yield ServiceItem(role="fabric", unit=UNIT, reads=(PROGRAM, VALUES))
    yield from settings


def _settings(tuning: TuningChoice) -> Iterator[Item]:
    if tuning.governor:
        yield Governor(governor=tuning.governor)
    yield from (Acs(slot=slot) for slot in tuning.acs)
