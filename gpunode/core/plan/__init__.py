"""facts + spec + solution → the ordered steps that make the node what the spec wants.

The order of ROLES and OPTIONS below is the order of everything: the table of contents of a provision run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpunode.core.facts import facts_hash
from gpunode.core.facts.kubelet import kubelet_warnings
from gpunode.core.items import DAEMONLESS, ENGINES, Key, Want, Wanted, actual, differs, wanted
from gpunode.core.items.gpu_containers import LINKS
from gpunode.core.items.image import image_problems, image_warnings, prepares
from gpunode.core.items.smoke import smoke_now
from gpunode.core.items.sysctl import boot_warnings
from gpunode.core.model import NodeFacts, Plan, Problem, Reason, Solution, Step
from gpunode.core.plan.gpu_operator import operator_problems
from gpunode.core.plan.values import Case, KeyOf, step_value
from gpunode.core.plan.words import disruption, reasons, step_diff, words
from gpunode.core.spec import Spec

ROLES = ("preflight", "driver", "fabric", "cuda", "toolkit", "sharing", "runtime", "verify")
OPTIONS = (
    *("recover", "expect", "fetch", "sources", "uninstall", "packages", "runfile", "files", "first_boot"),
    *("config", "activate", "mig", "mps", "edits", "cdi", "smoke"),
)
TITLES: Mapping[tuple[str, str], str] = {
    ("preflight", "recover"): "Finish or undo what an interrupted run left",
    ("preflight", "expect"): "Make sure that this is the node the plan was made for",
    ("preflight", "fetch"): "Fetch NVIDIA's installers and compare their checksums",
    ("driver", "sources"): "Set up the repository of the driver",
    ("driver", "uninstall"): "Take off the driver that NVIDIA's runfile installed",
    ("driver", "packages"): "Install the NVIDIA driver and the headers of every kernel",
    ("driver", "runfile"): "Run NVIDIA's installer, and build its modules for every kernel",
    ("driver", "files"): "Keep nouveau off the GPU",
    ("driver", "first_boot"): "Leave what loads and proves the driver at the first boot",
    ("driver", "activate"): "Load the NVIDIA driver and start its services",
    ("fabric", "sources"): "Set up the repository of DCGM",
    ("fabric", "packages"): "Install DCGM",
    ("fabric", "files"): "Write the nodes of the NVLink domain, and what measures the GPUs",
    ("fabric", "activate"): "Start what manages the fabric and the GPUs",
    ("cuda", "sources"): "Set up the repository of CUDA",
    ("cuda", "packages"): "Install the CUDA toolkit",
    ("cuda", "runfile"): "Run the installers of the CUDA toolkits",
    ("cuda", "files"): "Put CUDA on the PATH of login shells",
    ("cuda", "activate"): "Choose the default CUDA toolkit",
    ("toolkit", "sources"): "Set up the repository of the NVIDIA Container Toolkit",
    ("toolkit", "packages"): "Install the NVIDIA Container Toolkit",
    ("toolkit", "config"): "Set the options of the NVIDIA Container Toolkit",
    ("sharing", "mig"): "Cut the GPUs into MIG instances, now and at every boot, or make them whole again",
    ("sharing", "mps"): "Have programs share the GPUs by MPS, or no longer",
    ("runtime", "packages"): "Install the container engines",
    ("runtime", "files"): "Have kernel modules loaded, settings made and GPU devices linked at boot",
    ("runtime", "activate"): "Load kernel modules, make settings, link GPU devices and start the container engines",
    ("runtime", "edits"): "Give the container engines the nvidia runtime",
    ("runtime", "cdi"): "Make the CDI specification of the GPUs, and keep it fresh",
    ("verify", "smoke"): "Prove it with real use of the GPU",
}
PREPARED: Mapping[tuple[str, str], str] = {  # of a machine that waits for its GPU
    ("driver", "activate"): "Have the first boot with a GPU load the driver, and rebuild the initramfs",
    ("verify", "smoke"): "Prove what can be proven without the GPU",
}
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
    for role in ROLES:
        for option in OPTIONS:
            mine = {k: w for k, w in pending.items() if (k.role, k.option) == (role, option)}
            if mine:
                steps.append(_step(case, role, option, mine))
    return steps


def _step(case: Case, role: str, option: str, mine: Mapping[Key, Want]) -> Step:
    return Step(
        role=role,
        option=option,
        title=_title(case.spec, role, option),
        value=step_value(case, role, option, mine),
        reasons=reasons(case, mine),
        diff=step_diff(case, option, mine),
        disruptive=disruption(case, option, mine),
    )


def _consequences(want: Wanted, pending: Mapping[Key, Want]) -> dict[Key, Want]:
    """What has to be done again because of another step: new driver packages → load; a new toolkit → engines; CDI.

    Docker looks nvidia-container-runtime-hook up when it starts (moby daemon/devices_nvidia_linux.go), so a toolkit
    that is new to it needs a restart even when daemon.json is right.
    """
    changed = {(k.role, k.option) for k in pending}
    again: dict[Key, Want] = {}
    if {("driver", option) for option in ("packages", "runfile", "files")} & changed:
        again |= {k: w for k, w in want.items.items() if (k.role, k.option) == ("driver", "activate")}
    if ("fabric", "files") in changed:  # IMEX reads its nodes when it starts
        again |= {k: w for k, w in want.items.items() if (k.role, k.option) == ("fabric", "activate")}
    if "driver" in {k.role for k in pending}:
        again |= {k: w for k, w in want.items.items() if k.name == LINKS}  # the driver brings the devices
    if Key("toolkit", "packages", "nvidia-container-toolkit-base") in pending:
        again |= {k: w for k, w in want.items.items() if k.option == "edits" and k.name not in DAEMONLESS}
    if ("driver", "packages") in changed:  # no instance outlives the driver that made it
        again |= {k: w for k, w in want.items.items() if (k.role, k.option) == ("sharing", "mig")}
    if {("driver", "packages"), ("toolkit", "packages"), ("sharing", "mig")} & changed:
        again |= {k: w for k, w in want.items.items() if k.option == "cdi"}
    return again


def _preflight(facts: NodeFacts, found: Sequence[Step]) -> list[Step]:
    expect = {
        "distro": facts.distro.key,
        "arch": facts.arch,
        "kernel": facts.kernel,
        "gpus": [f"{g.slot}={g.id}" for g in facts.gpus],
    }
    steps = [Step(role="preflight", option="expect", title=TITLES["preflight", "expect"], value=expect)]
    if facts.unfinished:
        why = Reason(what="an earlier run was interrupted", why="; ".join(facts.unfinished))
        recover = Step(
            role="preflight", option="recover", title=TITLES["preflight", "recover"], value=True, reasons=(why,)
        )
        steps.insert(0, recover)
    installers = [value for step in found if step.option == "runfile" for value in step.value]
    if installers:  # before anything is touched: a wrong file is found out here
        title = TITLES["preflight", "fetch"]
        steps.append(Step(role="preflight", option="fetch", title=title, value=installers))
    return steps


def _verify(case: Case) -> Step:
    value = smoke_now(case.facts, case.spec, case.solution)
    return Step(role="verify", option="smoke", title=_title(case.spec, "verify", "smoke"), value=value)


def _title(spec: Spec, role: str, option: str) -> str:
    return TITLES[role, option] if spec.image.load else PREPARED.get((role, option), TITLES[role, option])


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
    return {p: facts.files[p].sha256 if p in facts.files else "" for p in paths}
