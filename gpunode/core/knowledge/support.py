"""Versions of other programs: which are refused as too old, and which nobody has tried yet (knowledge/support.toml)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from gpunode.core.errors import RefusedError
from gpunode.core.late import dataclass
from gpunode.core.model import NodeFacts, Problem
from gpunode.core.numbers import release


@dataclass(frozen=True, kw_only=True)
class Support:
    """A program's oldest version, the newest that was tried, and when its vendor's support of the oldest ended."""

    program: str
    oldest: str
    newest: str
    ended: str  # "" where the vendor publishes no day
    source: str


def parse_support(table: Mapping[str, Any]) -> Mapping[str, Support]:
    """The parsed file → rows by program; short source keys become the text they stand for."""
    sources = table["sources"]
    return {row["program"]: Support(**{**row, "source": sources[row["source"]]}) for row in table["programs"]}


def too_old(program: str, version: str, support: Mapping[str, Support]) -> Problem | None:
    """The refusal of a version below the oldest; None for others, unknown ones among them."""
    row = support.get(program)
    if row is None or not (0, 0) < release(version) < release(row.oldest):
        return None
    ended = f", whose vendor ended its support on {row.ended}" if row.ended else ""
    return Problem(
        what=f"{program} {version} is older than {row.oldest}, the oldest that gpunode supports{ended}",
        fix=f"update {program}: gpunode was tried with {row.oldest} to {row.newest}",
    )


def refuse_old(program: str, version: str, support: Mapping[str, Support]) -> None:
    """Raise RefusedError for a version below the oldest."""
    if old := too_old(program, version, support):
        raise RefusedError(old.what, fix=old.fix)


def untried(program: str, version: str, support: Mapping[str, Support]) -> str:
    """The warning of a version above the newest that was tried, "" for others."""
    row = support.get(program)
    if row is None or release(version) <= release(row.newest):
        return ""
    return f"{program} {version} is newer than {row.newest}, the newest that gpunode was tried with"


def programs_of(facts: NodeFacts, engines: Collection[str]) -> Iterator[tuple[str, str]]:
    """Program and version of the engines that are managed on a node, and of the Kubernetes there."""
    managed = [runtime for runtime in facts.runtimes if runtime.name in engines]
    yield from ((runtime.name, runtime.version) for runtime in managed if not runtime.distribution)
    if managed and facts.kubernetes.kubelet:
        kind = facts.kubernetes.kind
        yield kind if kind in ("k3s", "rke2") else "kubernetes", facts.kubernetes.kubelet
