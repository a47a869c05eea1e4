"""The kubelet's settings that GPU nodes need, where they stand: flags of its unit, or its configuration file.

Files → files.  A flag counts over the configuration file: a setting that stands in a flag is changed there, else in the
file; node labels have no field and are a flag always.  Source: kubernetes.io kubelet, kubelet-config-v1beta1.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from gpunode.core.edits.kubernetes.schemas import UnknownField, kubelet_faults
from gpunode.core.edits.target import KUBEADM, Activation, EditTarget, Files, Records, Refusal, asks, units_changed
from gpunode.core.edits.text import yamltext
from gpunode.core.edits.text.unitfile import (
    FOLDERS,
    UnitProgram,
    append_word,
    change_program,
    program_of,
    unit_patterns,
)
from gpunode.core.edits.undo import put
from gpunode.core.engines import KUBELET_CONFIGS, KUBELET_FLAGS
from gpunode.core.errors import InputError, RefusedError
from gpunode.core.facts.flags import Flag, change_flags, flags_in, last_value
from gpunode.core.knowledge.scheduler import SchedulerRules, minor_of
from gpunode.core.knowledge.support import refuse_old, untried
from gpunode.core.late import dataclass, field, regex, replace
from gpunode.core.model import Edit, Reason
from gpunode.core.words import labels

NAME = "kubelet"
CONFIG = KUBELET_CONFIGS[0]
EXTRA = "KUBELET_EXTRA_ARGS"  # the variable that kubeadm's drop-in leaves to people
_FLAGS = "https://kubernetes.io/docs/reference/command-line-tools-reference/kubelet/"
_FLAGS_FILES = ("/etc/default/kubelet", "/etc/sysconfig/kubelet")
_QUANTITY = regex(r"\d+(\.\d+)?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?\Z")
_RESOURCES = ("cpu", "memory", "ephemeral-storage", "pid")
# labels of Kubernetes' own that a kubelet may give its node; with another one it does not start
_ALLOWED = frozenset(
    "beta.kubernetes.io/arch beta.kubernetes.io/instance-type beta.kubernetes.io/os kubernetes.io/arch "
    "failure-domain.beta.kubernetes.io/region failure-domain.beta.kubernetes.io/zone kubernetes.io/hostname "
    "kubernetes.io/os node.kubernetes.io/instance-type topology.kubernetes.io/region "
    "topology.kubernetes.io/zone".split()
)
_FIX = "fix it first, then run again"


@dataclass(frozen=True, kw_only=True)
class KubeletRequest:
    """What is asked; "" and {} leave what is there.  `unit` is the file that systemd starts the kubelet by."""

    server_version: str = ""
    unit: str = ""
    cgroup_driver: Literal["", "systemd", "cgroupfs"] = ""
    node_labels: Mapping[str, str] = field(default_factory=dict)
    system_reserved: Mapping[str, str] = field(default_factory=dict)
    kube_reserved: Mapping[str, str] = field(default_factory=dict)


def _patterns(files: Files, request: KubeletRequest) -> tuple[str, ...]:
    found = [*unit_patterns(files, request.unit), *_FLAGS_FILES]
    if request.unit not in files:
        return tuple(found)
    try:
        flags = flags_in(program_of(files, request.unit, NAME).words)
    except Refusal:  # configure says it
        return tuple(found)
    config, folder = last_value(flags, "config"), last_value(flags, "config-dir")
    return (*found, *([config] if config else []), *([f"{folder.rstrip('/')}/*.conf"] if folder else []))


def _not_removed(_files: Files, undo: Records) -> Edit:
    """Without a record nobody knows whose a setting is."""
    if undo:
        raise Refusal(
            "lines that configure wrote have changed since, and cannot be distinguished from others",
            "take them out by hand: gpunode kube kubelet diff shows what is asked for",
        )
    return Edit()


def check_kubelet_request(request: KubeletRequest) -> None:
    """Raise InputError for what no kubelet takes."""
    if request.server_version:
        minor_of(request.server_version)
    for key, value in request.node_labels.items():
        if any(labels({key: value})):
            raise InputError(f"node label {key}={value}", expected="[PREFIX/]NAME=VALUE in letters, digits, '-_.'")
        if not _may_set(key):
            raise InputError(
                f"node label {key}",
                expected="a prefix of your own, node.kubernetes.io/ or kubelet.kubernetes.io/: "
                "a kubelet may not give itself another one of Kubernetes', and does not start with it",
                fix=f"kubectl label node NAME {key}={value}",
            )
    for what in ("system_reserved", "kube_reserved"):
        for key, value in getattr(request, what).items():
            if key not in _RESOURCES or not _QUANTITY.match(value):
                raise InputError(
                    f"{what.replace('_', ' ')} {key}={value}", expected=f"{', '.join(_RESOURCES)} = 500m, 1Gi, 1000"
                )


def _may_set(key: str) -> bool:
    prefix = key.partition("/")[0] if "/" in key else ""
    if not re.search(r"(\A|\.)(kubernetes|k8s)\.io\Z", prefix):
        return True
    return key in _ALLOWED or bool(re.search(r"(\A|\.)(node|kubelet)\.kubernetes\.io\Z", prefix))


# ---------------------------------------------------------------- configuring


@dataclass(frozen=True)
class _State:
    """The files as far as they are edited, and why."""

    files: Mapping[str, bytes]
    unit: str
    reasons: tuple[Reason, ...] = ()

    @property
    def program(self) -> UnitProgram:
        return program_of(self.files, self.unit, NAME)

    @property
    def flags(self) -> list[Flag]:
        return flags_in(self.program.words)

    @property
    def config(self) -> str:
        """The configuration file that the kubelet is given and that is there, else ""."""
        path = last_value(self.flags, "config") or ""
        return path if path in self.files else ""

    @property
    def configs(self) -> dict[str, dict[str, Any]]:
        """What the configuration file and the drop-ins of --config-dir say, in the order in which they count."""
        folder = (last_value(self.flags, "config-dir") or "").rstrip("/")
        drop_ins = [path for path in self.files if path.endswith(".conf") and posixpath.dirname(path) == folder]
        paths = [*([self.config] if self.config else []), *sorted(drop_ins)]
        return {path: yamltext.parse(path, self.files[path])[1] for path in paths}

    def with_files(self, files: Mapping[str, bytes], *reasons: Reason) -> _State:
        return _State(files, self.unit, (*self.reasons, *reasons)) if files != self.files else self


def _configured(files: Mapping[str, bytes], request: KubeletRequest, rules: SchedulerRules) -> Edit:
    minor_of(request.server_version)
    if request.unit not in files:
        raise RefusedError(f"{request.unit} is not there", fix=f"name the unit of {NAME}: --unit PATH")
    refuse_old("kubernetes", request.server_version, rules.support)
    state = _State(files, request.unit)
    if request.cgroup_driver:
        state = _with_setting(state, "cgroup-driver", request.cgroup_driver, rules)
    for flag in ("system-reserved", "kube-reserved"):
        wanted = getattr(request, flag.replace("-", "_"))
        if wanted:
            state = _with_setting(state, flag, wanted, rules)
    if request.node_labels:
        state = _with_flag(state, "node-labels", request.node_labels)
    changes = {path: data for path, data in state.files.items() if files.get(path) != data}
    notes = (*_faults(state, request, rules), *_notes(changes, request, rules)) if changes else ()
    return Edit(changes=dict(changes), reasons=(*state.reasons, *notes))


def _with_setting(state: _State, flag: str, value: str | Mapping[str, str], rules: SchedulerRules) -> _State:
    """A setting where it counts: in its flag where that is given, else in the configuration file, else a new flag."""
    moved = next(one for one in rules.kubelet if one.flag == flag)
    if any(one.name == flag for one in state.flags) or not state.config:
        return _with_flag(state, flag, value)
    configs = state.configs  # the last file that has the field counts, for each of its keys
    path = next((one for one in reversed(configs) if yamltext.value_at(configs[one], moved.field)), state.config)
    after, stated = yamltext.parse(path, state.files[path])
    values = value if isinstance(value, Mapping) else {"": value}
    for key, one in values.items():
        place = (*moved.field, key) if key else moved.field
        if yamltext.value_at(stated, place) != one:
            after = yamltext.set_value(after, place, one)
    reason = Reason(what=f"{path}: {'.'.join(moved.field)}", why=f"is {_listed(value)}", source=moved.source)
    return state.with_files({**state.files, path: after.encode()}, reason)


def _with_flag(state: _State, flag: str, value: str | Mapping[str, str]) -> _State:
    """A flag with a value, or with the keys of a value among those that it has."""
    old = last_value(state.flags, flag)
    text = value if isinstance(value, str) else _listed(_pairs(old or "") | dict(value))
    if old == text:
        return state
    reason = Reason(what=f"--{flag}", why=f"is {text}", source=_FLAGS)
    if old is not None:
        change = change_flags(state.program.words, want={flag: text})
        return state.with_files(change_program(state.files, state.program, change), reason)
    return state.with_files(_appended(state, f"--{flag}={text}"), reason)


def _appended(state: _State, word: str) -> dict[str, bytes]:
    """The files with a new flag: in the variable for people, in the file for it, or behind the other flags."""
    program = state.program
    for segment in reversed(program.segments):
        if segment.variable == EXTRA:
            return append_word(state.files, segment, word)
    file = next((path for path in reversed(program.environment_files) if path in _FLAGS_FILES), "")
    if EXTRA in program.variables and file:
        text = state.files.get(file, b"").decode()
        gap = "" if not text or text.endswith("\n") else "\n"
        return {**state.files, file: f"{text}{gap}{EXTRA}={word}\n".encode()}
    name, _, value = word[2:].partition("=")
    return change_program(state.files, program, change_flags(program.words, want={name: value}))


def _pairs(text: str) -> dict[str, str]:
    """ "a=b,c=d" as a mapping; a key alone has no value."""
    return {key.strip(): value for key, _, value in (one.partition("=") for one in text.split(",")) if key.strip()}


def _listed(value: str | Mapping[str, str]) -> str:
    return value if isinstance(value, str) else ",".join(f"{key}={one}" for key, one in value.items())


# ---------------------------------------------------------------- what a reader should know


def _faults(state: _State, request: KubeletRequest, rules: SchedulerRules) -> Iterator[Reason]:
    """What the kubelet has against its configuration file: a wrong type is refused, an unknown field only said."""
    for path, stated in state.configs.items():
        for fault in kubelet_faults(stated, minor_of(request.server_version), rules):
            if not isinstance(fault, UnknownField):
                raise Refusal(f"{path}: kubelet {request.server_version} would not start with it: {fault}", _FIX)
            yield Reason(what=f"{path}: {fault}", why="the kubelet ignores it, with a warning")


def _notes(changes: Mapping[str, bytes], request: KubeletRequest, rules: SchedulerRules) -> Iterator[Reason]:
    if new := untried("kubernetes", request.server_version, rules.support):
        yield Reason(what=NAME, why=new)
    if request.node_labels:
        why = "are given when a node registers; one that is registered already needs kubectl label node"
        yield Reason(what="node labels", why=why, source=_FLAGS)
    for path in sorted(changes):
        if path.startswith(("/usr/lib/", "/lib/")):
            why = "belongs to a package, whose next update may rewrite it"
            yield Reason(what=path, why=why)
        if path.startswith(("/etc/kubernetes/kubelet/", "/etc/eks/")):
            why = "is rewritten by Amazon EKS' nodeadm at boot: set it in the NodeConfig of the instance as well"
            yield Reason(what=path, why=why, source="https://awslabs.github.io/amazon-eks-ami/nodeadm/")
        if path in (CONFIG, KUBELET_FLAGS[0]):
            why = "is rewritten by kubeadm upgrade: set it in the ConfigMap kubelet-config as well, or run this again"
            yield Reason(what=path, why=why, source=f"{KUBEADM}kubeadm-reconfigure/")
    if request.cgroup_driver:
        why = "pods that run were started with the other one: drain the node first, and give the engine the same"
        yield Reason(what="cgroup driver", why=why, source=f"{KUBEADM}configure-cgroup-driver/")


# ---------------------------------------------------------------- the unit on a host

UNITS = tuple(f"{top}/kubelet.service" for top in FOLDERS)


def completed(files: Mapping[str, bytes], request: KubeletRequest) -> KubeletRequest:
    """The request with the unit that is there; `files` are those of UNITS that exist."""
    unit = request.unit or next((path for path in UNITS if path in files), "")
    if not unit:
        raise RefusedError(
            f"{NAME} is not on this host: {UNITS[0]} is not there, nor {UNITS[1]}",
            fix="k3s, RKE2, k0s and MicroK8s have the kubelet in themselves: set it in their configuration; "
            "else name the unit: --unit PATH",
        )
    return replace(request, unit=unit)


def kubelet_target(request: KubeletRequest, rules: SchedulerRules) -> EditTarget:
    """What is asked of the kubelet.  Raises InputError for what none takes."""
    check_kubelet_request(request)
    return EditTarget(
        name=NAME,
        root=request.unit,
        label=f"{NAME} {request.unit}",
        patterns=lambda files: _patterns(files, request),
        edit=lambda files: _configured(files, request, rules),
        remove=_not_removed,
        activation=lambda files, edit: _activation(files, edit, request),
    )


def _activation(files: Files, edit: Edit, request: KubeletRequest) -> Activation:
    """Its unit is restarted; running containers stay."""
    return Activation(
        unit=posixpath.basename(request.unit),
        verb="restart",
        config=request.unit,
        health=_health(put(files, edit.changes), request),
        reread=units_changed(edit),
        disrupts="the kubelet restarts; containers run on, and nothing new starts on this node for some seconds",
        settle=10,
    )


def _health(files: Mapping[str, bytes], request: KubeletRequest) -> tuple[tuple[str, ...], ...]:
    """How to ask where it answers, by its flags, its configuration file, or 127.0.0.1:10248."""
    state = _State(files, request.unit)
    flags, stated = state.flags, {key: one for found in state.configs.values() for key, one in found.items()}
    port = last_value(flags, "healthz-port") or str(stated.get("healthzPort", 10248))
    address = last_value(flags, "healthz-bind-address") or str(stated.get("healthzBindAddress") or "127.0.0.1")
    return asks("http", address, port)
