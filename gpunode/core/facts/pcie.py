"""PCIe between the devices that count: bridges, links, and what stands between two of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations

from gpunode.core.late import dataclass
from gpunode.core.model import NodeFacts, PciLink
from gpunode.core.model.node import CONTAINERS

REDIRECT = 0x2C  # of the ACS control word: P2P request and completion redirect, egress control


@dataclass(frozen=True, kw_only=True)
class PcieTree:
    """PCIe as it is on bare metal; without bridges in a guest, which sees those of its hypervisor."""

    bare: bool
    links: Mapping[str, PciLink]

    @classmethod
    def of(cls, facts: NodeFacts) -> PcieTree:
        bare = facts.virtualization in ("none", *CONTAINERS)
        return cls(bare=bare, links={link.slot: link for link in facts.pcie} if bare else {})

    def above(self, slot: str) -> PciLink | None:
        link = self.links.get(slot)
        return self.links.get(link.parent) if link else None

    def path(self, slot: str) -> list[str]:
        """The bridges above it, the nearest first."""
        found: list[str] = []
        while (bridge := self.above(slot)) and bridge.slot not in found:
            found.append(bridge.slot)
            slot = bridge.slot
        return found

    def cables(self) -> Iterator[tuple[PciLink, PciLink]]:
        """(function, port above it) of each link: a downstream port and the upstream port above it share none."""
        parents = {link.parent for link in self.links.values()}
        seen = set()
        for slot in self.links:
            if slot in parents:
                continue
            ways = [slot, *self.path(slot)]
            for below, above in zip(ways[::2], ways[1::2], strict=False):
                if below not in seen:
                    seen.add(below)
                    yield self.links[below], self.links[above]

    def peers(self, facts: NodeFacts) -> list[str]:
        """The slots of GPUs and RDMA devices."""
        devices = [gpu.slot for gpu in facts.gpus if not gpu.virtual_function]
        return devices + [slot for slot in dict.fromkeys(port.slot for port in facts.rdma) if slot in self.links]

    def between(self, facts: NodeFacts) -> dict[str, None]:
        """The bridges between two of the peers that are behind the same PCIe switch."""
        found: dict[str, None] = {}
        for one, other in combinations(self.peers(facts), 2):
            mine, theirs = self.path(one), self.path(other)
            if shared := next((slot for slot in mine if slot in theirs), ""):
                found |= dict.fromkeys([*mine[: mine.index(shared)], *theirs[: theirs.index(shared)]])
        return found


def redirects(acs: str) -> bool:
    """Whether a bridge with that control word sends what passes between two devices up to the CPU."""
    return acs.startswith("0x") and bool(int(acs, 16) & REDIRECT)
