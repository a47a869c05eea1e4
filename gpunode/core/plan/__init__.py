"""facts + spec + solution → the ordered steps that make the node what the spec wants.

plan/steps.py has the table of all steps, in their order.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpunode.core.diff import unified
from gpunode.core.edits import activation
from gpunode.core.facts import facts_hash, masked_hash
from gpunode.core.facts.kubelet import kubelet_warnings
from gpunode.core.items import ABSENT, DAEMONLESS, ENGINES, FRESH, Key, Want, Wanted, actual, differs, wanted
from gpunode.core.items.engine import manages
from gpunode.core.items.gpu_containers import LINKS
from gpunode.core.items.image import image_problems, image_warnings, prepares
from gpunode.core.items.smoke import smoke_now
from gpunode.core.items.sources import SourceFile
from gpunode.core.items.sysctl import boot_warnings
from gpunode.core.model import NodeFacts, PackageWant, Plan, Problem, Reason, RuntimeWish, Solution, Step
from gpunode.core.plan.steps import BY_ID, STEPS, Row
from gpunode.core.plan.values import Case, KeyOf, content, step_value
from gpunode.core.spec import Spec

TOOLKIT = "/usr/local/nvidia/toolkit"  # where its toolkit container installs
_DRAINED = "kubectl drain NODE --ignore-daemonsets --delete-emptydir-data, then reboot the node"


def operator_problems(facts: NodeFacts, spec: Spec, solution: Solution) -> Iterator[Problem]:
    """What the operator holds of that which the plan would take."""
    driver = solution.driver
    if facts.kubernetes.driver_container and driver and driver.method != "preinstalled":
        yield Problem(
            what=f"the driver of this node ({facts.driver.loaded or 'not loaded now'}) comes from the GPU Operator's "
            "driver container: one on the host would fight it",
            fix="to keep it: driver.method: preinstalled; to hand it over: helm upgrade gpu-operator … --reuse-values "
            f"--set driver.enabled=false, {_DRAINED}, and run again",
        )
    for name in ENGINES:
        if solution.toolkit and manages(facts, name, getattr(spec.runtimes, name)) and _toolkits(facts, name):
            yield Problem(
                what=f"the GPU Operator's toolkit container has configured {name}: it would write its settings again",
                fix=f"to keep it: toolkit.version: none and runtimes.{name}.manage: ignore; to hand it over: helm "
                "upgrade gpu-operator … --reuse-values --set toolkit.enabled=false: it takes its settings out when its "
                "pod ends; then run again",
            )


def _toolkits(facts: NodeFacts, name: str) -> bool:
    """Whether a file that the engine reads names the operator's runtime."""
    runtime = facts.runtime(name)
    files = (facts.files.get(path) for path in (runtime.files if runtime else ()))
    return any(TOOLKIT.encode() in file.data for file in files if file and file.data)


def reasons(case: Case, mine: Mapping[Key, Want]) -> tuple[Reason, ...]:
    """What differs, item by item, then why it is wanted so."""
    found = [Reason(what=k.name, why=words(w, case.have[k])) for k, w in mine.items()]
    return (*found, *(r for w in mine.values() for r in w.reasons))


def words(item: Want, have: str) -> str:
    """How the node's value differs from the wanted one, for a reader: hashes of files are not for reading."""
    if not differs(item, have):
        return f"{have}, done again because of an earlier step"
    if isinstance(item.data, PackageWant):
        version = f"{'any version' if item.value == '*' else item.value}{', held' if item.data.hold else ''}"
        return f"not installed; wanted {version}" if have == ABSENT else f"{have}; wanted {version}"
    if isinstance(item.data, SourceFile):
        return _file_words(item, have)
    if isinstance(item.data, RuntimeWish | Mapping) or item.value == FRESH:
        return "differs" if re.fullmatch(r"[0-9a-f]{64}", have) else have
    if item.value == ABSENT:
        return f"{have}, to be removed"
    return f"{have or 'nothing'}; wanted {item.value}"


def _file_words(item: Want, have: str) -> str:
    if item.value == ABSENT:
        return "to be removed"
    key = f", {item.value}" if item.value.startswith("key ") else ""
    if have == ABSENT:
        return f"new file{key}"
    if key:
        return f"{have}; wanted {item.value}"
    (old, old_mode), (new, mode) = have.split(), item.value.split()
    return "differs" if old != new else f"mode {old_mode}; wanted {mode}"


def step_diff(case: Case, option: str, mine: Mapping[Key, Want]) -> str:
    """The unified diff of the files that the step changes; "" for steps that change none."""
    if option in ("edits", "config"):
        changes = [(p, b) for k in mine for p, b in case.want.edits[k.name].changes.items()]
    elif option in ("sources", "files", "mig", "mps"):
        # a key's armored text says nothing to a reader: its fingerprint stands among the reasons
        found = [w.data for w in mine.values() if isinstance(w.data, SourceFile) and not w.data.repository]
        changes = [(file.path, content(file, case.key_of)) for file in found]
    else:
        return ""
    files = case.facts.files
    return "".join(unified(files[p].data if p in files else None, after, p) for p, after in changes)


def disruption(case: Case, option: str, mine: Mapping[Key, Want]) -> str:
    """What the engines that are told of their configuration disturb: one whose files stay as they are is restarted."""
    if option in ("mig", "mps"):
        return _sharing_disruption(case, mine)
    if option != "edits":
        return ""
    facts, said = _with_new_toolkit(case), []
    for wish in (w.data for w in mine.values()):
        edit, runtime = case.want.edits[wish.runtime], facts.runtime(wish.runtime)
        if not edit.changes and runtime:
            again = {path: facts.files[path].data for path in runtime.files if path in facts.files}
            edit = replace(edit, changes=again)
        said.append(activation(facts, wish, edit).disrupts)
    return "; ".join(filter(None, said))


def _sharing_disruption(case: Case, mine: Mapping[Key, Want]) -> str:
    """Whose GPUs nothing may use meanwhile: gpunode refuses while a program does."""
    gpus = [k.name for k, w in mine.items() if k.name.startswith("GPU ") and differs(w, case.have[k])]
    if gpus:
        reboot = "" if case.spec.reboot == "never" else ", and a change of the MIG mode may need a reboot"
        return f"no program may use {', '.join(gpus)} meanwhile{reboot}"
    return "no program may use a GPU while MPS starts or ends" if any(k.option == "mps" for k in mine) else ""


def _with_new_toolkit(case: Case) -> NodeFacts:
    """The facts as they will be once the toolkit's packages are there: no daemon that runs has looked for its hook."""
    facts = case.facts
    items = ((key, item) for key, item in case.want.items.items() if (key.role, key.option) == ("toolkit", "packages"))
    if not any(differs(item, case.have[key]) for key, item in items):
        return facts
    return replace(facts, containers={name: replace(one, knows_hook=False) for name, one in facts.containers.items()})


WARNING = "warning: "  # the solver's reasons that begin so are warnings


def make_plan(
    host: str,
    facts: NodeFacts,
    spec: Spec,
    solution: Solution,
    *,
    templates: Mapping[str, str],
    key_of: KeyOf,
) -> Plan:
    """What is to be done on `host`; no steps and no problems when nothing is.

    `key_of` gives a repository's key once it is to be written.  A problem anywhere means no steps at all: nothing
    is touched on a node that cannot be finished.
    """
    base = Plan(
        host=host,
        facts_hash=facts_hash(facts),
        reasons=tuple(r for r in solution.reasons if not r.what.startswith(WARNING)),
        warnings=tuple(
            f"{r.what.removeprefix(WARNING)}: {r.why}" for r in solution.reasons if r.what.startswith(WARNING)
        ),
    )
    if facts.malformed:  # nothing that such a node reports is a reason to change it
        return replace(base, problems=tuple(map(_malformed, facts.malformed)))
    if not (facts.has_gpu or prepares(spec)):
        warning = "no NVIDIA GPU found on PCI: nothing to do (the nvidia runtime breaks pods on nodes without a GPU)"
        return replace(base, warnings=(*base.warnings, warning))
    want = wanted(facts, spec, solution, templates)
    others = (*image_problems(facts, spec), *operator_problems(facts, spec, solution))
    problems = (*_target_problems(facts), *others, *solution.problems, *want.problems)
    if problems:
        return replace(base, problems=problems)
    base = replace(base, warnings=(*base.warnings, *image_warnings(spec)))
    if solution.toolkit:
        managed: dict[str, str] = {name: getattr(spec.runtimes, name).manage for name in ENGINES}
        base = replace(base, warnings=(*base.warnings, *kubelet_warnings(facts, managed), *boot_warnings(facts)))
    case = Case(facts=facts, spec=spec, solution=solution, want=want, have=actual(facts, want), key_of=key_of)
    steps = _steps(case)
    if steps:
        steps = [*_preflight(facts, steps), *steps, _verify(case)]
    return replace(base, steps=tuple(steps), files=_files_rested_on(facts, want))


def pending_items(facts: NodeFacts, spec: Spec, solution: Solution, templates: Mapping[str, str]) -> dict[Key, str]:
    """What differs from the spec, in words by key; empty on a converged node."""
    want = wanted(facts, spec, solution, templates)
    have = actual(facts, want)
    return {key: words(item, have[key]) for key, item in want.items.items() if differs(item, have[key])}


def class_key(plan: Plan) -> str:
    """Hosts with the same steps share a play; what is peculiar to a host (preflight) stands in its host variables."""
    data = [(s.id, s.value) for s in plan.steps if s.role != "preflight"]
    return hashlib.sha256(json.dumps(data, sort_keys=True, default=str).encode()).hexdigest()[:8]


def _steps(case: Case) -> list[Step]:
    pending = {key: item for key, item in case.want.items.items() if differs(item, case.have[key])}
    pending |= _consequences(case.want, pending)
    steps = []
    for row in STEPS:
        mine = {k: w for k, w in pending.items() if (k.role, k.option) == (row.role, row.option)}
        if mine:
            steps.append(_step(case, row, mine))
    return steps


def _step(case: Case, row: Row, mine: Mapping[Key, Want]) -> Step:
    return Step(
        role=row.role,
        option=row.option,
        title=row.title if case.spec.image.load else row.prepared or row.title,
        value=step_value(case, row.role, row.option, mine),
        reasons=reasons(case, mine),
        diff=step_diff(case, row.option, mine),
        disruptive=disruption(case, row.option, mine),
    )


def _consequences(want: Wanted, pending: Mapping[Key, Want]) -> dict[Key, Want]:
    """What has to be done again because of another step: new driver packages → load; a new toolkit → engines; CDI.

    Docker looks nvidia-container-runtime-hook up when it starts (moby daemon/devices_nvidia_linux.go), so a toolkit
    that is new to it needs a restart even when daemon.json is right.
    """
    changed = {f"{k.role}.{k.option}" for k in pending}
    due = {(row.role, row.option) for row in STEPS if changed & {*row.again}}
    again = {k: w for k, w in want.items.items() if (k.role, k.option) in due}
    if "driver" in {k.role for k in pending}:
        again |= {k: w for k, w in want.items.items() if k.name == LINKS}  # the driver brings the devices
    if Key("toolkit", "packages", "nvidia-container-toolkit-base") in pending:
        again |= {k: w for k, w in want.items.items() if k.option == "edits" and k.name not in DAEMONLESS}
    return again


def _preflight(facts: NodeFacts, found: Sequence[Step]) -> list[Step]:
    expect = {
        "distro": facts.distro.key,
        "arch": facts.arch,
        "kernel": facts.kernel,
        "gpus": [f"{g.slot}={g.id}" for g in facts.gpus],
    }
    steps = [_own("expect", expect)]
    if facts.unfinished:
        why = Reason(what="an earlier run was interrupted", why="; ".join(facts.unfinished))
        steps.insert(0, replace(_own("recover", True), reasons=(why,)))
    installers = [value for step in found if step.option == "runfile" for value in step.value]
    if installers:  # before anything is touched: a wrong file is found out here
        steps.append(_own("fetch", installers))
    return steps


def _own(option: str, value: Any) -> Step:
    return Step(role="preflight", option=option, title=BY_ID[f"preflight.{option}"].title, value=value)


def _verify(case: Case) -> Step:
    row, value = BY_ID["verify.smoke"], smoke_now(case.facts, case.spec, case.solution)
    title = row.title if case.spec.image.load else row.prepared
    return Step(role=row.role, option=row.option, title=title, value=value)


def _malformed(doubt: str) -> Problem:
    return Problem(
        what=f"the node reports an invalid value: {doubt}",
        fix="look at that section of the probe (gpunode detect HOST --save DIR) and fix its cause on the node: "
        "a broken program prints such values, and so does a compromised node",
    )


def _target_problems(facts: NodeFacts) -> list[Problem]:
    problems = []
    if not facts.root:
        problems.append(
            Problem(
                what=f"the probe ran as user {facts.user or '?'}, not as root",
                fix="connect as root, or set ansible_become: true (or --become) for this host",
            )
        )
    if facts.container:
        problems.append(
            Problem(
                what=f"the target is a container ({facts.virtualization or 'unknown kind'})",
                fix="run gpunode on the machine that runs the container; containers get the GPU from there",
            )
        )
    if facts.init and facts.init != "systemd":
        problems.append(Problem(what=f"init is {facts.init}, not systemd", fix="gpunode manages systemd nodes only"))
    return problems


def _files_rested_on(facts: NodeFacts, want: Wanted) -> dict[str, str]:
    paths: Sequence[str] = [
        *(k.name for k in want.items if k.option in ("sources", "files")),
        *(p for r in facts.runtimes for p in r.files),
    ]
    return {p: masked_hash(facts.files[p]) if p in facts.files else "" for p in paths}
