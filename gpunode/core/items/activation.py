"""Modules, services and settings: the value of a role's `_activate` option, the request of activate.sh.

Request files: `load`, `unload`, `services` (to enable and start), `enable` (to start at boot, not now), `mask`,
`restart` (where they run) one name a line, `initramfs` and `links` (1; of GPU devices in /dev/char), `version`,
`alternatives` lines `NAME PATH` (the link /usr/local/NAME), `sysctl` lines `KEY VALUE` (in force now), `parameters`
lines `NAME VALUE` (of the loaded nvidia module, as /proc/driver/nvidia/params shows them), `arguments` lines `WORD
present` or `WORD absent` (of the kernel's command line), `ecc` lines `MODEL Enabled` or `MODEL Disabled` (PCI id of
GPUs, * for all others), `flavour` the one to be installed where another one is loaded, `check` (1) in check mode, and
there `foretold`: what steps before would have done.
Besides the usual lines the script prints
`gpunode<TAB>boot_id<TAB>ID` and, where nothing else helps, `gpunode<TAB>reboot<TAB>REASON`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, get_args

from gpunode.core.grammar import ARGUMENT_WORD, MODULE, PARAMETER, SETTING, SYSCTL, UNIT, VERSION, WORD
from gpunode.core.items.item import ABSENT, PRESENT, HostCase, Item, ItemKey, StateKind, StepKind
from gpunode.core.late import dataclass
from gpunode.core.model import Changed, Check, Flavour, NodeFacts, Runtime, Service
from gpunode.core.remote import as_flags, as_lines, node_lines
from gpunode.core.validation import check_value, flag, mapping, number, pairs, text, texts

REBOOT = ("never", "if-needed", "always")
REBOOTS = {
    "reboot": text("Whether the node may be rebooted where nothing else helps.", choices=REBOOT),
    "reboot_controller": flag("Whether that holds for the machine Ansible runs on, too; it is known by its boot id."),
    "reboot_timeout": number("Seconds that the node may take to come back from a reboot."),
}
SHAPE = mapping(
    "What is loaded, started and set.",
    enable=texts("Units to start at the next boot, and not now.", UNIT.pattern),
    load=texts("Kernel modules to load.", MODULE.pattern),
    unload=texts("Kernel modules to unload.", MODULE.pattern),
    initramfs=flag("Whether the initramfs is rebuilt where it is stale."),
    version=text("Version of the driver that has to be loaded; empty means that of the libraries.", VERSION.pattern),
    flavour=text("Flavour of the modules that has to be loaded.", choices=get_args(Flavour)),
    **REBOOTS,
    services=texts("Units to enable and start.", UNIT.pattern),
    links=flag("Whether GPU devices get their links in /dev/char."),
    sysctl=pairs("Kernel settings, in force now.", SYSCTL.pattern, SETTING.pattern),
    restart=texts("Units to restart where they run.", UNIT.pattern),
    mask=texts("Units to stop, and to keep from starting.", UNIT.pattern),
    parameters=pairs(
        "Parameters of the nvidia module, as /proc/driver/nvidia/params shows them.", MODULE.pattern, PARAMETER.pattern
    ),
    arguments=pairs(
        "Arguments of the kernel's command line: present or absent.", ARGUMENT_WORD.pattern, "present|absent"
    ),
    ecc=pairs(
        "ECC of GPUs by PCI id, * for all others: Enabled or Disabled, after a reset.",
        r"\*|10de:[0-9a-f]{4}",
        "Enabled|Disabled",
    ),
    alternatives=pairs("Links below /usr/local, by name, and where each leads.", WORD.pattern, r"/[^\s]*"),
)
_LISTS = ("load", "unload", "services", "enable", "mask", "restart")
_FLAGS = ("initramfs", "links")
_PAIRS = ("alternatives", "sysctl", "parameters", "ecc", "arguments")

UNITS = "/etc/systemd/system/"  # links there enable units
_ENABLED = ("enabled", "enabled-runtime")
_AT_BOOT = (*_ENABLED, "static", "alias", "indirect", "generated")


class _Enabled(StateKind):
    def goes_by(self, value: str) -> str:
        return "enable" if value in _ENABLED else "" if value in _AT_BOOT else "disable"

    def meaning(self, value: str) -> str:
        return _ENABLED[0] if value in _AT_BOOT else ""

    def stuck(self, now: str) -> str:
        return "its file has no [Install]" if now in _AT_BOOT and now not in _ENABLED else ""


LOADED = StateKind(name="module", called="the module ", fields={ABSENT: "unload", "loaded": "load"})
ACTIVE = StateKind(name="active", fields={"inactive": "stop", "active": "start"})
ENABLED = _Enabled(name="enabled", by_people=True)
MASK = StateKind(name="mask", by_people=True, theirs=True, called="the mask of ")


@dataclass(frozen=True, kw_only=True)
class _Running(Item):
    """What is loaded or started: what the GPU needs of it also at the first boot."""

    option: str = "activate"

    @property
    def first_boot(self) -> str:
        return "activate" if self.role in ("driver", "fabric") else ""


@dataclass(frozen=True, kw_only=True)
class Module(_Running):
    """A kernel module that is to be loaded, or must not be."""

    NAME = "module {module}"
    BACK = (LOADED,)
    module: str
    loaded: bool = True
    along: tuple[str, ...] = ()  # modules that are loaded with it

    @property
    def wanted(self) -> str:
        return PRESENT if self.loaded else ABSENT

    def actual(self, facts: NodeFacts) -> str:
        conflicts = {"nouveau": facts.driver.nouveau, "nova_core": facts.driver.nova}
        return PRESENT if conflicts.get(self.module, self.module in facts.modules) else ABSENT

    def request(self, case: HostCase) -> Mapping[str, Any]:
        return {"load" if self.loaded else "unload": [self.module, *self.along]}


@dataclass(frozen=True, kw_only=True)
class ServiceItem(_Running):
    """A unit that runs, and starts at boot."""

    NAME = "service {unit}"
    BACK = (ACTIVE, ENABLED)
    WANTED = "active, enabled"
    unit: str
    reads: tuple[str, ...] = ()  # files of its role that it reads when it starts

    def actual(self, facts: NodeFacts) -> str:
        service = facts.service(self.unit)
        return f"{service.active or 'inactive'}, {_at_boot(service)}" if service else ABSENT

    def alone(self, facts: NodeFacts) -> tuple[str, str]:
        """An engine that is there and stopped is only started."""
        is_stopped = any(engine.unit == f"{self.unit}.service" and stopped(engine) for engine in facts.runtimes)
        return ("Start", self.unit) if is_stopped else ("", "")

    def request(self, case: HostCase) -> Mapping[str, Any]:
        files = (case.items.get(ItemKey(self.role, "files", path)) for path in self.reads)
        stale = any(file is not None and case.pending(file) for file in files)
        return {"services": [self.unit], **(restarted(case, self.role, self.unit) if stale else {})}


@dataclass(frozen=True, kw_only=True)
class Enabled(Item):
    """A unit that starts at boot, and not now."""

    NAME = "enabled {unit}"
    BACK = (ENABLED,)
    WANTED = "enabled"
    option: str = "activate"
    unit: str

    def actual(self, facts: NodeFacts) -> str:
        service = facts.service(self.unit)
        return _at_boot(service) if service else ABSENT

    def request(self, case: HostCase) -> Mapping[str, Any]:
        return {"enable": [self.unit]}


def _at_boot(service: Service) -> str:
    return "enabled" if service.enabled in _AT_BOOT else service.enabled or "disabled"


@dataclass(frozen=True, kw_only=True)
class Masked(Item):
    """A unit that does not run, and that nothing can start."""

    NAME = "masked {unit}"
    BACK = (ACTIVE, ENABLED, MASK)
    WANTED = "inactive, masked"
    option: str = "activate"
    unit: str

    def actual(self, facts: NodeFacts) -> str:
        service = facts.service(self.unit)
        if service is None:
            return ABSENT
        state = "inactive" if service.active in ("", "failed") else service.active  # one that has failed runs no more
        return f"{state}, {service.enabled or 'disabled'}"

    def request(self, case: HostCase) -> Mapping[str, Any]:
        return {"mask": [self.unit]}


def restarted(case: HostCase, role: str, unit: str) -> dict[str, list[str]]:
    """The share of an item that a role's unit takes up when it starts; one that does not run is started anyway."""
    service = ServiceItem(role=role, unit=unit).key
    return {"restart": [unit]} if case.have.get(service, "").startswith("active") else {}


STEP = StepKind(shape=SHAPE, action="activate", argument="activate")


@dataclass(frozen=True, kw_only=True)
class ActivationResult:
    """What activate.sh said besides its outcome: why a reboot is needed ("" when it is not), and this boot's id."""

    reboot: str = ""
    boot_id: str = ""


def activate_request(
    value: Mapping[str, Any], *, check: bool = False, after: Iterable[Changed] = ()
) -> dict[str, bytes]:
    """A request file for each key of SHAPE that has a value.

    `after`: what the steps before would change, in check mode.  Raises InputError.
    """
    check_value("activate", value, SHAPE)
    lines = {key: list(value.get(key) or ()) for key in _LISTS}
    lines |= {key: [value[key]] if value.get(key) else [] for key in ("version", "flavour")}
    lines |= {key: [f"{name} {setting}" for name, setting in (value.get(key) or {}).items()] for key in _PAIRS}
    request = {name: as_lines(found) for name, found in lines.items() if found}
    request |= as_flags(check=check, **{key: value.get(key) for key in _FLAGS})
    reported = announced(after) if check else b""
    return request | ({"foretold": reported} if reported else {})


def announced(changes: Iterable[Changed]) -> bytes:
    """Changes of check mode → lines `file PATH` of files that would change, `version OLD` of packages that would."""
    return as_lines(
        f"file {one.name}" if one.kind == "file" else f"version {one.was}"
        for one in changes
        if one.kind == "file" or (one.kind == "package" and one.was and one.now)
    )


def activate_nothing(value: Mapping[str, Any]) -> bool:
    """Whether the value asks for nothing: then the node need not be asked.  Raises InputError."""
    check_value("activate", value, SHAPE)
    return not any(value.get(key) for key in (*_LISTS, *_FLAGS, "alternatives", "sysctl", "ecc", "arguments"))


def parse_activation(stdout: str) -> ActivationResult:
    """What the script printed → Activation."""
    found = dict(node_lines(stdout))
    boot_id = found.get("boot_id", "")
    return ActivationResult(reboot=found.get("reboot", ""), boot_id=boot_id if WORD.fits(boot_id) else "")


def may_reboot(value: Mapping[str, Any], printed: ActivationResult, *, changed: bool, here: bool) -> tuple[str, str]:
    """(why the node is to be rebooted, "" when it is not; what hinders that, "" for nothing).

    `value` has the policy, one of REBOOT; `here` says that the node is the machine this runs on.
    """
    policy = value.get("reboot", "never")
    why = printed.reboot or ("a reboot is wanted after every change" if policy == "always" and changed else "")
    if policy == "never":
        return why, "the policy is never"
    if here and not value.get("reboot_controller"):
        return why, "gpunode does not reboot the machine it runs on, unless reboot_controller is true"
    return why, ""


# ---------------------------------------------------------------- engines that are to run, and do not


def stopped(runtime: Runtime) -> bool:
    """Whether systemd starts the engine at boot, and it does not run now."""
    return bool(
        runtime.unit.endswith(".service") and runtime.enabled and not runtime.active and not runtime.distribution
    )


def switched_off(facts: NodeFacts, runtime: Runtime) -> bool:
    """Whether neither a boot nor a socket starts the engine: a person meant that.  A kubelet has its own beside it."""
    service, socket = facts.service(runtime.unit), facts.service(f"{runtime.name}.socket")
    starts = runtime.active or facts.kubernetes.present or (socket and socket.runs)
    off = service and service.enabled in ("disabled", "masked") and runtime.unit.endswith(".service")
    return bool(off and not starts)


def how_stopped(facts: NodeFacts, runtime: Runtime) -> str:
    """In words: «docker.service is enabled and does not run (failed)»."""
    service = facts.service(runtime.unit)
    failed = " (failed)" if service and service.active == "failed" else ""
    return f"{runtime.unit} is {service.enabled if service else 'enabled'} and does not run{failed}"


def engine_checks(facts: NodeFacts) -> Iterator[Check]:
    for runtime in facts.runtimes:
        if stopped(runtime):
            fix = f"systemctl start {runtime.unit}; journalctl -u {runtime.unit} says why it does not run"
        elif switched_off(facts, runtime):
            fix = f"systemctl enable --now {runtime.unit}, where it is meant to run"
        else:
            continue
        yield Check(id="engine.stopped", status="warning", message=how_stopped(facts, runtime), fix=fix)
