"""facts + spec + solution → the ordered steps that make the node what the spec wants.

The order of ROLES and OPTIONS below is the order of everything: the table of contents of a provision run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpunode.core.diff import unified
from gpunode.core.edits import activation
from gpunode.core.facts import facts_hash
from gpunode.core.gpu_containers import LINKS
from gpunode.core.kubelet import kubelet_warnings
from gpunode.core.model import (
    NodeFacts,
    PackageWant,
    Plan,
    Problem,
    Reason,
    Repository,
    RuntimeWish,
    Solution,
    Step,
)
from gpunode.core.sources import SourceFile, sources_path
from gpunode.core.spec import Spec
from gpunode.core.state import (
    ABSENT,
    DAEMONLESS,
    ENGINES,
    FRESH,
    Key,
    Want,
    Wanted,
    actual,
    differs,
    manages,
    wanted,
)
from gpunode.core.sysctl import boot_warnings

ROLES = ("preflight", "driver", "cuda", "toolkit", "runtime", "verify")
OPTIONS = ("recover", "expect", "sources", "packages", "files", "activate", "edits", "cdi", "smoke")
TITLES: Mapping[tuple[str, str], str] = {
    ("preflight", "recover"): "Finish or undo what an interrupted run left",
    ("preflight", "expect"): "Make sure that this is the node the plan was made for",
    ("driver", "sources"): "Set up the repository of the driver",
    ("driver", "packages"): "Install the NVIDIA driver and the headers of every kernel",
    ("driver", "files"): "Keep nouveau off the GPU",
    ("driver", "activate"): "Load the NVIDIA driver and start its services",
    ("cuda", "sources"): "Set up the repository of CUDA",
    ("cuda", "packages"): "Install the CUDA toolkit",
    ("cuda", "files"): "Put CUDA on the PATH of login shells",
    ("cuda", "activate"): "Choose the default CUDA toolkit",
    ("toolkit", "sources"): "Set up the repository of the NVIDIA Container Toolkit",
    ("toolkit", "packages"): "Install the NVIDIA Container Toolkit",
    ("runtime", "packages"): "Install the container engines",
    ("runtime", "files"): "Have kernel modules loaded, settings made and GPU devices linked at boot",
    ("runtime", "activate"): "Load kernel modules, make settings, link GPU devices and start the container engines",
    ("runtime", "edits"): "Give the container engines the nvidia runtime",
    ("runtime", "cdi"): "Make the CDI specification of the GPUs, and keep it fresh",
    ("verify", "smoke"): "Prove it with real use of the GPU",
}
WARNING = "warning: "  # the solver's reasons that begin so are warnings
KeyOf = Callable[[Repository], bytes]


@dataclass(frozen=True, kw_only=True)
class _Case:
    """One host's case: what the steps are made from.  `have` is the actual value of every wanted key."""

    facts: NodeFacts
    spec: Spec
    solution: Solution
    want: Wanted
    have: Mapping[Key, str]
    key_of: KeyOf


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
    if not facts.gpus and not facts.tegra and facts.virtualization != "wsl":  # their GPUs are not on PCI
        warning = "no NVIDIA GPU found on PCI: nothing to do (the nvidia runtime breaks pods on nodes without a GPU)"
        return replace(base, warnings=(*base.warnings, warning))
    want = wanted(facts, spec, solution, templates)
    problems = (*_target_problems(facts), *solution.problems, *want.problems)
    if problems:
        return replace(base, problems=problems)
    if solution.toolkit:
        managed: dict[str, str] = {name: getattr(spec.runtimes, name).manage for name in ENGINES}
        base = replace(base, warnings=(*base.warnings, *kubelet_warnings(facts, managed), *boot_warnings(facts)))
    case = _Case(facts=facts, spec=spec, solution=solution, want=want, have=actual(facts, want), key_of=key_of)
    steps = _steps(case)
    if steps:
        steps = [*_preflight(facts), *steps, _verify(case)]
    return replace(base, steps=tuple(steps), files=_files_rested_on(facts, want))


def pending_items(facts: NodeFacts, spec: Spec, solution: Solution, templates: Mapping[str, str]) -> dict[Key, str]:
    """What differs from the spec, in words by key; empty on a converged node."""
    want = wanted(facts, spec, solution, templates)
    have = actual(facts, want)
    return {key: _words(item, have[key]) for key, item in want.items.items() if differs(item, have[key])}


def class_key(plan: Plan) -> str:
    """Hosts with the same steps share a play; what is peculiar to a host (preflight) stands in its host variables."""
    data = [(s.id, s.value) for s in plan.steps if s.role != "preflight"]
    return hashlib.sha256(json.dumps(data, sort_keys=True, default=str).encode()).hexdigest()[:8]


def _steps(case: _Case) -> list[Step]:
    pending = {key: item for key, item in case.want.items.items() if differs(item, case.have[key])}
    pending |= _consequences(case.want, pending)
    steps = []
    for role in ROLES:
        for option in OPTIONS:
            mine = {k: w for k, w in pending.items() if (k.role, k.option) == (role, option)}
            if mine:
                steps.append(_step(case, role, option, mine))
    return steps


def _step(case: _Case, role: str, option: str, mine: Mapping[Key, Want]) -> Step:
    return Step(
        role=role,
        option=option,
        title=TITLES[role, option],
        value=_value(case, role, option, mine),
        reasons=_reasons(case, mine),
        diff=_diff(case, option, mine),
        disruptive=_disruption(case, option, mine),
    )


def _consequences(want: Wanted, pending: Mapping[Key, Want]) -> dict[Key, Want]:
    """What has to be done again because of another step: new driver packages → load; a new toolkit → engines; CDI.

    Docker looks nvidia-container-runtime-hook up when it starts (moby daemon/devices_nvidia_linux.go), so a toolkit
    that is new to it needs a restart even when daemon.json is right.
    """
    changed = {(k.role, k.option) for k in pending}
    again: dict[Key, Want] = {}
    if ("driver", "packages") in changed or ("driver", "files") in changed:
        again |= {k: w for k, w in want.items.items() if (k.role, k.option) == ("driver", "activate")}
    if "driver" in {k.role for k in pending}:
        again |= {k: w for k, w in want.items.items() if k.name == LINKS}  # the driver brings the devices
    if Key("toolkit", "packages", "nvidia-container-toolkit-base") in pending:
        again |= {k: w for k, w in want.items.items() if k.option == "edits" and k.name not in DAEMONLESS}
    if {("driver", "packages"), ("toolkit", "packages")} & changed:
        again |= {k: w for k, w in want.items.items() if k.option == "cdi"}
    return again


def _value(case: _Case, role: str, option: str, mine: Mapping[Key, Want]) -> Any:
    """The literal value of a role's option: what docs/design.md's table says, plain data only."""
    if option in ("sources", "files"):
        return [_file_data(w.data, case.key_of) for w in mine.values()]
    if option == "packages":
        return _packages_data(case, role, mine)
    if option == "activate":
        return _activate_data(case, role, mine)
    if option == "cdi":
        return next(iter(mine.values())).data
    return [_edit_data(case, w.data) for w in mine.values()]


def _file_data(file: SourceFile, key_of: KeyOf) -> dict[str, Any]:
    content = _content(file, key_of)
    return {"path": file.path, "content": None if content is None else content.decode(), "mode": file.mode}


def _packages_data(case: _Case, role: str, mine: Mapping[Key, Want]) -> dict[str, Any]:
    """All wanted packages of the role, not only the missing ones: the package manager solves them as one set."""
    all_of_role = {k: w for k, w in case.want.items.items() if (k.role, k.option) == (role, "packages")}
    solution = case.solution
    part = {"driver": solution.driver, "cuda": solution.cuda, "toolkit": solution.toolkit}.get(role)
    sources = sources_path(part.repository, case.facts) if part else ""  # the role that stands first has written it
    return {
        "install": [
            {"name": w.data.name, "version": w.data.version, "hold": w.data.hold}
            for w in all_of_role.values()
            if isinstance(w.data, PackageWant)
        ],
        "remove": [k.name for k, w in mine.items() if w.value == ABSENT],
        "refresh": [key.name for key in case.want.items if key.name == sources],
        **(
            {"streams": [solution.driver.stream]}
            if role == "driver" and solution.driver and solution.driver.stream
            else {}
        ),
        "proxy": case.spec.proxy,
    }


def _activate_data(case: _Case, role: str, mine: Mapping[Key, Want]) -> dict[str, Any]:
    driver = role == "driver"
    if role == "cuda":
        return {"alternatives": {"cuda": f"/usr/local/cuda-{mine[Key('cuda', 'activate', 'default')].value}"}}
    modules = [k.name.removeprefix("module ") for k, w in mine.items() if k.name.startswith("module ")]
    sysctl = {k.name.removeprefix("sysctl "): w.value for k, w in mine.items() if k.name.startswith("sysctl ")}
    return {
        "load": ["nvidia", "nvidia_uvm", "nvidia_modeset"] if driver else modules,
        "unload": ["nouveau"] if driver else [],
        "initramfs": driver,
        "version": case.spec.driver.version if driver else "",
        "reboot": case.spec.reboot if driver else "never",
        "services": [k.name.removeprefix("service ") for k in mine if k.name.startswith("service ")],
        **({"links": True} if Key(role, "activate", LINKS) in mine else {}),
        **({"sysctl": sysctl} if sysctl else {}),
    }


def _edit_data(case: _Case, wish: RuntimeWish) -> dict[str, Any]:
    facts = case.facts
    runtime = facts.runtime(wish.runtime)
    expect = {p: facts.files[p].sha256 for p in (runtime.files if runtime else ()) if p in facts.files}
    return {
        "runtime": wish.runtime,
        "default_runtime": wish.default_runtime,
        "cdi": wish.cdi,
        "cgroup_driver": wish.cgroup_driver,
        "nvidia_runtime_path": wish.nvidia_runtime_path,
        "restart": wish.runtime not in DAEMONLESS and not case.want.edits[wish.runtime].changes,
        "expect": expect,
    }


def _preflight(facts: NodeFacts) -> list[Step]:
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
    return steps


def _verify(case: _Case) -> Step:
    value = smoke_request(case.facts, case.spec, case.solution)
    return Step(role="verify", option="smoke", title=TITLES["verify", "smoke"], value=value)


def smoke_request(facts: NodeFacts, spec: Spec, solution: Solution) -> dict[str, Any]:
    """What the smoke checks have to prove on this node: plain data for node/smoke.sh."""
    engines = {
        name: getattr(spec.runtimes, name).default_runtime
        for name in ("containerd", "docker")
        if solution.toolkit and manages(facts, name, getattr(spec.runtimes, name))
    }
    containerd = facts.runtime("containerd")
    return {
        **({"socket": containerd.socket} if containerd and containerd.distribution and containerd.socket else {}),
        "runtimes": list(engines),
        "default_runtime": {name: default for name, default in engines.items() if default != "keep"},
        "image": spec.verify.image,
        "gpus": len(facts.gpus) if solution.driver else 0,
        "cuda": list(solution.cuda.versions) if solution.cuda else [],
        "toolkit": bool(solution.toolkit),
    }


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


def _reasons(case: _Case, mine: Mapping[Key, Want]) -> tuple[Reason, ...]:
    found = [Reason(what=k.name, why=_words(w, case.have[k])) for k, w in mine.items()]
    return (*found, *(r for w in mine.values() for r in w.reasons))


def _words(item: Want, have: str) -> str:
    """How the node's value differs from the wanted one, for a reader: hashes of files are not for reading."""
    if not differs(item, have):
        return f"{have}, done again because of an earlier step"
    if isinstance(item.data, PackageWant):
        version = f"{'any version' if item.value == '*' else item.value}{', held' if item.data.hold else ''}"
        return f"not installed; wanted {version}" if have == ABSENT else f"{have}; wanted {version}"
    if isinstance(item.data, SourceFile):
        return _file_words(item, have)
    if isinstance(item.data, RuntimeWish) or item.value == FRESH:
        return have
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


def _diff(case: _Case, option: str, mine: Mapping[Key, Want]) -> str:
    if option == "edits":
        changes = [(p, b) for k in mine for p, b in case.want.edits[k.name].changes.items()]
    elif option in ("sources", "files"):
        # a key's armored text says nothing to a reader: its fingerprint stands among the reasons
        changes = [(w.data.path, _content(w.data, case.key_of)) for w in mine.values() if not w.data.repository]
    else:
        return ""
    files = case.facts.files
    return "".join(unified(files[p].data if p in files else None, after, p) for p, after in changes)


def _content(file: SourceFile, key_of: KeyOf) -> bytes | None:
    if file.repository:
        return key_of(file.repository)
    return None if file.text is None else file.text.encode()


def _disruption(case: _Case, option: str, mine: Mapping[Key, Want]) -> str:
    """What the engines that are told of their configuration disturb: one whose files stay as they are is restarted."""
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


def _with_new_toolkit(case: _Case) -> NodeFacts:
    """The facts as they will be once the toolkit's packages are there: no daemon that runs has looked for its hook."""
    facts = case.facts
    items = ((key, item) for key, item in case.want.items.items() if (key.role, key.option) == ("toolkit", "packages"))
    if not any(differs(item, case.have[key]) for key, item in items):
        return facts
    return replace(facts, containers={name: replace(one, knows_hook=False) for name, one in facts.containers.items()})


def _files_rested_on(facts: NodeFacts, want: Wanted) -> dict[str, str]:
    paths: Sequence[str] = [
        *(k.name for k in want.items if k.option in ("sources", "files")),
        *(p for r in facts.runtimes for p in r.files),
    ]
    return {p: facts.files[p].sha256 if p in facts.files else "" for p in paths}
