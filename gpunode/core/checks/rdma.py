"""Ports of InfiniBand and RoCE, judged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from gpunode.core.model import Check, NodeFacts, RdmaPort


def port_checks(facts: NodeFacts) -> Iterator[Check]:
    """rdma.port: a port with a cable and no subnet manager fails; one without a cable counts only where others work."""
    if not facts.rdma:
        return
    fix = "ibstat; cables, switch, and for InfiniBand the subnet manager"
    unread = [_port(one) for one in facts.rdma if not one.state or (one.state == "ACTIVE" and not one.rate)]
    bad = [f"{_port(p)} is {p.state} with a cable" for p in facts.rdma if p.state not in ("", "ACTIVE", "DOWN")]
    kinds = {link.slot: (link.max_speed, link.max_width) for link in facts.pcie}
    active = [one for one in facts.rdma if one.state == "ACTIVE" and one.rate]
    for kind in dict.fromkeys((kinds.get(one.slot), one.layer) for one in active):
        alike = [one for one in active if (kinds.get(one.slot), one.layer) == kind]
        most, count = Counter(one.rate for one in alike).most_common(1)[0]
        if count * 2 > len(alike):
            bad += [f"{_port(o)} runs at {o.rate} Gb/s, others at {most}" for o in alike if float(o.rate) < float(most)]
    down = [_port(one) for one in facts.rdma if one.state == "DOWN"]
    if bad:
        yield Check(id="rdma.port", status="failed", message="; ".join(bad), fix=fix)
    elif unread:
        yield Check(id="rdma.port", status="not-proven", message=f"not read: {', '.join(unread)}", fix=fix)
    elif down:
        text = f"down: {', '.join(down)}; {len(active)} active"
        yield Check(id="rdma.port", status="warning" if active else "skipped", message=text, fix=fix if active else "")
    else:
        rates = Counter(f"{one.rate} Gb/s {one.layer}".strip() for one in active)
        text = ", ".join(f"{count} × {rate}" for rate, count in rates.items())
        yield Check(id="rdma.port", status="passed", message=f"RDMA ports active: {text}")


def _port(port: RdmaPort) -> str:
    return f"{port.device} port {port.port}"
