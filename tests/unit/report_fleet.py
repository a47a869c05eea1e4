"""A report of a fleet in the middle of a run: recorded hosts, each with its own name, slots' UUIDs and findings."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from gpunode.core.facts import parse_probe
from gpunode.core.report.model import HostRun, ProbeSummary, Report, ReportHost, ReportRun
from gpunode.core.report.seen import see
from gpunode.core.report.summary import make_host, make_report
from gpunode.edge.load import load_knowledge

PROBES = Path(__file__).parents[1] / "cases/probes"
RECORDED = (  # the first two are most of a fleet
    "ubuntu2204-hgx-h100-kubelet",
    "debian12-h100-provisioned",
    "rocky9-h100-provisioned",
    "sles15-h100-provisioned",
    "ubuntu2404-two-models",
)
BEGAN = datetime(2026, 11, 22, 8, 0, tzinfo=UTC)
STEPS = [
    {"id": "driver.packages", "role": "driver", "title": "Install the NVIDIA driver", "disruptive": ""},
    {"id": "runtime.edits", "role": "runtime", "title": "Give the container engines the nvidia runtime",
     "disruptive": "restarts containerd"},
]  # fmt: skip


def fleet(count: int) -> Report:
    """A report of `count` hosts in four pools and three waves: most done, some failed, at work, not to be reached."""
    knowledge = load_knowledge()
    kinds = [see(parse_probe((PROBES / name / "probe.txt").read_text()), knowledge) for name in RECORDED]
    kinds = [replace(kinds[0], checks=tuple(c for c in kinds[0].checks if c.status == "passed")), *kinds[1:]]
    hosts = [_host(number, count, kinds) for number in range(count)]
    run = ReportRun(
        name="20261122T080000Z-5d1c7e",
        verb="provision",
        status="running",
        started=_at(0),
        ended="",
        controller="admin1",
    )
    return make_report(
        hosts,
        title="provision 20261122T080000Z-5d1c7e",
        made=_at(3000),
        version="0.1.0",
        source="run 20261122",
        run=run,
    )


def _host(number: int, count: int, kinds: list[ProbeSummary]) -> ReportHost:
    name, pool = f"gpu{number:04}", ("train-a", "train-b", "inference", "lab")[number * 4 // count]
    kind = kinds[0 if number % 10 < 6 else 1 if number % 10 < 9 else 2 + number // 10 % 3]
    seen = replace(
        kind,
        gpus=tuple(
            replace(g, uuid=f"GPU-{number:08x}-{g.index or 0:04x}-4d3c-8b7a-90ab12cd{number:04x}") for g in kind.gpus
        ),
    )
    if number % 97 == 0:
        return make_host(
            name, pool=pool, plan={"error": {"what": f"{name}: no route to host", "fix": "is it on?", "exit": 4}}
        )
    if number % 151 == 1:
        problem = {"what": "Secure Boot is on and no key is enrolled", "fix": "enrol a key, or switch it off"}
        return make_host(name, pool=pool, probe=seen, plan={"problems": [problem]})
    if number % 41 == 2:
        seen = replace(seen, versions=replace(seen.versions, driver="575.57.08", kernel="5.15.0-161-generic"))
    if number % 233 == 5:
        seen = replace(seen, gpus=(*seen.gpus[:-1], replace(seen.gpus[-1], index=None, uuid="")))
    return make_host(
        name,
        pool=pool,
        probe=seen,
        plan={"steps": STEPS},
        run=(ran := _run(number, count)),
        result={"message": _printed(ran)},
    )


def _run(number: int, count: int) -> HostRun:
    place = number % (count // 4 or 1) * 4 / count  # within its pool
    wave = 0 if place < 0.02 else 1 if place < 0.3 else 2
    started = wave * 700 + int(place * 2600)
    if started > 3000:
        return HostRun(wave=wave, state="waiting")
    ended = started + 140 + number * 7919 % 120
    if ended > 3000:
        return HostRun(
            wave=wave, state="running", step="Install the NVIDIA driver and the headers", started=_at(started)
        )
    bad = number % 61 == 3
    return HostRun(
        wave=wave,
        state="failed" if bad else "done",
        exit=int(bad),
        started=_at(started),
        ended=_at(ended),
        changed=("package nvidia-open 580.95.05", "file /etc/containerd/config.toml"),
    )


def _printed(run: HostRun) -> str:
    return (
        "the driver did not build for kernel 6.8.0-87-generic: see dkms.log"
        if run.exit
        else "done, and the plan is empty now"
    )


def _at(second: int) -> str:
    return f"{BEGAN + timedelta(seconds=second):%Y-%m-%dT%H:%M:%SZ}"
