"""A report as one HTML file: no network, its own style, script and data (gpunode/templates/report.*)."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from gpunode.core.grouped import grouped
from gpunode.core.printable import json_text, printable
from gpunode.core.report.model import STATES, Gpu, HostRun, MetricRow, Report, ReportHost, between, duration
from gpunode.core.report.seen import fleet_gpus
from gpunode.core.report.summary import COMPONENTS, left_title

WIDTH = 1000  # of a timeline, in its own units
_TICKS = 5
_LANE = 64  # pixels that a wave is high at most
_NAMED_BARS, _BAR = 8, 18  # hosts of a wave whose bars have names, and the pixels of each (report.css)
_BARS = {"ok": 0.6, "pending": 0.6, "running": 0.6, "failed": 2.5}  # least pixels: one that failed is seen among many
SHOWN = ("driver", "kernel", "toolkit")  # components with a column among the hosts; a host opens with all
_NAMED, _VARIANTS = 6, 8  # hosts that are named for a message, messages of an issue
MEANINGS = {
    "failed": "a check or a step failed",
    "unreachable": "no connection, or it refused us",
    "refused": "what is asked for would not work there, or would break it",
    "running": "running",
    "waiting": "not started yet",
    "pending": "steps are left to do",
    "warning": "works; something may hurt later",
    "not-proven": "something could not be read or tried",
    "ok": "as it should be",
}


def html_text(report: Report, templates: Mapping[str, str]) -> str:
    """The page.  `templates` are report.html.j2, report.css and report.js by name."""
    from jinja2 import Environment, StrictUndefined

    script = templates["report.js"]
    hash_ = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    page = environment.from_string(templates["report.html.j2"]).render(
        r=report,
        css=templates["report.css"],
        script=script,
        script_hash=hash_,
        data=_json(_details(report)),
        states=STATES,
        shown=list(SHOWN),
        meanings=MEANINGS,
        components=list(COMPONENTS),
        roles=sorted({role for pool in report.pools for role in pool.steps}),
        rows=[_row(host) for host in report.hosts],
        lanes=_lanes(report),
        left_title=left_title(report),
        ticks=_ticks(report),
        seconds=between,
        duration=duration,
        heat=_heat,
        spots=_spots,
        named=_NAMED,
        most=_VARIANTS,
        percent=lambda part, whole: round(100 * part / whole, 2) if whole else 0,
    )
    return printable(page)


# ---------------------------------------------------------------- rows, and what a row opens


def _row(host: ReportHost) -> dict[str, Any]:
    """The cells of a host's row that are not plainly in it."""
    gpus = host.seen.gpus if host.seen else ()
    unseen = sum(gpu.index is None for gpu in gpus)
    seconds = between(host.run.started, host.run.ended) if host.run else None
    return {
        "host": host,
        "gpus": fleet_gpus(gpus),
        "count": len(gpus),
        "unseen": unseen if unseen and host.seen and host.seen.versions.driver else 0,
        "versions": [COMPONENTS[name](host.seen) if host.seen else "" for name in SHOWN],
        "seconds": seconds,
    }


class _Shared:
    """Values that many hosts share, each kept once; a host holds its number."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._numbers: dict[str, int] = {}

    def number(self, value: Any) -> int:
        key = json.dumps(value)
        if key not in self._numbers:
            self._numbers[key] = len(self.values)
            self.values.append(value)
        return self._numbers[key]


def _details(report: Report) -> dict[str, Any]:
    """What the script needs: hosts in the order of the rows, with numbers into the lists beside them."""
    findings, versions, gpus, topologies, kinds = (_Shared() for _ in range(5))
    issues = enumerate([*report.problems, *report.drift])
    concerned = grouped((name, n) for n, issue in issues for name in {h for one in issue.variants for h in one.hosts})
    hosts = []
    for host in report.hosts:
        seen = host.seen
        row: dict[str, Any] = {
            "n": host.name,
            "i": concerned.get(host.name, []),
            "f": [findings.number([f.id, f.status, f.message, f.fix]) for f in host.findings],
            "p": len(host.passed),
        }
        if seen:
            v = seen.versions
            row["k"] = kinds.number(seen.kind)
            row["v"] = versions.number([of(seen) for of in COMPONENTS.values()])
            row["o"] = versions.number([v.distro, v.arch])
            row["g"] = [[gpus.number(_gpu(gpu)), gpu.uuid] for gpu in seen.gpus]
            row["s"] = seen.nvswitches
            if seen.topology.names:
                t = seen.topology
                row["t"] = topologies.number([t.names, t.links, t.cpus, t.numa])
            if seen.links_down:
                row["d"] = seen.links_down
        if host.run:
            row["r"] = _run(host.run)
        hosts.append(row)
    return {
        "components": list(COMPONENTS),
        "findings": findings.values,
        "versions": versions.values,
        "gpus": gpus.values,
        "topologies": topologies.values,
        "kinds": kinds.values,
        "hosts": hosts,
    }


def _gpu(gpu: Gpu) -> list[Any]:
    return [
        *(gpu.index, gpu.slot, gpu.model or gpu.id, gpu.id, gpu.memory_mib),
        *(gpu.driver, gpu.mig, gpu.mig_devices, gpu.ecc_errors, gpu.xids),
    ]


def _run(run: HostRun) -> list[Any]:
    took = duration(between(run.started, run.ended))
    return [run.wave + 1, run.state, run.exit, run.step, run.started, run.ended, took, run.changed]


def _json(data: Any) -> str:
    """JSON that no HTML parser takes for the end of its element."""
    text = json_text(data, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


# ---------------------------------------------------------------- what an acceptance measured


def _heat(value: float, row: MetricRow) -> str:
    """The class of a cell, by the median of machines of one kind."""
    part = value / row.median if row.median else 1
    return "cold" if part < 0.90 else "cool" if part < 0.95 else "warm"


def _spots(row: MetricRow) -> list[int]:
    """Where the values lie between the least and the most, each place once."""
    span = row.most - row.least
    values = {value for values in row.hosts.values() for value in values}
    return sorted({round(996 * (value - row.least) / span) if span else 498 for value in values})


# ---------------------------------------------------------------- the timeline


def _span(report: Report) -> tuple[str, int]:
    """When the run began, and how many seconds it took (or has taken, as far as is known)."""
    runs = [host.run for host in report.hosts if host.run]
    starts = [run.started for run in runs if run.started]
    if not report.run or not starts:
        return "", 0
    ends = [run.ended or (report.made if run.state == "running" else run.started) for run in runs if run.started]
    start = min([report.run.started, *starts])
    return start, max(1, between(start, max(ends)) or 0)


def _lanes(report: Report) -> list[dict[str, Any]]:
    """A lane for each wave: for each state the path of its hosts' bars, host below host."""
    start, whole = _span(report)
    if not whole or not report.run:
        return []
    started = [(host, host.run) for host in report.hosts if host.run and host.run.started]
    members = grouped(((host.pool, run.wave + 1), (host.name, run)) for host, run in started)
    lanes = []
    for wave in report.run.waves:
        hosts = sorted(members.get((wave.pool, wave.number), []), key=lambda one: (one[1].started, one[1].ended))
        paths: dict[str, list[str]] = {}
        for number, (_, run) in enumerate(hosts):
            begin = between(start, run.started) or 0
            end = between(start, run.ended or report.made) or 0
            x = round(WIDTH * begin / whole)
            bar = {"done": "ok"}.get(run.state, run.state)  # not what was found besides
            paths.setdefault(bar, []).append(f"M{x} {number}.5h{max(2, round(WIDTH * (end - begin) / whole))}")
        names = [name for name, _ in hosts] if len(hosts) <= _NAMED_BARS else []
        height = _BAR * len(names) if names else min(max(7 * len(hosts), 9), _LANE)
        stroke = {state: max(0.8 * height / len(hosts), least) for state, least in _BARS.items() if state in paths}
        drawn = [(state, "".join(paths[state]), round(stroke[state], 1)) for state in stroke]
        lanes.append({"wave": wave, "hosts": len(hosts), "height": height, "paths": drawn, "names": names})
    return lanes


def _ticks(report: Report) -> Sequence[str]:
    """Times along the timeline, evenly."""
    _, whole = _span(report)
    return [duration(whole * number // (_TICKS - 1)) for number in range(_TICKS)] if whole else []
