"""doctor: logs and the state of a node → findings, what is at the root of them first.

A finding is a root when nothing that was found too is known to bring it about (`causes` in knowledge/faults/, also over
several steps).  What matches nothing is not guessed at.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from gpunode.core.checks.gpus import recovery_fix
from gpunode.core.doctor.checks import Cause, next_commands
from gpunode.core.doctor.codes import XidSeen, verdict
from gpunode.core.doctor.logs import Scan, Shown, scan
from gpunode.core.doctor.table import LAYERS, Confidence, Fault, Faults
from gpunode.core.doctor.text import Evidence
from gpunode.core.late import dataclass, regex, replace

__all__ = ["Diagnosis", "Faults", "Finding", "Scan", "diagnose", "diagnosis_data", "diagnosis_text", "scan"]

_ORDER: tuple[Confidence, ...] = ("high", "medium", "low")  # a fact or a program's own message; each doubt less
_SHOWN = 3  # lines of a finding, in the text
_UNIT = regex(r"(?<![\w@-])[\w@-]{1,255}\.service\b")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A fault that is there, with the newest lines that show it, the newest first."""

    fault: Fault
    root: bool
    count: int
    first: int  # line of the first message
    evidence: tuple[Evidence, ...]
    confidence: Confidence
    fix: str

    @property
    def command(self) -> str:
        """What of gpunode fixes it or says more; what follows from another finding waits for that."""
        return self.fault.command if self.root else ""


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What is wrong with one host, or in the logs that were read."""

    findings: tuple[Finding, ...]  # the most likely root first
    xids: tuple[XidSeen, ...]
    asks: tuple[Cause, ...] = ()  # the commands that say more: of logs whose cause is not among the findings
    earlier: tuple[Finding, ...] = ()  # was so, and is over: of earlier boots, or refuted by what came later

    @property
    def sound(self) -> bool:
        return not self.findings and not self.xids

    @property
    def ours(self) -> bool:
        """Whether `gpunode provision` fixes a root of it."""
        return any(one.command == "gpunode provision" for one in self.findings)


def diagnose(
    faults: Faults,
    scans: Sequence[Scan],
    state: Mapping[str, Sequence[Evidence]] = {},
    *,
    active: Collection[str] = (),
    proven: Collection[str] = (),
    excluded: Collection[str] = (),
    logs_alone: bool = False,
) -> Diagnosis:
    """Logs that were read, and faults in the state → findings in order.

    `active` are the units that run now, `proven` what is known of the machine (Fault.refuted_by), `excluded` the faults
    that its state shows not to be there; nobody can look at a machine of which there are `logs_alone`.
    """
    in_logs = [(one, _renamed(faults, one.found(), {*proven, *one.proofs})) for one in scans]
    versions = {program: version for one in scans for program, version in one.versions.items()}
    xids = _merged(scans)
    for name, evidence in _from_codes(faults, xids):
        state = {**state, name: [*state.get(name, ()), evidence]}
    findings: dict[str, Finding] = {}
    earlier: dict[str, Finding] = {}
    for name in dict.fromkeys([*state, *(name for _, found in in_logs for name in found)]):
        fault = faults.faults[name]
        all_shown = [(one, found[name]) for one, found in in_logs if name in found]
        over = fault.unit in active or fault.refuted_by in proven or name in excluded
        shown = [
            lines
            for one, lines in all_shown
            if not (over or lines.earlier or one.part.refuted_by in proven or one.part.refuted_by in one.proofs)
        ]
        there = shown or name in state
        shown = shown if there else [lines for _, lines in all_shown]
        seen = [*state.get(name, ()), *(evidence for one in shown for evidence in one.evidence)]
        units = dict.fromkeys(unit for one in seen for unit in _UNIT.findall(one.text))
        fix = next((when.fix for when in fault.when if when.holds(versions)), fault.fix)
        doubts = 0 if name in state else min((one.broken + (not one.own) for one in shown), default=0)
        (findings if there else earlier)[name] = Finding(
            fault=fault,
            root=True,
            count=len(state.get(name, ())) + sum(one.count for one in shown),
            first=min((one.first for one in shown), default=0),
            evidence=tuple(seen),
            confidence=_ORDER[doubts],
            fix=fix.replace("UNIT", " ".join(units) or "UNIT"),
        )
    below = _consequences(faults, findings)
    ordered = [replace(finding, root=name not in below) for name, finding in findings.items()]
    roots = [one.fault.id for one in ordered if one.root] or ([] if xids else [""])
    return Diagnosis(
        findings=tuple(sorted(ordered, key=_rank)),
        xids=xids,
        asks=next_commands(faults.checks, roots, {word for one in scans for word in one.texts}) if logs_alone else (),
        earlier=tuple(earlier.values()),
    )


def _renamed(faults: Faults, found: Mapping[str, Shown], proven: Collection[str]) -> dict[str, Shown]:
    """What a log shows, where known facts give a message another meaning (Fault.then)."""
    names = {name: faults.faults[name] for name in found}
    meant = {name: row.then if row.then and row.refuted_by in proven else name for name, row in names.items()}
    return {meant[name]: shown for name, shown in sorted(found.items(), key=lambda item: meant[item[0]] == item[0])}


def _consequences(faults: Faults, found: Iterable[str]) -> set[str]:
    """Those of `found` that another one of them brings about."""
    present = set(found)
    below: set[str] = set()
    for name in present:
        reached: set[str] = set()
        todo = [name]
        while todo:
            new = set(faults.faults[todo.pop()].causes) - reached
            reached |= new
            todo += new
        below |= (reached & present) - {name}
    return below


def _rank(finding: Finding) -> tuple[Any, ...]:
    fault = finding.fault
    proven = any(not one.line for one in finding.evidence)  # by the state of the node
    order = LAYERS.index(fault.layer)
    sure = (not proven, _ORDER.index(finding.confidence))
    return (not finding.root, fault.severity != "error", *sure, order, finding.first)


def _from_codes(faults: Faults, xids: Sequence[XidSeen]) -> Iterator[tuple[str, Evidence]]:
    """Faults that a code alone shows: the table's own, and a GPU that fails once more after a reload."""
    for seen in xids:
        known = None if seen.nvswitch else faults.codes.xids.get(seen.code)
        if not known:
            continue
        if known.fault and not seen.earlier:
            yield known.fault, seen.evidence
        elif not known.sound:
            again = [gpu for gpu, loads in seen.loads.items() if len(loads) > 1]
            if again:
                text = f"Xid {seen.code} on {', '.join(again)} once more after the module was loaded again"
                yield "gpu-suspect", replace(seen.evidence, text=f"{text}: {seen.evidence.text}")


def _merged(scans: Sequence[Scan]) -> tuple[XidSeen, ...]:
    """The codes of all logs, one row each; parts of a report have the same lines, so that the fullest one counts."""
    rows: dict[tuple[int, bool], XidSeen] = {}
    for log, seen in [(one, xid) for one in scans for xid in one.xids()]:
        old = rows.get((seen.code, seen.nvswitch))
        if not old:
            rows[seen.code, seen.nvswitch] = seen
            continue
        count = max(old.count, seen.count) if log.part.report else old.count + seen.count
        newest = old if seen.earlier and not old.earlier else seen
        rows[seen.code, seen.nvswitch] = replace(newest, count=count, loads=old.with_loads(seen.loads))
    return tuple(sorted(rows.values(), key=lambda xid: xid.nvswitch))


# ---------------------------------------------------------------- what is shown


def diagnosis_data(diagnosis: Diagnosis, faults: Faults) -> dict[str, Any]:
    """The shape of `gpunode doctor --format json` (docs/doctor.md)."""
    return {
        "findings": [
            {
                "id": finding.fault.id,
                "root": finding.root,
                "layer": finding.fault.layer,
                "severity": finding.fault.severity,
                "count": finding.count,
                "evidence": [_evidence_text(e) for e in finding.evidence],
                "cause": finding.fault.cause,
                "fix": finding.fix,
                "action": finding.fault.action.id,
                "disturbs": finding.fault.action.disturbs,
                "command": finding.command or None,
                "check": finding.fault.action.check,
                "confidence": finding.confidence,
                "source": finding.fault.source,
            }
            for finding in diagnosis.findings
        ],
        "xids": [_xid_data(xid, faults) for xid in diagnosis.xids],
        "next": [{"command": ask.ask, "means": ask.means} for ask in diagnosis.asks],
        "earlier": [
            {"id": one.fault.id, "count": one.count, "evidence": [_evidence_text(e) for e in one.evidence[:1]]}
            for one in diagnosis.earlier
        ],
    }


def _xid_data(xid: XidSeen, faults: Faults) -> dict[str, Any]:
    known = (faults.codes.sxids if xid.nvswitch else faults.codes.xids).get(xid.code)
    words = ("mnemonic", "severity", "description", "immediate", "investigatory", "plain")
    return {
        "code": xid.code,
        "kind": "SXid" if xid.nvswitch else "Xid",
        "count": xid.count,
        "gpus": list(xid.gpus),
        **{word: getattr(known, word, None) or None for word in words},
        "allocatable": known.ignored if known and not xid.nvswitch else None,
        "confidence": "high",
        "evidence": [_evidence_text(xid.evidence)],
        "source": faults.codes.sxid_source if xid.nvswitch else faults.codes.xid_source,
    }


def _evidence_text(evidence: Evidence) -> str:
    place = f"{evidence.source}:{evidence.line}" if evidence.line else evidence.source
    return f"{place}: {evidence.text}"


def diagnosis_text(diagnosis: Diagnosis, faults: Faults, *, quiet: bool = False) -> str:
    """For people: root causes, then what follows from them, then Xid codes; `quiet`: where all is well no more."""
    lines = ["  nothing known matches"] if diagnosis.sound else []
    for finding in diagnosis.findings:
        fault = finding.fault
        head = "root cause" if finding.root else "follows"
        often = f", {finding.count} times" if finding.count > 1 else ""
        lines += [f"  {head:<11}{fault.id}  ({fault.layer}, {fault.severity}, confidence {finding.confidence}{often})"]
        lines += [f"    seen     {_evidence_text(e)}" for e in finding.evidence[:_SHOWN]]
        lines += [f"    cause    {fault.cause}", f"    fix      {finding.fix}"]
        lines += [f"    command  {finding.command}"] if finding.command else []
        lines += [f"    action   {fault.action.id}: {fault.action.disturbs}", f"    check    {fault.action.check}"]
        lines += [f"    source   {fault.source}"]
    for seen in diagnosis.xids:
        lines += _xid_lines(seen, faults)
    lines += [f"  next       {ask.ask}\n             ({ask.means})" for ask in diagnosis.asks]
    for one in () if quiet and diagnosis.sound else diagnosis.earlier:
        lines.append(f"  over       {one.fault.id}: {_evidence_text(one.evidence[0])}")
    return "\n".join(lines)


def _xid_lines(xid: XidSeen, faults: Faults) -> list[str]:
    known = (faults.codes.sxids if xid.nvswitch else faults.codes.xids).get(xid.code)
    kind = "SXid" if xid.nvswitch else "Xid"
    often = f", {xid.count} times" if xid.count > 1 else ""
    on = f" on {', '.join(xid.gpus)}" if xid.gpus else ""
    what = f"{known.description} ({known.severity or known.mnemonic})" if known else "not in NVIDIA's catalogue"
    lines = [f"  {kind} {xid.code}{on}{often}: {what}", f"    seen     {_evidence_text(xid.evidence)}"]
    if known and (known.immediate or known.investigatory):
        then = f", then {known.investigatory}" if known.investigatory else ""
        lines += [f"    NVIDIA   {known.immediate or 'no immediate action'}{then}"]
    lines += [f"    driver   {told}: {recovery_fix(told)}"] if (told := verdict(xid)) else []
    lines += [f"    meaning  {known.plain}"] if known and known.plain else []
    return lines
