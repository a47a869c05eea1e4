"""Each source of a record in one shape: what it says of the machine, and of each GPU by its PCI slot.

The fields of XML are those of nvsmi_device_v10.dtd to v13.dtd (`nvidia-smi --dtd`); releases moved some of them, so a
field has several paths.  Values are in one notation: MiB, W and MHz as whole numbers, PCI ids as 10de:2330, slots as
sysfs has them.  What a source does not say (N/A) is not in its reading.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

from gpunode.core.errors import InputError
from gpunode.core.facts.driver import slot_of
from gpunode.core.late import dataclass, field, regex
from gpunode.core.model import NodeFacts

Values = Mapping[str, str]
_NOTHING = regex(
    r"\[?(N/?A|Not Supported|Unknown Error|Not Found|Insufficient Permissions|Requested functionality .*|None|)\]?\Z",
    re.I,
)
_DISPLAY = ("0300", "0302")


@dataclass(frozen=True, kw_only=True)
class SourceReading:
    """What one source says: of the machine, and of each GPU by slot."""

    source: str
    machine: Values = field(default_factory=dict)
    gpus: Mapping[str, Values] = field(default_factory=dict)


def compare(one: SourceReading, other: SourceReading, *, absent: Sequence[str] = ()) -> tuple[int, list[str]]:
    """(how many fields both have, their differences); a GPU that only one has is one, but for slots in `absent`."""
    compared, differences = 0, []
    for slot in sorted({*one.gpus, *other.gpus} - set(absent)):
        for here, there in ((one, other), (other, one)):
            if slot not in here.gpus:
                differences.append(f"{slot}: {there.source} has this GPU, {here.source} does not")
    pairs = [("machine", one.machine, other.machine)]
    pairs += [(slot, one.gpus[slot], other.gpus[slot]) for slot in sorted({*one.gpus} & {*other.gpus})]
    for where, first, second in pairs:
        for name in sorted({*first} & {*second}):
            compared += 1
            if not _same(name, first[name], second[name]):
                differences.append(f"{where} {name}: {one.source} {first[name]}, {other.source} {second[name]}")
    return compared, differences


def _same(name: str, one: str, other: str) -> bool:
    if one == other or (name == "vbios" and one.lower() == other.lower()):  # /proc has it in lower case
        return True
    close = name.endswith(("_mib", "_watts", "_mhz"))  # each source rounds for itself
    return close and one.isdigit() and other.isdigit() and abs(int(one) - int(other)) <= 1


# ---------------------------------------------------------------- nvidia-smi -q -x


def _number(text: str) -> str:
    found = re.match(r"-?\d+(?:\.\d+)?", text)
    return str(round(float(found[0]))) if found else ""


def _swapped(text: str) -> str:
    """233010DE (device, then vendor) → 10de:2330."""
    digits = text.lower().removeprefix("0x").rjust(8, "0")
    return f"{digits[4:]}:{digits[:4]}" if re.fullmatch(r"[0-9a-f]{8}", digits) else ""


# field → (where it is, its notation)
_XML: Mapping[str, tuple[tuple[str, ...], Callable[[str], str]]] = {
    "name": (("product_name",), str),
    "brand": (("product_brand",), str),
    "architecture": (("product_architecture",), str),
    "uuid": (("uuid",), str),
    "serial": (("serial",), str),
    "minor": (("minor_number",), str),
    "vbios": (("vbios_version",), str),
    "firmware": (("gsp_firmware_version",), str),
    "persistence": (("persistence_mode",), str),
    "compute_mode": (("compute_mode",), str),
    "virtualization": (("gpu_virtualization_mode/virtualization_mode",), str),
    "mig_current": (("mig_mode/current_mig",), str),
    "mig_pending": (("mig_mode/pending_mig",), str),
    "ecc_current": (("ecc_mode/current_ecc",), str),
    "ecc_pending": (("ecc_mode/pending_ecc",), str),
    "pci_id": (("pci/pci_device_id",), _swapped),
    "subsystem": (("pci/pci_sub_system_id",), _swapped),
    "link_generation_max": (("pci/pci_gpu_link_info/pcie_gen/max_link_gen",), _number),
    "link_width_max": (("pci/pci_gpu_link_info/link_widths/max_link_width",), _number),
    "memory_mib": (("fb_memory_usage/total",), _number),
    "bar1_mib": (("bar1_memory_usage/total",), _number),
    "remapped_correctable": (("remapped_rows/remapped_row_corr",), _number),
    "remapped_uncorrectable": (("remapped_rows/remapped_row_unc",), _number),
    "remap_pending": (("remapped_rows/remapped_row_pending",), str),
    "remap_failure": (("remapped_rows/remapped_row_failure",), str),
    "retired_pending": (("retired_pages/pending_retirement", "retired_pages/pending_blacklist"), str),
    "fabric_state": (("fabric/state",), str),
    "power_limit_watts": (("gpu_power_readings/current_power_limit", "power_readings/enforced_power_limit"), _number),
    "power_default_watts": (("gpu_power_readings/default_power_limit", "power_readings/default_power_limit"), _number),
    "power_min_watts": (("gpu_power_readings/min_power_limit", "power_readings/min_power_limit"), _number),
    "power_max_watts": (("gpu_power_readings/max_power_limit", "power_readings/max_power_limit"), _number),
    "clock_sm_max_mhz": (("max_clocks/sm_clock",), _number),
    "clock_memory_max_mhz": (("max_clocks/mem_clock",), _number),
    "clock_graphics_max_mhz": (("max_clocks/graphics_clock",), _number),
    "temperature_slowdown": (("temperature/gpu_temp_slow_threshold",), _number),
}
XML_FIELDS = (*_XML, "ecc_uncorrected", "mig_devices", "processes")


def read_smi(text: str) -> SourceReading:
    """`nvidia-smi -q -x`; InputError where it is none."""
    start = text.find("<?xml")
    if start < 0 or "<!ENTITY" in text:
        raise InputError("nvidia-smi -q -x printed no XML", expected="<?xml …")
    try:
        log = ElementTree.fromstring(text[start:])  # noqa: S314 - no entities, nothing is fetched
    except ElementTree.ParseError as error:
        raise InputError(f"nvidia-smi -q -x: {error}", expected="XML of nvsmi_device_v12.dtd") from None
    machine = {"driver": _at(log, "driver_version"), "cuda": _at(log, "cuda_version")}
    gpus = {slot_of(gpu.get("id") or _at(gpu, "pci/pci_bus_id")): dict(_xml_fields(gpu)) for gpu in log.iter("gpu")}
    machine["gpus"] = _at(log, "attached_gpus") or str(len(gpus))
    return SourceReading(source="nvidia-smi -q -x", machine=_printed(machine), gpus=gpus)


def _xml_fields(gpu: ElementTree.Element) -> Iterator[tuple[str, str]]:
    for name, (paths, notation) in _XML.items():
        text = next((text for path in paths if (text := _at(gpu, path))), "")
        if text and (value := notation(text)):
            yield name, value
    errors = gpu.find("ecc_errors/volatile")
    counts = [one for one in (errors.iter() if errors is not None else ()) if "uncorrectable" in one.tag]
    double = gpu.find("ecc_errors/volatile/double_bit/total")  # before Ampere
    numbers = [int(text) for one in counts if (text := (one.text or "").strip()).isdigit()]
    if numbers or (double is not None and (double.text or "").strip().isdigit()):
        yield "ecc_uncorrected", str(sum(numbers)) if numbers else (double.text or "").strip()  # type: ignore[union-attr]
    yield "mig_devices", str(len(gpu.findall("mig_devices/mig_device")))
    yield "processes", str(len(gpu.findall("processes/process_info")))


def _at(element: ElementTree.Element, path: str) -> str:
    text = (element.findtext(path) or "").strip()
    return "" if _NOTHING.match(text) else text


def _printed(values: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in values.items() if value}


# ---------------------------------------------------------------- NVML, sysfs, lspci, /proc, the facts


def read_nvml(data: Any) -> SourceReading:
    """The dump of edge/host/nvml.py: {"machine": {…}, "gpus": [{"slot": …, …}]}."""
    if not isinstance(data, dict) or not isinstance(data.get("gpus"), list):
        raise InputError("no dump of NVML", expected='{"machine": {…}, "gpus": […]}')
    gpus = {
        slot_of(str(gpu.get("slot", ""))): _printed(
            {k: str(v) for k, v in gpu.items() if k != "slot" and v is not None}
        )
        for gpu in data["gpus"]
    }
    machine = _printed({name: str(value) for name, value in data.get("machine", {}).items() if value is not None})
    return SourceReading(source="NVML", machine=machine, gpus=gpus)


def read_sysfs(text: str) -> SourceReading:
    """{slot: {vendor, device, class, subsystem_vendor, subsystem_device, driver, …}} as JSON."""
    gpus = {}
    for slot, one in json.loads(text).items():
        hexes = {name: str(value).removeprefix("0x") for name, value in one.items()}
        if hexes.get("class", "")[:4] not in _DISPLAY:
            continue
        gpus[slot] = {
            "pci_id": f"{hexes['vendor']}:{hexes['device']}",
            "subsystem": f"{hexes['subsystem_vendor']}:{hexes['subsystem_device']}",
            "class": hexes["class"][:4],
            "kernel_driver": one.get("driver", ""),
        }
    return SourceReading(source="sysfs", gpus={slot: _printed(one) for slot, one in gpus.items()})


# 0000:17:00.0 3D controller [0302]: NVIDIA Corporation GH100 [H100 SXM5 80GB] [10de:2330] (rev a1)
_LSPCI = regex(r"([0-9a-f:.]+) [^\[\n]*\[(\w{4})\]: .*\[(\w{4}:\w{4})\]")


def read_lspci(text: str) -> SourceReading:
    """`lspci -D -nn -k -d 10de:`."""
    gpus: dict[str, dict[str, str]] = {}
    current: dict[str, str] = {}
    for line in text.splitlines():
        if match := _LSPCI.match(line):
            current = {"class": match[2], "pci_id": match[3]}
            if match[2] in _DISPLAY:
                gpus[match[1] if match[1].count(":") == 2 else f"0000:{match[1]}"] = current
        elif match := re.match(r"\s+Subsystem: .*\[(\w{4}:\w{4})\]", line):
            current["subsystem"] = match[1]
        elif match := re.match(r"\s+Kernel driver in use: (\S+)", line):
            current["kernel_driver"] = match[1]
    return SourceReading(source="lspci", gpus=gpus)


_INFORMATION = {
    "Model": "name",
    "GPU UUID": "uuid",
    "Device Minor": "minor",
    "Video BIOS": "vbios",
    "GPU Firmware": "firmware",
}


def read_proc(text: str) -> SourceReading:
    """Files of /proc/driver/nvidia, each behind a line `=== PATH`."""
    machine: dict[str, str] = {}
    gpus: dict[str, dict[str, str]] = {}
    path = ""
    for line in text.splitlines():
        if line.startswith("=== "):
            path = line.removeprefix("=== ")
        elif path.endswith("/version") and line.startswith("NVRM version"):
            found = re.search(r"\b\d{3,4}\.\d{1,4}(?:\.\d{1,4})?\b", line)
            machine = {"driver": found[0] if found else ""}
            machine["flavour"] = "open" if "Open Kernel Module" in line else "proprietary"
        elif match := re.search(r"/gpus/([^/]+)/information\Z", path):
            key, _, value = (part.strip() for part in line.partition(":"))
            one = gpus.setdefault(match[1].lower(), {})
            if key in _INFORMATION and not _NOTHING.match(value) and "?" not in value:
                one[_INFORMATION[key]] = value
    return SourceReading(source="/proc/driver/nvidia", machine=_printed(machine), gpus=gpus)


# fields of NvmlGpu that the sources have under the same name
_OF_DRIVER = (
    *("name", "uuid", "memory_mib", "mig_current", "mig_pending", "persistence", "ecc_current", "ecc_uncorrected"),
    *("retired_pending", "remap_pending", "remap_failure", "fabric_state"),
)


def read_facts(facts: NodeFacts) -> SourceReading:
    """What gpunode made of its probe: the GPUs on PCI, and what nvidia-smi's table said of them."""
    minors = {gpu.uuid: str(gpu.minor) for gpu in facts.cdi.gpus if gpu.uuid}
    driver = {
        gpu.slot: {name: str(value) for name in _OF_DRIVER if (value := getattr(gpu, name)) not in (None, "N/A")}
        | {"minor": minors.get(gpu.uuid, "")}
        for gpu in facts.nvml
    }
    pci = {
        gpu.slot: {"pci_id": gpu.id, "subsystem": gpu.subsystem, "class": gpu.class_code, "kernel_driver": gpu.driver}
        for gpu in facts.gpus
    }
    gpus = {slot: _printed({**pci.get(slot, {}), **driver.get(slot, {})}) for slot in {**pci, **driver}}
    machine = {"driver": facts.driver.loaded, "flavour": facts.driver.loaded_flavour}
    return SourceReading(source="gpunode", machine=_printed(machine), gpus=gpus)


# ---------------------------------------------------------------- nvidia-smi mig -lgip

# |   0  MIG 1g.10gb       19     7/7        9.62       No     14     0     0   |
_PROFILE = regex(r"\|\s*(\d+)\s+MIG (\S+)\s+(\d+)\s+(\d+)/(\d+)\s+(\d+\.\d+)\s")


@dataclass(frozen=True, kw_only=True)
class ListedProfile:
    """A row of `nvidia-smi mig -lgip`."""

    gpu: int
    name: str
    id: int
    most: int
    gib: float


def read_profiles(text: str) -> tuple[ListedProfile, ...]:
    """The rows of `nvidia-smi mig -lgip`, () where no GPU has MIG, or has it enabled."""
    found = (_PROFILE.match(line.strip()) for line in text.splitlines())
    return tuple(
        ListedProfile(gpu=int(m[1]), name=m[2], id=int(m[3]), most=int(m[5]), gib=float(m[6])) for m in found if m
    )
