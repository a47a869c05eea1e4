"""The part of gpunode.yml about machines and images that are prepared before their GPUs are there."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpunode.core.errors import InputError
from gpunode.core.spec.option import option


@dataclass(frozen=True, kw_only=True)
class ImageSpec:
    """For which GPUs a machine is prepared that has none yet: a golden image, or a server before its cards come."""

    gpus: tuple[str, ...] = option((), "PCI ids of GPUs to come, such as ['10de:2330']")
    nvswitches: tuple[str, ...] = option((), "PCI ids of NVSwitches to come, such as ['10de:22a3']")
    nvlink5_fabric: bool = option(False, "the machine will have the NVLink 5 fabric of HGX B200 and later")
    load: bool = option(True, "false loads nothing now and leaves a unit that loads and proves it at the first boot")


def check_image(image: ImageSpec, where: str) -> None:
    """Raises InputError for what is no PCI id."""
    for pci_id in (*image.gpus, *image.nvswitches):
        if not re.fullmatch(r"10de:[0-9a-f]{4}", pci_id):
            raise InputError(
                f"{where}: image has {pci_id!r}",
                expected="PCI ids of NVIDIA in small letters, such as '10de:2330' (in quotes)",
                fix="lspci -nn -d 10de: shows them on a machine that has the GPU; gpunode solve --gpu NAME knows names",
            )
