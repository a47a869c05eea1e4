"""What `tuning` of gpunode.yml sets, with the evidence for it (knowledge/tuning.toml)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpunode.core.late import dataclass


@dataclass(frozen=True, kw_only=True)
class TuningSetting:
    """A setting: `set` by architecture (`all`: of every one), why it helps and what it can break."""

    key: str
    set: Mapping[str, str]
    kind: str  # argument (of the kernel's command line), sysctl, acs, governor, memlock, module
    evidence: str  # measured, vendor, general
    why: str
    warning: str
    source: str
    only: str = ""  # grace: on NVIDIA's CPUs alone

    def words(self, arch: str) -> tuple[str, ...]:
        """What is set on that architecture; () where it has none."""
        return tuple(self.set.get(arch, self.set.get("all", "")).split())


def parse_tuning(table: Mapping[str, Any]) -> tuple[TuningSetting, ...]:
    """The parsed file → rows; short source keys become the text they stand for."""
    sources = table["sources"]
    return tuple(TuningSetting(**{**row, "source": sources[row["source"]]}) for row in table["settings"])
