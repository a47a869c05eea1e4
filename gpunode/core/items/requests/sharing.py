"""The requests of node/activate/mig.sh and mps.sh, from the role options `sharing_mig` and `sharing_mps`.

mig.sh: `gpus` lines `SLOT on|off [PROFILE:ID:START …]` (ID and START -1 where they are not known), `unit` and `config`
the texts of the systemd unit and of the layout in mig-parted's format, `program` what the unit runs, `labels` (1) where
Kubernetes is, `atboot` (1) in that program, `remove` (1) when nothing of it is to be left, `check` (1) in check mode.
mps.sh: `replicas`, `unit`, `remove`, `check`.
Besides the usual lines mig.sh prints `gpunode<TAB>boot_id<TAB>ID` and, where nothing else helps,
`gpunode<TAB>reboot<TAB>REASON`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gpunode.core.errors import InputError
from gpunode.core.items.requests.activate import REBOOT
from gpunode.core.remote import program
from gpunode.core.validation import as_lines, check_keys

_SLOT = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\Z")
_PROFILE = re.compile(r"\d{1,2}g\.\d{1,4}gb([+-][a-z.]+)?\Z")
_HEAD = "#!/bin/sh\n# Written by gpunode: gpunode-mig.service runs it at every boot.\n"


def mig_request(value: Mapping[str, Any], script: str, *, check: bool = False) -> dict[str, bytes]:
    """{gpus: [{slot, mode, instances: [{profile, id, start}]}], unit, config, labels, remove, reboot} → request files.

    `script` is the text of mig.sh, which also becomes what runs at boot.  Raises InputError.
    """
    check_keys("mig", value, ("gpus", "unit", "config", "labels", "remove", "reboot", "reboot_controller"))
    if value.get("reboot", "never") not in REBOOT:
        raise InputError(f"mig: reboot is {value['reboot']!r}", expected=f"one of {', '.join(REBOOT)}")
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
    return (_HEAD + program(script, {"gpus": gpus, "atboot": b"1\n", **labels})).encode()


def _gpu_line(gpu: Mapping[str, Any]) -> str:
    check_keys("mig: a GPU", gpu, ("slot", "mode", "instances"))
    slot, mode = str(gpu.get("slot", "")), gpu.get("mode")
    if not _SLOT.match(slot) or mode not in ("on", "off"):
        raise InputError(f"mig: GPU {slot!r} with mode {mode!r}", expected="a slot such as 0000:17:00.0, on or off")
    return " ".join([slot, mode, *(_tuple(one) for one in gpu.get("instances") or ())])


def _tuple(instance: Mapping[str, Any]) -> str:
    check_keys("mig: an instance", instance, ("profile", "id", "start"))
    profile, numbers = str(instance.get("profile", "")), (instance.get("id", -1), instance.get("start", -1))
    if not _PROFILE.match(profile) or not all(_whole(n) and -1 <= n < 1000 for n in numbers):
        raise InputError(f"mig: instance {dict(instance)!r}", expected="profile such as 1g.10gb, id and start")
    return f"{profile}:{numbers[0]}:{numbers[1]}"


def mps_request(value: Mapping[str, Any], *, check: bool = False) -> dict[str, bytes]:
    """{replicas, unit} or {remove} → request files.  Raises InputError."""
    check_keys("mps", value, ("replicas", "unit", "remove"))
    checking = {"check": b"1\n"} if check else {}
    if value.get("remove"):
        return {"remove": b"1\n", **checking}
    replicas = value.get("replicas")
    if not isinstance(replicas, int) or not 2 <= replicas <= 100 or not value.get("unit"):
        raise InputError(f"mps: replicas is {replicas!r}", expected="a number from 2 to 100, and the text of the unit")
    return {"replicas": f"{replicas}\n".encode(), "unit": value["unit"].encode(), **checking}


def _whole(number: Any) -> bool:
    return isinstance(number, int) and not isinstance(number, bool)
