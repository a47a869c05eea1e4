"""Container engines that are to run, and do not: nothing on the node starts them again before the next boot."""

from __future__ import annotations

from collections.abc import Iterator

from gpunode.core.model import Check, NodeFacts, Runtime


def stopped(runtime: Runtime) -> bool:
    """Whether systemd starts the engine at boot, and it does not run now."""
    return bool(
        runtime.unit.endswith(".service") and runtime.enabled and not runtime.active and not runtime.distribution
    )


def how_stopped(facts: NodeFacts, runtime: Runtime) -> str:
    """In words: «docker.service is enabled and does not run (failed)»."""
    service = facts.services.get(runtime.unit.removesuffix(".service"))
    failed = " (failed)" if service and service.active == "failed" else ""
    return f"{runtime.unit} is enabled and does not run{failed}"


def engine_checks(facts: NodeFacts) -> Iterator[Check]:
    for runtime in filter(stopped, facts.runtimes):
        fix = f"systemctl start {runtime.unit}; journalctl -u {runtime.unit} says why it does not run"
        yield Check(id="engine.stopped", status="warning", message=how_stopped(facts, runtime), fix=fix)
