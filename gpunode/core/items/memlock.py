"""What the processes of engines and the kubelet may lock: a drop-in for each unit, in force once it was restarted."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Any

from gpunode.core.items.file import FILES, File
from gpunode.core.items.item import Found, HostCase, Item, Question
from gpunode.core.late import dataclass
from gpunode.core.model import NodeFacts
from gpunode.core.model.node import CONTAINERS

_NAME = "90-gpunode-memlock.conf"
_TEXT = "# written by gpunode: RDMA locks the memory that it uses\n[Service]\nLimitMEMLOCK=infinity\n"


@dataclass(frozen=True, kw_only=True)
class Memlock(Item):
    """The limit of a unit's processes."""

    NAME = "memlock of {unit}"
    BACK = (FILES,)  # from the unit's next start on
    WANTED = "infinity"
    role: str = "runtime"
    option: str = "activate"
    unit: str

    def actual(self, facts: NodeFacts) -> str:
        service = facts.service(self.unit)
        if not service:
            return "not read"
        container = facts.virtualization in CONTAINERS  # which may not be allowed to raise it: systemd's word has to do
        return (service.locked if not container else "") or service.memlock or "not read"

    def disrupts(self, case: HostCase) -> str:
        """A restart of Docker ends its containers, unless it keeps them (live-restore)."""
        docker = case.facts.containers.get("docker") if self.unit == "docker.service" else None
        ends = docker and docker.count != 0 and not docker.live_restore
        return "restarts docker: its containers end" if ends else ""

    def request(self, case: HostCase) -> Mapping[str, Any]:
        return {"restart": [self.unit]}


def wanted(question: Question) -> Found:
    """A drop-in for each unit; those of units that are no longer asked for go."""
    tuning, facts = question.solution.tuning, question.facts
    for unit in tuning.memlock:
        yield File(role="runtime", path=f"/etc/systemd/system/{unit}.d/{_NAME}", text=_TEXT)
        yield Memlock(unit=unit)
    for path in facts.files:
        unit = posixpath.basename(posixpath.dirname(path)).removesuffix(".d")
        if posixpath.basename(path) == _NAME and unit not in tuning.memlock:
            yield File(role="runtime", path=path, text=None)
