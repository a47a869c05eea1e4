"""A log or a report → what its parts say, and what is proven by it: facts, judged as those of a node."""

from __future__ import annotations

import calendar
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from gpunode.core.doctor import Diagnosis, diagnose
from gpunode.core.doctor.logs import Scan
from gpunode.core.doctor.output import told
from gpunode.core.doctor.parts import Piece
from gpunode.core.doctor.smi import MARK, smi_gpus
from gpunode.core.doctor.table import Faults
from gpunode.core.doctor.text import Evidence, uncoloured
from gpunode.core.model import NodeFacts, NvmlGpu

_WRITTEN = re.compile(r"^\*\*\* ls: .{1,80}? (20\d\d)-(0[1-9]|1[0-2])-(\d\d) (\d\d):(\d\d):(\d\d)[. ]", re.M)
_HEAD = 500  # characters at the beginning of a part
_SAME = 3600  # seconds between logs of one installation, for several kernels
_LONGEST = 4 << 20  # characters of nvidia-smi's answer that are read


@dataclass(kw_only=True)
class _Answer:
    """nvidia-smi -q in a part."""

    line: int
    report: bool
    text: list[str] = field(default_factory=list)
    length: int = 0

    def add(self, text: str) -> None:
        if self.length < _LONGEST:
            self.text.append(text)
            self.length += len(text)


def diagnose_logs(faults: Faults, logs: Iterable[tuple[str, Iterable[Piece]]]) -> Diagnosis:
    """Logs and reports by name, each as its pieces in order."""
    scans: list[Scan] = []
    state: dict[str, list[Evidence]] = {}
    proven: set[str] = set()
    for source, pieces in logs:
        scans += _read(faults, source, pieces, state, proven)
    return diagnose(faults, scans, state, proven=proven, logs_alone=True)


def _read(
    faults: Faults, source: str, pieces: Iterable[Piece], state: dict[str, list[Evidence]], proven: set[str]
) -> Iterable[Scan]:
    """What the parts say; what is proven by facts goes into `state` and `proven`."""
    scans: dict[str, Scan] = {}
    answers: dict[str, _Answer] = {}
    written: dict[str, int] = {}  # logs of installations: another one followed on all but the newest
    for piece in pieces:
        part = piece.part
        if part.silent:
            continue
        if part.name not in scans:
            scans[part.name] = Scan(faults=faults, source=source, part=part)
        if part.refuted_by and part.name not in written and (found := _WRITTEN.search(piece.text[:_HEAD])):
            written[part.name] = calendar.timegm((*map(int, found.groups()), 0, 0))
        scans[part.name].feed(piece.text, piece.line)
        _add_told(state, source, piece)
        if part.name in answers:
            answers[part.name].add(piece.text)
        elif mark := MARK.search(piece.text):
            line = piece.line + piece.text.count("\n", 0, mark.start())
            answers[part.name] = _Answer(line=line, report=part.report)
            answers[part.name].add(piece.text[mark.start() :])
    for name, when in written.items():
        if max(written.values()) - when > _SAME:
            scans[name].part = replace(scans[name].part, earlier=True)
    for answer in answers.values():
        gpus = list(smi_gpus(uncoloured("".join(answer.text)).splitlines()))
        if answer.report and gpus and not any(gpu.fault for _, gpu in gpus):
            proven.add("driver-answers")
        for name, seen in _judged(faults, source, answer.line, gpus).items():
            state.setdefault(name, []).extend(seen)
    return scans.values()


def _add_told(state: dict[str, list[Evidence]], source: str, piece: Piece) -> None:
    for at, name, text in told(piece.text) if not piece.part.earlier else ():
        line = piece.line + piece.text.count("\n", 0, at)
        state.setdefault(name, []).append(Evidence(source=source, line=line, text=text))


def _judged(faults: Faults, source: str, first: int, gpus: Sequence[tuple[int, NvmlGpu]]) -> dict[str, list[Evidence]]:
    if not gpus:
        return {}
    from gpunode.core.doctor.state import state_faults

    facts = NodeFacts(nvml=tuple(gpu for _, gpu in gpus))
    return {
        name: [Evidence(source=source, line=first + gpus[0][0], text=one.text) for one in seen]
        for name, seen in state_faults(facts, {}, None, faults.checks).items()
    }
