"""A log or a report → what its parts say, and what is proven by it: facts, judged as those of a node."""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache

from gpunode.core.doctor import Diagnosis, diagnose
from gpunode.core.doctor.logs import Scan
from gpunode.core.doctor.output import LASTING, built, proven, reported, versions
from gpunode.core.doctor.parts import Piece
from gpunode.core.doctor.smi import MARK, smi_gpus
from gpunode.core.doctor.table import Faults
from gpunode.core.doctor.text import Evidence, time_of, uncoloured
from gpunode.core.late import dataclass, field, regex, replace
from gpunode.core.model import Check, NodeFacts, NvmlGpu

_LS = r"^\*\*\* ls: .{1,80}? (20\d\d-\d\d-\d\d \d\d:\d\d:\d\d)[. ]"
_WRITTEN = regex(_LS, re.M)
_BREAK = regex("\n")
_DEVICE = regex(_LS + r"\S{0,20} \S{5} /dev/", re.M)  # made since the machine has started
_HEAD = 500  # characters at the beginning of a part
_ALWAYS = 1 << 62  # a line after all others
_SAME = 3600  # seconds between logs of one installation, for several kernels; between a start and its devices
_OLD = 60 * 86400  # seconds of a part, where nothing tells when the machine has started
_LONGEST = 4 << 20  # characters of nvidia-smi's answer that are read


@dataclass(kw_only=True)
class _Answer:
    """nvidia-smi -q in a part."""

    line: int
    text: list[str] = field(default_factory=list)
    length: int = 0

    def add(self, text: str) -> None:
        if self.length < _LONGEST:
            self.text.append(text)
            self.length += len(text)


@dataclass(kw_only=True)
class _Machine:
    """What is known of one machine, by its logs, its report or the files of its archive."""

    scans: list[Scan] = field(default_factory=list)
    proofs: set[str] = field(default_factory=set)  # by a report, all of which is of one moment
    versions: dict[str, str] = field(default_factory=dict)
    answers: list[tuple[str, Evidence, Scan]] = field(default_factory=list)
    devices: list[int] = field(default_factory=list)  # when files below /dev were made, in the machine's own time
    built: dict[str, tuple[int, Scan]] = field(default_factory=dict)  # kernels with a module: the line that says it
    loaded: bool = False  # the module, by another log than that of its installation

    def unbuilt(self) -> Iterator[tuple[str, Evidence, Scan]]:
        """That the kernel that runs has no module of the driver; one that has loaded it has."""
        running = self.versions.get("kernel", "")
        if running and running not in self.built and not self.loaded:
            for line, by in [*self.built.values()][-1:]:
                words = f"{running} runs, and the module was built for {', '.join(sorted(self.built))}"
                yield "modprobe-not-found", Evidence(source=by.source, line=line, text=words), by


def diagnose_logs(faults: Faults, logs: Iterable[tuple[str, Iterable[Piece]]]) -> Diagnosis:
    """Logs and reports by name, each as its pieces in order."""
    machines: dict[str, _Machine] = {}
    state: dict[str, list[Evidence]] = {}
    for source, pieces in logs:
        name = source if "nvidia-bug-report" in source else ""  # of a cluster's archive each is of another machine
        _read(faults, source, pieces, state, machines.setdefault(name, _Machine()))
    for machine in machines.values():
        for one in machine.scans:
            one.proofs |= dict.fromkeys(machine.proofs, _ALWAYS)
            one.versions = machine.versions
            one.since = min(machine.devices, default=_SAME) - _SAME
        for fault, evidence, by in [*machine.answers, *machine.unbuilt()]:
            if evidence.line >= by.proofs.get(faults.faults[fault].refuted_by, 0):
                state.setdefault(fault, []).append(evidence)
    scans = [one for machine in machines.values() for one in machine.scans]
    return diagnose(faults, scans, state, logs_alone=True)


def explained(faults: Faults, check: Check) -> Check:
    """A check that has CUDA's own error and no fix, with cause and fix of the fault that this error stands for."""
    if check.status != "failed" or check.fix or not check.id.endswith((".cuda", "cuda.init")):
        return check
    found = diagnose_logs(faults, [(check.id, faults.parts.split([f"{check.message}\n"]))]).findings
    for fault in (one.fault for one in found if one.root):
        return replace(check, message=f"{check.message}: {fault.cause}", fix=fault.fix)
    return replace(check, fix="dmesg | grep -e NVRM -e Xid; dcgmi diag -r 3")


def _read(
    faults: Faults, source: str, pieces: Iterable[Piece], state: dict[str, list[Evidence]], machine: _Machine
) -> None:
    """What the parts say; what is proven by facts goes into `state` and the machine's proofs."""
    scans: dict[str, Scan] = {}
    answers: dict[str, _Answer] = {}
    written: dict[str, int] = {}
    for piece in pieces:
        part = piece.part
        if part.report and "/dev/" in piece.text:
            machine.devices += filter(None, map(time_of, _DEVICE.findall(piece.text)))
        if part.silent:
            continue
        if part.name not in scans:
            scans[part.name] = Scan(faults=faults, source=source, part=part)
        if part.report and part.name not in written and (found := _WRITTEN.search(piece.text[:_HEAD])):
            written |= {part.name: stamp} if (stamp := time_of(found[1])) else {}
        scans[part.name].feed(_without_words(piece.text), piece.line)
        if not part.earlier:
            _add_answers(machine, scans[part.name], piece)
        if part.name in answers:
            answers[part.name].add(piece.text)
        elif mark := MARK.search(piece.text):
            answers[part.name] = _Answer(line=piece.line + piece.text.count("\n", 0, mark.start()))
            answers[part.name].add(piece.text[mark.start() :])
    for name in _outlived(written, scans, machine.devices):
        scans[name].part = replace(scans[name].part, earlier=True)
    for name, answer in answers.items():
        _judge(faults, scans[name], answer, state, machine)
    machine.scans += scans.values()


def _outlived(written: Mapping[str, int], scans: Mapping[str, Scan], devices: Sequence[int]) -> list[str]:
    """The parts that are over by their age: from before the last start, or installations that another one followed."""
    installed = {name: when for name, when in written.items() if scans[name].part.refuted_by}
    last = max(installed.values(), default=0) - _SAME
    start = min(devices) - _SAME if devices else max(written.values(), default=0) - _OLD
    return [name for name, when in written.items() if when < (last if name in installed else start)]


def _judge(faults: Faults, one: Scan, answer: _Answer, state: dict[str, list[Evidence]], machine: _Machine) -> None:
    """What nvidia-smi -q shows of the GPUs, by the rules for those of a node."""
    gpus = list(smi_gpus(uncoloured("".join(answer.text)).splitlines()))
    if gpus and not any(gpu.fault for _, gpu in gpus):
        _prove(machine, one, "driver-answers", answer.line)
    if any(gpu.fabric_state not in ("", "N/A") for _, gpu in gpus):
        _prove(machine, one, "has-fabric", answer.line)
    for fault, seen in _judged(faults, one.source, answer.line, gpus).items():
        state.setdefault(fault, []).extend(seen)


def _add_answers(machine: _Machine, one: Scan, piece: Piece) -> None:
    """What programs answer in a piece: faults, proofs and versions."""
    text = uncoloured(piece.text)
    breaks = cache(lambda: [found.start() for found in _BREAK.finditer(text)])  # it reads the whole piece

    def line(at: int) -> int:
        return piece.line + bisect(breaks(), at)

    for at, name, words in reported(text):
        machine.answers.append((name, Evidence(source=one.source, line=line(at), text=words), one))
    machine.loaded |= "NVRM: loading NVIDIA UNIX" in text and not piece.part.refuted_by
    for at, kernel in built(text):
        machine.built[kernel] = line(at), one
    for at, fact in proven(text):
        _prove(machine, one, fact, line(at))
    machine.versions |= versions(text)


def _prove(machine: _Machine, one: Scan, fact: str, line: int) -> None:
    """A report is of one moment; in a text only what stands before is over."""
    if one.part.report or fact in LASTING:
        machine.proofs.add(fact)
    else:
        one.proofs[fact] = max(line, one.proofs.get(fact, 0))


def _judged(faults: Faults, source: str, first: int, gpus: Sequence[tuple[int, NvmlGpu]]) -> dict[str, list[Evidence]]:
    if not gpus:
        return {}
    from gpunode.core.doctor.state import state_faults

    facts = NodeFacts(nvml=tuple(gpu for _, gpu in gpus))
    return {
        name: [Evidence(source=source, line=first + gpus[0][0], text=one.text) for one in seen]
        for name, seen in state_faults(facts, {}, None, faults.checks).items()
    }


# What `kubectl describe` prints of an object's own words: labels, scripts, arguments and volumes tell of no fault.
_OBJECT = regex(r"^Name: {2,20}\S", re.M)
# a field with the lines that are indented below it; the data of a ConfigMap, up to what follows it
_WORDS = regex(
    r"^(?:Labels|Annotations|Volumes|Tolerations|Node-Selectors|Volume Claims):.*\n(?:[ ].*\n)*"
    r"|^( {2,8})(?:Command|Args|Environment(?: Variables from)?|Mounts|Liveness|Readiness|Startup):.*\n(?:\1 +.*\n)*"
    r"|^Data\n====\n(?s:.*?)(?=^BinaryData\n====|^Events:|\Z)",
    re.M,
)


def _without_words(text: str) -> str:
    """The text with as many lines, those of an object's own words empty."""
    if "\nName: " not in f"\n{text}" or not (first := _OBJECT.search(text)):
        return text
    head, rest = text[: first.start()], text[first.start() :]
    return head + _WORDS.sub(lambda words: "\n" * words[0].count("\n"), rest)
