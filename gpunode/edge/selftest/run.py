"""The selftest of this machine, from its first capture to the archive."""

from __future__ import annotations

import io
import json
import os
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from gpunode import __version__
from gpunode.core.errors import GpunodeError, InputError
from gpunode.core.facts import parse_probe
from gpunode.core.remote import program
from gpunode.core.selftest.checks import SHELLS, RecordEvidence, judge
from gpunode.core.selftest.record import Capture, Result, SelftestRecord, archive_files, lines_about_nvidia, read_record
from gpunode.edge.host.nvml import nvml_dump
from gpunode.edge.load import load_knowledge, load_mig
from gpunode.edge.programs import python_module
from gpunode.edge.selftest.capture import Clock, capture, first_line, only_if_good, timed
from gpunode.edge.state import now, writing_to
from gpunode.node import script

PCI = Path("/sys/bus/pci/devices")
PROC = Path("/proc/driver/nvidia")
LIMIT = 460.0  # seconds for all of it
_PARAMS = ("version", "params", "registry")

# name in the archive → the command, its time limit; what ends badly is the reason why it is not there
OUTPUTS: Mapping[str, tuple[tuple[str, ...], float]] = {
    "nvidia-smi.xml": (("nvidia-smi", "-q", "-x"), 45),
    "nvidia-smi-list.txt": (("nvidia-smi", "-L"), 20),
    "nvidia-smi-topo.txt": (("nvidia-smi", "topo", "-m"), 20),
    "mig-profiles.txt": (("nvidia-smi", "mig", "-lgip"), 20),
    "mig-instances.txt": (("nvidia-smi", "mig", "-lgi"), 20),
    "lspci.txt": (("lspci", "-D", "-nn", "-k", "-d", "10de:"), 20),
    "cdi.yaml": (("nvidia-ctk", "--quiet", "cdi", "generate"), 30),
}
_SYSFS = ("vendor", "device", "class", "subsystem_vendor", "subsystem_device", "numa_node")


def examine(limit: float = LIMIT, on_step: Callable[[str], None] = lambda step: None) -> SelftestRecord:
    """Capture everything on this machine.  What cannot be had has its reason; nothing here raises for that."""
    clock = Clock(limit)
    captures: dict[str, Capture] = {}
    for name, one in _captured(clock, captures):
        captures[name] = one
        on_step(name)
    return SelftestRecord(captures=captures, gpunode=__version__, at=now(), root=os.geteuid() == 0, seconds=clock.spent)


def _captured(clock: Clock, so_far: Mapping[str, Capture]) -> Iterator[tuple[str, Capture]]:
    yield "probe.txt", _probe("sh", clock)
    for shell in SHELLS:
        yield f"probe-{shell}.txt", _probe(shell, clock)
    for name, (command, seconds) in OUTPUTS.items():
        yield name, only_if_good(capture(command, clock, seconds))
    yield "nvml.json", timed(lambda: json.dumps(nvml_dump(), indent=1), clock)
    yield "sysfs.json", timed(_sysfs, clock)
    yield "proc.txt", timed(_proc, clock)
    yield "dmesg.txt", _dmesg(clock)
    with tempfile.TemporaryDirectory(prefix="gpunode-selftest-") as name:
        yield from _commands(Path(name), so_far, clock)


# ---------------------------------------------------------------- what is captured


def _probe(shell: str, clock: Clock) -> Capture:
    words = ["busybox", "sh"] if shell == "busybox" else [shell]
    return only_if_good(capture(words, clock, 60, text=program(script("probe.sh"), None)))


def _sysfs() -> str:
    found: dict[str, dict[str, str]] = {}
    for device in sorted(PCI.iterdir()):
        if first_line(device / "vendor") != "0x10de":
            continue
        one = {name: first_line(device / name) for name in _SYSFS}
        driver = device / "driver"
        found[device.name] = {**one, "driver": driver.resolve().name if driver.exists() else ""}
    return json.dumps(found, indent=1)


def _proc() -> str:
    files = [PROC / name for name in _PARAMS] + sorted(PROC.glob("gpus/*/information"))
    return "".join(f"=== {path}\n{text}" for path in files if (text := _text(path)))


def _text(path: Path) -> str:
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return ""
    return text if text.endswith("\n") else f"{text}\n"


def _dmesg(clock: Clock) -> Capture:
    log = capture(["dmesg"], clock, 10)
    if log.exit != 0:
        log = capture(["journalctl", "-k", "-b", "--no-pager", "-o", "short"], clock, 20)
    kept = "\n".join(lines_about_nvidia(log.text)[-400:])
    return replace(only_if_good(log), text=f"{kept}\n" if log.exit == 0 else "")


def _commands(folder: Path, so_far: Mapping[str, Capture], clock: Clock) -> Iterator[tuple[str, Capture]]:
    """gpunode's own commands, as a person would call them, in an empty folder with a state of their own."""
    given: dict[str, tuple[str, ...]] = {
        "detect": ("detect", "--local"),
        "plan": ("plan", "--local", "--no-check-repositories"),
        "verify": ("verify", "--local", "--no-smoke"),
        "doctor": ("doctor", "--local"),
        "report": ("report", "--from", str(folder / "seen")),
    }
    environment = {"XDG_STATE_HOME": str(folder / "state"), "NO_COLOR": "1"}
    (folder / "seen").mkdir()
    (folder / "seen/localhost.probe").write_text(so_far["probe.txt"].text)
    for name, words in given.items():
        done = _elsewhere([*words, "--format", "json"], folder, clock, environment)
        if name == "verify" and done.exit is not None:
            (folder / "seen/verify.json").write_text(done.text)
        yield f"{name}.json", done if done.text else replace(done, text=done.error)


def _elsewhere(words: list[str], folder: Path, clock: Clock, environment: Mapping[str, str]) -> Capture:
    """gpunode in that folder: the gpunode.yml of the current one is not meant."""
    command, variables = python_module("gpunode")
    shell = ["sh", "-c", 'cd "$1" && shift && exec "$@"', "sh", str(folder), *command, *words]
    return capture(shell, clock, 90, env={**environment, **variables})


# ---------------------------------------------------------------- judged, packed, and read again


def results_of(record: SelftestRecord) -> tuple[Result, ...]:
    """The table of checks for a record, by the knowledge of this gpunode."""
    return judge(RecordEvidence(record=record, knowledge=load_knowledge(), products=load_mig()))


def write_archive(path: Path, record: SelftestRecord) -> None:
    """One tar.gz (0600) of the redacted record; what is judged for it is the redacted record as well."""
    stem = path.name.removesuffix(".tar.gz")
    files = archive_files(record, results_of(record))
    with writing_to(path, "choose another file: -o FILE"), path.open("xb") as file:
        path.chmod(0o600)
        with tarfile.open(fileobj=file, mode="w:gz") as tar:
            for name, text in files.items():
                data = text.encode(errors="replace")
                entry = tarfile.TarInfo(f"{stem}/{name}")
                entry.size, entry.mtime, entry.mode = len(data), int(time.time()), 0o600
                tar.addfile(entry, io.BytesIO(data))


def load_record(path: Path) -> SelftestRecord:
    """The record of an archive, or of the folder that it was unpacked to.  Raises InputError."""
    try:
        if path.is_dir():
            return read_record({file.name: file.read_bytes().decode(errors="replace") for file in path.iterdir()})
        with tarfile.open(path) as tar:
            members = [member for member in tar.getmembers() if member.isfile() and member.size < 32 << 20]
            files = {Path(m.name).name: (tar.extractfile(m) or io.BytesIO()).read() for m in members}
        return read_record({name: data.decode(errors="replace") for name, data in files.items()})
    except (OSError, tarfile.TarError) as error:
        raise InputError(f"record {path}: {error}", expected="an archive of gpunode selftest, or its folder") from error


def gpu_here(clock: Clock) -> bool:
    """Whether a selftest has anything to look at: an NVIDIA GPU on PCI, or an nvidia-smi that lists one."""
    for device in PCI.iterdir() if PCI.is_dir() else ():
        if first_line(device / "vendor") == "0x10de" and first_line(device / "class").startswith("0x03"):
            return True
    return "GPU " in capture(("nvidia-smi", "-L"), clock, 45).text


def gpus_of(record: SelftestRecord) -> int:
    """How many NVIDIA GPUs the machine of a record has on PCI."""
    try:
        return len(parse_probe(record.text("probe.txt")).gpus)
    except GpunodeError:
        return 0
