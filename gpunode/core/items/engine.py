"""The container engines: what is installed for them, their configuration, and what Kubernetes needs with them."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from gpunode.core.edits import RuntimeRequest, activation, completed, edit_runtime, runtime_target
from gpunode.core.edits.target import probed_files, refused, texts
from gpunode.core.engines import BY_CDI, DAEMONS, ENGINES, ROWS
from gpunode.core.errors import GpunodeError
from gpunode.core.facts import masked_hash
from gpunode.core.facts.cdi import made_by_ctk
from gpunode.core.facts.kubelet import kubelet_engine
from gpunode.core.items.activation import STEP as activation_step
from gpunode.core.items.activation import Module, ServiceItem, how_stopped, stopped, switched_off
from gpunode.core.items.cdi import Specification, cdi_warnings
from gpunode.core.items.cdi import settings as cdi_settings
from gpunode.core.items.file import FILES, File
from gpunode.core.items.gpu_containers import LINKS_RULE, Links, needs_links
from gpunode.core.items.item import Found, HostCase, Item, ItemKey, KeyOf, Question, StepKind
from gpunode.core.items.kubelet import (
    default_reason,
    default_runtime,
    driver_mismatch,
    driver_problem,
    kubelet_warnings,
    wanted_driver,
)
from gpunode.core.items.package import PackageItem
from gpunode.core.items.sysctl import CONF as SYSCTL_CONF
from gpunode.core.items.sysctl import WANTED as SYSCTL
from gpunode.core.items.sysctl import Sysctl, boot_warnings
from gpunode.core.late import dataclass, replace
from gpunode.core.model import Edit, NodeFacts, PackageWant, Problem, Reason, Runtime, RuntimeName
from gpunode.core.numbers import release
from gpunode.core.spec import RuntimeSpec, Spec
from gpunode.core.validation import check_one, flag, mapping, rows, text

# Kubernetes and overlay snapshots need them (kubernetes.io, container runtimes); the nvidia runtime does not.
ENGINE_MODULES = ("overlay", "br_netfilter")
MODULES_CONF = "/etc/modules-load.d/gpunode.conf"
SHAPE = rows(
    "Engines whose configuration is edited, in one transaction each.",
    runtime=text("The engine.", choices=ENGINES, required=True),
    default_runtime=text("Its default runtime.", choices=("nvidia", "runc", "keep")),
    cdi=flag("Whether it uses CDI; null leaves that as it is."),
    cgroup_driver=text("Its cgroup driver; empty leaves that as it is.", choices=("", "systemd", "cgroupfs")),
    nvidia_runtime_path=text("Path of the nvidia runtime."),
    restart=flag("Whether it is restarted when nothing is to be edited."),
    expect=mapping("Paths with the SHA-256 of the files that the plan was made for."),
)
# key of the value → field of the request
_FIELDS = {
    "runtime": "runtime",
    "default_runtime": "default_runtime",
    "cdi": "cdi",
    "cgroup_driver": "cgroup_driver",
    "nvidia_runtime_path": "path",
}


@dataclass(frozen=True, kw_only=True)
class Configured(Item):
    """An engine's configuration.  `edit` is worked out on the files as they are now."""

    WANTED = "configured"
    IN_WORDS = True
    ASKED_BY = "runtimes"
    BACK = (FILES,)
    role: str = "runtime"
    option: str = "edits"
    asked: RuntimeRequest
    edit: Edit
    upgrade: bool = False  # a toolkit is there already

    @property
    def name(self) -> str:
        return self.asked.runtime

    def actual(self, facts: NodeFacts) -> str:
        pending = facts.runtime(self.name) is None or self.edit.changes or facts.unfinished
        return "to be edited" if pending else "to be restarted" if self.edit.restart else self.wanted

    def request(self, case: HostCase) -> Mapping[str, Any]:
        """The edit, with the files that it was worked out on."""
        expect = {path: masked_hash(case.facts.files[path]) for path in self.edit.files}
        again = self.name in DAEMONS and not self.edit.changes
        return {key: getattr(self.asked, name) for key, name in _FIELDS.items()} | {"restart": again, "expect": expect}

    def disrupts(self, case: HostCase) -> str:
        """What applying the configuration disturbs: one whose files stay as they are is restarted."""
        facts, edit = _with_new_toolkit(case), self.edit
        if not edit.changes:
            edit = replace(edit, changes={path: facts.files[path].data for path in edit.files})
        disrupts = activation(facts, self.asked, edit).disrupts
        warnings = [reason.why for reason in edit.reasons if reason.level == "warning"]
        return "; ".join((disrupts, *warnings)) if disrupts else ""

    def follows(self, pending: Mapping[ItemKey, Item]) -> bool:
        """Docker looks nvidia-container-runtime-hook up when it starts (moby daemon/devices_nvidia_linux.go).

        So a toolkit that is new to an engine needs a restart even where its configuration is right.  One that is
        upgraded does not: engines start its programs for each container.
        """
        toolkit = ItemKey("toolkit", "packages", "nvidia-container-toolkit-base")
        return self.name in DAEMONS and not self.upgrade and toolkit in pending

    def changes(self, key_of: KeyOf) -> Iterator[tuple[str, bytes | None]]:
        yield from self.edit.changes.items()


def wanted(question: Question) -> Found:
    """Every engine that is to be configured, with what it needs, and what stands against it."""
    facts, spec = question.facts, question.spec
    if not question.solution.toolkit:
        return
    asked = [*requests(facts, spec)]
    if not (asked or facts.runtimes) and spec.runtimes.docker.manage == "auto":
        yield "no container engine was found: install one, or have it installed (runtimes.docker.manage: install)"
    for request, engine in asked:
        yield from _runtime(facts, request, engine, question.templates)
        if problem := driver_problem(facts, request.runtime, engine.cgroup_driver):
            yield problem
    yield from _absent_engines(facts, spec)
    yield from _cdi(question, [request for request, _ in asked])
    yield from kubelet_warnings(facts, {name: getattr(spec.runtimes, name).manage for name in ENGINES})
    yield from boot_warnings(facts)
    yield from cdi_warnings(facts)


ACTIVATION = replace(
    activation_step,
    base=lambda *_: {"load": [], "unload": [], "initramfs": False, "version": "", "reboot": "never", "services": []},
)


def _with_new_toolkit(case: HostCase) -> NodeFacts:
    """The facts as they will be once the toolkit's packages are there: no daemon that runs has looked for its hook."""
    facts = case.facts
    if facts.toolkit or not any(case.pending(item) for item in case.of("toolkit", "packages")):
        return facts
    return replace(facts, containers={name: replace(one, knows_hook=False) for name, one in facts.containers.items()})


STEP = StepKind(shape=SHAPE, action="edit_file", argument="runtimes")


def requests(facts: NodeFacts, spec: Spec) -> Iterator[tuple[RuntimeRequest, RuntimeSpec]]:
    """The engines to configure, each with what its configuration should say."""
    for name in ENGINES:
        engine: RuntimeSpec = getattr(spec.runtimes, name)
        if _not_installable(name, engine) or not manages(facts, name, engine, there=_is_there(facts, spec, name)):
            continue
        driver = wanted_driver(facts, facts.runtime(name)) if engine.cgroup_driver == "auto" else engine.cgroup_driver
        yield (
            RuntimeRequest(
                runtime=name,
                default_runtime=default_runtime(facts, name, engine.default_runtime),
                cdi=engine.cdi if engine.cdi is not None else _cdi_of_pods(facts, spec, name),
                cgroup_driver=driver if driver in ("systemd", "cgroupfs") else "",  # type: ignore[arg-type]
            ),
            engine,
        )


def _cdi_of_pods(facts: NodeFacts, spec: Spec, name: str) -> Literal[True] | None:
    """CDI where the device plugin names a pod's GPUs by it: containerd 1.7 has it off, and passes over the names.

    Docker takes no CDI devices from a kubelet.
    """
    plugin, engine = spec.kubernetes.device_plugin, kubelet_engine(facts)
    if not plugin.by_cdi or not engine or engine.name != name or name == "docker":
        return None
    without = name == "containerd" and (0, 0) < release(engine.version) < (1, 7)
    return True if plugin.by_cdi_alone or not without else None  # an engine that has none refuses it


def unjudged(facts: NodeFacts, name: str) -> bool:
    """Whether a value of the engine, or of the kubelet that may use it, was invalid: then it is left as it is."""
    runtime = facts.runtime(name)
    folder = posixpath.dirname(runtime.config) if runtime else ""
    return any(
        (one.section, one.thing) in (("runtimes", name), ("kubernetes", ""))
        or (one.section == "files" and one.thing.startswith(folder))
        for one in facts.invalid
    )


def _is_there(facts: NodeFacts, spec: Spec, name: str) -> bool:
    """Whether an engine is on the node, or comes with one that is to be installed."""
    new = (row for by, row in ROWS.items() if getattr(spec.runtimes, by).manage == "install" and not facts.runtime(by))
    return facts.runtime(name) is not None or any(name in row.brings for row in new)


def manages(facts: NodeFacts, name: str, engine: RuntimeSpec, *, there: bool) -> bool:
    """Whether an engine is to be configured: auto takes those that are there, next to a kubelet only its own."""
    if facts.runtime(name) and unjudged(facts, name):
        return False
    if engine.manage == "auto":
        kubelets = kubelet_engine(facts)
        taken = name == kubelets.name or name not in DAEMONS if kubelets else not _without_cri(facts, name)
        return there and taken
    return engine.manage == "install" or (engine.manage == "configure" and there)


def _without_cri(facts: NodeFacts, name: str) -> bool:
    """Whether it is Docker's containerd with the CRI plugin off: nothing there starts a container by its file."""
    found = facts.runtime("containerd")
    if name != "containerd" or not found or not facts.runtime("docker"):
        return False
    from gpunode.core.edits.engines.containerd_files import in_force

    request = completed(RuntimeRequest(runtime="containerd"), found)
    try:
        files = texts(probed_files(facts.files, runtime_target(request).files))
        with refused(files):
            return in_force(files, request).without_cri is not None
    except GpunodeError:  # the edit says what is wrong
        return False


def _runtime(facts: NodeFacts, request: RuntimeRequest, engine: RuntimeSpec, templates: Mapping[str, str]) -> Found:
    installed = facts.runtime(request.runtime)
    if engine.manage == "install":
        row = ROWS[request.runtime]
        for name in (*row.installs, *(name for distro, name in row.recommends if distro == facts.distro.key)):
            yield PackageItem(role="runtime", package=PackageWant(name=name))
        yield ServiceItem(role="runtime", unit=request.runtime)
    elif installed and stopped(installed):
        yield ServiceItem(role="runtime", unit=installed.unit.removesuffix(".service"))
    elif installed and switched_off(facts, installed):
        yield f"{how_stopped(facts, installed)}, so it is not proven; systemctl enable --now {installed.unit} starts it"
    if facts.kubernetes.present or (request.runtime == "containerd" and engine.manage == "install"):
        yield from _kernel(templates)
    if request.runtime in DAEMONS and needs_links(facts, request):
        yield File(role="runtime", path=LINKS_RULE, text=templates["dev-char.rules.j2"])
        yield Links()
    edit = _edit(facts, request, installed)
    yield from edit.problems
    sentence = driver_mismatch(facts) if request.cgroup_driver and installed == kubelet_engine(facts) else ""
    why = (Reason(what="cgroup driver", why=f"{sentence}: it gets the kubelet's"),) if sentence else ()
    if engine.default_runtime == "auto":
        why = (*why, Reason(what="default runtime", why=default_reason(facts, request.runtime)))
    if request.cdi and engine.cdi is None:
        why = (*why, Reason(what="CDI", why="kubernetes.device_plugin.device_list_strategy names GPUs by it"))
    yield Configured(asked=request, edit=edit, upgrade=bool(facts.toolkit), reasons=(*edit.reasons, *why))


def _cdi(question: Question, asked: Sequence[RuntimeRequest]) -> Iterator[Item]:
    """The CDI specification, where an engine goes by it, or one that nvidia-ctk made is there.

    The toolkit's own unit makes one as soon as it is installed: of GPUs that MIG cuts only afterwards.
    """
    facts, templates = question.facts, question.templates
    engines = tuple(request.runtime for request in asked if request.runtime in BY_CDI or request.cdi)
    driver = question.solution.driver or facts.driver.loaded  # nvidia-ctk asks it
    cut = question.solution.toolkit and question.spec.sharing.strategy == "mig"
    if driver and (engines or cut or made_by_ctk(facts).cdi.specs):
        units = {name: templates[f"cdi-refresh.{name}.j2"] for name in ("service", "path")}
        yield from cdi_settings(facts, question.solution.toolkit.version if question.solution.toolkit else "", engines)
        yield Specification(units=units, engines=engines)


def _kernel(templates: Mapping[str, str]) -> Iterator[Item]:
    """Modules and settings that Kubernetes needs, now and after the next boot."""
    yield File(role="runtime", path=MODULES_CONF, text=templates["modules-load.conf.j2"])
    yield File(role="runtime", path=SYSCTL_CONF, text=templates["sysctl.conf.j2"])
    for module in ENGINE_MODULES:
        yield Module(role="runtime", module=module)
    for setting, needed in SYSCTL.items():
        yield Sysctl(setting=setting, value=needed)


def _edit(facts: NodeFacts, request: RuntimeRequest, installed: Runtime | None) -> Edit:
    if installed:
        return edit_runtime(facts, request)
    there = replace(facts, runtimes=(*facts.runtimes, Runtime(name=request.runtime)))  # its file may be there before it
    first = Reason(what=request.runtime, why="it is installed first, then its configuration is edited")
    return Edit(reasons=(first,), problems=edit_runtime(there, request).problems)


def _not_installable(name: RuntimeName, engine: RuntimeSpec) -> bool:
    return engine.manage == "install" and not ROWS[name].installs


def _absent_engines(facts: NodeFacts, spec: Spec) -> Iterator[Problem]:
    for name in ENGINES:
        engine: RuntimeSpec = getattr(spec.runtimes, name)
        if _not_installable(name, engine):
            yield Problem(
                what=f"runtimes.{name}.manage is install, and gpunode does not install {name}",
                fix=f"install it otherwise, and set runtimes.{name}.manage to configure, auto or ignore",
            )
        elif engine.manage == "configure" and not _is_there(facts, spec, name):
            yield Problem(
                what=f"runtimes.{name}.manage is configure, but {name} is not installed",
                fix=f"set runtimes.{name}.manage to install (gpunode installs it) or to ignore"
                if ROWS[name].installs
                else f"install {name}, or set runtimes.{name}.manage to auto or ignore",
            )


def runtime_request(value: Mapping[str, Any]) -> RuntimeRequest:
    """{runtime, default_runtime, cdi, cgroup_driver, nvidia_runtime_path, restart, expect} → what is asked.

    `restart` and `expect` are the transaction's affair.  Raises InputError.
    """
    check_one("runtime edit", value, SHAPE)
    return RuntimeRequest(**{name: value[key] for key, name in _FIELDS.items() if key in value})


def changed_files(expect: Mapping[str, str], facts: NodeFacts) -> list[str]:
    """The paths whose `masked_hash` is not the expected one ("" = absent)."""
    now = {path: masked_hash(facts.files[path]) if path in facts.files else "" for path in expect}
    return [path for path, wanted in expect.items() if now[path] != wanted]
