"""GPUs of this machine by NVML (pynvml): what the driver itself says, where there is one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from gpunode.core.model import NvmlGpu

_FABRIC = ("", "Not Started", "In Progress", "Completed")  # nvidia-smi's words; 0 is «not supported»


def local_gpus() -> tuple[NvmlGpu, ...]:
    """The GPUs that NVML lists; () where there is no library, no driver or no GPU.

    What a GPU does not support (memory of a GB10, ECC of a GeForce) stays empty.
    """
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    try:
        return tuple(gpu for index in range(pynvml.nvmlDeviceGetCount()) if (gpu := _gpu(pynvml, index)))
    except pynvml.NVMLError:
        return ()
    finally:
        pynvml.nvmlShutdown()


def merge_gpus(probed: Sequence[NvmlGpu], asked: Sequence[NvmlGpu]) -> tuple[NvmlGpu, ...]:
    """One list by slot: what NVML said (`asked`), and where it said nothing, what the probe saw."""
    by_slot = {gpu.slot: gpu for gpu in probed}
    for gpu in asked:
        said = {f.name: v for f in dataclasses.fields(gpu) if (v := getattr(gpu, f.name)) not in ("", None)}
        by_slot[gpu.slot] = dataclasses.replace(by_slot.get(gpu.slot, gpu), **said)
    return tuple(sorted(by_slot.values(), key=lambda gpu: gpu.index))


def _gpu(pynvml: Any, index: int) -> NvmlGpu | None:
    def ask(question: Callable[..., Any], *more: Any) -> Any:
        """The answer, or None where this GPU or this driver has none."""
        try:
            return question(handle, *more)
        except pynvml.NVMLError:
            return None

    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    except pynvml.NVMLError:  # a GPU that fell off the bus
        return None
    pci = ask(pynvml.nvmlDeviceGetPciInfo)
    memory = ask(pynvml.nvmlDeviceGetMemoryInfo)
    mig = ask(pynvml.nvmlDeviceGetMigMode) or (None, None)
    ecc = ask(pynvml.nvmlDeviceGetEccMode) or (None, None)
    rows = ask(pynvml.nvmlDeviceGetRemappedRows) or (None, None, None, None)
    return NvmlGpu(
        index=index,
        uuid=_text(ask(pynvml.nvmlDeviceGetUUID)),
        name=_text(ask(pynvml.nvmlDeviceGetName)),
        slot=_text(pci.busId).lower()[-12:] if pci else "",  # 00000000:17:00.0 → 0000:17:00.0, as sysfs has it
        memory_mib=memory.total >> 20 if memory else None,
        mig_current=_switch(mig[0]),
        mig_pending=_switch(mig[1]),
        persistence=_switch(ask(pynvml.nvmlDeviceGetPersistenceMode)),
        ecc_current=_switch(ecc[0]),
        ecc_uncorrected=ask(
            pynvml.nvmlDeviceGetTotalEccErrors, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
        ),
        retired_pending=_yes(ask(pynvml.nvmlDeviceGetRetiredPagesPendingStatus)),
        remap_pending=_yes(rows[2]),
        remap_failure=_yes(rows[3]),
        fabric_state=_fabric(pynvml, ask),
    )


def _fabric(pynvml: Any, ask: Callable[..., Any]) -> str:
    info = pynvml.c_nvmlGpuFabricInfoV_t()
    if ask(pynvml.nvmlDeviceGetGpuFabricInfoV, info) is None:
        return ""
    return _FABRIC[info.state] if info.state < len(_FABRIC) else ""


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value or "")


def _switch(value: int | None) -> str:
    return "" if value is None else "Enabled" if value else "Disabled"


def _yes(value: int | None) -> str:
    return "" if value is None else "Yes" if value else "No"
