"""Plans and results as plain data (JSON) and as plain text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from gpunode.core.errors import Exit
from gpunode.core.model import Check, CudaChoice, HostResult, PackageWant, Plan, Solution, Step, ToolkitChoice

PLAN_FORMAT = 1


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


def plan_exit(plan: Plan) -> Exit:
    if plan.problems:
        return Exit.REFUSED
    return Exit.PENDING if plan.steps else Exit.OK


def plan_text(plan: Plan, *, diff: bool = False) -> str:
    """A plan for people: steps with their reasons, then diffs when asked."""
    lines = [f"{plan.host}: {_headline(plan)}"]
    lines += [f"  warning: {w}" for w in plan.warnings]
    for problem in plan.problems:
        lines += [f"  problem: {problem.what}", f"      fix: {problem.fix}"]
    if plan.steps:
        lines += ["  because:"] + [
            f"    {r.what}: {r.why}" + (f"  [{r.source}]" if r.source else "") for r in plan.reasons
        ]
    for number, step in enumerate(plan.steps, 1):
        lines += _step_lines(number, step, diff)
    return "\n".join(lines)


def solution_data(solution: Solution) -> dict[str, Any]:
    """A solution as JSON data: each part with its packages as NAME or NAME=VERSION, or null."""
    driver, cuda, toolkit = solution.driver, solution.cuda, solution.toolkit
    return {
        "driver": driver
        and {
            "branch": driver.branch,
            "flavour": driver.flavour,
            "version": driver.version,
            "method": driver.method,
            "packages": [_package_words(p) for p in (*driver.kernel_packages, *driver.packages)],
            "repository": driver.repository,
        },
        "cuda": cuda and _part_data(cuda),
        "toolkit": toolkit and _part_data(toolkit),
        "reasons": [asdict(r) for r in solution.reasons],
        "problems": [asdict(p) for p in solution.problems],
    }


def solution_text(solution: Solution) -> str:
    """A solution for people."""
    data = solution_data(solution)
    lines = []
    for name in ("driver", "cuda", "toolkit"):
        part = data[name]
        if part is None:
            continue
        title = f"branch {part['branch']} {part['flavour']}" if name == "driver" else part["version"]
        lines.append(
            f"{name:<9} {title}, from {part['repository'] or 'the distribution'}: {' '.join(part['packages'])}"
        )
    lines += [f"because   {r.what}: {r.why}" + (f"  [{r.source}]" if r.source else "") for r in solution.reasons]
    for problem in solution.problems:
        lines += [f"problem   {problem.what}", f"    fix   {problem.fix}"]
    return "\n".join(lines)


def _part_data(part: CudaChoice | ToolkitChoice) -> dict[str, Any]:
    return {
        "version": part.version,
        "packages": [_package_words(p) for p in part.packages],
        "method": part.method,
        "repository": part.repository,
    }


def _package_words(package: PackageWant) -> str:
    return f"{package.name}={package.version}" if package.version else package.name


def results_data(results: Iterable[HostResult]) -> list[dict[str, Any]]:
    return [asdict(r) | {"exit": int(r.exit)} for r in results]


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


def _step_lines(number: int, step: Step, diff: bool) -> list[str]:
    lines = [f"  {number:>2}. {step.title}  ({step.id})"]
    lines += [f"        {r.what}: {r.why}" + (f"  [{r.source}]" if r.source else "") for r in step.reasons]
    if step.disruptive:
        lines.append(f"        disturbs: {step.disruptive}")
    if diff and step.diff:
        lines += [f"        {line}" for line in step.diff.splitlines()]
    return lines
