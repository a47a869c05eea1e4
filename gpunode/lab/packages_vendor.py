"""What the stub packages hold of real programs: NVIDIA's nvidia-smi, and the fake NVML that it asks.

Both stand beside the texts of standins/packages, by a key of their own.  Without a network or a compiler there are none,
and the scripts of that folder stay in their place.
"""

from __future__ import annotations

from gpunode.core.errors import GpunodeError
from gpunode.lab import nvml, vendor
from gpunode.lab.machine import Log
from gpunode.lab.packages_table import NVML, SMI


def programs(*, log: Log) -> dict[str, bytes]:
    """The programs by key, fetched and compiled when they are not here; all of them or, after a word to `log`, none."""
    try:
        found = {NVML: nvml.library(log=log).read_bytes()}
        return found | {key: vendor.nvidia_smi(branch, log=log).path.read_bytes() for branch, key in SMI.items()}
    except (GpunodeError, OSError) as error:
        log(f"nodes get a script in place of NVIDIA's nvidia-smi: {error}")
        return {}
