"""accept: hosts × stages, each a call of node/accept/accept.sh; what is finished is on disk, and is not run again."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from gpunode import __version__
from gpunode.core.accept import MAX_OUTPUT, Level, Measure, Reading, Tool, ToolRequest, gave_nothing
from gpunode.core.accept.fabric import machine_of
from gpunode.core.accept.fleet import Spread
from gpunode.core.accept.floors import Machine
from gpunode.core.accept.judge import count_checks, expected_of, fleet_checks, floor_checks, spreads
from gpunode.core.accept.perftest import WRITE_BW, port_arguments, ports_of
from gpunode.core.accept.result import (
    OUTCOMES,
    AcceptRecord,
    StageRow,
    key_of,
    make_record,
    metric_rows,
    record_data,
    row_from,
    standards_of,
)
from gpunode.core.accept.samples import FIELDS, sample_checks
from gpunode.core.accept.stages import Stage, stage_of, stages_of
from gpunode.core.accept.text import tail
from gpunode.core.errors import GpunodeError, InputError, InterruptedByUser
from gpunode.core.items.first_boot import prepares
from gpunode.core.model import Check, HostResult, NodeFacts, RdmaPort
from gpunode.core.printable import json_text
from gpunode.core.remote import parse_outcome, program, values_of
from gpunode.core.report.model import Report
from gpunode.core.report.seen import see
from gpunode.core.report.summary import make_host, make_report
from gpunode.core.report.text import results_data
from gpunode.core.spec.accept import AcceptSpec
from gpunode.edge.desired import DesiredState
from gpunode.edge.detect import Detected, Targets, detect
from gpunode.edge.fleet.host_plan import HostPlan
from gpunode.edge.fleet.workflow import error_result, plan_one, verify_found, verify_planned
from gpunode.edge.isolate import isolated
from gpunode.edge.load import load_floors
from gpunode.edge.records import RECORDS, known_folder, sign_file
from gpunode.edge.side_by_side import Deadline, side_by_side
from gpunode.edge.ssh.many import run_many
from gpunode.edge.state import append_private, controller_name, run_name, state_dir, write_private
from gpunode.node import script

ROWS = "rows.jsonl"
_INTERRUPTED = "interrupted; the tools on the nodes end within seconds, and leave nothing"
_AGAIN = 5.0  # seconds before a tool that gave nothing is started once more
_PAIR_START = 3.0  # seconds until a server listens


@dataclass(frozen=True, kw_only=True)
class Acceptance:
    """What came of it: the folder that holds all of it, the results, the report."""

    folder: Path
    results: tuple[HostResult, ...]
    records: tuple[AcceptRecord, ...]
    report: Report


@dataclass(frozen=True, kw_only=True)
class _Host:
    """A host that can be measured."""

    detected: Detected
    facts: NodeFacts
    spec: AcceptSpec
    machine: Machine
    key: str

    @property
    def name(self) -> str:
        return self.detected.host

    def ask(self, level: Level) -> ToolRequest:
        memory = [gpu.memory_mib for gpu in self.facts.nvml if gpu.memory_mib]
        return ToolRequest(level=level, gpus=len(self.facts.gpus), smallest_mib=min(memory, default=None))


@dataclass(kw_only=True)
class AcceptRun:
    """Hosts that are measured and compared with each other, at one time or as a rollout gets to them."""

    folder: Path
    targets: Targets
    level: Level
    say: Callable[[str, str], None]  # a host, and what came of a stage there
    done: dict[tuple[str, str], StageRow] = field(default_factory=dict)
    measured: dict[str, tuple[Machine, list[Measure]]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def spreads_with(self, hosts: Mapping[str, tuple[Machine, Sequence[StageRow]]]) -> dict[tuple[str, str], Spread]:
        """How the values of all machines lie, with what these hosts have measured now."""
        with self._lock:
            self.measured |= {
                h: (machine, [m for row in rows for m in row.measures]) for h, (machine, rows) in hosts.items()
            }
            return spreads(self.measured)

    def keep(self, row: StageRow) -> StageRow:
        """On disk before the next stage starts; a node in use is asked again by --resume."""
        with self._lock:
            self.done[row.host, row.stage] = row
            with append_private(self.folder / ROWS) as file:
                file.write(f"{json_text(asdict(row))}\n")
            worst = next((c for c in row.checks if c.status == "failed"), None)
            text = f"{row.stage} {row.ended} ({row.seconds:.0f} s){f': {worst.message}' if worst else ''}"
            self.say(row.host, text)
        return row


def accept(
    targets: Targets, desired: DesiredState, level: Level, *, resume: str = "", sign: Path | None = None,
    say: Callable[[str], None] = lambda text: None, on_done: Callable[[Detected], None] = lambda found: None,
) -> Acceptance:  # fmt: skip
    """Measure the hosts, stage by stage; hosts side by side.  Raises InputError, InterruptedByUser."""
    folder = _folder(resume)
    found = detect(targets, on_done=on_done)
    plans = [plan_one(one, desired) for one in found]
    verified = {r.host: r for r in verify_found(found, targets, desired, smoke=False)}
    hosts, errors = _measurable(plans, verified)
    run = AcceptRun(folder=folder, targets=targets, level=level, say=lambda host, text: say(f"{host}: {text}"))
    if resume:
        run.done = _rows(folder, {host.name: host.key for host in hosts})
    try:
        _all_stages(hosts, run, verified)
        if "pair" in stages_of(level):
            _pairs(hosts, run)
    except KeyboardInterrupt as error:
        raise InterruptedByUser(_INTERRUPTED, fix=f"go on: the same command with --resume {folder.name}") from error
    return _conclude(hosts, errors, run, desired, sign)


def measure(plans: Sequence[HostPlan], run: AcceptRun, desired: DesiredState) -> dict[str, HostResult]:
    """Hosts that a rollout has got to, for which `plans` were made just now.  Raises InterruptedByUser."""
    verified = {r.host: r for r in verify_planned(plans, run.targets, desired, smoke=False)}
    hosts, results = _measurable(plans, verified)
    run.folder.mkdir(mode=0o700, exist_ok=True)
    _all_stages(hosts, run, verified)
    return results | {record.host: _result(record) for record in _records(hosts, run)}


def _measurable(
    plans: Sequence[HostPlan], verified: Mapping[str, HostResult]
) -> tuple[list[_Host], dict[str, HostResult]]:
    hosts, errors = [], {}
    for plan in plans:
        if plan.planned is None or plan.detected.target is None:
            error = plan.error or InputError(f"{plan.host} is a saved probe", fix="name a host that can be reached")
            errors[plan.host] = error_result(plan.host, error)
        elif prepares(plan.planned.spec) or not plan.planned.facts.gpus:
            errors[plan.host] = replace(verified[plan.host], outcome="pending", message="no NVIDIA GPU to measure")
        else:
            facts = plan.planned.facts
            hosts.append(
                _Host(
                    detected=plan.detected, facts=facts, spec=plan.planned.spec.accept, machine=machine_of(facts),
                    key=key_of(facts),
                )
            )  # fmt: skip
    return hosts, errors


def _all_stages(hosts: Sequence[_Host], run: AcceptRun, verified: Mapping[str, HostResult]) -> None:
    """Ctrl-C ends this process at once, and with its connections what runs on the nodes."""

    def one(host: _Host, deadline: Deadline) -> None:
        if isinstance(came := isolated(host.name, lambda: _stages(host, run, verified[host.name])), GpunodeError):
            raise came

    side_by_side(one, hosts, at_once=run.targets.forks, stop=run.targets.stop)


def _stages(host: _Host, run: AcceptRun, verified: HostResult) -> None:
    """All stages of one host in their order; a node in use, or one that is gone, is left alone at once."""
    for name in stages_of(run.level):
        if (host.name, name) in run.done or name == "pair":
            continue
        if name == "inventory":
            checks = tuple(check for check in verified.checks if not check.id.startswith("plan."))
            run.keep(_row(host, name, time.monotonic(), Reading(checks=checks)))
        elif len(host.facts.gpus) >= stage_of(name).least_gpus:
            row = run.keep(_measure(host, name, run))
            if row.ended == "refused":
                return


def _row(host: _Host, stage: str, began: float, reading: Reading, **more: Any) -> StageRow:
    return StageRow(
        host=host.name, stage=stage, key=host.key, at=_now(), seconds=round(time.monotonic() - began, 1),
        checks=reading.checks, measures=reading.measures, notes=reading.notes, **more,
    )  # fmt: skip


def _now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"


def _measure(host: _Host, name: str, run: AcceptRun) -> StageRow:
    """The first tool of the stage that is there, and what it says."""
    stage, ask, began = stage_of(name), host.ask(run.level), time.monotonic()
    if cut := [f"GPU {gpu.index}" for gpu in host.facts.nvml if gpu.mig_current == "Enabled"]:
        text = f"MIG is on ({', '.join(cut)}): a program sees one instance of it, and not the GPU"
        check = Check(
            id=f"accept.{stage.name}", status="not-proven", message=text, fix="measure before MIG is turned on"
        )
        return _row(host, name, began, Reading(checks=(check,)), ended="missing")
    for tool in stage.tools:
        start = partial(_run_tool, host, tool, ask, run.targets)
        answer, retried = _with_retry(stage.name, start, partial(_read, tool, ask))
        if answer is None:
            continue
        if isinstance(answer, GpunodeError):
            refused = answer.outcome == "refused"
            status = "not-proven" if refused else "failed"
            check = Check(id=f"accept.{stage.name}", status=status, message=answer.what, fix=answer.fix)  # type: ignore[arg-type]
            return _row(host, name, began, Reading(checks=(check,)), ended="refused" if refused else "done")
        reading = _read(tool, ask, answer)
        floors = [
            *count_checks(reading.measures, host.machine),
            *floor_checks(reading.measures, host.machine, load_floors(), run.level),
        ]
        samples = sample_checks(stage.name, answer.samples)
        checks = (*reading.checks, *retried, *floors, *samples, *_cut_off(stage, answer))
        ended = "nothing" if gave_nothing(reading, answer.status) else "done"
        return _row(host, name, began, replace(reading, checks=checks), program=answer.program, ended=ended)
    missing = " or ".join(tool.name for tool in stage.tools)
    fix = "; or ".join(tool.install for tool in stage.tools)
    check = Check(id=f"accept.{stage.name}", status="not-proven", message=f"{missing} is not on the node", fix=fix)
    return _row(host, name, began, Reading(checks=(check,)), ended="missing")


@dataclass(frozen=True, kw_only=True)
class _Answer:
    output: str
    status: int
    timed_out: bool
    program: str
    samples: tuple[str, ...]
    near: bool  # it ran on the CPUs of its network card


_Tried: TypeAlias = "_Answer | GpunodeError | None"


def _read(tool: Tool, ask: ToolRequest, answer: _Answer) -> Reading:
    return tool.read(answer.output, answer.status, ask)


def _with_retry(
    stage: str, start: Callable[[], _Tried], read: Callable[[_Answer], Reading]
) -> tuple[_Tried, tuple[Check, ...]]:
    """What a tool answers; one that ended by an error of its own, with nothing measured, is started once more.

    The checks say so: a measured failure is never tried again.
    """
    first = start()
    if not isinstance(first, _Answer) or first.timed_out or not gave_nothing(read(first), first.status):
        return first, ()
    time.sleep(_AGAIN)
    text = f"started twice; the first time it ended with {first.status} and measured nothing: {tail(first.output)}"
    return start(), (Check(id=f"accept.{stage}.retried", status="warning", message=text),)


def _cut_off(stage: Stage, answer: _Answer) -> tuple[Check, ...]:
    if not answer.timed_out:
        return ()
    return (Check(id=f"accept.{stage.name}.time", status="failed", message="it did not come to its end in its time"),)


def _run_tool(
    host: _Host, tool: Tool, ask: ToolRequest, targets: Targets, extra: Sequence[str] = (), near: str = ""
) -> _Answer | GpunodeError | None:
    """None where the tool is not on the node."""
    call = tool.call(ask)
    own = host.spec.tools.get(tool.name)
    request = {
        "programs": _lines([own] if own else tool.programs),
        "arguments": _lines([*call.arguments, *extra]),
        "environment": _lines(call.environment),
        "seconds": _lines([str(call.seconds)]),
        "sample": _lines([",".join(FIELDS)]),
        "controller": _lines([controller_name()]),
        **({"image": _lines([host.spec.image])} if host.spec.image else {}),
        **({"near": _lines([near])} if near else {}),
        **({"own_folder": _lines(["yes"])} if tool.own_folder else {}),
    }
    assert host.detected.target
    pair = host.detected.target, program(script("accept.sh"), request)
    [ran] = run_many([pair], reach=targets.reach(call.seconds + 120))
    if ran.error:
        return ran.error
    outcome = parse_outcome(ran.stdout, ran.rc)
    if outcome.status == "refused":
        from gpunode.core.errors import RefusedError

        return RefusedError(outcome.message, fix=outcome.fix)
    if outcome.message == "missing":
        return None
    if outcome.status != "unchanged":
        return GpunodeError(outcome.message, fix=outcome.fix)
    ended = (values_of(ran.stdout, "ended") or [""])[-1]
    return _Answer(
        output=_decoded((values_of(ran.stdout, "output") or [""])[-1]),
        status=int(ended) if ended.isdecimal() and len(ended) < 4 else 1,
        timed_out=ended == "timeout",
        program=(values_of(ran.stdout, "program") or [""])[0][:200],
        samples=tuple(values_of(ran.stdout, "sample")),
        near=bool(values_of(ran.stdout, "near")),
    )


def _decoded(text: str) -> str:
    try:
        return base64.b64decode(text[: 2 * MAX_OUTPUT], validate=True).decode(errors="replace")
    except ValueError:
        return ""


def _lines(values: Sequence[str]) -> bytes:
    return "".join(f"{value}\n" for value in values).encode()


# ---------------------------------------------------------------- pairs of nodes


def _pairs(hosts: Sequence[_Host], run: AcceptRun) -> None:
    """The first host with the second, and so on; the last of an odd number with the first, which keeps what it had."""
    ready = [
        host for host in hosts if not any(r.ended == "refused" for (h, _), r in run.done.items() if h == host.name)
    ]
    for number in range(0, len(ready), 2):
        server, client = ready[number], ready[number + 1] if number + 1 < len(ready) else ready[0]
        if (server.name, "pair") in run.done and (client.name, "pair") in run.done:
            continue
        began = time.monotonic()
        readings = _pair(server, client, run)
        for host in {server.name: server, client.name: client}.values():
            if (host.name, "pair") not in run.done:
                run.keep(_row(host, "pair", began, readings[host.name]))


def _pair(server: _Host, client: _Host, run: AcceptRun) -> dict[str, Reading]:
    """Each network card of one host with that of the other, in the order of their names; by host."""
    if server is client:
        return {server.name: _no_pair("there is no second host to measure the network cards with")}
    mine, theirs = ports_of(server.facts.rdma), ports_of(client.facts.rdma)
    if not mine or not theirs:
        lacking = ", ".join(host.name for host, ports in ((server, mine), (client, theirs)) if not ports)
        return dict.fromkeys(
            (server.name, client.name), _no_pair(f"{lacking} has no active port of InfiniBand or RoCE")
        )
    readings: list[tuple[Reading, Reading]] = []
    for port, other in zip(mine, theirs, strict=False):
        reading = _port_pair((server, port), (client, other), run)
        readings.append(
            (
                _with_port(reading, port, f"{client.name} {other.device}"),
                _with_port(reading, other, f"{server.name} {port.device}"),
            )
        )
        if not reading.measures:
            break  # the next card has no other tool, and no other node
    rest = [f"{h.name} {p.device}" for h, ports in ((server, mine), (client, theirs)) for p in ports[len(readings) :]]
    alone = _no_pair(f"without a partner, or not measured: {', '.join(rest)}").checks if rest else ()
    return {
        server.name: _of_ports(server, [one for one, _ in readings], alone, run),
        client.name: _of_ports(client, [one for _, one in readings], alone, run),
    }


def _no_pair(text: str, fix: str = "") -> Reading:
    return Reading(checks=(Check(id="accept.pair", status="not-proven", message=text, fix=fix),))


def _with_port(reading: Reading, port: RdmaPort, other: str) -> Reading:
    rate = float(port.rate)
    measures = [replace(one, where=f"{port.device} with {other}", rate=rate) for one in reading.measures]
    return replace(reading, measures=tuple(measures))


def _of_ports(host: _Host, readings: Sequence[Reading], more: Sequence[Check], run: AcceptRun) -> Reading:
    measures = tuple(one for reading in readings for one in reading.measures)
    floors = floor_checks(measures, host.machine, load_floors(), run.level)
    own = dict.fromkeys(check for reading in readings for check in reading.checks)
    return Reading(checks=(*own, *more, *floors), measures=measures)


def _port_pair(server: tuple[_Host, RdmaPort], client: tuple[_Host, RdmaPort], run: AcceptRun) -> Reading:
    """ib_write_bw from one card to the other."""
    ask = client[0].ask(run.level)
    where = f"{server[0].name} and {client[0].name}"
    near: list[bool] = []
    answer, retried = _with_retry(
        "pair", lambda: _both_ends(server, client, ask, run, near), partial(_read, WRITE_BW, ask)
    )
    if answer is None:
        return _no_pair(f"ib_write_bw is not on {where}", WRITE_BW.install)
    if isinstance(answer, GpunodeError):
        return _no_pair(answer.what, answer.fix)
    reading = _read(WRITE_BW, ask, answer)
    beside = ", near" if answer.near and near[-1:] == [True] else ""
    measures = tuple(replace(one, algorithm=f"{one.algorithm}{beside}") for one in reading.measures)
    return Reading(checks=(*reading.checks, *retried), measures=measures)


def _both_ends(
    server: tuple[_Host, RdmaPort], client: tuple[_Host, RdmaPort], ask: ToolRequest, run: AcceptRun, near: list[bool]
) -> _Tried:
    """The server in the background, the client to its address; `near`: whether the server ran beside its card."""
    (host, port), (other, its_port) = server, client
    served: list[_Tried] = []
    thread = threading.Thread(
        target=lambda: served.append(
            _run_tool(host, WRITE_BW, ask, run.targets, port_arguments(port), near=port.device)
        ), daemon=True,
    )  # fmt: skip
    thread.start()
    thread.join(_PAIR_START)
    if served:
        return served[0]
    target = host.detected.target
    assert target
    arguments = [*port_arguments(its_port), target.address or target.name]
    answer = _run_tool(other, WRITE_BW, ask, run.targets, arguments, near=its_port.device)
    thread.join(90)
    near.append(bool(served) and isinstance(served[0], _Answer) and served[0].near)
    return answer


# ---------------------------------------------------------------- the end


def _records(hosts: Sequence[_Host], run: AcceptRun) -> list[AcceptRecord]:
    """The records of these hosts, each compared with all that the run has measured; each is written down."""
    floors = load_floors()
    rows = {h.name: [run.done[h.name, s] for s in stages_of(run.level) if (h.name, s) in run.done] for h in hosts}
    known, records = run.spreads_with({h.name: (h.machine, rows[h.name]) for h in hosts}), []
    (run.folder / RECORDS).mkdir(mode=0o700, exist_ok=True)
    for host in hosts:
        machine, measures = run.measured[host.name]
        checks = [c for row in rows[host.name] for c in row.checks] + list(fleet_checks(measures, machine, known))
        made = make_record(
            host.name, host.facts, rows[host.name], checks, level=run.level, gpunode=__version__, at=_now()
        )
        records.append(replace(made, expected=expected_of(measures, machine, floors)))
        write_private(_record_path(run, host.name), json_text(record_data(records[-1]), indent=2) + "\n")
    return records


def _record_path(run: AcceptRun, host: str) -> Path:
    return run.folder / RECORDS / f"{host.replace('/', '_')}.json"


def _result(record: AcceptRecord) -> HostResult:
    return HostResult(
        host=record.host, outcome=OUTCOMES[record.verdict], message=_message(record), checks=record.checks
    )


def _conclude(
    hosts: Sequence[_Host], errors: Mapping[str, HostResult], run: AcceptRun, desired: DesiredState, sign: Path | None
) -> Acceptance:  # fmt: skip
    records = _records(hosts, run)
    results, cards = dict(errors), {}
    for host, record in zip(hosts, records, strict=True):
        if sign:
            sign_file(_record_path(run, host.name), sign)
        result = results[host.name] = _result(record)
        card = make_host(host.name, probe=see(host.facts, desired.knowledge), result=results_data([result])[0])
        rows = [run.done[host.name, s] for s in stages_of(run.level) if (host.name, s) in run.done]
        cards[host.name] = replace(card, standards=standards_of(rows))
    for name, error in errors.items():
        cards[name] = make_host(name, result=results_data([error])[0])
    report = make_report(
        cards.values(), title=f"Acceptance {run.folder.name}, {run.level}", made=_now(), version=__version__,
        source=f"accept {run.folder.name}",
    )  # fmt: skip
    report = replace(report, metrics=metric_rows(run.measured, spreads(run.measured), load_floors()))
    return Acceptance(folder=run.folder, results=tuple(results.values()), records=tuple(records), report=report)


def _message(record: AcceptRecord) -> str:
    words = record.verdict.replace("-", " ")
    counts = {s: sum(c.status == s for c in record.checks) for s in ("failed", "not-proven", "warning", "passed")}
    return f"{words}: " + ", ".join(f"{count} {status}" for status, count in counts.items() if count)


# ---------------------------------------------------------------- files


def write_reports(came: Acceptance, output: Path | None) -> list[Path]:
    """The report in all its forms beside the records; also in the folder `output`.  Raises InputError."""
    from gpunode.core.report.html import html_text
    from gpunode.core.report.junit import junit_text
    from gpunode.core.report.schema import report_data
    from gpunode.edge.report import load_page

    texts = {
        "report.html": html_text(came.report, load_page()),
        "report.json": json_text(report_data(came.report), indent=2) + "\n",
        "junit.xml": junit_text(came.report),
    }
    for name, text in texts.items():
        write_private(came.folder / name, text)
    if output is None:
        return [came.folder]
    try:
        for path in (path for path in came.folder.rglob("*") if path.is_file()):
            copy = output / path.relative_to(came.folder)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    except OSError as error:
        raise InputError(f"cannot write to {output}: {error.strerror}", fix="choose another folder") from error
    return [came.folder, output]


def _folder(resume: str) -> Path:
    """The folder of this acceptance: a new one, or that of the one that goes on."""
    root = state_dir() / "accept"
    if not resume:
        folder = root / run_name()
        root.mkdir(mode=0o700, exist_ok=True)
        folder.mkdir(mode=0o700)
        return folder
    return known_folder(resume)


def _rows(folder: Path, keys: Mapping[str, str]) -> dict[tuple[str, str], StageRow]:
    """What is finished on machines that are still what they were; the last line of a killed controller may be cut."""
    rows: dict[tuple[str, str], StageRow] = {}
    path = folder / ROWS
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        try:
            row = row_from(json.loads(line))
        except (ValueError, RecursionError, InputError):
            continue
        if row.key == keys.get(row.host):
            rows[row.host, row.stage] = row
    return {key: row for key, row in rows.items() if row.ended == "done"}
