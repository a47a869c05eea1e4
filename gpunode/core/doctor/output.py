"""What programs answer when they are asked: faults that they call none, what they prove, and versions.

dkms status, uname -a, lspci -k, docker info and the like, in a text or in a file of an archive.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from gpunode.core.late import regex

Told = tuple[int, str, str]  # where it stands in the text, fault, what shows it
Proven = tuple[int, str]  # its offset in the text, fact (Fault.refuted_by)

_DKMS = regex(
    r"^nvidia(?:-\w{1,20})?[/,] ?[\d.]{3,20}(?:, ([^,\s:]{1,80}), \w{1,10})?: (added|built|installed)\b.*$", re.M
)
# dkms status, nvidia-installer.log, modinfo nvidia
_BUILT = regex(
    r"^(?:nvidia(?:-\w{1,20})?[/,] ?[\d.]{3,20}, ([^,\s:]{1,80}), \w{1,10}: installed\b"
    r"|-> Kernel source path: '/lib/modules/([^/']{1,80})/build'"
    r"|filename: {1,20}/lib/modules/([^/\s]{1,80})/\S{1,100}/nvidia\.ko).*$",
    re.M,
)
# describe, -o yaml (allocatable comes first there), -o json in lines: the box of resources, one that names GPUs
_BOX = regex(
    r'^ {0,40}"?(capacity|allocatable)"?:(?: \{)?\n((?: {1,60}\S{1,100}: {1,60}\S{1,40}\n){1,60})', re.M | re.I
)
_GPUS = regex(r'^[^\w\n]{0,60}nvidia\.com/(gpu|mig-[^\s"]{1,40}|gpu\.shared)"?: {1,60}"?(\d{1,5})"?,?$', re.M)
_DEVICE = regex(  # lspci -k, of a GPU
    r"^([0-9a-f:.]{7,12}) (?:VGA|3D|Display)[^\n]{0,60}: NVIDIA[^\n]{0,200}\n((?:\t[^\n]{0,300}\n?){1,80})", re.M
)
_IN_USE = regex(r"^\tKernel driver in use: (\S{1,30})$", re.M)
_TABLE = regex(r"^\| NVIDIA-SMI [\d.]{5,20} +(?:Driver|KMD) Version: [\d.]{5,20} ", re.M)
_FAILED_GPU = regex(r"\bERR!|Unknown Error|GPU is lost|requires reset")
_TABLE_LENGTH = 20_000  # characters of a table of 16 GPUs
_FABRIC = regex(r"Detected NVL5\+ system|NVIDIA G?B[123]00\b")  # its manager's start script, and GPUs with NVLink 5
_RUNTIMES = regex(r"^ Runtimes: (?:\S{1,60} ){0,20}nvidia\b", re.M)  # docker info
# words that are in the text where the pattern can match, the pattern, whose version
_VERSIONS: tuple[tuple[str, str, re.Pattern[str]], ...] = tuple(
    (program, word, regex(pattern, re.M))
    for program, word, pattern in (
        ("driver", "NVIDIA-SMI ", r"^\| NVIDIA-SMI [\d.]{5,20} +(?:Driver|KMD) Version: ([\d.]{5,20}) "),
        ("driver", "NVRM version: ", r"^NVRM version: NVIDIA UNIX .{0,60}? ([\d.]{5,20})  "),
        ("driver", "Driver Version   ", r"^Driver Version {3,40}: ([\d.]{5,20})$"),
        ("docker", " Server Version: ", r"^ Server Version: (\d[\d.]{2,20})"),
        ("docker", "Docker version ", r"^(?:\S{0,40}\$ )?Docker version (\d[\d.]{2,20})"),
        (
            "toolkit",
            "NVIDIA Container ",
            r"^NVIDIA Container (?:Toolkit CLI|Runtime(?: Hook)?) version (\d[\d.]{2,20})",
        ),
        ("toolkit", "cli-version: ", r"^cli-version: (\d[\d.]{2,20})"),
        (
            "kernel",
            "Linux ",
            r"^(?:uname: |\S{0,40}\$ )?Linux (?:version (?=\S{1,80} \()|\S{1,64} (?=\S{1,80} #\d))(\d\S{1,80})",
        ),
        ("kubernetes", "Kubelet Version: ", r"^ +Kubelet Version: +v(\d[\d.]{2,20})"),
        ("kubernetes", "Server Version: v", r"^Server Version: v(\d[\d.]{2,20})"),
    )
)


def reported(text: str) -> Iterator[Told]:
    """The faults that answers in the text show; what has none of their words costs nothing."""
    if "nvidia" in text and (": added" in text or ": built" in text or ": installed" in text):
        yield from _modules(text)
    if "nvidia.com/gpu" in text:
        yield from _nodes(text)
    if "\tKernel driver in use: " in text:
        yield from _devices(text)


LASTING = frozenset({"has-fabric"})  # what a machine is, wherever it stands in a log


def proven(text: str) -> Iterator[Proven]:
    """What the answers prove: that the driver works, that Docker knows the runtime."""
    tables = [(table.start(), table.end()) for table in _TABLE.finditer(text)] if "| NVIDIA-SMI " in text else []
    for (start, head), (end, _) in pairwise([*tables, (len(text), 0)]):
        if not _FAILED_GPU.search(text, head, min(end, head + _TABLE_LENGTH)):
            yield start, "driver-answers"
    if runtimes := _RUNTIMES.search(text) if "\n Runtimes: " in text else None:
        yield runtimes.start(), "docker-has-nvidia"
    if "NVL5+" in text or "NVIDIA B" in text or "NVIDIA GB" in text:
        yield from ((fabric.start(), "has-fabric") for fabric in _FABRIC.finditer(text))


def versions(text: str) -> dict[str, str]:
    """Program → the version that the text gives last."""
    found: dict[str, str] = {}
    for program, word, pattern in _VERSIONS:
        if word in text:
            for match in pattern.finditer(text):
                found[program] = match[1].rstrip(".")
    return found


def _modules(text: str) -> Iterator[Told]:
    """DKMS has the module for no kernel."""
    rows = list(_DKMS.finditer(text))
    if not any(row[2] == "installed" for row in rows):
        yield from ((row.start(), "dkms-bad-exit", row[0]) for row in rows)


def built(text: str) -> Iterator[tuple[int, str]]:
    """For which kernels the driver's module was built: its place in the text, and the kernel."""
    if ": installed" in text or "Kernel source path: " in text or "/nvidia.ko" in text:
        yield from ((row.start(), row[row.lastindex or 0]) for row in _BUILT.finditer(text))


def _devices(text: str) -> Iterator[Told]:
    for device in _DEVICE.finditer(text):
        driver = _IN_USE.search(device[2])
        if driver and driver[1] in ("nouveau", "nova_core"):
            yield device.start(), "nouveau-in-use", f"{device[1]}: kernel driver in use: {driver[1]}"


def _nodes(text: str) -> Iterator[Told]:
    """Of a node's GPUs none, or fewer than it has, can be allocated; by the whole answer, or by grep's part of it."""
    boxes: dict[str, re.Match[str]] = {}
    found = [box for box in _BOX.finditer(text) if "nvidia.com/" in box[2]]
    for box in found:
        boxes[box[1].lower()] = box
        if len(boxes) == 2:
            yield from _fewer(boxes["capacity"], boxes["allocatable"])
            boxes = {}
    rows = [] if found else list(_GPUS.finditer(text))
    if rows and not any(int(row[2]) for row in rows):
        yield rows[0].start(), "plugin-no-devices", rows[0][0].strip()


def _fewer(capacity: re.Match[str], allocatable: re.Match[str]) -> Iterator[Told]:
    gpus = {row[1]: int(row[2]) for row in _GPUS.finditer(allocatable[2])}
    whole = {row[1]: int(row[2]) for row in _GPUS.finditer(capacity[2])}.get("gpu", 0)
    count = gpus.pop("gpu", None)
    if count is not None and not any(gpus.values()) and (not count or count < whole):
        name = "dp-xid-unhealthy" if count else "plugin-no-devices"
        yield allocatable.start(), name, f"allocatable: nvidia.com/gpu {count} of {whole}"
