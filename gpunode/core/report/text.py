"""Plans and results as plain data (JSON) and as plain text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gpunode.core.diff import changed_lines
from gpunode.core.errors import Exit
from gpunode.core.grouped import grouped
from gpunode.core.late import asdict, dataclass, regex
from gpunode.core.model import ENDS, Changed, Check, HostResult, NodeFacts, Plan, Reason, Solution, Step
from gpunode.core.printable import counted, names

PLAN_FORMAT = 1
MANY = 40  # hosts, from which on they are counted, not reported one by one (report/fleet.py)
_DISTURBS = regex(r"(?:^|; )(restarts|reloads) (\S+?)(?:\.service)?(?=:|;|$)")  # Step.disruptive


def plan_data(plan: Plan) -> dict[str, Any]:
    """A plan as JSON data.  Steps have their whole values, secrets as references; diffs are masked."""
    return {
        "host": plan.host,
        "converged": plan.converged,
        "steps": [asdict(s) | {"reasons": [r.data for r in s.reasons], "id": s.id} for s in plan.steps],
        "problems": [asdict(p) for p in plan.problems],
        "reasons": [r.data for r in plan.reasons],
        "warnings": list(plan.warnings),
        "facts_hash": plan.facts_hash,
        "files": dict(plan.files),
    }


@dataclass(frozen=True, kw_only=True)
class Detail:
    """What a plan's text has besides its steps: reasons, where they come from, diffs of files."""

    why: bool = False
    sources: bool = False  # with the reasons
    diff: bool = False


STEPS_ONLY = Detail()
NOTHING = NodeFacts()
_IN_EVERY_PLAN = ("preflight.expect", "verify.smoke")
_PACKAGES = 3  # of a step, that are named without --diff


def plan_text(plan: Plan, *, chosen: str = "", detail: Detail = STEPS_ONLY) -> str:
    """A plan for people: versions and steps; reasons, numbered sources and diffs where `detail` asks for them."""
    return class_text([plan], chosen=chosen, detail=detail)


def class_text(plans: Sequence[Plan], *, chosen: str = "", detail: Detail = STEPS_ONLY) -> str:
    """The one text of hosts with the same steps.  What is not the same on all of them names its hosts.

    `chosen` are the versions, as `chosen_text` has them.
    """
    first, sources = plans[0], dict[str, int]()
    lines = [f"{names([plan.host for plan in plans])}: {_headline(plans, chosen)}"]
    lines += [f"  warning: {text}" for text in _where([(plan.host, plan.warnings) for plan in plans])]
    for problem in first.problems:
        lines += [f"  problem: {problem.what}", f"      fix: {problem.fix}"]
    for number, step in enumerate(news(first), 1):
        lines.append(f"  {number:>2}. {step.title}  ({step.id})")
        alike = [(plan, one) for plan in plans for one in plan.steps if one.id == step.id]
        lines += _step_lines(alike, detail, sources)
    if first.steps and (detail.why or detail.sources):
        lines += ["  because:", *(f"    {_reason_line(r, sources, detail)}" for r in first.reasons)]
    if sources:
        lines += ["  sources:", *(f"    [{number}] {source}" for source, number in sources.items())]
    return "\n".join(lines)


def chosen_text(solution: Solution, facts: NodeFacts = NOTHING) -> str:
    """The versions that were chosen, in a few words: driver 580.95.05 → 595.91.07 open, CUDA 12.8, toolkit 1.20.1.

    Where nobody read the repository's index, of the driver the branch alone: its newest version is what is installed.
    What is on the node in another version stands before the arrow.
    """
    now = facts.driver.loaded or facts.driver.userspace
    driver, cuda, toolkit = solution.driver, solution.cuda, solution.toolkit
    found = []
    if driver and driver.method == "preinstalled":
        found.append("driver as installed")
    elif driver and driver.method != "none":
        how = ", by runfile" if driver.method == "runfile" else ""
        to = driver.version or driver.offered or str(driver.branch)
        found.append(f"driver {_from_to(now, to)} {driver.flavour}{how}")
    if cuda:
        found.append(f"CUDA {' and '.join(cuda.versions)}")
    if toolkit:
        found.append(f"toolkit {_from_to(facts.toolkit, toolkit.version)}".rstrip())
    return ", ".join(found)


def _from_to(now: str, to: str) -> str:
    """`now → to`; the one that says more where nothing is there, or just this version, or one of this branch."""
    if to and now.startswith(f"{to}."):
        return now
    return to if not now or not to or now == to else f"{now} → {to}"


def summary_text(plans: Sequence[Plan], chosen: Mapping[str, str]) -> str:
    """What is to be done on all hosts together, in a line; `chosen` are the versions of each."""
    todo = [plan for plan in plans if plan.steps]
    counts = sorted({len(news(plan)) for plan in todo})
    steps = counted(counts[0], "step") if len(counts) == 1 else f"{counts[0]} to {counts[-1]} steps"
    versions = Counter(chosen.get(plan.host, "") for plan in todo)
    many = len(versions) > 1
    stated = [f"{text} ({counted(n, 'host')})" if many else text for text, n in versions.most_common() if text]
    each = " each" if len(todo) > 1 else ""
    return " · ".join([f"Plan: {counted(len(todo), 'host')}, {steps}{each}", *stated, *_effects(todo), *ends(plans)])


def ends(plans: Sequence[Plan]) -> list[str]:
    """How many hosts nothing can be done on, by why."""
    counts = {"pending without a GPU": sum(p.no_gpu for p in plans), "refused": sum(bool(p.problems) for p in plans)}
    return [f"{count} {what}" for what, count in counts.items() if count]


def results_data(results: Iterable[HostResult]) -> list[dict[str, Any]]:
    """Results as JSON data, with the exit code of each; `extra` has what only some verbs know of a host."""
    return list(map(_result_data, results))


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
        "fix": result.fix,
        "changed": [one.text for one in result.changed],
        "checks": [asdict(check) for check in result.checks],
        "extra": extra,
    }


_GROUPS = {"unit": "services", "module": "modules", "file": "files", "package": "packages"}
OTHER = "settings"


def change_groups(changed: Iterable[Changed]) -> dict[str, list[Changed]]:
    """What changed by kind: services, modules, files, packages, settings; in this order, without empty ones."""
    found = grouped((_GROUPS.get(one.kind, OTHER), one) for one in changed)
    return {name: found[name] for name in (*_GROUPS.values(), OTHER) if name in found}


# base form, and the past; lines of the scripts have one of these or the third person
_VERBS = {
    **{verb: f"{verb}d" for verb in ("remove", "disable", "enable", "change", "upgrade", "downgrade", "purge")},
    **{verb: f"{verb}d" for verb in ("create", "close")},
    **{verb: f"{verb}ed" for verb in ("install", "unload", "load", "start", "restart", "link", "renew", "fetch")},
    **{verb: f"{verb}ed" for verb in ("clear", "finish")},
    **{
        "stop": "stopped",
        "hold": "held",
        "unhold": "unheld",
        "build": "built",
        "rebuild": "rebuilt",
        "rewrite": "rewrote",
    },
    **{"write": "wrote", "forget": "forgot", "take": "took", "run": "ran", "undo": "undid", "set": "set"},
    "reset": "reset",
}
_BASE = {form: verb for verb, past in _VERBS.items() for form in (verb, past, f"{verb}s", f"{verb}es")}
_SETTING = regex(r"\S+ = .*")


def change_sentence(change: Changed, *, done: bool) -> str:
    """The text of what a script changes, or would change, in one form of its verb; others stay as they are.

    >>> [change_sentence(Changed(text=text), done=False) for text in ("removes /etc/x", "stop docker.service")]
    ['would remove /etc/x', 'would stop docker.service']
    >>> [change_sentence(Changed(text=text), done=True) for text in ("remove the user a", "enable and start a.service")]
    ['removed the user a', 'enabled and started a.service']
    """
    line = f"set {change.text}" if _SETTING.fullmatch(change.text) else change.text
    words = line.split(" ")
    if words[0] not in _BASE:
        return line
    verbs = (0, 2) if words[1:2] == ["and"] and words[2] in _BASE else (0,)
    for place in verbs:
        base = _BASE.get(words[place], words[place])
        words[place] = _VERBS.get(base, base) if done else base
    return " ".join(words) if done else f"would {' '.join(words)}"


def counted_changes(changed: Iterable[Changed]) -> str:
    """How many of each kind: «60 packages, 1 service, 12 files»."""
    groups = change_groups(changed)
    return ", ".join(f"{len(lines)} {name if len(lines) > 1 else name[:-1]}" for name, lines in groups.items())


def checks_text(checks: Iterable[Check]) -> str:
    lines = []
    for check in checks:
        mark = "ok" if check.status == "passed" else check.status.upper() if check.status in ENDS else check.status
        lines.append(f"  {mark:<10} {check.id:<28} {check.message}")
        if check.fix and check.status not in ("passed", "skipped"):
            lines.append(f"  {'':<10} {'':<28} do next: {check.fix}")
    return "\n".join(lines)


def in_short(result: HostResult) -> str:
    """The sentence of a result; what its failed checks found, and what to do about them, is left to the list of them.

    >>> checks = [Check(id=name, status="failed", message="none", fix="look") for name in ("driver.smi", "toolkit.cli")]
    >>> text = "Prove it: driver.smi: none; toolkit.cli: none (node a stays cordoned)"
    >>> in_short(HostResult(host="a", message=text, fix="look", checks=tuple(checks)))
    'Prove it: 2 checks failed: driver.smi, toolkit.cli (node a stays cordoned)'
    """
    failed = [check for check in result.checks if check.status == "failed"]
    text = "; ".join(f"{check.id}: {check.message}" for check in failed)
    before, listed, after = result.message.partition(text) if text else ("", "", "")
    if not listed:
        return result.sentence
    return f"{before}{counted(len(failed), 'check')} failed: {', '.join(check.id for check in failed)}{after}"


def without_host(text: str, host: str) -> str:
    """With HOST for the host's own name, so that equal words of several are equal."""
    return re.sub(rf"(?<![\w.-]){re.escape(host)}(?![\w-])", "HOST", text)


def _headline(plans: Sequence[Plan], chosen: str) -> str:
    first = plans[0]
    if first.problems:
        return f"refused, {counted(len(first.problems), 'problem')}"
    if not first.steps:
        return "nothing to do" if first.converged else first.outcome
    return " · ".join([*filter(None, [chosen]), counted(len(news(first)), "step"), *_effects(plans)])


def news(plan: Plan) -> list[Step]:
    """The steps that are worth a line: not those that every plan begins and ends with, and that change nothing."""
    return [step for step in plan.steps if step.id not in _IN_EVERY_PLAN] or list(plan.steps)


def _effects(plans: Sequence[Plan]) -> list[str]:
    """What is restarted or reloaded, and whether a reboot may be needed."""
    units: dict[str, dict[str, None]] = {}
    for step in (step for plan in plans for step in plan.steps):
        for verb, unit in _DISTURBS.findall(step.disruptive):
            units.setdefault(verb, {})[unit] = None
    policies = {
        step.value["reboot"]
        for plan in plans
        for step in plan.steps
        if isinstance(step.value, Mapping) and "reboot" in step.value
    }
    reboot = "reboots" if "always" in policies else "reboots if needed" if "if-needed" in policies else "no reboot"
    return [*(f"{verb} {', '.join(found)}" for verb, found in units.items()), reboot]


def _reason_line(reason: Reason, sources: dict[str, int], detail: Detail) -> str:
    """A reason; where sources are asked for with their numbers, which are added to `sources` at their first use."""
    text = f"{reason.what}: {reason.why}"
    if not detail.sources:
        return text
    cited = [sources.setdefault(source, len(sources) + 1) for source in filter(None, reason.source.split("; "))]
    return text + (f" [{', '.join(map(str, cited))}]" if cited else "")


def _step_lines(alike: Sequence[tuple[Plan, Step]], detail: Detail, sources: dict[str, int]) -> list[str]:
    """What a step disturbs, and where asked for why it is done and what it changes, of hosts that all have it."""
    lines = [f"disturbs: {text}" for text in _where([(plan.host, [step.disruptive]) for plan, step in alike])]
    lines += _where([(plan.host, _content(step, detail, plan.resolved)) for plan, step in alike])
    if detail.why or detail.sources:
        stated = [(plan.host, [_reason_line(r, sources, detail) for r in step.reasons]) for plan, step in alike]
        lines += _where(stated)
    if detail.diff:
        lines += [
            line for text in _where([(plan.host, [step.diff]) for plan, step in alike]) for line in text.splitlines()
        ]
    return [f"        {line}" for line in lines]


def _content(step: Step, detail: Detail, versions: Mapping[str, str]) -> list[str]:
    """What a step changes: its packages, with `diff` all of them; what it removes; its files, with `diff` as diffs.

    `versions`: those that packages would get, where the node's package manager was asked.
    """
    lines = []
    if isinstance(step.value, Mapping) and "install" in step.value:
        from gpunode.core.items.package import HOLD_ALONE

        # the package manager solves them together with what is there
        why = {reason.what: reason.why for reason in reversed(step.reasons)}
        held = [one["name"] for one in step.value["install"] if why.get(one["name"], "").endswith(HOLD_ALONE)]
        wants = [one for one in step.value["install"] if one["name"] in why.keys() - held]
        wants = wants if detail.diff else sorted(wants, key=lambda one: not one.get("version"))
        names_ = [f"{one['name']} {versions.get(one['name'], one.get('version', ''))}".rstrip() for one in wants]
        first = names_ if detail.diff else names_[:_PACKAGES]
        rest = f" and {len(names_) - len(first)} more" if len(first) < len(names_) else ""
        lines += [f"installs: {', '.join(first)}{rest}"] if first else []
        lines += [f"holds: {', '.join(held)}"] if held else []
        lines += [f"removes: {', '.join(step.value['remove'])}"] if step.value.get("remove") else []
    if not detail.diff:
        lines += [f"{path} +{added} -{gone}" for path, added, gone in changed_lines(step.diff)]
    return lines


def _where(printed: Sequence[tuple[str, Iterable[str]]]) -> list[str]:
    """Each text once, in the order in which they come; one that is not of all hosts with the hosts that it is of."""
    found = grouped((text, host) for host, texts in printed for text in filter(None, texts))
    return [text if len(hosts) == len(printed) else f"{text} ({names(hosts)})" for text, hosts in found.items()]
