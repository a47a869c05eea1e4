"""A step's literal value: what docs/design.md's table says, plain data only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gpunode.core.facts import masked_hash
from gpunode.core.items import ABSENT, DAEMONLESS, Key, Want, Wanted, differs
from gpunode.core.items.gpu_containers import LINKS
from gpunode.core.items.image import image_activation
from gpunode.core.items.runfile import runfile_value
from gpunode.core.items.sources import SourceFile, sources_path
from gpunode.core.items.toolkit import TAKEN_ALONG
from gpunode.core.items.values import reboots
from gpunode.core.model import NodeFacts, PackageWant, Repository, Runfile, RuntimeWish, Solution
from gpunode.core.module_parameters import shown
from gpunode.core.solve.fabric import IMEX_NODES
from gpunode.core.spec import Spec
from gpunode.core.spec.source import DISTRIBUTION

_FLAVOUR = Key("driver", "activate", "module flavour")
KeyOf = Callable[[Repository], bytes]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One host's case: what the steps are made from.  `have` is the actual value of every wanted key."""

    facts: NodeFacts
    spec: Spec
    solution: Solution
    want: Wanted
    have: Mapping[Key, str]
    key_of: KeyOf


def step_value(case: Case, role: str, option: str, mine: Mapping[Key, Want]) -> Any:
    """The literal value of a role's option, from the wants of it that are pending."""
    if option in ("sources", "files"):
        return [_file_data(w.data, case.key_of) for w in mine.values()]
    if option == "repositories":
        install = [{"name": w.data.name, "version": w.data.version} for w in mine.values()]
        return {"install": install, "proxy": case.spec.proxy}
    if option == "packages":
        return _packages_data(case, role, mine)
    if option == "runfile":
        return _runfiles_data(case, role)
    if option == "uninstall":
        return [{"kind": role, "version": case.facts.driver.runfile}]
    if option == "activate":
        return _activate_data(case, role, mine)
    if option in ("cdi", "config", "first_boot"):
        return next(iter(mine.values())).data
    if role == "sharing":
        wants = (w for k, w in case.want.items.items() if (k.role, k.option) == (role, option))
        return next(w.data for w in wants if isinstance(w.data, Mapping))
    return [_edit_data(case, w.data) for w in mine.values()]


def _file_data(file: SourceFile, key_of: KeyOf) -> dict[str, Any]:
    text = content(file, key_of)
    return {"path": file.path, "content": None if text is None else text.decode(), "mode": file.mode}


def _packages_data(case: Case, role: str, mine: Mapping[Key, Want]) -> dict[str, Any]:
    """All wanted packages of the role, not only the missing ones: the package manager solves them as one set."""
    all_of_role = {k: w for k, w in case.want.items.items() if (k.role, k.option) == (role, "packages")}
    solution = case.solution
    part = getattr(solution, role, None)
    alone = any(r.name == DISTRIBUTION for r in solution.repositories)
    names = [part.repository if part else "", *([DISTRIBUTION] if alone else [])]
    sources = [sources_path(name, case.facts) for name in names if name]  # the role that stands first has written it
    gone = [k.name for k, w in mine.items() if w.value == ABSENT]
    may_go = solution.driver.may_go if role == "driver" and solution.driver else ()
    set_up = {k: w for k, w in case.want.items.items() if (k.role, k.option) == (role, "repositories")}
    before = [k.name for k, w in set_up.items() if differs(w, case.have[k])]
    keep = [path for path in TAKEN_ALONG if path in case.facts.files and set(TAKEN_ALONG[path]) & set(gone)]
    return {
        "install": [
            {"name": w.data.name, "version": w.data.version, "hold": w.data.hold}
            for w in all_of_role.values()
            if isinstance(w.data, PackageWant)
        ],
        "remove": gone,
        **({"may_go": list(may_go)} if may_go else {}),
        **({"keep": keep} if keep else {}),
        **({"after": before} if before else {}),
        "refresh": [key.name for key in case.want.items if key.name in sources],
        **({"alone": True} if alone else {}),
        **(
            {"streams": [solution.driver.stream]}
            if role == "driver" and solution.driver and solution.driver.stream
            else {}
        ),
        "proxy": case.spec.proxy,
    }


def _runfiles_data(case: Case, role: str) -> list[dict[str, Any]]:
    """Every installer of the role: one that has been run says so itself, and builds what modules are missing."""
    flavour = case.solution.driver.flavour if role == "driver" and case.solution.driver else None
    wants = (w.data for k, w in case.want.items.items() if (k.role, k.option) == (role, "runfile"))
    return [runfile_value(role, r, proxy=case.spec.proxy, modules=flavour) for r in wants if isinstance(r, Runfile)]


def _activate_data(case: Case, role: str, mine: Mapping[Key, Want]) -> dict[str, Any]:
    driver = role == "driver"
    if driver and not case.spec.image.load:
        return image_activation(mine)
    if role == "cuda":
        return {"alternatives": {"cuda": f"/usr/local/cuda-{mine[Key('cuda', 'activate', 'default')].value}"}}
    if role == "fabric":
        return _fabric_services(case, mine)
    modules = [k.name.removeprefix("module ") for k, w in mine.items() if k.name.startswith("module ")]
    parameters = shown(case.spec.driver.module_parameters)
    sysctl = {k.name.removeprefix("sysctl "): w.value for k, w in mine.items() if k.name.startswith("sysctl ")}
    return {
        "load": ["nvidia", "nvidia_uvm", "nvidia_modeset"] if driver else modules,
        "unload": ["nouveau", *(["nova_core"] if case.facts.driver.nova else [])] if driver else [],
        "initramfs": driver,
        "version": _exact_version(case) if driver else "",
        **({"flavour": mine[_FLAVOUR].value} if _FLAVOUR in mine else {}),
        **(reboots(case.spec) if driver else {"reboot": "never"}),
        "services": [k.name.removeprefix("service ") for k in mine if k.name.startswith("service ")],
        **({"parameters": parameters} if driver and parameters else {}),
        **({"links": True} if Key(role, "activate", LINKS) in mine else {}),
        **({"sysctl": sysctl} if sysctl else {}),
    }


def _exact_version(case: Case) -> str:
    """The version that has to be loaded, "" for that of the libraries on the node."""
    driver = case.solution.driver
    return driver.version if driver and driver.runfile else case.spec.driver.version


def _fabric_services(case: Case, mine: Mapping[Key, Want]) -> dict[str, Any]:
    """Services to start; IMEX again where it runs, and its nodes are others than when it started.

    Without the GPUs they are only enabled.
    """
    if not case.spec.image.load:
        return {"enable": image_activation(mine)["enable"]}
    units = [key.name.removeprefix("service ") for key in mine]
    nodes, imex = Key("fabric", "files", IMEX_NODES), Key("fabric", "activate", "service nvidia-imex.service")
    stale = nodes in case.want.items and differs(case.want.items[nodes], case.have[nodes])
    again = [imex.name.removeprefix("service ")] if stale and case.have[imex].startswith("active") else []
    return {"services": units, **({"restart": again} if again else {})}


def _edit_data(case: Case, wish: RuntimeWish) -> dict[str, Any]:
    facts = case.facts
    runtime = facts.runtime(wish.runtime)
    expect = {p: masked_hash(facts.files[p]) for p in (runtime.files if runtime else ()) if p in facts.files}
    return {
        "runtime": wish.runtime,
        "default_runtime": wish.default_runtime,
        "cdi": wish.cdi,
        "cgroup_driver": wish.cgroup_driver,
        "nvidia_runtime_path": wish.nvidia_runtime_path,
        "restart": wish.runtime not in DAEMONLESS and not case.want.edits[wish.runtime].changes,
        "expect": expect,
    }


def content(file: SourceFile, key_of: KeyOf) -> bytes | None:
    """The bytes a file is to have; None when it is to go."""
    if file.repository:
        return key_of(file.repository)
    return None if file.text is None else file.text.encode()
