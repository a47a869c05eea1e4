"""What a node should have and what it has, in one shape: {Key: value}.

Plan, check mode and verify are their difference.

A key is (role, option, name): `("driver", "packages", "nvidia-open-580")`.  The role and option say which step mends
a difference; the name says which thing differs.  A value is a short text that a person can compare.
"""

from __future__ import annotations

import fnmatch
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from gpunode.core.edits import edit_runtime
from gpunode.core.edits.cdi import PATH as CDI_PATH
from gpunode.core.edits.cdi import made_by_ctk, stale
from gpunode.core.errors import GpunodeError
from gpunode.core.gpu_containers import LINKED, LINKS, LINKS_RULE, links_found, needs_links
from gpunode.core.kubelet import driver_problem, kubelet_engine, mismatch, wanted_driver
from gpunode.core.model import (
    DriverChoice,
    Edit,
    NodeFacts,
    PackageWant,
    Problem,
    Reason,
    Runtime,
    RuntimeName,
    RuntimeWish,
    Solution,
)
from gpunode.core.openpgp import fingerprints
from gpunode.core.sources import SourceFile, render, revoked_files, rival_files, source_files
from gpunode.core.spec import RuntimeSpec, Spec
from gpunode.core.sysctl import CONF as SYSCTL_CONF
from gpunode.core.sysctl import WANTED as SYSCTL

ABSENT = "absent"
PRESENT = "present"
FRESH = "fresh"
NOT_HELD = ", not held"
MODULE_FOR = "nvidia module for kernel "
ENABLED = ("enabled", "enabled-runtime", "static", "alias", "indirect", "generated")
ENGINES: tuple[RuntimeName, ...] = ("containerd", "docker", "crio", "podman")
DAEMONLESS = ("podman",)  # nothing to restart, and no cgroup of its own to lose devices in
# Kubernetes and overlay snapshots need them (kubernetes.io, container runtimes); the nvidia runtime does not.
ENGINE_MODULES = ("overlay", "br_netfilter")
NOUVEAU_CONF = "/etc/modprobe.d/gpunode-nouveau.conf"
PIN_CONF = "/etc/apt/preferences.d/gpunode-nvidia-driver"
MODULES_CONF = "/etc/modules-load.d/gpunode.conf"
CUDA_PROFILE = "/etc/profile.d/cuda.sh"


class Key(NamedTuple):
    role: str
    option: str
    name: str


@dataclass(frozen=True, kw_only=True)
class Want:
    """The wanted value of one key, the plain data that brings it about, and why."""

    value: str
    data: Any = None
    reasons: tuple[Reason, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The whole wanted state of a node.  `edits` are the engines' config edits, worked out on the files as they are."""

    items: Mapping[Key, Want]
    edits: Mapping[str, Edit]
    problems: tuple[Problem, ...] = ()


def wanted(facts: NodeFacts, spec: Spec, solution: Solution, templates: Mapping[str, str]) -> Wanted:
    """The state that `spec` and its `solution` ask of this node; values only, nothing is compared yet."""
    items: dict[Key, Want] = {}
    edits: dict[str, Edit] = {}
    problems: list[Problem] = []
    roles = {
        "driver": solution.driver.repository if solution.driver else "",
        "cuda": solution.cuda.repository if solution.cuda else "",
        "toolkit": solution.toolkit.repository if solution.toolkit else "",
    }
    seen: set[str] = set()
    for role, name in roles.items():
        repository = next((r for r in solution.repositories if r.name == name), None)
        if repository is None or name in seen:
            continue
        seen.add(name)
        for file in source_files(repository, facts, templates):
            items[Key(role, "sources", file.path)] = Want(value=_file_value(file), data=file)
        for path in rival_files(repository, facts):
            items[Key(role, "sources", path)] = Want(value=ABSENT, data=SourceFile(path=path, text=None))
    for path in revoked_files(facts, solution.revoked_keys) if seen else ():
        items[Key("driver", "sources", path)] = Want(
            value=ABSENT,
            data=SourceFile(path=path, text=None),
            reasons=(Reason(what=path, why="holds a repository key that its vendor has revoked"),),
        )
    if solution.driver:
        items |= dict(_driver(facts, spec, solution.driver, templates))
    if solution.cuda:
        items |= {Key("cuda", "packages", p.name): _package(p) for p in solution.cuda.packages}
        items[Key("cuda", "files", CUDA_PROFILE)] = _file(CUDA_PROFILE, templates["cuda.sh.j2"])
        items[Key("cuda", "activate", "default")] = Want(value=solution.cuda.version)
    if solution.toolkit:
        items |= {Key("toolkit", "packages", p.name): _package(p) for p in solution.toolkit.packages}
        items |= {Key("toolkit", "packages", n): Want(value=ABSENT) for n in solution.toolkit.remove}
        for wish, engine in wishes(facts, spec):
            runtime_items, edit = _runtime(facts, wish, engine, templates)
            items |= runtime_items
            edits[wish.runtime] = edit
            problems += edit.problems
            problems += filter(None, [driver_problem(facts, wish.runtime, engine.cgroup_driver)])
        problems += _absent_engines(facts, spec)
        items |= dict(_cdi(facts, spec, solution, templates))
    return Wanted(items=items, edits=edits, problems=tuple(problems))


def actual(facts: NodeFacts, want: Wanted) -> dict[Key, str]:
    """What the node has for each wanted key, in the same words."""
    return {key: _actual(facts, key, item, want.edits) for key, item in want.items.items()}


def differs(item: Want, value: str) -> bool:
    """Whether the node's value is not the wanted one; a wanted package version may end in `*`."""
    if value in ("", ABSENT) or value.endswith(NOT_HELD):
        return value != item.value
    return not fnmatch.fnmatchcase(value, item.value)


def wishes(facts: NodeFacts, spec: Spec) -> Iterator[tuple[RuntimeWish, RuntimeSpec]]:
    """The engines to configure, each with what its configuration should say."""
    for name in ENGINES:
        engine: RuntimeSpec = getattr(spec.runtimes, name)
        if _not_installable(name, engine) or not manages(facts, name, engine):
            continue
        driver = wanted_driver(facts, facts.runtime(name)) if engine.cgroup_driver == "auto" else engine.cgroup_driver
        yield (
            RuntimeWish(
                runtime=name,
                default_runtime=engine.default_runtime,
                cdi=engine.cdi,
                cgroup_driver=driver if driver in ("systemd", "cgroupfs") else "",  # type: ignore[arg-type]
            ),
            engine,
        )


def manages(facts: NodeFacts, name: str, engine: RuntimeSpec) -> bool:
    """Whether an engine is to be configured: auto takes those that are there, beside a kubelet only its own."""
    installed = facts.runtime(name) is not None
    if engine.manage == "auto":
        kubelets = kubelet_engine(facts)
        return installed and (kubelets is None or name in (kubelets.name, "podman"))
    return engine.manage == "install" or (engine.manage == "configure" and installed)


def _driver(
    facts: NodeFacts, spec: Spec, driver: DriverChoice, templates: Mapping[str, str]
) -> Iterator[tuple[Key, Want]]:
    if driver.method == "preinstalled":
        return
    if driver.pin and facts.package_manager in ("apt", ""):  # elsewhere a lock on the packages does it
        text = render(templates["driver-pin.j2"], pin=driver.pin)
        yield Key("driver", "sources", PIN_CONF), _file(PIN_CONF, text)
    for package in (*driver.kernel_packages, *driver.packages):
        yield Key("driver", "packages", package.name), _package(package)
    for name in driver.remove:
        yield Key("driver", "packages", name), Want(value=ABSENT)
    yield Key("driver", "files", NOUVEAU_CONF), _file(NOUVEAU_CONF, templates["nouveau.conf.j2"])
    yield Key("driver", "activate", "module nouveau"), Want(value=ABSENT)
    yield Key("driver", "activate", "module nvidia"), Want(value=PRESENT)
    yield Key("driver", "activate", "module version"), Want(value=facts.driver.userspace or PRESENT)
    if facts.driver.loaded_flavour not in ("", driver.flavour):
        yield Key("driver", "activate", "module flavour"), Want(value=driver.flavour)
    for kernel in facts.kernels:
        if kernel.image:
            yield Key("driver", "packages", f"{MODULE_FOR}{kernel.release}"), Want(value=PRESENT, data=driver.flavour)
    for unit in driver.services:
        yield Key("driver", "activate", f"service {unit}"), Want(value="active, enabled")


def _runtime(
    facts: NodeFacts, wish: RuntimeWish, engine: RuntimeSpec, templates: Mapping[str, str]
) -> tuple[dict[Key, Want], Edit]:
    items: dict[Key, Want] = {}
    installed = facts.runtime(wish.runtime)
    if engine.manage == "install":
        apart = ("docker-cli",) if wish.runtime == "docker" and facts.distro.key in DOCKER_CLI_APART else ()
        for name in (*ENGINE_PACKAGES[wish.runtime], *apart):
            items[Key("runtime", "packages", name)] = _package(PackageWant(name=name))
        items[Key("runtime", "activate", f"service {wish.runtime}")] = Want(value="active, enabled")
    if facts.kubernetes.present or (wish.runtime == "containerd" and engine.manage == "install"):
        items |= dict(_kernel(templates))
    if wish.runtime not in DAEMONLESS and needs_links(facts, wish):
        items[Key("runtime", "files", LINKS_RULE)] = _file(LINKS_RULE, templates["dev-char.rules.j2"])
        items[Key("runtime", "activate", LINKS)] = Want(value=LINKED)
    edit = _edit(facts, wish, installed)
    sentence = mismatch(facts) if wish.cgroup_driver and installed == kubelet_engine(facts) else ""
    why = (Reason(what="cgroup driver", why=f"{sentence}: it gets the kubelet's"),) if sentence else ()
    items[Key("runtime", "edits", wish.runtime)] = Want(value="configured", data=wish, reasons=(*edit.reasons, *why))
    return items, edit


def _cdi(facts: NodeFacts, spec: Spec, solution: Solution, templates: Mapping[str, str]) -> Iterator[tuple[Key, Want]]:
    """The CDI specification, where an engine goes by it, or one that nvidia-ctk made is there."""
    asked = any(wish.runtime == "podman" or wish.cdi for wish, _ in wishes(facts, spec))
    driver = solution.driver or facts.driver.loaded  # nvidia-ctk asks it
    if not driver or not (asked or made_by_ctk(facts).cdi.specs):
        return
    units = {name: templates[f"cdi-refresh.{name}.j2"] for name in ("service", "path")}
    yield Key("runtime", "cdi", CDI_PATH), Want(value=FRESH, data={"output": "", **units})


def _kernel(templates: Mapping[str, str]) -> Iterator[tuple[Key, Want]]:
    """Modules and settings that Kubernetes needs, now and after the next boot."""
    yield Key("runtime", "files", MODULES_CONF), _file(MODULES_CONF, templates["modules-load.conf.j2"])
    yield Key("runtime", "files", SYSCTL_CONF), _file(SYSCTL_CONF, templates["sysctl.conf.j2"])
    for module in ENGINE_MODULES:
        yield Key("runtime", "activate", f"module {module}"), Want(value=PRESENT)
    for key, value in SYSCTL.items():
        yield Key("runtime", "activate", f"sysctl {key}"), Want(value=value)


# Debian's and Ubuntu's own packages (packages.debian.org, packages.ubuntu.com).
ENGINE_PACKAGES: Mapping[str, tuple[str, ...]] = {"containerd": ("containerd",), "docker": ("docker.io",)}
DOCKER_CLI_APART = ("debian:13",)  # from trixie on the client is a package of its own, which docker.io only recommends


def _edit(facts: NodeFacts, wish: RuntimeWish, installed: Runtime | None) -> Edit:
    if installed is None:
        return Edit(reasons=(Reason(what=wish.runtime, why="it is installed first, then its configuration is edited"),))
    return edit_runtime(facts, wish)


def _not_installable(name: RuntimeName, engine: RuntimeSpec) -> bool:
    return engine.manage == "install" and name not in ENGINE_PACKAGES


def _absent_engines(facts: NodeFacts, spec: Spec) -> list[Problem]:
    refused = [
        Problem(
            what=f"runtimes.{name}.manage is install, and gpunode does not install {name}",
            fix=f"install it otherwise, and set runtimes.{name}.manage to configure, auto or ignore",
        )
        for name in ENGINES
        if _not_installable(name, getattr(spec.runtimes, name))
    ]
    return refused + [
        Problem(
            what=f"runtimes.{name}.manage is configure, but {name} is not installed",
            fix=f"set runtimes.{name}.manage to install (gpunode installs it) or to ignore"
            if name in ENGINE_PACKAGES
            else f"install {name}, or set runtimes.{name}.manage to auto or ignore",
        )
        for name in ENGINES
        if getattr(spec.runtimes, name).manage == "configure" and facts.runtime(name) is None
    ]


def _actual(facts: NodeFacts, key: Key, item: Want, edits: Mapping[str, Edit]) -> str:
    if key.option == "packages" and key.name.startswith(MODULE_FOR):
        kernel = next((k for k in facts.kernels if k.release == key.name.removeprefix(MODULE_FOR) and k.module), None)
        return (
            ABSENT if kernel is None else PRESENT if kernel.flavour in ("", item.data) else f"{kernel.flavour} modules"
        )
    if key.option == "packages":
        found = facts.packages.get(key.name)
        if found is None:
            return ABSENT
        if item.value == ABSENT:
            return found.version
        hold = isinstance(item.data, PackageWant) and item.data.hold
        # an rpm's epoch stands in no package name, and in no version that is asked for
        version = found.version if facts.package_manager in ("apt", "") else found.version.rpartition(":")[2]
        return version + (NOT_HELD if hold and not found.held else "")
    if key.option in ("sources", "files"):
        return _actual_file(facts, key.name, item)
    if key.option == "edits":
        pending = facts.runtime(key.name) is None or edits[key.name].changes or facts.unfinished
        return "to be edited" if pending else "to be restarted" if edits[key.name].restart else "configured"
    if key.option == "cdi":
        return "; ".join(stale(made_by_ctk(facts))) or FRESH
    return _actual_activation(facts, key)


def _actual_activation(facts: NodeFacts, key: Key) -> str:
    kind, _, name = key.name.partition(" ")
    if key == Key("cuda", "activate", "default"):
        return facts.cuda_default
    if key.name == LINKS:
        return links_found(facts)
    if kind == "service":
        service = facts.services.get(name.removesuffix(".service"))
        if service is None:
            return ABSENT
        enabled = "enabled" if service.enabled in ENABLED else service.enabled or "disabled"
        return f"{service.active or 'inactive'}, {enabled}"
    if kind == "sysctl":
        return facts.sysctl.get(name, ABSENT)
    if name == "nouveau":
        return PRESENT if facts.driver.nouveau else ABSENT
    if name == "version":
        return facts.driver.loaded or ABSENT
    if name == "flavour":
        return facts.driver.loaded_flavour
    return PRESENT if name in facts.modules else ABSENT


def _actual_file(facts: NodeFacts, path: str, item: Want) -> str:
    file = facts.files.get(path)
    if file is None or not file.sha256:
        return ABSENT
    if item.value == ABSENT:
        return PRESENT
    if item.value.startswith("key "):
        try:
            return "key " + " ".join(fingerprints(file.data or b""))
        except GpunodeError:
            return "not a key"
    return f"{file.sha256[:16]} {file.mode:04o}"


def _package(package: PackageWant) -> Want:
    return Want(value=package.version or "*", data=package)


def _file(path: str, text: str) -> Want:
    file = SourceFile(path=path, text=text)
    return Want(value=_file_value(file), data=file)


def _file_value(file: SourceFile) -> str:
    if file.text is None and not file.repository:
        return ABSENT
    if file.repository:
        return f"key {file.repository.fingerprint}"
    return f"{hashlib.sha256((file.text or '').encode()).hexdigest()[:16]} {file.mode}"
