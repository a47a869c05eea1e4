"""The wanted state of what a host does about sharing: MIG layouts, the MPS daemon, and nothing left of either."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from gpunode.core.errors import InputError
from gpunode.core.items.activation import REBOOTS
from gpunode.core.items.values import ABSENT, PRESENT, Key, Want, file_want, no_file, reboots
from gpunode.core.model import MigLayout, NodeFacts, SharingChoice, Solution
from gpunode.core.remote import program
from gpunode.core.sharing.migparted import Group, mig_parted
from gpunode.core.spec import Spec
from gpunode.core.validation import as_lines, check_value, flag, mapping, number, rows, text

MIG = mapping(
    "MIG instances of the host's GPUs.",
    gpus=rows(
        "The GPUs.",
        slot=text("PCI slot, such as 0000:17:00.0.", r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", required=True),
        mode=text("MIG mode.", choices=("on", "off"), required=True),
        instances=rows(
            "Instances to have, and no others.",
            profile=text("Profile, such as 1g.10gb.", r"\d{1,2}g\.\d{1,4}gb([+-][a-z.]+)?", required=True),
            id=number("Number of the profile."),
            start=number("Memory slice where it starts."),
        ),
    ),
    unit=text("Text of the unit that does the same at every boot."),
    config=text("Text of the layout's file, as nvidia-mig-parted reads it."),
    labels=flag("Whether node-feature-discovery gets labels."),
    remove=flag("Whether the GPUs are made whole again, and nothing is left of this."),
    **REBOOTS,
)
MPS = mapping(
    "CUDA MPS on the host's GPUs.",
    replicas=number("Clients of each GPU, 2 to 100."),
    unit=text("Text of the unit that runs the control daemon."),
    remove=flag("Whether it is stopped, and nothing is left of it."),
)
_REQUEST_HEAD = "#!/bin/sh\n# Written by gpunode: gpunode-mig.service runs it at every boot.\n"


def mig_request(value: Mapping[str, Any], script: str, *, check: bool = False) -> dict[str, bytes]:
    """{gpus: [{slot, mode, instances: [{profile, id, start}]}], unit, config, labels, remove, reboot} → request files.

    `script` is the text of mig.sh, which also becomes what runs at boot.  Raises InputError.
    """
    check_value("mig", value, MIG)
    request = {"gpus": as_lines(map(_gpu_line, value.get("gpus") or ()))}
    if value.get("remove"):
        return request | {"remove": b"1\n"} | ({"check": b"1\n"} if check else {})
    request |= {key: b"1\n" for key in ("labels",) if value.get(key)}
    texts = {key: value[key].encode() for key in ("unit", "config") if value.get(key)}
    boot = {"program": boot_program(value, script)} if texts else {}
    return request | texts | boot | ({"check": b"1\n"} if check else {})


def boot_program(value: Mapping[str, Any], script: str) -> bytes:
    """What gpunode-mig.service runs: mig.sh with the same GPUs."""
    gpus = as_lines(map(_gpu_line, value.get("gpus") or ()))
    labels = {"labels": b"1\n"} if value.get("labels") else {}
    return (_REQUEST_HEAD + program(script, {"gpus": gpus, "atboot": b"1\n", **labels})).encode()


def _gpu_line(gpu: Mapping[str, Any]) -> str:
    return " ".join([gpu["slot"], gpu["mode"], *(_tuple(one) for one in gpu.get("instances") or ())])


def _tuple(instance: Mapping[str, Any]) -> str:
    numbers = (instance.get("id", -1), instance.get("start", -1))
    if not all(_whole(n) and -1 <= n < 1000 for n in numbers):
        raise InputError(f"mig: instance {dict(instance)!r}", expected="profile such as 1g.10gb, id and start")
    return f"{instance['profile']}:{numbers[0]}:{numbers[1]}"


def mps_request(value: Mapping[str, Any], *, check: bool = False) -> dict[str, bytes]:
    """{replicas, unit} or {remove} → request files.  Raises InputError."""
    check_value("mps", value, MPS)
    checking = {"check": b"1\n"} if check else {}
    if value.get("remove"):
        return {"remove": b"1\n", **checking}
    replicas = value.get("replicas")
    if not isinstance(replicas, int) or not 2 <= replicas <= 100 or not value.get("unit"):
        raise InputError(f"mps: replicas is {replicas!r}", expected="a number from 2 to 100, and the text of the unit")
    return {"replicas": f"{replicas}\n".encode(), "unit": value["unit"].encode(), **checking}


def _whole(number: Any) -> bool:
    return isinstance(number, int) and not isinstance(number, bool)


MIG_UNIT = "gpunode-mig.service"
MIG_CONFIG = "/etc/gpunode/mig.yaml"
MIG_PROGRAM = "/usr/lib/gpunode/mig"
MPS_UNIT = "gpunode-mps.service"
MPS_SETTINGS = "/etc/gpunode/mps"
THREADS = "threads of a client"
UNITS = "/etc/systemd/system/"
CONFIG_NAME = "gpunode"  # of the layout, in the file and in the node's label
OFF = "off"
_HEAD = (
    "# Written by gpunode from gpunode.yml; nvidia-mig-parted assert -f FILE -c gpunode compares the GPUs with it.\n"
)


def wanted_sharing(
    facts: NodeFacts, spec: Spec, solution: Solution, texts: Mapping[str, str]
) -> Iterator[tuple[Key, Want]]:
    """What the solution wants of MIG and MPS; where it wants none, that nothing of gpunode's is left."""
    choice = solution.sharing or SharingChoice()
    if choice.mig is not None or facts.sharing.mig_program:
        value = mig_value(facts, spec, choice, texts)
        yield from _mig(facts, choice, value, texts)
    if choice.mps or f"{UNITS}{MPS_UNIT}" in facts.files:
        yield from _mps(choice, texts)


def mig_value(facts: NodeFacts, spec: Spec, choice: SharingChoice, texts: Mapping[str, str]) -> dict[str, Any]:
    """The value of `sharing_mig`."""
    layouts = choice.mig if choice.mig is not None else tuple(MigLayout(slot=gpu.slot) for gpu in facts.nvml)
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
    return {
        "gpus": gpus,
        "unit": texts["mig.service.j2"],
        "config": config_text(layouts),
        "labels": facts.kubernetes.present,
        **reboots(spec),
    }


def config_text(layouts: tuple[MigLayout, ...]) -> str:
    """The layouts as mig-parted's file, GPUs that are cut alike together."""
    alike: dict[tuple[tuple[str, int], ...], list[int]] = {}
    for index, layout in enumerate(layouts):
        alike.setdefault(tuple(_counts(layout).items()), []).append(index)
    groups = [Group(wish=dict(wish) or None, devices=tuple(indices)) for wish, indices in alike.items()]
    return _HEAD + yaml.safe_dump(mig_parted({CONFIG_NAME: groups}), sort_keys=False)


def _mig(
    facts: NodeFacts, choice: SharingChoice, value: dict[str, Any], texts: Mapping[str, str]
) -> Iterator[tuple[Key, Want]]:
    removed = choice.mig is None
    for gpu in value["gpus"]:
        names = [instance["profile"] for instance in gpu["instances"]]
        yield Key("sharing", "mig", f"GPU {gpu['slot']}"), Want(value=layout_words(names))
    for path, content in ((f"{UNITS}{MIG_UNIT}", value.get("unit")), (MIG_CONFIG, value.get("config"))):
        yield Key("sharing", "mig", path), _file(path, content)
    program = ABSENT if removed else hashlib.sha256(boot_program(value, texts["mig.sh"])).hexdigest()
    yield Key("sharing", "mig", MIG_PROGRAM), Want(value=program, data=value, reasons=choice.reasons)
    if not removed:
        yield Key("sharing", "mig", f"enabled {MIG_UNIT}"), Want(value="enabled")


def _mps(choice: SharingChoice, texts: Mapping[str, str]) -> Iterator[tuple[Key, Want]]:
    unit, text = f"{UNITS}{MPS_UNIT}", texts["mps.service.j2"]
    yield Key("sharing", "mps", unit), _file(unit, text if choice.mps else None)
    value = {"replicas": choice.mps, "unit": text} if choice.mps else {"remove": True}
    yield Key("sharing", "mps", MPS_SETTINGS), Want(value=PRESENT if choice.mps else ABSENT, data=value)
    if choice.mps:
        yield Key("sharing", "mps", f"service {MPS_UNIT}"), Want(value="active, enabled")
        yield Key("sharing", "mps", THREADS), Want(value=f"{100 // choice.mps} %")


def _file(path: str, text: str | None) -> Want:
    return no_file(path) if text is None else file_want(path, text)


def _counts(layout: MigLayout) -> dict[str, int]:
    return dict(Counter(instance.profile for instance in layout.instances))


def layout_words(profiles: list[str]) -> str:
    """`2 × 3g.40gb, 1 × 1g.10gb`, or off."""
    return ", ".join(f"{n} × {name}" for name, n in sorted(Counter(profiles).items(), reverse=True)) or OFF


# ---------------------------------------------------------------- what a node has


def actual_sharing(facts: NodeFacts, key: Key) -> str:
    """The node's value of one of the keys above, those of files and units apart."""
    if key.name == MIG_PROGRAM:
        return facts.sharing.mig_program or ABSENT
    if key.name == MPS_SETTINGS:
        return PRESENT if MPS_SETTINGS in facts.files else ABSENT
    if key.name == THREADS:
        return f"{facts.sharing.mps_threads} %" if facts.sharing.mps_threads else "no MPS control daemon runs"
    return _gpu_now(facts, key.name.removeprefix("GPU "))


def _gpu_now(facts: NodeFacts, slot: str) -> str:
    gpu = next((gpu for gpu in facts.nvml if gpu.slot == slot), None)
    if gpu is None:
        return "not asked yet: no driver runs it"
    found = [i for i in facts.sharing.instances if i.gpu == gpu.index]
    unusable = sum(not i.computes for i in found)
    if gpu.mig_current != "Enabled":
        return "off, on after a reboot" if gpu.mig_pending == "Enabled" else OFF
    words = layout_words([i.profile for i in found]) if found else "on, without an instance"
    words += f", {unusable} without a compute instance" if unusable else ""
    return f"{words}, off after a reboot" if gpu.mig_pending == "Disabled" else words
