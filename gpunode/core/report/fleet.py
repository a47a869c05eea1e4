"""Many hosts in a few lines: plans by what is to be done, results by how they ended and by cause, the slowest."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import get_args

from gpunode.core.errors import RefusedError
from gpunode.core.grouped import grouped
from gpunode.core.late import regex
from gpunode.core.model import HostOutcome, HostResult, Plan
from gpunode.core.plan import class_key
from gpunode.core.printable import names
from gpunode.core.report.model import duration
from gpunode.core.report.text import STEPS_ONLY, Detail, class_text, ends, without_host

_CAUSES, _SLOWEST = 10, 5  # causes and slowest hosts that are reported
_LONGEST = 1000  # characters of a cause
# what differs between hosts with the same trouble, wherever a message has it
_OWN = (
    (regex(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.]*\d)"), "ADDRESS"),
    (regex(r"(?<![\w:])(?=[0-9a-f:]*::)[0-9a-f:]{2,39}(?:%\w+)?(?![\w:])", re.IGNORECASE), "ADDRESS"),
    (regex(r"(?<![\w:])(?:[0-9a-f]{1,4}:){7}[0-9a-f]{1,4}(?:%\w+)?(?![\w:])", re.IGNORECASE), "ADDRESS"),
    (regex(r"(?<![\w.%-])[\w.%-]{1,255} port \d{1,5}\b"), "ADDRESS port PORT"),
    (regex(r"\bport \d{1,5}\b"), "port PORT"),
    (regex(r"-p \d{1,5} (?P<user>[\w.-]+)@[\w.%-]+"), r"-p PORT \g<user>@ADDRESS"),
    (regex(r"SHA256:[\w+/]{43}=?"), "SHA256:…"),
)
_ENDS: Mapping[HostOutcome, str] = {
    "ok": "done or unchanged",
    "invalid": "with invalid input",
}  # others: their own name


def fleet_text(results: Iterable[HostResult]) -> str:
    """How many ended how, the causes of what did not end well, the most frequent first, and who took longest."""
    found = list(results)
    by_outcome = {outcome: [r for r in found if r.outcome == outcome] for outcome in get_args(HostOutcome)}
    ends = ", ".join(f"{len(some)} {_ENDS.get(outcome, outcome)}" for outcome, some in by_outcome.items() if some)
    lines = [f"{len(found)} hosts: {ends}"]
    for outcome, some in by_outcome.items():
        lines += causes(some) if some and outcome != "ok" else []
    return "\n".join([*lines, *_slowest(found)])


def plan_classes(plans: Iterable[Plan], chosen: Mapping[str, str]) -> list[list[Plan]]:
    """Plans by class: those of a class have the same steps, problems and versions (`chosen`, by host)."""

    def key(plan: Plan) -> object:
        steps = (class_key(plan), chosen.get(plan.host, "")) if plan.steps else plan.outcome
        return steps, plan.problems

    return list(grouped((key(plan), plan) for plan in plans).values())


def plans_text(
    plans: Sequence[Plan],
    errors: Sequence[HostResult] = (),
    *,
    chosen: Mapping[str, str] | None = None,
    detail: Detail = STEPS_ONLY,
) -> str:
    """Of many hosts, how many have what to do: each class once, the largest first; problems by cause.

    `errors` are of hosts that have no plan, `chosen` the versions of each host.
    """
    versions = chosen or {}
    classes = [c for c in plan_classes(plans, versions) if c[0].steps and not c[0].problems]
    refused = [RefusedError.of(p.problems).of_host(p.host) for p in plans if p.problems]
    todo, done = sum(map(len, classes)), sum(plan.converged for plan in plans)
    lines = [", ".join([f"{len(plans) + len(errors)} hosts: {done} need nothing, {todo} have steps", *ends(plans)])]
    lines[0] += f", {len(errors)} without a plan" if errors else ""
    lines += causes([*refused, *errors])
    ranked = sorted(classes, key=len, reverse=True)
    lines += [class_text(c, chosen=versions.get(c[0].host, ""), detail=detail) for c in ranked[:_CAUSES]]
    if len(ranked) > _CAUSES:
        lines.append(f"and {len(ranked) - _CAUSES} other plans: --format json has them all")
    return "\n".join(lines)


def run_text(states: Mapping[str, str], ended: Sequence[HostResult]) -> str:
    """A run by its journal: `states` of all its hosts, and those that ended, with their `seconds`."""
    counts = Counter(states.values())
    lines = [f"{len(states)} hosts: " + ", ".join(f"{n} {state}" for state, n in sorted(counts.items()))]
    lines += causes([result for result in ended if not result.ok])
    return "\n".join([*lines, *_slowest(ended)])


def resume_command(results: Sequence[HostResult]) -> tuple[str, str]:
    """The run that the results are of, and the command to go on with it; ("", "") where there is none to go on with."""
    run = next((r.run for r in results if r.run), "")
    return ("", "") if not run or all(r.state != "failed" for r in results) else (run, f"gpunode runs resume {run}")


def unfinished_text(results: Sequence[HostResult]) -> str:
    """What a run that did not bring all hosts to their end leaves: done, failed, not started, and how to go on."""
    run, command = resume_command(results)
    if not run:
        return ""
    started = [r for r in results if r.started]
    bad = [r.host for r in started if r.state == "failed"]
    without = [r.host for r in started if r.state == "pending"]
    left = [r.host for r in results if not r.started]
    succeeded = len(started) - len(bad) - len(without)
    lines = [f"run {run}: {succeeded} succeeded, {len(bad)} failed, {len(left)} not started"]
    lines += [f"  pending without a GPU: {names(without)}"] if without else []
    lines += [f"  failed: {names(bad)}"] if bad else []
    lines += [f"  not started: {names(left)}"] if left else []
    return "\n".join([*lines, f"resume: {command}"])


def causes(results: Sequence[HostResult]) -> list[str]:
    """What was said of hosts, equal words once, with the hosts that it was said of.

    A host's own name and address make no other cause of it: they show as HOST, ADDRESS and PORT.
    """
    ranked = sorted(grouped((_cause(r), r) for r in results).items(), key=lambda item: -len(item[1]))
    lines = []
    for cause, of in ranked[:_CAUSES]:
        message = cause if len(of) > 1 else _named(of[0])
        lines += [f"  {len(of):>6}  {message}", f"          {names([result.host for result in of])}"]
    if len(ranked) > _CAUSES:
        lines.append(f"          and {len(ranked) - _CAUSES} other causes: --format json has them all")
    return lines


def _named(result: HostResult) -> str:
    text = result.sentence
    return without_host(text if len(text) <= _LONGEST else f"{text[:_LONGEST]} …", result.host)


def _cause(result: HostResult) -> str:
    text = _named(result)
    for pattern, word in _OWN:
        text = pattern.sub(word, text)
    return text


def _slowest(results: Iterable[HostResult]) -> list[str]:
    seconds = {result.host: result.seconds or 0.0 for result in results}
    ranked = [host for host in sorted(seconds, key=lambda host: -seconds[host])[:_SLOWEST] if seconds[host] >= 1]
    return ["slowest: " + ", ".join(f"{host} {duration(seconds[host])}" for host in ranked)] if ranked else []
