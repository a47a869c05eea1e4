"""What a plan says of hosts that are nodes of a cluster: which are drained first, and what a drain would meet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpunode.core.errors import GpunodeError, error_data
from gpunode.core.late import dataclass
from gpunode.core.printable import counted, names


@dataclass(frozen=True, kw_only=True)
class DrainPreview:
    """A host, the node that it is, and what the drain of it would do now.

    `refuses` is why the drain would not begin, `waits` what a disruption budget refuses for now; `error` is why nothing
    of it can be known: no cluster, no rights, no package.
    """

    host: str
    node: str = ""
    evicts: tuple[str, ...] = ()
    refuses: tuple[str, ...] = ()
    waits: tuple[str, ...] = ()
    error: GpunodeError | None = None


def drains_text(previews: Sequence[DrainPreview]) -> str:
    """A few lines a host; hosts of which nothing is known for the same cause together."""
    lines = ["Drained before they are changed:"]
    causes: dict[str, list[str]] = {}
    for one in previews:
        if one.error:
            causes.setdefault(str(one.error), []).append(one.host)
            continue
        of = "" if one.node == one.host else f" (node {one.node})"
        pods = f"{counted(len(one.evicts), 'pod')} evicted: {names(one.evicts)}" if one.evicts else "no pod to evict"
        lines.append(f"  {one.host}{of}: {pods}")
        lines += [f"    waits: {text}" for text in one.waits]
        lines += [f"    refused now: {text}" for text in one.refuses]
    lines += [f"  {names(hosts)}: not started as things are: {cause}" for cause, hosts in causes.items()]
    return "\n".join(lines)


def drain_data(preview: DrainPreview) -> dict[str, Any]:
    """The preview as JSON data, without its host."""
    found = {"node": preview.node, "evicts": preview.evicts, "refuses": preview.refuses, "waits": preview.waits}
    return {**found, "error": preview.error and error_data(preview.error)}
