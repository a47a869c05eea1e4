"""GPUs of this machine by NVML (pynvml): what the driver itself says, where there is one.

NVML is the driver's own code.  It is loaded only where a driver is (it makes /dev/nvidiactl by itself, and a machine
that is only read shall stay as it is), and in a process of its own: a library that crashes or hangs ends that one.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpunode.core.errors import GpunodeError
from gpunode.core.model import NvmlGpu

DRIVER = (Path("/proc/driver/nvidia/version"), Path("/dev/dxg"))  # one of these is there while a driver is loaded
SLOTS = Path("/proc/driver/nvidia/gpus")
SECONDS = 60.0  # a driver without persistence starts every GPU first; a GPU that is lost may never answer
_FABRIC = ("", "Not Started", "In Progress", "Completed")  # nvidia-smi's words; 0 is «not supported»
_RECOVERY = (
    "None",
    "Reset",
    "Reboot",
    "Drain P2P",
    "Drain and Reset",
    "Recover IMEX Domain",
    "Bus Reset",
    "System Reboot",
)
_RECOVERY_FIELD = 230  # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
# The driver's words where it cannot speak for a GPU, by its error.  These are of the GPU, whatever was asked …
_FAULTS = {15: "GPU is lost", 16: "GPU requires reset", 999: "Unknown Error"}
_UNKNOWN = 999  # counts for these questions, which every driver can answer of a GPU that is well or do without
_BASIC = frozenset("PciInfo UUID Name MemoryInfo MigMode EccMode RemappedRows Temperature PowerUsage ClockInfo".split())
# … and these only say that we may not ask for it, or that it is not there.
_NOT_OURS = {2: "Invalid Argument", 4: "Insufficient Permissions", 6: "Not Found"}


def local_gpus() -> tuple[NvmlGpu, ...]:
    """The GPUs that NVML lists; () where there is no driver, no library, no GPU, or no answer.

    What a GPU does not support (memory of a GB10, ECC of a GeForce) stays empty; `fault` is the driver's word where it
    cannot speak for the GPU.
    """
    try:
        return tuple(NvmlGpu(**gpu) for gpu in _asked("gpus"))
    except GpunodeError:
        return ()


def merge_gpus(probed: Sequence[NvmlGpu], asked: Sequence[NvmlGpu]) -> tuple[NvmlGpu, ...]:
    """One list by slot: what NVML said (`asked`), and where it said nothing, what the probe saw."""
    by_slot = {gpu.slot: gpu for gpu in probed}
    by_index = {gpu.index: gpu.slot for gpu in probed}
    for gpu in asked:
        slot = gpu.slot or by_index.get(gpu.index, "")  # NVML does not tell the slot of a GPU that is lost
        stated = {f.name: v for f in dataclasses.fields(gpu) if (v := getattr(gpu, f.name)) not in ("", None)}
        by_slot[slot] = dataclasses.replace(by_slot.get(slot, gpu), **stated)
    return tuple(sorted(by_slot.values(), key=lambda gpu: gpu.index))


def nvml_dump() -> dict[str, Any]:
    """{"machine": {…}, "gpus": [{…}]}: all that NVML answers of the fields that nvidia-smi -q -x has, too.

    A GPU for which the driver cannot speak has `fault`, its word for that.  Raises GpunodeError where there is no
    library, no driver, or no answer.
    """
    found: dict[str, Any] = _asked("dump")
    return found


# ---------------------------------------------------------------- the process that asks


def _asked(what: str) -> Any:
    """The answer of another process of this Python: see `main`."""
    if not any(path.exists() for path in DRIVER):
        raise GpunodeError("NVML: no driver of NVIDIA's is loaded", fix="nvidia-smi on this machine shows the cause")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = (sys.executable, "-m", "gpunode.edge.host.nvml", what, str(SLOTS))
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            printed, trouble = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            # one that the kernel does not let go cannot be waited for
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=1)
            process.returncode = process.returncode if process.returncode is not None else -9
            raise GpunodeError(f"NVML: no answer within {SECONDS:.0f} s", fix=_DMESG) from None
    if process.returncode:
        last = (trouble.strip().splitlines() or [""])[-1]
        why = f"ended by signal {-process.returncode}" if process.returncode < 0 else last
        raise GpunodeError(f"NVML: the library failed: {why}", fix=_DMESG)
    answer = json.loads(printed)
    if "error" in answer:
        raise GpunodeError(f"NVML: {answer['error']}", fix="nvidia-smi on this machine shows the cause")
    return answer["answer"]


_DMESG = "see what the kernel log says of the driver: dmesg | grep -e NVRM -e Xid"


def main(what: str, slots: str) -> int:
    """Print what NVML answers, {"answer": …} or {"error": …}, as JSON."""
    import pynvml

    questions = {"gpus": _gpus, "dump": _dump}
    try:
        pynvml.nvmlInit()
        answer = {"answer": questions[what](pynvml, Path(slots))}
    except (pynvml.NVMLError, AttributeError, TypeError, ValueError) as error:
        answer = {"error": str(error)}
    print(json.dumps(answer))
    sys.stdout.flush()
    os._exit(0)  # what a driver's library does when it is unloaded is of no use to us


class _Gpu:
    """Questions to NVML about one GPU.  None is the answer where GPU, driver or pynvml has none."""

    def __init__(self, pynvml: Any, index: int) -> None:
        self.pynvml, self.index = pynvml, index
        self.faults: list[int] = []
        self.handle: Any = None
        self.trouble = ""
        try:
            self.handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        except pynvml.NVMLError as error:  # it fell off the bus, or has no power
            if error.value not in _NOT_OURS:
                self.trouble = _FAULTS.get(error.value, str(error))

    @property
    def there(self) -> bool:
        """Whether there is something to say of it."""
        return self.handle is not None or bool(self.trouble)

    @property
    def fault(self) -> str:
        """The driver's word where it cannot speak for the GPU."""
        return self.trouble or (_FAULTS[min(self.faults)] if self.faults else "")

    def ask(self, question: str, *more: Any) -> Any:
        """The answer of nvmlDeviceGet…"""
        if self.handle is None:
            return None
        try:
            return getattr(self.pynvml, f"nvmlDeviceGet{question}")(self.handle, *more)
        except self.pynvml.NVMLError as error:
            if error.value in _FAULTS and (error.value != _UNKNOWN or question in _BASIC):
                self.faults.append(error.value)
        except (AttributeError, TypeError, ValueError, ctypes.ArgumentError):  # another pynvml, a function with other
            pass  # arguments, a text that is none
        return None

    def fabric(self) -> tuple[str, str]:
        """(state, status) of its NVLink fabric in nvidia-smi's words; the status counts when the state is complete."""
        for question, info in (("GpuFabricInfoV", _FabricV(version=_FABRIC_V2)), ("GpuFabricInfo", _Fabric())):
            if self.ask(question, ctypes.byref(info)) is None:
                continue
            state = _FABRIC[info.state] if info.state < len(_FABRIC) else ""
            if state != "Completed":
                return state, ""
            return state, "Success" if not info.status else _word(self.pynvml, info.status)
        return "", ""

    def recovery(self) -> str:
        """What the driver recommends, in nvidia-smi's words; "" where it recommends nothing at all, not even «None»."""
        answer = self.ask("FieldValues", [_RECOVERY_FIELD])
        if not answer or answer[0].nvmlReturn:
            return ""
        number = answer[0].value.uiVal
        return _RECOVERY[number] if number < len(_RECOVERY) else f"Unknown ({number})"


class _Fabric(ctypes.Structure):
    """nvmlGpuFabricInfo_t of nvml.h; pynvml's own had other layouts in some versions."""

    _fields_ = (
        ("clusterUuid", ctypes.c_ubyte * 16),
        ("status", ctypes.c_uint),
        ("cliqueId", ctypes.c_uint),
        ("state", ctypes.c_ubyte),
    )


class _FabricV(ctypes.Structure):
    """nvmlGpuFabricInfo_v2_t, which every driver from 535 on knows."""

    _fields_ = (("version", ctypes.c_uint), *_Fabric._fields_, ("healthMask", ctypes.c_uint))


_FABRIC_V2 = ctypes.sizeof(_FabricV) | 2 << 24


def _word(pynvml: Any, code: int) -> str:
    return _FAULTS.get(code) or str(pynvml.NVMLError(code))


def _each(pynvml: Any) -> Iterator[_Gpu]:
    for index in range(pynvml.nvmlDeviceGetCount()):
        if (gpu := _Gpu(pynvml, index)).there:
            yield gpu


def _slots(pynvml: Any, folder: Path) -> Mapping[int, str]:
    """Index → slot as /proc has it, whose order is NVML's; of use for GPUs that say nothing of themselves."""
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    return dict(enumerate(names)) if len(names) == pynvml.nvmlDeviceGetCount() else {}


# ---------------------------------------------------------------- what is asked


def _gpus(pynvml: Any, slots: Path) -> list[dict[str, Any]]:
    names = _slots(pynvml, slots)
    return [_described(gpu, names.get(gpu.index, "")) for gpu in _each(pynvml)]


def _described(gpu: _Gpu, slot: str) -> dict[str, Any]:
    """The fields of NvmlGpu that NVML has an answer for."""
    if pci := gpu.ask("PciInfo"):
        slot = _text(pci.busId).lower()[-12:]  # 00000000:17:00.0 → 0000:17:00.0, as sysfs has it
    return {"index": gpu.index, "slot": slot, **_answers(gpu, _OF_GPU)}


def _dump(pynvml: Any, slots: Path) -> dict[str, Any]:
    names = _slots(pynvml, slots)
    return {"machine": _machine(pynvml), "gpus": [_dumped(gpu, names.get(gpu.index, "")) for gpu in _each(pynvml)]}


def _machine(pynvml: Any) -> dict[str, Any]:
    cuda = pynvml.nvmlSystemGetCudaDriverVersion_v2()
    return {
        "driver": _text(pynvml.nvmlSystemGetDriverVersion()),
        "cuda": f"{cuda // 1000}.{cuda % 1000 // 10}",
        "gpus": pynvml.nvmlDeviceGetCount(),
    }


def _dumped(gpu: _Gpu, slot: str) -> dict[str, Any]:
    pynvml, ask = gpu.pynvml, gpu.ask
    pci = ask("PciInfo")
    found: dict[str, Any] = {"slot": _text(pci.busId) if pci else slot}
    if pci:
        found |= {"pci_id": _pci_id(pci.pciDeviceId), "subsystem": _pci_id(pci.pciSubSystemId)}
    capability = ask("CudaComputeCapability")
    clocks = (("sm", pynvml.NVML_CLOCK_SM), ("memory", pynvml.NVML_CLOCK_MEM), ("graphics", pynvml.NVML_CLOCK_GRAPHICS))
    more = {f"clock_{name}_max_mhz": ask("MaxClockInfo", kind) for name, kind in clocks}
    more["compute_capability"] = ".".join(map(str, capability)) if capability else None
    more["temperature_slowdown"] = ask("TemperatureThreshold", pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN)
    links = [ask("NvLinkState", link) for link in range(pynvml.NVML_NVLINK_MAX_LINKS)]
    more["nvlink"] = "".join(str(state) for state in links if state is not None) or None
    found |= {name: value for name, value in more.items() if value is not None}
    return found | _answers(gpu, _ANSWERS)


def _answers(gpu: _Gpu, wanted: Iterable[str]) -> dict[str, Any]:
    """What NVML has answers for: these of _ANSWERS, what takes more than a question, and last the driver's own word."""
    found: dict[str, Any] = {}
    for name in wanted:
        question, which, notation = _ANSWERS[name]
        answer = gpu.ask(question)
        if answer is not None and which is not None:
            answer = getattr(answer, which) if isinstance(which, str) else answer[which]
        found[name] = None if answer is None else notation(answer)
    kinds = (gpu.pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, gpu.pynvml.NVML_VOLATILE_ECC)
    found["ecc_uncorrected"] = gpu.ask("TotalEccErrors", *kinds)
    found["fabric_state"], found["fabric_status"] = gpu.fabric()
    found["recovery"] = gpu.recovery()
    reasons = gpu.ask("CurrentClocksThrottleReasons")
    found["event_reasons"] = "" if reasons is None else f"0x{reasons:016x}"  # as nvidia-smi writes it
    found["fault"] = gpu.fault
    return {name: value for name, value in found.items() if value not in ("", None)}


def _pci_id(number: int) -> str:
    return f"{number & 0xFFFF:04x}:{number >> 16:04x}"


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value or "")


def _switch(value: int) -> str:
    return "Enabled" if value else "Disabled"


def _yes(value: int) -> str:
    return "Yes" if value else "No"


_COMPUTE = {0: "Default", 1: "Exclusive_Thread", 2: "Prohibited", 3: "Exclusive_Process"}
_VIRTUAL = {1: "Pass-Through", 2: "VGPU", 3: "Host VGPU", 4: "Host VSGA"}
# field → question, which of its answers (None: the answer itself), notation; a selftest compares all of them
_ANSWERS: Mapping[str, tuple[str, int | str | None, Callable[[Any], Any]]] = {
    "name": ("Name", None, _text),
    "uuid": ("UUID", None, _text),
    "serial": ("Serial", None, _text),
    "vbios": ("VbiosVersion", None, _text),
    "firmware": ("GspFirmwareVersion", None, _text),
    "minor": ("MinorNumber", None, int),
    "memory_mib": ("MemoryInfo", "total", lambda value: value >> 20),
    "bar1_mib": ("BAR1MemoryInfo", "bar1Total", lambda value: value >> 20),
    "persistence": ("PersistenceMode", None, _switch),
    "compute_mode": ("ComputeMode", None, lambda value: _COMPUTE.get(value, "")),
    "mig_current": ("MigMode", 0, _switch),
    "mig_pending": ("MigMode", 1, _switch),
    "ecc_current": ("EccMode", 0, _switch),
    "ecc_pending": ("EccMode", 1, _switch),
    "remapped_correctable": ("RemappedRows", 0, int),
    "remapped_uncorrectable": ("RemappedRows", 1, int),
    "remap_pending": ("RemappedRows", 2, _yes),
    "remap_failure": ("RemappedRows", 3, _yes),
    "retired_pending": ("RetiredPagesPendingStatus", None, _yes),
    "link_generation_max": ("MaxPcieLinkGeneration", None, int),
    "link_width_max": ("MaxPcieLinkWidth", None, int),
    "power_limit_watts": ("EnforcedPowerLimit", None, lambda value: round(value / 1000)),
    "power_default_watts": ("PowerManagementDefaultLimit", None, lambda value: round(value / 1000)),
    "power_min_watts": ("PowerManagementLimitConstraints", 0, lambda value: round(value / 1000)),
    "power_max_watts": ("PowerManagementLimitConstraints", 1, lambda value: round(value / 1000)),
    "virtualization": ("VirtualizationMode", None, lambda value: _VIRTUAL.get(value, "")),
    "compute_processes": ("ComputeRunningProcesses", None, len),
}
_OF_GPU = (
    *("uuid", "name", "memory_mib", "mig_current", "mig_pending", "persistence", "ecc_current"),
    *("retired_pending", "remap_pending", "remap_failure"),
)
if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
