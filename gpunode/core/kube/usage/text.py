"""Usage as tables, in the layout of `kubectl inspect gpushare`, and as plain data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from gpunode.core.kube.usage import Kind, NodeUse, Usage, Use

_TITLES: dict[Kind, str] = {
    "gpu": "GPUs",
    "slices": "Shares of GPUs",
    "mig": "MIG instances",
    "gpushare": "GPU Memory",
    "dra": "GPUs by DRA",
}
Row = list[str]
_LONGEST = 320  # characters: a resource's name has at most 253 + 1 + 63


def usage_text(found: Usage, *, details: bool = False) -> str:
    """A table for each kind of sharing; with details what each pod holds, node by node."""
    parts = []
    for kind in _TITLES:
        rows = [(node, use) for node in found.nodes for use in node.uses if use.kind == kind]
        if rows:
            parts.append("\n".join(_details(kind, rows) if details else _summary(kind, rows)))
    if found.waiting:
        parts.append("\n".join(_waiting(found)))
    if found.errors:
        parts.append("\n".join(["Not read, and missing above:", *(f"  {error}" for error in found.errors)]))
    return "\n\n".join(parts) + "\n" if parts else "no node offers GPUs\n"


def usage_data(found: Usage) -> dict[str, Any]:
    """The shape of `gpunode kube status --format json` (docs/kubernetes.md)."""
    totals: dict[tuple[str, str, str], list[int]] = {}
    for node in found.nodes:
        for use in node.uses:
            total = totals.setdefault((use.kind, use.resource, use.unit), [0, 0])
            total[0] += use.allocated
            total[1] += use.total
    return {
        "nodes": [asdict(node) for node in found.nodes],
        "waiting": [asdict(pod) for pod in found.waiting],
        "errors": list(found.errors),
        "cluster": [
            {"kind": kind, "resource": resource, "unit": unit, "allocated": allocated, "total": total}
            for (kind, resource, unit), (allocated, total) in sorted(totals.items())
        ],
    }


def columns(rows: Sequence[Row]) -> Iterator[str]:
    """Rows padded to columns with two blanks between them; a cell that is longer than any name may be is cut."""
    rows = [[cell if len(cell) <= _LONGEST else f"{cell[: _LONGEST - 1]}…" for cell in row] for row in rows]
    count = max(map(len, rows))
    widths = [max((len(row[i]) for row in rows if i < len(row)), default=0) for i in range(count)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip()


def _summary(kind: Kind, rows: Sequence[tuple[NodeUse, Use]]) -> Iterator[str]:
    unit = f"({_units(rows)})" if _units(rows) else ""
    single = kind in ("gpushare", "dra")
    gpus = max(len(use.gpus) for _, use in rows) if single else 0
    pending = any(use.pending for _, use in rows)
    named = kind in ("mig", "dra") or any(use.resource != rows[0][1].resource for _, use in rows)
    head = ["NAME", "IPADDRESS", *(["RESOURCE"] if named else [])]
    head += ["PER GPU"] if kind == "slices" else []
    head += [f"GPU{i}(Allocated/Total)" for i in range(gpus)]
    head += ["PENDING(Allocated)"] if pending else []
    head += [f"{_TITLES[kind]}{unit}" if single else f"{_TITLES[kind]}(Allocated/Total)"]
    table = [head]
    for node, use in rows:
        off = "" if node.state == "Ready" else f"  {node.state}"
        row = [node.name, node.address, *([use.resource] if named else [])]
        row += [str(use.replicas)] if kind == "slices" else []
        row += [f"{g.allocated}/{g.total}" for g in use.gpus] if single else []
        row += ["-"] * (gpus - len(use.gpus)) if single else []
        row += [str(use.pending)] if pending else []
        table.append([*row, f"{use.allocated}/{use.total}{off}"])
    lines = list(columns(table))
    yield from lines
    yield "-" * max(map(len, lines))
    yield from _total(kind, rows)


def _total(kind: Kind, rows: Sequence[tuple[NodeUse, Use]]) -> Iterator[str]:
    allocated, total = sum(use.allocated for _, use in rows), sum(use.total for _, use in rows)
    yield f"Allocated/Total {_TITLES[kind]} In Cluster:"
    yield f"{allocated}/{total} ({100 * allocated // total if total else 0}%)"


def _details(kind: Kind, rows: Sequence[tuple[NodeUse, Use]]) -> Iterator[str]:
    for node, use in rows:
        product = [["PRODUCT:", node.product]] if node.product else []
        yield from columns([["NAME:", node.name], ["IPADDRESS:", node.address], ["RESOURCE:", use.resource], *product])
        yield ""
        names = [gpu.name for gpu in use.gpus]
        head = ["NAME", "NAMESPACE", *(f"{'GPU' if kind == 'gpushare' else ''}{name}(Allocated)" for name in names)]
        head += ["Pending(Allocated)"] if use.pending else []
        head += [] if names else ["Allocated"]
        table = [head]
        for pod in use.pods:
            row = [pod.name, pod.namespace, *(str(pod.gpus.get(name, 0)) for name in names)]
            row += [str(0 if pod.gpus else pod.amount)] if use.pending else []
            table.append([*row, *([] if names else [str(pod.amount)])])
        lines = list(columns(table))
        yield from lines
        percent = 100 * use.allocated // use.total if use.total else 0
        yield f"Allocated : {use.allocated} ({percent}%)"
        yield f"Total :     {use.total}"
        yield "-" * max(map(len, lines))
    yield from _total(kind, rows)


def _units(rows: Sequence[tuple[NodeUse, Use]]) -> str:
    return "/".join(dict.fromkeys(use.unit for _, use in rows if use.unit))


def _waiting(found: Usage) -> Iterator[str]:
    yield f"Waiting for GPUs: {len(found.waiting)} pods"
    table = [["NAME", "NAMESPACE", "ASKS FOR", "WHY"]]
    for pod in found.waiting:
        asks = ", ".join(f"{count} {name}" for name, count in pod.asks.items())
        table.append([pod.name, pod.namespace, asks, pod.why])
    yield from columns(table)
