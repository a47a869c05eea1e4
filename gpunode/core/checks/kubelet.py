"""The kubelet's engine, and whether both have the same cgroup driver."""

from __future__ import annotations

from collections.abc import Iterator

from gpunode.core.facts.kubelet import engine_driver, kubelet_driver, kubelet_engine
from gpunode.core.items.kubelet import driver_mismatch
from gpunode.core.model import Check, NodeFacts


def kubelet_checks(facts: NodeFacts) -> Iterator[Check]:
    """The checks of verify that concern the kubelet: its engine, and the cgroup drivers."""
    kubernetes, engine = facts.kubernetes, kubelet_engine(facts)
    if not kubernetes.present:
        return
    if engine is None:
        yield Check(
            id="kubelet.engine",
            status="warning",
            message=f"the kubelet's socket {kubernetes.cri_socket or '(unknown)'} belongs to no engine that was found",
            fix="systemctl status kubelet; is that engine installed?",
        )
        return
    kubelet, own = kubelet_driver(facts), engine_driver(facts, engine)
    if sentence := driver_mismatch(facts):
        fix = f"gpunode provision gives {engine.name} the kubelet's (cgroup_driver: auto)"
        yield Check(
            id="cgroup.driver-match", status="failed", message=f"{sentence}: pods do not start, or are killed", fix=fix
        )
    elif not kubelet.value or not own.value:
        why = "; ".join(driver.source for driver in (kubelet, own) if not driver.value)
        yield Check(id="cgroup.driver-match", status="not-proven", message=why, fix="probe as root")
    else:
        yield Check(
            id="cgroup.driver-match",
            status="passed",
            message=f"kubelet ({kubelet.source}) and {engine.name} ({own.source}) both have {own.value}",
        )
