"""What plan, run and verify say of one host → its row of a report: findings worst first, and one state."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from gpunode.core.errors import Exit
from gpunode.core.report.model import STATUSES, Finding, Host, HostRun, Seen, State, Status

_BY_EXIT: Mapping[int, Status] = {
    Exit.PENDING: "pending",
    Exit.UNREACHABLE: "unreachable",
    Exit.REFUSED: "refused",
}
_STATE_OF: Mapping[Status, State] = {
    "failed": "failed",
    "unreachable": "unreachable",
    "refused": "refused",
    "pending": "pending",
    "warning": "warning",
    "not-proven": "warning",
}
_FIX = re.compile(r"(.+?) \(fix: (.+)\)", re.DOTALL)  # as the message of a result has it
_AROUND = ("preflight", "verify")  # roles whose steps stand in every plan that has others


def make_host(
    name: str,
    *,
    pool: str = "",
    seen: Seen | None = None,
    plan: Mapping[str, Any] | None = None,
    result: Mapping[str, Any] | None = None,
    run: HostRun | None = None,
    said: str = "",
) -> Host:
    """One host from what is known of it.

    `plan` as plan_data, or with an `error` {what, fix, exit} in place of steps, `result` as results_data (verify's, or
    of a host that a run has ended) give them; `said` is the run's last word.  What verify says of a check stands above
    what the probe said.
    """
    checks = list(_checked(result or {}))
    reported = {finding.id for finding in checks}
    newer = (run and run.state == "done") or any(name.startswith("plan.") for name in reported)
    left = [] if newer else list(_planned(plan or {}))
    if any(finding.id.startswith("plan.driver.") for finding in left):
        reported.add("driver.loaded")  # that it is not, the plan says already
    checks += [finding for finding in (seen.checks if seen else ()) if finding.id not in reported]
    found = [*_errors((plan or {}).get("error")), *left, *checks]
    found += _ended(result, run, said, found)
    open_ = sorted((f for f in found if f.status not in ("passed", "skipped")), key=lambda f: STATUSES.index(f.status))
    return Host(
        name=name,
        state=_state(open_, run),
        pool=pool,
        message=_message(open_, run, said),
        seen=replace(seen, checks=()) if seen else None,
        findings=tuple(open_),
        passed=tuple(finding.id for finding in found if finding.status == "passed"),
        run=run,
    )


def _errors(error: Mapping[str, Any] | None) -> Iterator[Finding]:
    if error:
        status = _BY_EXIT.get(error.get("exit", 1), "failed")
        yield Finding(id=f"host.{status}", status=status, message=error["what"], fix=error.get("fix", ""))


def _planned(plan: Mapping[str, Any]) -> Iterator[Finding]:
    for problem in plan.get("problems", ()):
        yield Finding(id="plan.problem", status="refused", message=problem["what"], fix=problem["fix"])
    for step in plan.get("steps", ()):
        if step["role"] not in _AROUND:
            more = f" ({step['disruptive']})" if step["disruptive"] else ""
            message = f"{step['title']}{more}"
            yield Finding(id=f"plan.{step['id']}", status="pending", message=message, fix="gpunode provision")


def _checked(result: Mapping[str, Any]) -> Iterator[Finding]:
    """Checks of verify; that a plan is not empty is no failure, but something to do."""
    for check in result.get("checks", ()):
        finding = Finding(**{key: check[key] for key in ("id", "status", "message", "fix")})
        if finding.status == "failed" and finding.id.startswith("plan."):
            finding = replace(finding, status="refused" if finding.id == "plan.problem" else "pending")
        yield finding


def _ended(result: Mapping[str, Any] | None, run: HostRun | None, said: str, found: list[Finding]) -> Iterator[Finding]:
    """A bad end that no check explains."""
    code = run.exit if run else (result or {}).get("exit")
    status = _BY_EXIT.get(code or 0, "failed")
    if not code or any(f.status == status for f in found):
        return
    message = said or (result or {}).get("message", "") or f"exit {code}"
    fixed = _FIX.fullmatch(message)
    message, fix = (fixed[1], fixed[2]) if fixed else (message, "")
    yield Finding(id="plan.left" if status == "pending" else f"host.{status}", status=status, message=message, fix=fix)


def _state(findings: list[Finding], run: HostRun | None) -> State:
    if run and run.state in ("waiting", "running"):
        return run.state
    return next((_STATE_OF[f.status] for f in findings if f.status in _STATE_OF), "ok")


def _message(findings: list[Finding], run: HostRun | None, said: str) -> str:
    if run and run.state == "waiting":
        return "not started"
    if run and run.state == "running":
        return run.step
    if findings:
        return findings[0].message + (f" (and {len(findings) - 1} more)" if len(findings) > 1 else "")
    return said or "as it should be"
