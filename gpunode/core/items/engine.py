"""The container engines' part of the wanted state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gpunode.core.cdi import PATH as CDI_PATH
from gpunode.core.cdi import made_by_ctk
from gpunode.core.edits import edit_runtime
from gpunode.core.facts import masked_hash
from gpunode.core.facts.kubelet import driver_problem, kubelet_engine, mismatch, wanted_driver
from gpunode.core.items.gpu_containers import LINKED, LINKS, LINKS_RULE, needs_links
from gpunode.core.items.sysctl import CONF as SYSCTL_CONF
from gpunode.core.items.sysctl import WANTED as SYSCTL
from gpunode.core.items.values import FRESH, PRESENT, Key, Want, Wanted, file_want, package_want
from gpunode.core.model import (
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
from gpunode.core.spec import RuntimeSpec, Spec
from gpunode.core.validation import check_one, flag, mapping, rows, text

ENGINES: tuple[RuntimeName, ...] = ("containerd", "docker", "crio", "podman")
DAEMONLESS = ("podman",)  # nothing to restart, and no cgroup of its own to lose devices in
# Kubernetes and overlay snapshots need them (kubernetes.io, container runtimes); the nvidia runtime does not.
ENGINE_MODULES = ("overlay", "br_netfilter")
MODULES_CONF = "/etc/modules-load.d/gpunode.conf"
SHAPE = rows(
    "Engines whose configuration is edited, in one transaction each.",
    runtime=text("The engine.", choices=ENGINES, required=True),
    default_runtime=text("Its default runtime.", choices=("nvidia", "runc", "keep")),
    cdi=flag("Whether it goes by CDI; null leaves that as it is."),
    cgroup_driver=text("Its cgroup driver; empty leaves that as it is.", choices=("", "systemd", "cgroupfs")),
    nvidia_runtime_path=text("Path of the nvidia runtime."),
    restart=flag("Whether it is restarted when nothing is to be edited."),
    expect=mapping("Paths with the SHA-256 of the files that the plan was made for."),
)
_WISH = ("runtime", "default_runtime", "cdi", "cgroup_driver", "nvidia_runtime_path")


def wanted_runtimes(facts: NodeFacts, spec: Spec, solution: Solution, templates: Mapping[str, str]) -> Wanted:
    """Every engine that is to be configured, with the edits of its files and what stands against them."""
    items: dict[Key, Want] = {}
    edits: dict[str, Edit] = {}
    problems: list[Problem] = []
    for wish, engine in wishes(facts, spec):
        runtime_items, edit = _runtime(facts, wish, engine, templates)
        items |= runtime_items
        edits[wish.runtime] = edit
        problems += edit.problems
        problems += filter(None, [driver_problem(facts, wish.runtime, engine.cgroup_driver)])
    problems += _absent_engines(facts, spec)
    items |= dict(_cdi(facts, spec, solution, templates))
    return Wanted(items=items, edits=edits, problems=tuple(problems))


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


def _runtime(
    facts: NodeFacts, wish: RuntimeWish, engine: RuntimeSpec, templates: Mapping[str, str]
) -> tuple[dict[Key, Want], Edit]:
    items: dict[Key, Want] = {}
    installed = facts.runtime(wish.runtime)
    if engine.manage == "install":
        apart = ("docker-cli",) if wish.runtime == "docker" and facts.distro.key in DOCKER_CLI_APART else ()
        for name in (*ENGINE_PACKAGES[wish.runtime], *apart):
            items[Key("runtime", "packages", name)] = package_want(PackageWant(name=name))
        items[Key("runtime", "activate", f"service {wish.runtime}")] = Want(value="active, enabled")
    if facts.kubernetes.present or (wish.runtime == "containerd" and engine.manage == "install"):
        items |= dict(_kernel(templates))
    if wish.runtime not in DAEMONLESS and needs_links(facts, wish):
        items[Key("runtime", "files", LINKS_RULE)] = file_want(LINKS_RULE, templates["dev-char.rules.j2"])
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
    yield Key("runtime", "files", MODULES_CONF), file_want(MODULES_CONF, templates["modules-load.conf.j2"])
    yield Key("runtime", "files", SYSCTL_CONF), file_want(SYSCTL_CONF, templates["sysctl.conf.j2"])
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


def runtime_wish(value: Mapping[str, Any]) -> RuntimeWish:
    """{runtime, default_runtime, cdi, cgroup_driver, nvidia_runtime_path, restart, expect} → RuntimeWish.

    `restart` and `expect` are the transaction's affair.  Raises InputError.
    """
    check_one("runtime edit", value, SHAPE)
    return RuntimeWish(**{key: value[key] for key in _WISH if key in value})


def changed_files(expect: Mapping[str, str], facts: NodeFacts) -> list[str]:
    """The paths whose `masked_hash` is not the expected one ("" = absent)."""
    now = {path: masked_hash(facts.files[path]) if path in facts.files else "" for path in expect}
    return [path for path, wanted in expect.items() if now[path] != wanted]
