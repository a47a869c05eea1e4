"""Plans and results as plain data (JSON) and as plain text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from gpunode.core.errors import Exit
from gpunode.core.model import Check, HostResult, Plan, Reason, Step

PLAN_FORMAT = 1
MANY = 40  # hosts, from which on they are counted, not told one by one (report_fleet.py)


def plan_data(plan: Plan) -> dict[str, Any]:
    """A plan as JSON data.  Holds hashes and masked diffs, no whole files."""
    return {
        "host": plan.host,
        "converged": plan.converged,
        "steps": [asdict(s) | {"id": s.id} for s in plan.steps],
        "problems": [asdict(p) for p in plan.problems],
        "reasons": [asdict(r) for r in plan.reasons],
        "warnings": list(plan.warnings),
        "facts_hash": plan.facts_hash,
        "files": dict(plan.files),
    }


def plan_text(plan: Plan, *, diff: bool = False) -> str:
    """A plan for people: steps with their reasons, diffs when asked, and what the numbers in brackets stand for."""
    sources: dict[str, int] = {}
    lines = [f"{plan.host}: {_headline(plan)}"]
    lines += [f"  warning: {w}" for w in plan.warnings]
    for problem in plan.problems:
        lines += [f"  problem: {problem.what}", f"      fix: {problem.fix}"]
    if plan.steps:
        lines += ["  because:", *(f"    {_reason_line(r, sources)}" for r in plan.reasons)]
    for number, step in enumerate(plan.steps, 1):
        lines += _step_lines(number, step, diff, sources)
    if sources:
        lines += ["  sources:", *(f"    [{number}] {source}" for source, number in sources.items())]
    return "\n".join(lines)


def results_data(results: Iterable[HostResult]) -> list[dict[str, Any]]:
    """Results as JSON data, with the exit code of each; `extra` has what only some verbs know of a host."""
    return [_result_data(result) for result in results]


def _result_data(result: HostResult) -> dict[str, Any]:
    extra: dict[str, Any] = {"notes": list(result.notes)} if result.notes else {}
    extra |= {"diffs": list(result.diffs)} if result.diffs else {}
    extra |= {"run": result.run} if result.run else {}
    extra |= {"left": True} if not result.started else {}
    extra |= {} if result.seconds is None else {"seconds": result.seconds}
    extra |= {"since": result.since, "same": bool(result.unchanged_since)} if result.since else {}
    return {
        "host": result.host,
        "exit": int(Exit.of(result.outcome)),
        "message": result.message,
        "changed": list(result.changed),
        "checks": [asdict(check) for check in result.checks],
        "extra": extra,
    }


def checks_text(checks: Iterable[Check]) -> str:
    marks: Mapping[str, str] = {"passed": "ok", "failed": "FAILED", "warning": "warning"}
    lines = []
    for check in checks:
        lines.append(f"  {marks.get(check.status, check.status):<10} {check.id:<28} {check.message}")
        if check.fix and check.status in ("failed", "warning", "not-proven"):
            lines.append(f"  {'':<10} {'':<28} do next: {check.fix}")
    return "\n".join(lines)


def _headline(plan: Plan) -> str:
    if plan.problems:
        return f"refused, {len(plan.problems)} problem{'s' if len(plan.problems) > 1 else ''}"
    if plan.steps:
        return f"{len(plan.steps)} step{'s' if len(plan.steps) > 1 else ''} to do"
    return "nothing to do"


def _reason_line(reason: Reason, sources: dict[str, int]) -> str:
    """A reason with the numbers of its sources, which are added to `sources` at their first use."""
    cited = [sources.setdefault(source, len(sources) + 1) for source in filter(None, reason.source.split("; "))]
    return f"{reason.what}: {reason.why}" + (f" [{', '.join(map(str, cited))}]" if cited else "")


def _step_lines(number: int, step: Step, diff: bool, sources: dict[str, int]) -> list[str]:
    lines = [f"  {number:>2}. {step.title}  ({step.id})"]
    lines += [f"        {_reason_line(r, sources)}" for r in step.reasons]
    if step.disruptive:
        lines.append(f"        disturbs: {step.disruptive}")
    if diff and step.diff:
        lines += [f"        {line}" for line in step.diff.splitlines()]
    return lines
