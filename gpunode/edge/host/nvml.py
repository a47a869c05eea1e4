"""GPUs of this machine by NVML (pynvml): what the driver itself says, where there is one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from gpunode.core.errors import GpunodeError
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
        stated = {f.name: v for f in dataclasses.fields(gpu) if (v := getattr(gpu, f.name)) not in ("", None)}
        by_slot[gpu.slot] = dataclasses.replace(by_slot.get(gpu.slot, gpu), **stated)
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


def nvml_dump() -> dict[str, Any]:
    """{"machine": {…}, "gpus": [{…}]}: all that NVML answers of the fields that nvidia-smi -q -x has, too.

    Raises GpunodeError where there is no library, no driver, or no answer.
    """
    found: dict[str, Any] = _with_nvml(lambda pynvml: {"machine": _machine(pynvml), "gpus": [*_each(pynvml, _dumped)]})
    return found


def nvml_samples() -> list[dict[str, Any]]:
    """Clock, power, temperature and the clocks' event reasons of each GPU now.  Raises GpunodeError."""
    found: list[dict[str, Any]] = _with_nvml(lambda pynvml: [*_each(pynvml, _sampled)])
    return found


def _with_nvml(ask: Callable[[Any], Any]) -> Any:
    import pynvml

    try:
        pynvml.nvmlInit()
        try:
            return ask(pynvml)
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        raise GpunodeError(f"NVML: {error}", fix="nvidia-smi on this machine shows the cause") from error


def _each(pynvml: Any, read: Callable[[Any, Callable[..., Any]], dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        except pynvml.NVMLError:  # a GPU that fell off the bus
            continue

        def ask(question: str, *more: Any, handle: Any = handle) -> Any:
            try:
                return getattr(pynvml, f"nvmlDeviceGet{question}")(handle, *more)
            except (pynvml.NVMLError, AttributeError):  # not of this GPU or driver, or not in this pynvml
                return None

        yield read(pynvml, ask)


def _machine(pynvml: Any) -> dict[str, Any]:
    cuda = pynvml.nvmlSystemGetCudaDriverVersion_v2()
    return {
        "driver": _text(pynvml.nvmlSystemGetDriverVersion()),
        "cuda": f"{cuda // 1000}.{cuda % 1000 // 10}",
        "gpus": pynvml.nvmlDeviceGetCount(),
    }


def _dumped(pynvml: Any, ask: Callable[..., Any]) -> dict[str, Any]:
    pci = ask("PciInfo")
    found: dict[str, Any] = {"slot": _text(pci.busId) if pci else ""}
    if pci:
        found |= {"pci_id": _pci_id(pci.pciDeviceId), "subsystem": _pci_id(pci.pciSubSystemId)}
    for name, question, which, notation in _DUMP:
        answer = ask(question)
        if answer is not None and which is not None:
            answer = getattr(answer, which) if isinstance(which, str) else answer[which]
        if answer is not None and (value := notation(answer)) != "":
            found[name] = value
    capability = ask("CudaComputeCapability")
    clocks = (("sm", pynvml.NVML_CLOCK_SM), ("memory", pynvml.NVML_CLOCK_MEM), ("graphics", pynvml.NVML_CLOCK_GRAPHICS))
    more = {f"clock_{name}_max_mhz": ask("MaxClockInfo", kind) for name, kind in clocks}
    more["compute_capability"] = ".".join(map(str, capability)) if capability else None
    more["ecc_uncorrected"] = ask("TotalEccErrors", pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC)
    more["temperature_slowdown"] = ask("TemperatureThreshold", pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN)
    links = [ask("NvLinkState", link) for link in range(pynvml.NVML_NVLINK_MAX_LINKS)]
    more["nvlink"] = "".join(str(state) for state in links if state is not None) or None
    more["fabric_state"] = _fabric(pynvml, lambda question, *given: ask("GpuFabricInfoV", *given)) or None
    return found | {name: value for name, value in more.items() if value is not None}


def _pci_id(number: int) -> str:
    return f"{number & 0xFFFF:04x}:{number >> 16:04x}"


def _sampled(pynvml: Any, ask: Callable[..., Any]) -> dict[str, Any]:
    power, reasons = ask("PowerUsage"), ask("CurrentClocksThrottleReasons") or 0
    return {
        "uuid": _text(ask("UUID")),
        "clock_sm_mhz": ask("ClockInfo", pynvml.NVML_CLOCK_SM),
        "power_watts": None if power is None else round(power / 1000, 1),
        "temperature": ask("Temperature", pynvml.NVML_TEMPERATURE_GPU),
        "reasons": [name for bit, name in _REASONS.items() if reasons & bit],
    }


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


_COMPUTE = {0: "Default", 1: "Exclusive_Thread", 2: "Prohibited", 3: "Exclusive_Process"}
_VIRTUAL = {1: "Pass-Through", 2: "VGPU", 3: "Host VGPU", 4: "Host VSGA"}
# what a selftest compares: field → question, which of its answers (None: the answer itself), notation
_DUMP: tuple[tuple[str, str, int | str | None, Callable[[Any], Any]], ...] = (
    ("name", "Name", None, _text),
    ("uuid", "UUID", None, _text),
    ("serial", "Serial", None, _text),
    ("vbios", "VbiosVersion", None, _text),
    ("firmware", "GspFirmwareVersion", None, _text),
    ("minor", "MinorNumber", None, int),
    ("memory_mib", "MemoryInfo", "total", lambda value: value >> 20),
    ("bar1_mib", "BAR1MemoryInfo", "bar1Total", lambda value: value >> 20),
    ("persistence", "PersistenceMode", None, _switch),
    ("compute_mode", "ComputeMode", None, lambda value: _COMPUTE.get(value, "")),
    ("mig_current", "MigMode", 0, _switch),
    ("mig_pending", "MigMode", 1, _switch),
    ("ecc_current", "EccMode", 0, _switch),
    ("ecc_pending", "EccMode", 1, _switch),
    ("remapped_correctable", "RemappedRows", 0, int),
    ("remapped_uncorrectable", "RemappedRows", 1, int),
    ("remap_pending", "RemappedRows", 2, _yes),
    ("remap_failure", "RemappedRows", 3, _yes),
    ("retired_pending", "RetiredPagesPendingStatus", None, _yes),
    ("link_generation_max", "MaxPcieLinkGeneration", None, int),
    ("link_width_max", "MaxPcieLinkWidth", None, int),
    ("power_limit_watts", "EnforcedPowerLimit", None, lambda value: round(value / 1000)),
    ("power_default_watts", "PowerManagementDefaultLimit", None, lambda value: round(value / 1000)),
    ("power_min_watts", "PowerManagementLimitConstraints", 0, lambda value: round(value / 1000)),
    ("power_max_watts", "PowerManagementLimitConstraints", 1, lambda value: round(value / 1000)),
    ("virtualization", "VirtualizationMode", None, lambda value: _VIRTUAL.get(value, "")),
    ("compute_processes", "ComputeRunningProcesses", None, len),
)
_REASONS = {
    0x1: "gpu_idle",
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clocks_setting",
}
