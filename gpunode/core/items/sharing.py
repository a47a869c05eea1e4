"""The wanted state of what a host does about sharing: MIG layouts, the MPS daemon, and nothing left of either."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import yaml

from gpunode.core.edits.commit import FileChange, commit_request
from gpunode.core.engines import DAEMONS, OTHER_UNITS, ROWS
from gpunode.core.errors import InputError
from gpunode.core.grouped import grouped
from gpunode.core.items.activation import ACTIVE, ENABLED, REBOOTS, UNITS, Enabled, ServiceItem
from gpunode.core.items.file import FILES, File
from gpunode.core.items.item import (
    ABSENT,
    PRESENT,
    Found,
    HostCase,
    Item,
    Program,
    Question,
    StateKind,
    StepKind,
    Thing,
    WholeStep,
    reboots,
)
from gpunode.core.late import dataclass, replace
from gpunode.core.model import MigInstance, MigLayout, NodeFacts, SharingChoice
from gpunode.core.model.journal import JournalSnapshot, Scope
from gpunode.core.remote import as_flags, as_lines, program
from gpunode.core.sharing.mig import Group, mig_parted
from gpunode.core.spec import Spec
from gpunode.core.spec.kubernetes import MODES
from gpunode.core.validation import check_value, flag, mapping, number, rows
from gpunode.core.validation import text as text_shape

MIG = mapping(
    "MIG instances of the host's GPUs.",
    gpus=rows(
        "The GPUs.",
        slot=text_shape(
            "PCI slot, such as 0000:17:00.0.", r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", required=True
        ),
        mode=text_shape("MIG mode.", choices=("on", "off"), required=True),
        instances=rows(
            "Instances to have, and no others.",
            profile=text_shape("Profile, such as 1g.10gb.", r"\d{1,2}g\.\d{1,4}gb([+-][a-z.]+)?", required=True),
            id=number("Number of the profile."),
            start=number("Memory slice where it starts."),
        ),
    ),
    unit=text_shape("Text of the unit that does the same at every boot."),
    config=text_shape("Text of the layout's file, as nvidia-mig-parted reads it."),
    labels=flag("Whether node-feature-discovery gets labels."),
    remove=flag("Whether the GPUs are made whole again, and nothing is left of this."),
    **REBOOTS,
)
MPS = mapping(
    "CUDA MPS on the host's GPUs.",
    replicas=number(f"Clients of each GPU, 2 to {MODES['mps'].most}."),
    unit=text_shape("Text of the unit that runs the control daemon."),
    remove=flag("Whether it is stopped, and nothing is left of it."),
)
_REQUEST_HEAD = "#!/bin/sh\n# Written by gpunode: gpunode-mig.service runs it at every boot.\n"


def mig_request(value: Mapping[str, Any], facts: NodeFacts, script: str, *, check: bool = False) -> dict[str, bytes]:
    """{gpus: [{slot, mode, instances: [{profile, id, start}]}], unit, config, labels, remove, reboot} → request files.

    `facts` have the instances as they are now (sections `nvidia_smi` and `sharing` of the probe): what goes and what is
    made is worked out here, and mig.sh refuses it where they have changed since.  `script` is the text of mig.sh, which
    also becomes what runs at boot.  Raises InputError.
    """
    check_value("mig", value, MIG)
    gpus = value.get("gpus") or ()
    request = {"gpus": as_lines(map(_gpu_line, gpus))}
    request["instances"] = as_lines(line for gpu in gpus for line in _changes(gpu, _instances(facts, gpu["slot"])))
    request |= as_flags(labels=value.get("labels"), remove=value.get("remove"))
    texts = {f"{UNITS}{MIG_UNIT}": value.get("unit"), MIG_CONFIG: value.get("config")}
    files: dict[str, bytes | None] = {path: text.encode() for path, text in texts.items() if text}
    if value.get("remove"):
        files = dict.fromkeys((*texts, MIG_PROGRAM))
    elif files:
        files[MIG_PROGRAM] = boot_program(value, script)
    return request | _transaction(files, check=check)


def _transaction(files: Mapping[str, bytes | None], *, check: bool) -> dict[str, bytes]:
    """Request files that have, or remove, these files."""
    return commit_request([FileChange(path=path, data=data) for path, data in files.items()], check=check)


def boot_program(value: Mapping[str, Any], script: str) -> bytes:
    """What gpunode-mig.service runs: mig.sh with the same GPUs."""
    gpus = as_lines(map(_gpu_line, value.get("gpus") or ()))
    request = {"gpus": gpus, **as_flags(atboot=True, labels=value.get("labels"))}
    return (_REQUEST_HEAD + program(script, request)).encode()


def _gpu_line(gpu: Mapping[str, Any]) -> str:
    instances = (f"{one['profile']}/{_tuple(one)}" for one in gpu.get("instances") or ())
    return " ".join([gpu["slot"], gpu["mode"], *instances])


def _tuple(instance: Mapping[str, Any]) -> str:
    numbers = (instance.get("id", -1), instance.get("start", -1))
    if not all(_whole(n) and -1 <= n < 1000 for n in numbers):
        raise InputError(f"mig: instance {dict(instance)!r}", expected="profile such as 1g.10gb, id and start")
    profile = instance["profile"] if numbers[0] == -1 else numbers[0]
    return f"{profile}" if numbers[1] == -1 else f"{profile}:{numbers[1]}"


def _instances(facts: NodeFacts, slot: str) -> list[MigInstance]:
    """Those of the GPU in that slot."""
    indices = {gpu.index for gpu in facts.nvml if gpu.slot[-12:] == slot[-12:]}
    return [instance for instance in facts.sharing.instances if instance.gpu in indices]


def _changes(gpu: Mapping[str, Any], have: Sequence[MigInstance]) -> Iterator[str]:
    """Lines `SLOT have ID PROFILE START` of what there is, `SLOT destroy ID` and `SLOT create TUPLE` of what to do.

    An instance stays where one of its profile is wanted at its place, or at any place.  One that no program can use,
    for it has no compute instance, goes.
    """
    slot, lacking = gpu["slot"], list(gpu.get("instances") or ())
    for one in have:
        yield f"{slot} have {one.id} {f'{one.profile} {one.start}' if one.computes else '- -'}"
        places = (one.start, -1) if one.computes else ()
        fits = [w for place in places for w in lacking if (w["profile"], w.get("start", -1)) == (one.profile, place)]
        if fits:
            lacking.remove(fits[0])
        else:
            yield f"{slot} destroy {one.id}"
    for request in sorted(lacking, key=lambda w: w.get("start", -1)):
        yield f"{slot} create {_tuple(request)}"


def mps_request(value: Mapping[str, Any], *, check: bool = False) -> dict[str, bytes]:
    """{replicas, unit} or {remove} → request files.  Raises InputError."""
    check_value("mps", value, MPS)
    unit = f"{UNITS}{MPS_UNIT}"
    if value.get("remove"):
        return {**as_flags(remove=True), **_transaction({unit: None, MPS_SETTINGS: None}, check=check)}
    replicas = value.get("replicas")
    if not isinstance(replicas, int) or not 2 <= replicas <= MODES["mps"].most or not value.get("unit"):
        raise InputError(f"mps: replicas is {replicas!r}", expected=f"2 to {MODES['mps'].most}, and the unit's text")
    return {"replicas": f"{replicas}\n".encode(), **_transaction({unit: value["unit"].encode()}, check=check)}


def _whole(number: Any) -> bool:
    return isinstance(number, int) and not isinstance(number, bool)


MIG_UNIT = "gpunode-mig.service"
MIG_CONFIG = "/etc/gpunode/mig.yaml"
MIG_PROGRAM = "/usr/lib/gpunode/mig"
MPS_UNIT = "gpunode-mps.service"
MPS_SETTINGS = "/etc/gpunode/mps"
CONFIG_NAME = "gpunode"  # of the layout, in the file and in the node's label
OFF = "off"
_HEAD = (
    "# Written by gpunode from gpunode.yml; nvidia-mig-parted assert -f FILE -c gpunode compares the GPUs with it.\n"
)


class _MigLayout(StateKind):
    """`off`, or `on` and each instance as PROFILE:START/COMPUTE,…; places and compute instances do not matter."""

    def meaning(self, value: str) -> str:
        mode, *instances = value.split() or [OFF]
        return " ".join([mode, *sorted(one.partition(":")[0] for one in instances)])

    def undo(self, journal: JournalSnapshot, scope: Scope) -> Iterator[Thing[StateKind]]:
        for thing in super().undo(journal, scope):
            last = scope.states[self.name][thing.name][-1].after
            unread = thing.now is None and not self.again(last, thing.was)
            yield replace(thing, now="unread") if unread else thing

    def stuck(self, now: str) -> str:
        return "no driver runs the GPU" if now == "unread" else ""

    def is_theirs(self, now: str, ours: Collection[str]) -> bool:
        """Not what a boot has left, or a run that was cut off."""
        there, *known = (Counter(self.meaning(one).split()[1:]) for one in (now, *ours))
        del there["waits"]
        return there.total() > 0 and not any(there <= one for one in known)

    def lacks(self, was: str) -> str:
        split = ((one.partition("/")[0], one.partition("/")[2]) for one in was.split() if "/" in one)
        words = [f"{name} had {'no compute instance' if has == '-' else has}" for name, has in split]
        return f"{', '.join(words)}: gpunode makes one compute instance of each whole instance" if words else ""


MIG_LAYOUT = _MigLayout(name="mig", field="mig", called="the MIG layout of GPU ")


def mig_undo_request(layouts: Mapping[str, str], *, gone: bool, check: bool) -> dict[str, bytes]:
    """The GPUs of a journal, by slot, as they were before → request files; `gone`: and nothing of gpunode's is left.

    Raises InputError on what mig.sh has not written.
    """
    gpus = [{"slot": slot, **_split(was)} for slot, was in layouts.items()]
    check_value("mig", {"gpus": gpus}, MIG)
    return {"gpus": as_lines(map(_gpu_line, gpus)), **as_flags(remove=gone, check=check)}


def _split(layout: str) -> dict[str, Any]:
    mode, *instances = layout.split() or [OFF]
    split = (one.partition("/")[0].partition(":") for one in instances)
    found = [{"profile": name, "start": int(start) if start.isdecimal() else -1} for name, _, start in split]
    return {"mode": mode, "instances": found}


@dataclass(frozen=True, kw_only=True)
class MigItem(Item):
    """The MIG instances of a GPU."""

    NAME = "GPU {slot}"
    BACK = (MIG_LAYOUT,)
    ENDS = "GPU"
    role: str = "sharing"
    option: str = "mig"
    within: str = MIG_PROGRAM
    slot: str
    profiles: tuple[str, ...]

    @property
    def wanted(self) -> str:
        return layout_words(self.profiles)

    def actual(self, facts: NodeFacts) -> str:
        gpu = next((gpu for gpu in facts.nvml if gpu.slot == self.slot), None)
        if gpu is None:
            return "not asked yet: no driver runs it"
        found = [i for i in facts.sharing.instances if i.gpu == gpu.index]
        unusable = sum(not i.computes for i in found)
        if gpu.mig_current != "Enabled":
            return "off, on after a reboot" if gpu.mig_pending == "Enabled" else OFF
        words = layout_words([i.profile for i in found]) if found else "on, without an instance"
        words += f", {unusable} without a compute instance" if unusable else ""
        return f"{words}, off after a reboot" if gpu.mig_pending == "Disabled" else words


@dataclass(frozen=True, kw_only=True)
class MigProgram(Program):
    """What makes the instances at every boot."""

    NAME = MIG_PROGRAM
    BACK = (FILES, ACTIVE, ENABLED)
    role: str = "sharing"
    option: str = "mig"
    always: bool = True

    def actual(self, facts: NodeFacts) -> str:
        return facts.sharing.mig_program or ABSENT


@dataclass(frozen=True, kw_only=True)
class MpsSettings(WholeStep):
    """What the MPS control daemon is started with."""

    NAME = MPS_SETTINGS
    BACK = (FILES, ACTIVE, ENABLED)
    IN_WORDS = True
    role: str = "sharing"
    option: str = "mps"
    always: bool = True

    @property
    def wanted(self) -> str:
        return ABSENT if self.value.get("remove") else PRESENT

    def actual(self, facts: NodeFacts) -> str:
        return PRESENT if MPS_SETTINGS in facts.files else ABSENT


@dataclass(frozen=True, kw_only=True)
class Threads(Item):
    """The share of a GPU's threads that each client has."""

    NAME = "threads of a client"
    BACK = (FILES, ACTIVE)
    role: str = "sharing"
    option: str = "mps"
    within: str = MPS_SETTINGS
    replicas: int

    @property
    def wanted(self) -> str:
        return f"{100 // self.replicas} %"

    def actual(self, facts: NodeFacts) -> str:
        return f"{facts.sharing.mps_threads} %" if facts.sharing.mps_threads else "no MPS control daemon runs"


def wanted(question: Question) -> Found:
    """What the solution wants of MIG and MPS; where it wants none, that nothing of gpunode's is left."""
    facts, texts = question.facts, question.templates
    if not question.spec.image.load:  # what is to be cut must be there
        return
    choice, strategy = question.solution.sharing, question.spec.sharing.strategy
    if strategy not in ("none", "mig", "mps") and not facts.kubernetes.present:
        yield f"sharing.strategy {strategy} is for the pods of a cluster (gpunode kube apply): nothing here uses it"
    if choice.mig is not None or facts.sharing.mig_program:
        yield from _mig(choice, mig_value(facts, question.spec, choice, texts), texts)
    if choice.mps or f"{UNITS}{MPS_UNIT}" in facts.files:
        yield from _mps(choice, texts)


def disruption(case: HostCase, mine: Sequence[Item]) -> str:
    """Whose GPUs nothing may use meanwhile: gpunode refuses while a program does."""
    gpus = [item.name for item in case.ending(mine, "GPU")]
    if gpus:
        reboot = "" if case.spec.reboot == "never" else ", and a change of the MIG mode may need a reboot"
        return f"no program may use {', '.join(gpus)} meanwhile{reboot}"
    return "no program may use a GPU while MPS starts or ends" if any(item.option == "mps" for item in mine) else ""


MIG_STEP = StepKind(shape=MIG, action="sharing", argument="mig", disrupts=disruption)
MPS_STEP = StepKind(shape=MPS, action="sharing", argument="mps", disrupts=disruption)


def mig_value(facts: NodeFacts, spec: Spec, choice: SharingChoice, texts: Mapping[str, str]) -> dict[str, Any]:
    """The value of `sharing_mig`."""
    handed_over = spec.sharing.mig.manager != "gpunode"  # the instances are another's now: only our unit goes
    whole = () if handed_over else tuple(MigLayout(slot=gpu.slot) for gpu in facts.nvml)
    layouts = choice.mig if choice.mig is not None else whole
    gpus = [
        {
            "slot": layout.slot,
            "mode": "on" if layout.instances else "off",
            "instances": [{"profile": i.profile, "id": i.id, "start": i.start} for i in layout.instances],
        }
        for layout in layouts
    ]
    if choice.mig is None:
        return {"gpus": gpus, "remove": True, **reboots(spec)}
    engines = " ".join((*(f"{ROWS[name].unit}.service" for name in DAEMONS), "kubelet.service", *OTHER_UNITS))
    return {
        "gpus": gpus,
        "unit": texts["mig.service.j2"].replace("@ENGINES@", engines),
        "config": config_text(layouts),
        "labels": facts.kubernetes.present,
        **reboots(spec),
    }


def config_text(layouts: tuple[MigLayout, ...]) -> str:
    """The layouts as mig-parted's file, GPUs that are cut alike together."""
    requests = (Counter(instance.profile for instance in layout.instances) for layout in layouts)
    alike = grouped((tuple(request.items()), index) for index, request in enumerate(requests))
    groups = [Group(layout=dict(request) or None, devices=tuple(indices)) for request, indices in alike.items()]
    return _HEAD + yaml.safe_dump(mig_parted({CONFIG_NAME: groups}), sort_keys=False)


def _mig(choice: SharingChoice, value: dict[str, Any], texts: Mapping[str, str]) -> Iterator[Item]:
    removed = choice.mig is None
    for gpu in value["gpus"]:
        yield MigItem(slot=gpu["slot"], profiles=tuple(instance["profile"] for instance in gpu["instances"]))
    for path, content in ((f"{UNITS}{MIG_UNIT}", value.get("unit")), (MIG_CONFIG, value.get("config"))):
        yield File(role="sharing", option="mig", within=MIG_PROGRAM, path=path, text=content)
    program = ABSENT if removed else hashlib.sha256(boot_program(value, texts["mig.sh"])).hexdigest()
    yield MigProgram(value=value, sha256=program, reasons=choice.reasons)
    if not removed:
        yield Enabled(role="sharing", option="mig", within=MIG_PROGRAM, unit=MIG_UNIT)


def _mps(choice: SharingChoice, texts: Mapping[str, str]) -> Iterator[Item]:
    text = texts["mps.service.j2"]
    unit = text if choice.mps else None
    yield File(role="sharing", option="mps", within=MPS_SETTINGS, path=f"{UNITS}{MPS_UNIT}", text=unit)
    yield MpsSettings(value={"replicas": choice.mps, "unit": text} if choice.mps else {"remove": True})
    if choice.mps:
        yield ServiceItem(role="sharing", option="mps", within=MPS_SETTINGS, unit=MPS_UNIT)
        yield Threads(replicas=choice.mps)


def layout_words(profiles: Sequence[str]) -> str:
    """`2 × 3g.40gb, 1 × 1g.10gb`, or off."""
    return ", ".join(f"{n} × {name}" for name, n in sorted(Counter(profiles).items(), reverse=True)) or OFF
