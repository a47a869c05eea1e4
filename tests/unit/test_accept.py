"""Readers of tools' outputs on recorded ones (tests/cases/accept), floors, outliers, the record.

A case is NAME.case: `tool`, `source`, `gpus`, `status`, `level`, then the output; NAME.json is what is read from it.
GPUNODE_WRITE_CASES=1 writes the latter.
"""

from __future__ import annotations

import json
import os
import tomllib
from dataclasses import asdict, replace
from datetime import date
from importlib.resources import files
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rows import over

from gpunode.core.accept import Level, Measure, Reading, Tool, ToolRequest
from gpunode.core.accept.dcgm import DIAG, TARGETED_POWER
from gpunode.core.accept.floors import Machine, floor_of, machine_of
from gpunode.core.accept.gemm import BURN, FRYER
from gpunode.core.accept.judge import count_checks, fleet_checks, floor_checks, judged, spread_of, spreads
from gpunode.core.accept.nccl import ALL_REDUCE, LOOPBACK, parse_nccl
from gpunode.core.accept.nvbandwidth import NVBANDWIDTH
from gpunode.core.accept.perftest import WRITE_BW
from gpunode.core.accept.result import (
    AcceptRecord,
    StageRow,
    key_of,
    make_record,
    record_from,
    row_from,
    since_checks,
    standards_of,
)
from gpunode.core.accept.samples import FIELDS, sample_checks
from gpunode.core.accept.stages import ROUNDS, STAGES, stage_of, stages_of
from gpunode.core.errors import InputError
from gpunode.core.model import Check, DriverState, Kernel, NodeFacts, NvmlGpu, PciDevice, Topology
from gpunode.core.printable import printable
from gpunode.core.report.schema import schema_of
from gpunode.edge.load import load_floors

CASES = Path(__file__).parents[1] / "cases/accept"
TOOLS: dict[str, Tool] = {
    "dcgmi": DIAG, "nvbandwidth": NVBANDWIDTH, "all_reduce_perf": ALL_REDUCE, "loopback": LOOPBACK, "gpu_burn": BURN,
    "gpu-fryer": FRYER, "ib_write_bw": WRITE_BW,
}  # fmt: skip
H100 = Machine(model="10de:2330", gpus=8, fabric="nvswitch")
NVL = Machine(model="10de:2321", gpus=2, fabric="nvlink")


def read_case(path: Path) -> tuple[dict[str, str], Reading]:
    head, _, output = path.read_text(encoding="utf-8").partition("---\n")
    about = dict(line.split(": ", 1) for line in head.splitlines())
    ask = ToolRequest(level=about["level"], gpus=int(about["gpus"]))  # type: ignore[arg-type]
    return about, TOOLS[about["tool"]].read(output, int(about["status"]), ask)


@over(sorted(CASES.glob("*.case")), name=lambda path: path.stem)
def test_what_a_tool_printed_is_read_as_recorded(path: Path) -> None:
    about, reading = read_case(path)
    assert about["source"]
    found = json.loads(json.dumps(asdict(reading)))
    expected = path.with_suffix(".json")
    if os.environ.get("GPUNODE_WRITE_CASES"):
        expected.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    assert found == json.loads(expected.read_text(encoding="utf-8"))


def test_every_reader_has_a_case() -> None:
    assert {read_case(path)[0]["tool"] for path in CASES.glob("*.case")} == set(TOOLS)


# ---------------------------------------------------------------- hostile outputs

REAL = [path.read_text(encoding="utf-8").partition("---\n")[2] for path in sorted(CASES.glob("*.case"))]
KEYS = "tests name results status warnings test_categories test_summary testcases bandwidth_matrix version".split()
ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=30,
)
SCRAPS = st.one_of(
    st.text(max_size=300),
    st.sampled_from(REAL),
    st.builds(
        lambda t, at, put: t[:at] + put + t[at:], st.sampled_from(REAL), st.integers(0, 3000), st.text(max_size=20)
    ),
    st.builds(lambda text, at: text[: at % (len(text) + 1)], st.sampled_from(REAL), st.integers(0, 5000)),
    ANY.map(lambda data: json.dumps({"DCGM Diagnostic": data, "nvbandwidth": data, "metadata": data})),
)


@given(SCRAPS, st.sampled_from(sorted(TOOLS)), st.integers(0, 255))
def test_no_output_breaks_a_reader_and_nothing_is_passed_by_rubbish(text: str, tool: str, status: int) -> None:
    reading = TOOLS[tool].read(text, status, ToolRequest(level="quick", gpus=8))
    for measure in reading.measures:
        assert 0 <= measure.value <= 1e7
    for check in reading.checks:
        assert check.id.startswith("accept.")
        assert len(check.message) < 20_000
        assert check.message == printable(check.message)
        assert "\n" not in check.message
    if not reading.checks:
        assert reading.measures


@pytest.mark.parametrize("tool", sorted(TOOLS))
def test_an_empty_output_proves_nothing(tool: str) -> None:
    reading = TOOLS[tool].read("", 0, ToolRequest(level="quick", gpus=8))
    assert [check.status for check in reading.checks] == ["not-proven"]
    assert not reading.measures


def test_a_deep_json_is_no_answer() -> None:
    assert (
        DIAG.read('{"DCGM Diagnostic":' * 100_000, 0, ToolRequest(level="quick", gpus=1)).checks[0].status
        == "not-proven"
    )


# ---------------------------------------------------------------- calls


@pytest.mark.parametrize(("memory", "size"), [(81_559, "16384M"), (40_960, "8192M"), (16_384, "1024M"), (None, "64M")])
def test_the_largest_message_fits_three_times_into_the_smallest_gpu(memory: int | None, size: str) -> None:
    words = ALL_REDUCE.call(ToolRequest(level="quick", gpus=8, smallest_mib=memory)).arguments
    assert words[words.index("-e") + 1] == size
    first, last = int(words[words.index("-b") + 1][:-1]), int(size[:-1])
    while first < last:
        first *= 8
    assert first == last  # by eighths the last size is met


def test_diagnosis_is_of_level_2_or_3() -> None:
    levels: dict[Level, str] = {"quick": "2", "standard": "3", "long": "3"}
    for level, number in levels.items():
        assert DIAG.call(ToolRequest(level=level, gpus=8)).arguments == ("diag", "-r", number, "-j")
    assert "targeted_power" in TARGETED_POWER.call(ToolRequest(level="standard", gpus=8)).arguments


# ---------------------------------------------------------------- the way that the data took


def test_nvls_is_read_from_nccls_own_log() -> None:
    run = parse_nccl((CASES / "nccl-h100-8-nvls.case").read_text())
    assert run.algorithms[4 << 30] == "NVLS"
    assert run.nvls_channels == 16
    assert run.via == {"P2P": 8}


# ---------------------------------------------------------------- floors


def allreduce(value: float, *, size: int = 16 << 30, algorithm: str = "NVLS", gpus: int = 8) -> Measure:
    return Measure(
        metric="allreduce", value=value, unit="GB/s", tool="nccl-tests", size=size, algorithm=algorithm, gpus=gpus
    )


def h2d(value: float, where: str = "GPU 0") -> Measure:
    return Measure(metric="h2d", value=value, unit="GB/s", tool="nvbandwidth", where=where)


def test_a_floor_holds_under_its_own_conditions_alone() -> None:
    floors = load_floors()
    assert floor_of(allreduce(470), H100, floors)
    for other in (
        allreduce(470, size=8 << 30), allreduce(470, algorithm="RING"), allreduce(470, gpus=4),
        replace(allreduce(470), kind="average"), replace(allreduce(470), tool="other"),
    ):  # fmt: skip
        assert floor_of(other, H100, floors) is None
    assert floor_of(allreduce(470), replace(H100, fabric="pcie"), floors) is None
    assert floor_of(allreduce(470), replace(H100, model=""), floors) is None


@pytest.mark.parametrize(
    ("value", "level", "status", "word"),
    [
        (475, "quick", "passed", "460 asked for"),
        (400, "quick", "warning", "not at full speed"),
        (400, "standard", "failed", "not at full speed"),
        (35, "quick", "failed", "something is broken"),
    ],
)
def test_two_bands(value: float, level: Level, status: str, word: str) -> None:
    [check] = floor_checks([allreduce(value)], H100, load_floors(), level)
    assert (check.id, check.status) == ("accept.allreduce", status)
    assert word in check.message


def test_without_a_floor_the_speed_is_not_proven() -> None:
    [check] = floor_checks(
        [allreduce(830)], Machine(model="10de:2901", gpus=8, fabric="nvswitch"), load_floors(), "quick"
    )
    assert check.status == "not-proven"
    assert "no floor is known for 8 × 10de:2901 (nvswitch)" in check.message


def test_a_healthy_h100_nvl_does_not_fail_by_the_floor_of_the_sxm() -> None:
    """azurehpc-health-checks issue 162: 335 asked for, 256 GB/s with 12 of 18 links, which is its design."""
    p2p = Measure(metric="p2p", value=256, unit="GB/s", tool="nvbandwidth", where="GPU 0 to 1")
    assert [check.status for check in floor_checks([p2p], NVL, load_floors(), "standard")] == ["not-proven"]


def test_a_card_trained_down_to_half_its_link_fails() -> None:
    [check] = floor_checks([h2d(52), h2d(25.4, "GPU 3")], H100, load_floors(), "quick")
    assert check.status == "failed"
    assert check.message.startswith("GPU 3: 25.4 GB/s below 26")


def test_a_tool_that_does_not_see_every_gpu_is_noticed() -> None:
    [check] = count_checks([h2d(52, f"GPU {n}") for n in range(7)], H100)
    assert (check.id, check.status) == ("accept.h2d.count", "failed")
    assert "7 GPUs, and the machine has 8" in check.message
    assert list(count_checks([h2d(52, f"GPU {n}") for n in range(8)], H100)) == []
    assert [c.id for c in count_checks([allreduce(470, gpus=4)], H100)] == ["accept.allreduce.count"]


def test_every_floor_has_its_conditions_source_and_day() -> None:
    table = tomllib.loads((files("gpunode") / "knowledge/floors.toml").read_text())
    assert set(table["sources"]) == set(table["dates"]) == {row["source"] for row in table["floors"]}
    assert all(date.fromisoformat(day) <= date.fromisoformat(table["checked"]) for day in table["dates"].values())
    for floor in load_floors():
        assert 0 < floor.alive < floor.full
        assert floor.metric != "allreduce" or (floor.size >= 1 << 30 and floor.count >= 2)


# ---------------------------------------------------------------- the fleet


def fleet(values: list[float]) -> dict[str, tuple[Machine, list[Measure]]]:
    return {f"gpu{n}": (H100, [replace(h2d(value), metric="gemm", unit="TFLOPS")]) for n, value in enumerate(values)}


def test_the_fleet_finds_who_is_slow_where_no_floor_is_known() -> None:
    hosts = fleet([740, 742, 738, 741, 739, 512])
    known = spreads(hosts)
    found = {host: list(fleet_checks(measures, machine, known)) for host, (machine, measures) in hosts.items()}
    assert {host for host, checks in found.items() if checks} == {"gpu5"}
    assert [(c.id, c.status) for c in found["gpu5"]] == [("accept.gemm.fleet", "failed")]


@pytest.mark.parametrize(
    ("values", "last"),
    [
        ([100, 100, 100, 93], "warning"),  # no spread at all: 5 % are enough
        ([100, 100, 100, 96], "passed"),
        ([100, 80, 120, 88], "passed"),  # the others differ as much
        ([100, 50, 50], ""),  # too few to say who is the odd one
        ([100, 101, 99, 100, 60, 61], "failed"),  # a third is bad, and the median holds
    ],
)
def test_outliers_by_median_and_mad(values: list[float], last: str) -> None:
    assert judged(values[-1], spread_of("gemm", "a kind", "TFLOPS", values)) == last


@given(st.lists(st.floats(1, 1e6), min_size=1, max_size=40))
def test_the_fastest_is_never_an_outlier(values: list[float]) -> None:
    assert judged(max(values), spread_of("x", "k", "GB/s", values)) in ("", "passed")


# ---------------------------------------------------------------- samples under load


def sample(
    index: int = 0, heat: int = 60, memory: str = "70", gen: int = 5, width: int = 16, reasons: str = "0x0"
) -> str:
    return f"{index}, {heat}, {memory}, {gen}, 5, {width}, 16, {reasons}"


def test_a_link_is_judged_by_its_best_under_load() -> None:
    assert len(sample().split(",")) == len(FIELDS)
    assert list(sample_checks("nccl", [sample(gen=1), sample(gen=5)])) == []  # it slept at first
    [check] = sample_checks("nccl", [sample(gen=3), sample(gen=3)])
    assert (check.id, check.status) == ("accept.nccl.link", "warning")
    assert "Gen3 x16 of Gen5 x16" in check.message


@pytest.mark.parametrize(("bit", "slow"), [(0x8, True), (0x40, True), (0x80, True), (0x4, False), (0x1, False)])
def test_only_the_boards_own_slowdowns_fail(bit: int, slow: bool) -> None:
    """0x4 is the software power cap, under which a burn is expected to run; 0x1 is idling."""
    found = [check.status for check in sample_checks("soak", [sample(reasons=f"0x{bit:016x}")])]
    assert found == (["failed"] if slow else [])


@given(st.lists(st.text(max_size=80), max_size=20))
def test_no_sample_breaks_the_reader(lines: list[str]) -> None:
    list(sample_checks("soak", lines))


def test_heat_is_a_warning() -> None:
    found = list(sample_checks("soak", [sample(heat=88, memory="97"), sample(1, memory="[N/A]")]))
    assert [(c.id, c.status) for c in found] == [("accept.soak.heat", "warning")]
    assert found[0].message == "GPU 0: 88 °C; memory of GPU 0: 97 °C"


# ---------------------------------------------------------------- stages, records


def test_the_stages_of_a_level_come_in_their_order() -> None:
    assert list(stages_of("quick")) == ["inventory", "dcgm", "nvbandwidth", "nccl"]
    assert list(stages_of("standard")) == [stage.name for stage in STAGES]
    assert len(stages_of("long")) == len(STAGES) + 2 * (ROUNDS - 1)
    assert stage_of("nccl.7").name == "nccl"


def facts(**more: object) -> NodeFacts:
    gpus = tuple(PciDevice(slot=f"0000:{n:02x}:00.0", id="10de:2330", class_code="0302") for n in (23, 42))
    seen = tuple(
        NvmlGpu(
            index=i, slot=gpu.slot, uuid=f"GPU-{i}", name="NVIDIA H100", persistence="Enabled", ecc_current="Enabled"
        )
        for i, gpu in enumerate(gpus)
    )
    made = NodeFacts(gpus=gpus, nvml=seen, driver=DriverState(loaded="580.95.05", loaded_flavour="open"),
                     kernels=(Kernel(release="6.8.0-45-generic", running=True),))  # fmt: skip
    return replace(made, **more)  # type: ignore[arg-type]


def test_a_machine_is_known_by_its_gpus_driver_and_kernel() -> None:
    assert key_of(facts()) == key_of(facts())
    other = replace(facts().nvml[1], uuid="GPU-replaced")
    assert key_of(facts(nvml=(facts().nvml[0], other))) != key_of(facts())
    assert key_of(facts(driver=DriverState(loaded="580.105.08"))) != key_of(facts())


def names(*links: tuple[str, ...]) -> Topology:
    return Topology(names=tuple(f"GPU{n}" for n in range(len(links))), links=links)


@pytest.mark.parametrize(
    ("more", "fabric"),
    [
        ({"topology": names(("X", "NV12"), ("NV12", "X"))}, "nvlink"),
        ({"topology": names(("X", "SYS"), ("SYS", "X"))}, "pcie"),
        ({}, "unknown"),
        ({"nvlink5_fabric": True}, "nvswitch"),
        ({"gpus": facts().gpus[:1]}, "none"),
    ],
)
def test_what_joins_the_gpus(more: dict[str, object], fabric: str) -> None:
    assert machine_of(facts(**more)).fabric == fabric


def test_bridged_pairs_are_a_class_of_their_own() -> None:
    four = tuple(replace(facts().gpus[0], slot=f"0000:0{n}:00.0") for n in range(4))
    links = names(
        ("X", "NV12", "SYS", "SYS"),
        ("NV12", "X", "SYS", "SYS"),
        ("SYS", "SYS", "X", "NV12"),
        ("SYS", "SYS", "NV12", "X"),
    )
    assert machine_of(facts(gpus=four, topology=links)).fabric == "nvlink-some"


def row(stage: str, *checks: Check, **more: object) -> StageRow:
    made = StageRow(host="gpu1", stage=stage, key=key_of(facts()), at="2026-11-25T04:00:00Z", seconds=3, checks=checks)
    return replace(made, **more)  # type: ignore[arg-type]


PASSED = Check(id="accept.dcgm.memory", status="passed", message="passed")
FAILED = Check(id="accept.dcgm.pcie", status="failed", message="no", fix="do")


def record(*rows: StageRow) -> AcceptRecord:
    checks = [check for one in rows for check in one.checks]
    return make_record("gpu1", facts(), rows, checks, level="quick", gpunode="1", at="2026-11-25T04:00:00Z")


@pytest.mark.parametrize(
    ("rows", "verdict"),
    [
        ([row("dcgm", PASSED)], "accepted"),
        ([row("dcgm", PASSED, replace(PASSED, status="warning"))], "accepted-with-warnings"),
        ([row("dcgm", PASSED, FAILED)], "failed"),
        ([row("dcgm", PASSED, replace(PASSED, status="not-proven"))], "not-proven"),
        ([row("dcgm", ended="refused")], "refused"),
        ([], "not-proven"),
    ],
)
def test_a_verdict_is_the_worst_and_nothing_proves_nothing(rows: list[StageRow], verdict: str) -> None:
    assert record(*rows).verdict == verdict


def test_records_and_rows_come_back_as_they_were_and_are_valid_by_the_published_schema() -> None:
    measured = row("nccl", PASSED, measures=(allreduce(470),))
    assert row_from(json.loads(json.dumps(asdict(measured)))) == measured
    made = record(measured)
    data = json.loads(json.dumps(asdict(made)))
    assert record_from(data) == made
    jsonschema.Draft202012Validator(schema_of(AcceptRecord, "gpunode accept: the record of a host")).validate(data)
    with pytest.raises(InputError):
        record_from({"host": 3})


def test_standards_are_answered_by_the_worst_of_their_stages() -> None:
    found = standards_of([row("inventory", PASSED), row("dcgm", FAILED), row("nccl", PASSED)])
    assert (found["BMAAS08-01"], found["BMAAS11-01"]) == ("failed", "passed")
    assert "BMAAS09-01" not in found


def test_since_the_acceptance() -> None:
    made = record(row("dcgm", PASSED))
    assert [c.status for c in since_checks(made, facts())] == ["passed", "passed"]
    seen = (facts().nvml[0], replace(facts().nvml[1], uuid="GPU-new", persistence="Disabled"))
    [_, check] = since_checks(made, facts(nvml=seen, driver=DriverState(loaded="580.105.08", loaded_flavour="open")))
    assert (check.id, check.status) == ("accept.since", "warning")
    for words in (
        "GPU-1",
        "now NVIDIA H100, GPU-new, persistence Disabled",
        "driver 580.95.05 open, now 580.105.08 open",
    ):
        assert words in check.message
