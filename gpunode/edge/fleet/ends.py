"""What provision says of a host at its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpunode.core.checks.gpus import unfit_checks
from gpunode.core.checks.health import Expected, presence_checks
from gpunode.core.items.first_boot import prepares
from gpunode.core.model import Check, HostResult, Plan, Step
from gpunode.core.printable import counted
from gpunode.core.report.text import news
from gpunode.edge.ansible.runner import HostRun
from gpunode.edge.fleet.executor import NEVER_REACHED
from gpunode.edge.fleet.host_plan import HostPlan


def untouched(host: HostPlan, expected: Expected | None) -> HostResult:
    """A host that nothing is to be done on, or nothing can be."""
    if host.error:
        return host.error.of_host(host.host)
    assert host.plan
    if problems := host.plan.problems:
        return _with_fixes(HostResult(host=host.host, outcome="refused"), [(p.what, p.fix) for p in problems])
    result = _with_gpus(HostResult(host=host.host), host, expected)
    return replace(result, message="; ".join(("nothing to do", *host.plan.warnings))) if result.ok else result


def ran(host: str, run: HostRun | None) -> HostResult:
    """What Ansible says of a host, where there is nothing more to ask."""
    if run is None:
        return HostResult(host=host, outcome="failed", message=NEVER_REACHED)
    return HostResult(
        host=host, outcome=run.exit.outcome, message=run.message, fix=run.fix, changed=tuple(run.changed),
        checks=tuple(Check(**c) for c in run.checks), diffs=tuple(run.diffs),
    )  # fmt: skip


def would(result: HostResult, what: str) -> HostResult:
    """The result of check mode, which is pending where it went well."""
    return replace(result, outcome="pending", message=f"would {what}") if result.ok else result


def settled(host: str, run: HostRun, before: Plan, after: HostPlan, expected: Expected | None) -> HostResult:
    """The result of a good play, by the probe after it: the plan must be empty; what is left is named, and pending."""
    result = ran(host, run)
    failed = [c.id for c in result.checks if c.status == "failed"]
    if failed:
        return replace(result, outcome="failed", message=f"done, but these checks failed: {', '.join(failed)}")
    if after.plan is None:
        return replace(result, outcome="failed", message=f"done, but probing again failed: {after.error}")
    left = [_left(s) for s in after.plan.steps if s.role not in ("preflight", "verify")]
    left += [p.what for p in after.plan.problems]
    if left:
        return replace(result, outcome="pending", message=f"done, but still to do: {'; '.join(left)}")
    steps = [step.title in run.changing for step in news(before)]
    rest = "" if all(steps) else " (the rest had nothing to do)"
    applied = f"{counted(sum(steps), 'step')} applied{rest}, nothing pending" if any(steps) else "nothing to do"
    return _with_gpus(replace(result, message=applied), after, expected)


def _left(step: Step) -> str:
    """A step that a good play leaves to be done, and what of it is not as it should be."""
    return f"{step.title} ({step.reasons[0].why})" if step.reasons else step.title


def accepted(result: HostResult, measured: HostResult) -> HostResult:
    """A result with what was measured: what failed is a failed host; what is not proven is said, and holds no node."""
    ids = {check.id for check in result.checks}
    more = tuple(check for check in measured.checks if check.id not in ids or check.status == "failed")
    result = replace(result, checks=(*result.checks, *more))
    if failed := [f"{check.id}: {check.message}" for check in measured.checks if check.status == "failed"]:
        return replace(result, outcome="failed", message=f"{result.message}, but not accepted: {'; '.join(failed)}")
    unproven = [check for check in measured.checks if check.status == "not-proven"]
    if measured.outcome == "refused" or not any(check.id.startswith("accept.") for check in measured.checks):
        text = f"not measured: {unproven[-1].message if unproven else measured.message}"
    else:
        text = f"accepted, not proven: {', '.join(check.id for check in unproven)}" if unproven else "accepted"
    return replace(result, message=f"{result.message}; {text}")


def _with_gpus(result: HostResult, host: HostPlan, expected: Expected | None) -> HostResult:
    """The result, unless GPUs are missing or cannot be used: failed, or pending for a machine that has none."""
    if host.planned is None or prepares(host.planned.spec):
        return result
    facts = host.planned.facts
    present = presence_checks(facts, expected) if expected else []
    missing = [check for check in (*present, *unfit_checks(facts)) if check.status in ("failed", "pending")]
    if not missing:
        return result
    no_gpu = all(check.status == "pending" for check in missing)
    found = [(check.message, check.fix) for check in missing]
    return _with_fixes(replace(result, outcome="pending" if no_gpu else "failed", no_gpu=no_gpu), found)


def _with_fixes(result: HostResult, found: Sequence[tuple[str, str]]) -> HostResult:
    """The result with what was found behind its message, and what to do about all of it."""
    message = "; ".join(filter(None, (result.message, *(what for what, _ in found))))
    return replace(result, message=message, fix="; ".join(dict.fromkeys(fix for _, fix in found)))
