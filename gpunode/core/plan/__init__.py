"""facts + spec + solution → the ordered steps that make the node what the spec wants.

plan/steps.py has the table of all steps, in their order.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpunode.core.diff import unified
from gpunode.core.edits import probed_runtime_files
from gpunode.core.edits.target import OPERATOR
from gpunode.core.errors import InputError
from gpunode.core.facts import facts_hash, masked_hash
from gpunode.core.facts.vet import LOOK
from gpunode.core.items.file import File
from gpunode.core.items.first_boot import prepares
from gpunode.core.items.item import HostCase, Item, ItemKey, KeyOf, Question, Wanted, alone_title, merged, step_value
from gpunode.core.items.package import lost_programs
from gpunode.core.knowledge.support import Support, programs_of, too_old, untried
from gpunode.core.model import NO_GPU, NodeFacts, Plan, Problem, Reason, Solution, Step
from gpunode.core.plan.steps import BY_ID, STEPS, StepRow, wanted
from gpunode.core.validation import check_value

_DRAINED = "kubectl drain NODE --ignore-daemonsets --delete-emptydir-data, then reboot the node"


def operator_problems(facts: NodeFacts, solution: Solution, engines: Sequence[str]) -> Iterator[Problem]:
    """What the operator holds of that which the plan would take; `engines` are those that it configures."""
    driver = solution.driver
    if facts.kubernetes.driver_container and driver and driver.method != "preinstalled":
        yield Problem(
            what=f"the driver of this node ({facts.driver.loaded or 'not loaded now'}) comes from the GPU Operator's "
            "driver container: one on the host would conflict with it",
            fix="to keep it: driver.method: preinstalled; to hand it over: helm upgrade gpu-operator … --reuse-values "
            f"--set driver.enabled=false, {_DRAINED}, and run again",
        )
    for name in engines:
        if _toolkits(facts, name):
            yield Problem(
                what=f"the GPU Operator's toolkit container has configured {name}: it would write its settings again",
                fix=f"to keep it: toolkit.version: none and runtimes.{name}.manage: ignore; to hand it over: helm "
                "upgrade gpu-operator … --reuse-values --set toolkit.enabled=false: it takes its settings out when its "
                "pod ends; then run again",
            )


def _toolkits(facts: NodeFacts, name: str) -> bool:
    """Whether a file that the engine reads names the operator's runtime."""
    runtime = facts.runtime(name)
    read = [facts.files[path].data or b"" for path in (probed_runtime_files(facts, runtime) if runtime else ())]
    return any(place.encode() in data for data in read for place in OPERATOR)


def difference(item: Item, have: str) -> str:
    """How the node's value differs from the wanted one, for a reader."""
    return item.difference(have) if item.differs(have) else f"{have}, done again because of an earlier step"


def make_plan(
    host: str, asked: Question, *, key_of: KeyOf, support: Mapping[str, Support] = {}, apart: Container[str] = ()
) -> Plan:
    """What is to be done on `host`; no steps and no problems when nothing is.

    `key_of` gives a repository's key once it is to be written.  `apart`: parts that nobody carries out; nothing follows
    of what they would do.  A problem anywhere means no steps at all: nothing is touched on a node that cannot be
    finished.
    """
    facts, spec, solution = asked.facts, asked.spec, asked.solution
    base = Plan(
        host=host,
        facts_hash=facts_hash(facts),
        reasons=tuple(r for r in solution.reasons if r.level == "info"),
        warnings=tuple(f"{r.what}: {r.why}" for r in solution.reasons if r.level == "warning"),
    )
    if facts.malformed:  # nothing that such a node reports is a reason to change it
        fix = f"{LOOK}: a broken program prints such values, and so does a compromised node"
        found = (f"the node reports an invalid value: {doubt}" for doubt in facts.malformed)
        return replace(base, problems=tuple(Problem(what=what, fix=fix) for what in found))
    left_out = (f"{one}: left out, and nothing is changed that rests on it" for one in facts.invalid)
    base = replace(base, warnings=(*base.warnings, *left_out))
    if not (facts.has_gpu or prepares(spec)):
        if spec.verify.without_gpu:
            return base
        words = "; ".join(filter(None, (NO_GPU, spec.verify.allowing)))
        return replace(base, warnings=(*base.warnings, words), no_gpu=True)
    want = wanted(asked)
    engines = [key.name for key in want.items if key.option == "edits"]
    programs = list(programs_of(facts, engines))
    old = filter(None, (too_old(*one, support) for one in programs))
    others = (*operator_problems(facts, solution, engines), *old)
    problems = (*_target_problems(facts), *others, *solution.problems, *want.problems)
    if problems:
        return replace(base, problems=problems)
    new = filter(None, (untried(*one, support) for one in programs))
    base = replace(base, warnings=(*base.warnings, *new, *want.warnings))
    case = HostCase(**vars(asked), items=want.items, have=actual(facts, want), key_of=key_of)
    steps = _steps(case, apart)
    if refused := tuple(problem for step in steps for problem in _refused(case, step)):
        return replace(base, problems=refused)
    if steps:
        steps = [*_preflight(case, steps), *steps, _step(case, BY_ID["verify.smoke"], ())]
    return replace(base, steps=tuple(steps), files=_files_rested_on(facts, want))


def pending_items(asked: Question) -> dict[ItemKey, str]:
    """What differs from the spec, in words by key; empty on a converged node."""
    want = wanted(asked)
    have = actual(asked.facts, want)
    return {key: difference(item, have[key]) for key, item in want.items.items() if item.differs(have[key])}


def shared_value(step: Step) -> Any:
    """A step's value without what is peculiar to a host: the hashes of its files stand in its host variables."""
    if step.id != "runtime.edits":
        return step.value
    return [{key: value for key, value in edit.items() if key != "expect"} for edit in step.value]


def class_key(plan: Plan) -> str:
    """What hosts with the same steps and values share; what is peculiar to one stands in its host variables."""
    data = [(s.id, shared_value(s)) for s in plan.steps if s.role != "preflight"]
    return hashlib.sha256(json.dumps(data, sort_keys=True, default=str).encode()).hexdigest()[:8]


def actual(facts: NodeFacts, want: Wanted) -> dict[ItemKey, str]:
    """What the node has for each wanted item, in the same words."""
    return {key: item.actual(facts) for key, item in want.items.items()}


def _steps(case: HostCase, apart: Container[str]) -> list[Step]:
    pending = {key: item for key, item in case.items.items() if case.pending(item)}
    pending |= _consequences(case.items, {key: item for key, item in pending.items() if key.role not in apart})
    steps = []
    for row in STEPS:
        mine = [item for key, item in pending.items() if (key.role, key.option) == (row.role, row.option)]
        if mine:
            steps.append(_step(case, row, mine))
    return steps


def _step(case: HostCase, row: StepRow, mine: Sequence[Item]) -> Step:
    """The step, with what differs, item by item, then why it is wanted so."""
    differ = (Reason(what=item.name, why=difference(item, case.have[item.key])) for item in mine)
    files, changes = case.facts.files, [change for item in mine for change in item.changes(case.key_of)]
    return Step(
        role=row.role,
        option=row.option,
        title=alone_title(case.facts, mine) or (row.title if case.spec.image.load else row.prepared or row.title),
        value=step_value(case, row.kind, row.role, row.option, mine),
        reasons=(*differ, *(reason for item in mine for reason in item.reasons)),
        diff="".join(unified(files[p].data if p in files else None, after, p) for p, after in changes),
        disruptive=row.kind.disrupts(case, mine),
    )


def _refused(case: HostCase, step: Step) -> Iterator[Problem]:
    """What the action would refuse of a step's value: it is refused before the node is touched."""
    kind = BY_ID[step.id].kind

    def refusal(value: Any) -> InputError | None:
        try:
            check_value(step.id, value, kind.shape)
        except InputError as error:
            return error
        return None

    if error := refusal(step.value):
        mine = (item for item in case.of(step.role, step.option) if item.ASKED_BY and not item.within)
        own = (item.ASKED_BY for item in mine if refusal(merged(kind.shape, {}, [item.request(case)])))
        key = next(own, step.role)
        fix = error.fix or f"change what gpunode.yml says of {key}"
        yield Problem(what=f"{error.what} (expected: {error.expected})", fix=fix)


def _consequences(items: Mapping[ItemKey, Item], pending: Mapping[ItemKey, Item]) -> dict[ItemKey, Item]:
    """What has to be done again because of another step: new driver packages → load; a new toolkit → engines; CDI."""
    changed = {f"{key.role}.{key.option}" for key in pending}
    due = {(row.role, row.option) for row in STEPS if changed & {*row.again}}
    return {key: item for key, item in items.items() if (key.role, key.option) in due or item.follows(pending)}


def _preflight(case: HostCase, found: Sequence[Step]) -> list[Step]:
    recover, expect, fetch = (BY_ID[f"preflight.{option}"] for option in ("recover", "expect", "fetch"))
    steps = [_step(case, expect, ())]
    if case.facts.unfinished:
        why = Reason(what="an earlier run was interrupted", why="; ".join(case.facts.unfinished))
        steps.insert(0, replace(_step(case, recover, ()), reasons=(why,)))
    installers = [value for step in found if step.option == "runfile" for value in step.value]
    if installers:  # before anything is touched: a wrong file is found out here
        steps.append(replace(_step(case, fetch, ()), value=installers))
    return steps


def _target_problems(facts: NodeFacts) -> Iterator[Problem]:
    yield from lost_programs(facts)
    if not facts.root:
        yield Problem(
            what=f"the probe ran as user {facts.user or '?'}, not as root",
            fix="connect as root, or set ansible_become: true (or --become) for this host",
        )
    if facts.state_blocked:
        yield Problem(
            what="/var/lib/gpunode is not a folder: gpunode records its changes there",
            fix="look at it (ls -ld /var/lib/gpunode on the node): remove it, or make the folder that it leads to",
        )
    if facts.container:
        yield Problem(
            what=f"the target is a container ({facts.virtualization or 'unknown kind'})",
            fix="run gpunode on the machine that runs the container; containers get the GPU from there",
        )
    if facts.init and facts.init != "systemd":
        yield Problem(what="PID 1 is not systemd", fix="gpunode manages systemd nodes only")


def _files_rested_on(facts: NodeFacts, want: Wanted) -> dict[str, str]:
    paths: Sequence[str] = [
        *(
            item.path
            for key, item in want.items.items()
            if key.option in ("sources", "upgrades", "files") and isinstance(item, File)
        ),
        *(path for runtime in facts.runtimes for path in probed_runtime_files(facts, runtime)),
    ]
    return {p: masked_hash(facts.files[p]) if p in facts.files else "" for p in paths}
