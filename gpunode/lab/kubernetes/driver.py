"""What the driver gives the containers of a lab node: nvidia-smi, and a mock of NVML where there is one.

The mock is NVIDIA's own (k8s-test-infra, pkg/gpu/mocknvml): the folder of programs may hold it as `libnvidia-ml.so.1`.
The stub of nvidia-container-runtime gives what lies in /lab/driver to containers that ask for GPUs, as the real one
gives them the driver's libraries and programs.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import yaml

from gpunode.lab import machine

VERSION = "@driver@"  # the stub of nvidia-container-runtime puts the loaded driver's version here
ARCHITECTURES = {"6.1": "pascal", "7.0": "volta", "7.5": "turing", "8.0": "ampere", "8.6": "ampere", "8.9": "ada"}
ARCHITECTURES |= {"9.0": "hopper", "10.0": "blackwell"}
MODE = "/run/gpunode-lab-compute-mode"  # in a container: the node's /lab/standin-compute-mode
SMI = f"""#!/bin/sh
# Lab stand-in for nvidia-smi in a container: `nvidia-smi -L` lists the GPUs whose device file is here, -c sets the
# compute mode.
show() {{
    [ -e "/dev/nvidia$1" ] || return 0
    echo "GPU $1: $3 (UUID: $2)"
    [ -e /etc/nvml-mig ] || return 0
    while read -r what gpu _ _ _ _ slices _ mig; do
        case "$what $gpu ,$NVIDIA_VISIBLE_DEVICES," in
        "mig $1 "*,all,* | "mig $1 "*",$mig,"*) echo "  MIG ${{slices}}g Device: (UUID: $mig)" ;;
        esac
    done </etc/nvml-mig
}}
only=''
while [ $# -gt 0 ]; do
    case $1 in
    -L) break ;;
    -i) only=$2; shift ;;
    -c)
        case $2 in DEFAULT) mode=Default ;; EXCLUSIVE_PROCESS) mode=Exclusive_Process ;; *) exit 2 ;; esac
        echo "$mode" >{MODE} && echo "Set compute mode to $2 for GPU $only." && echo "All done."
        exit
        ;;
    *) set -- ;;
    esac
    shift
done
[ "$1" = -L ] || {{ echo "nvidia-smi (gpunode lab stand-in): in a container it only knows -L and -c" >&2; exit 1; }}
"""


def write(folder: Path, library: Path | None, table: Path) -> None:
    """Write it all into `folder`; `table` is the node's standin-gpus (hardware.py)."""
    rows = [line.split("\t") for line in table.read_text().splitlines()]
    machine.write(folder / "nvidia-smi", list_gpus(rows), mode=0o755)
    if library:
        machine.write(folder / "nvml.yaml", yaml.safe_dump(configuration(rows), sort_keys=False), mode=0o644)
        shutil.copy(library, folder / "libnvidia-ml.so.1")


def list_gpus(rows: Sequence[Sequence[str]]) -> str:
    """A shell script that answers `nvidia-smi -L` in a container."""
    return SMI + "".join(f"show {index} {row[2]} '{row[-1]}'\n" for index, row in enumerate(rows))


def configuration(rows: Sequence[Sequence[str]]) -> dict[str, object]:
    """The mock's configuration for rows of standin-gpus: slot, id, UUID, MiB, compute capability, MIG, ECC, …, name."""
    devices = []
    for index, (slot, ident, uuid, mib, capability, mig, _ecc, _flavours, name) in enumerate(rows):
        major, minor = capability.split(".") if capability else ("0", "0")
        size = int(mib) * 2**20
        devices.append(
            {
                "index": index,
                "uuid": uuid,
                "name": name,
                "brand": "nvidia",
                "serial": f"{1560000000000 + index}",
                "minor_number": index,
                "architecture": ARCHITECTURES.get(capability, "unknown"),
                "compute_capability": {"major": int(major), "minor": int(minor)},
                "memory": {"total_bytes": size, "reserved_bytes": 0, "free_bytes": size, "used_bytes": 0},
                "mig": {"mode_current": mig.lower(), "mode_pending": mig.lower()},
                "pci": {
                    "bus_id": slot.upper(),
                    "device_id": int(f"{ident[5:]}10de", 16),
                },
            }
        )
    system = {
        "driver_version": VERSION,
        "nvml_version": f"13.{VERSION}",
        "cuda_version": "13.0",
        "cuda_version_major": 13,
        "cuda_version_minor": 0,
    }
    return {"version": "1.0", "system": system, "device_defaults": {}, "devices": devices}
