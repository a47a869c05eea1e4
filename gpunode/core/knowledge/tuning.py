"""What `tuning` of gpunode.yml sets, with the evidence for it (knowledge/tuning.toml)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


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


@dataclass(frozen=True, kw_only=True)
class RecipeTuning:
    """What NVIDIA's own profiles set for an accelerator and an intent of an AICR recipe, with the keys of `tuning`."""

    accelerators: Sequence[str]
    tuning: Mapping[str, Any]
    source: str
    intents: Sequence[str] = ()  # of every one

    def fits(self, accelerator: str, intent: str) -> bool:
        """Whether it counts for a recipe."""
        return accelerator in self.accelerators and (not self.intents or intent in self.intents)


def parse_recipe_tunings(table: Mapping[str, Any]) -> tuple[RecipeTuning, ...]:
    """The parsed file → its rows for recipes."""
    sources = table["sources"]
    return tuple(RecipeTuning(**{**row, "source": sources[row["source"]]}) for row in table["recipes"])


def parse_tuning(table: Mapping[str, Any]) -> tuple[TuningSetting, ...]:
    """The parsed file → rows; short source keys become the text they stand for."""
    sources = table["sources"]
    return tuple(TuningSetting(**{**row, "source": sources[row["source"]]}) for row in table["settings"])
