"""The wanted state of a machine that is prepared without its GPU: the first boot loads and proves it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gpunode.core.cdi import PATH as CDI_PATH
from gpunode.core.items.first_boot import PROGRAM, UNIT, UNIT_PATH, program_hash
from gpunode.core.items.gpu_containers import LINKS
from gpunode.core.items.values import Key, Want, file_want
from gpunode.core.model import DriverChoice, NodeFacts, Problem
from gpunode.core.sharing.rules import mig_profiles
from gpunode.core.spec import Spec

MODULES = ("nvidia", "nvidia_uvm", "nvidia_modeset")
ENABLED = "enabled "  # a key's name: a unit that is to start at boot, and not now
_CDI = Key("runtime", "cdi", CDI_PATH)
_LINKS = Key("runtime", "activate", LINKS)


def without_loading(
    items: Mapping[Key, Want], driver: DriverChoice, smoke: Mapping[str, Any], texts: Mapping[str, str]
) -> dict[Key, Want]:
    """The wants of a machine with its GPU → those of the same machine before.

    `smoke` is what the first boot has to prove (it counts the GPUs itself), `texts` are templates and scripts.
    """
    later = (_CDI, _LINKS)
    kept = {key: want for key, want in items.items() if key not in later and key.role != "sharing" and not _loads(key)}
    apart = [key.name.removeprefix("service ") for key in items if key.role == "fabric" and _loads(key)]
    value: dict[str, Any] = {
        "activate": {
            "load": list(MODULES),
            "unload": ["nouveau"],
            "services": [*driver.services, *apart],
            **({"links": True} if _LINKS in items else {}),
        },
        **({"cdi": items[_CDI].data} if _CDI in items else {}),
        "smoke": {**smoke, "gpus": "found", "image": ""},  # no registry is needed at boot
    }
    kept[Key("driver", "files", UNIT_PATH)] = file_want(UNIT_PATH, texts["firstboot.service.j2"])
    kept[Key("driver", "first_boot", PROGRAM)] = Want(value=program_hash(value, texts), data=value)
    for unit in (*driver.services, UNIT):
        kept[Key("driver", "activate", f"{ENABLED}{unit}")] = Want(value="enabled")
    for unit in apart:  # their packages come after the driver's
        kept[Key("fabric", "activate", f"{ENABLED}{unit}")] = Want(value="enabled")
    return kept


def _loads(key: Key) -> bool:
    if key.role not in ("driver", "fabric") or key.option != "activate":
        return False
    return key.name.startswith(("module ", "service ", "parameters"))


def image_activation(names: Mapping[Key, Want]) -> dict[str, Any]:
    """The value of driver_activate on such a machine: units are enabled, the initramfs is rebuilt, nothing else."""
    units = [key.name.removeprefix(ENABLED) for key in names if key.name.startswith(ENABLED)]
    return {"enable": units, "initramfs": True, "reboot": "never"}


def prepares(spec: Spec) -> bool:
    """Whether the spec is about GPUs that are still to come."""
    return bool(spec.image.gpus) or not spec.image.load


def image_warnings(spec: Spec) -> Iterator[str]:
    """What is asked for and is not done without the driver."""
    strategy = spec.sharing.strategy
    if not spec.image.load and (strategy in ("mig", "mps") or mig_profiles(spec.sharing)):
        yield f"sharing.strategy {strategy}: GPUs are shared when the driver is loaded; gpunode provision does it then"


def image_problems(facts: NodeFacts, spec: Spec) -> Iterator[Problem]:
    """What contradicts itself about GPUs to come."""
    if not spec.image.load and not facts.gpus and not spec.image.gpus:
        yield Problem(
            what="nothing is to be loaded, and it is not said for which GPU: the machine has none",
            fix="add --for-gpu 10de:…, or image.gpus in gpunode.yml",
        )
    if not spec.image.load and spec.driver.method == "runfile":
        yield Problem(
            what="a runfile's installer loads the driver that it has built, which it cannot without its GPU",
            fix="set driver.method to packages for machines that are prepared before their GPU is there",
        )
    if spec.image.load and spec.image.gpus and not facts.gpus:
        yield Problem(
            what="the machine has no GPU, so the driver for the GPUs to come cannot be loaded",
            fix="add --no-load, or image.load: false in gpunode.yml: it is then loaded and proven at the first boot",
        )
