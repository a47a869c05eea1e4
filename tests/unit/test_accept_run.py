"""Stages as edge/accept/ runs them on nodes: a tool that does not start, network cards in pairs."""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpunode.core.accept import Reading
from gpunode.core.accept.floors import Machine
from gpunode.core.accept.perftest import ports_of
from gpunode.core.accept.result import StageRow
from gpunode.core.model import NodeFacts, NvmlGpu, PciDevice, RdmaPort
from gpunode.core.spec.accept import AcceptSpec
from gpunode.edge.accept import files, pairs, stages, tool
from gpunode.edge.accept.model import AcceptRun, Host
from gpunode.edge.detect import Detected, Targets
from gpunode.edge.ssh.many import Ran
from gpunode.edge.ssh.shell import Target

CASES = Path(__file__).parents[1] / "cases/accept"
GPU = PciDevice(slot="0000:17:00.0", id="10de:2330", class_code="0302")


def case(name: str) -> str:
    return (CASES / f"{name}.case").read_text(encoding="utf-8").partition("---\n")[2]


def host(name: str, *ports: RdmaPort) -> Any:
    facts = NodeFacts(hostname=name, gpus=(GPU,), rdma=ports)
    return Host(
        detected=Detected(host=name, facts=facts, target=Target(name=name)), facts=facts, spec=AcceptSpec(),
        machine=Machine(model=GPU.id, gpus=1, fabric="none"), key="key",
    )  # fmt: skip


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AcceptRun:
    monkeypatch.setattr(tool, "_AGAIN", 0)
    monkeypatch.setattr(pairs, "_PAIR_START", 0.05)
    return AcceptRun(folder=tmp_path, targets=Targets(), level="standard", say=lambda name, text: None)


def sent(output: str, ended: str = "0", **more: str) -> str:
    """What accept.sh sends."""
    values = {"program": "tool", "ended": ended, "output": base64.b64encode(output.encode()).decode(), **more}
    return "".join(f"gpunode\t{key}\t{value}\n" for key, value in (*values.items(), ("status", "unchanged")))


def answering(monkeypatch: pytest.MonkeyPatch, answer: Callable[[str, str], str]) -> None:
    """`answer` gets the node's name and the words of the call."""

    def run_many(programs: list[tuple[Target, str]], **_: Any) -> list[Ran]:
        [(target, text)] = programs
        words = text.partition("$GPUNODE_IN/arguments")[2].partition("\n")[2].partition("GPUNODE_EOF\n")[0]
        call = base64.b64decode(words).decode().replace("\n", " ")
        return [Ran(target=target, stdout=answer(target.name, call))]

    monkeypatch.setattr(tool, "run_many", run_many)


# ---------------------------------------------------------------- one more start

GOOD, FAULT = case("nvbandwidth-0.10-8-h100"), case("nvbandwidth-0.7-a100-wrong-pattern")
NO_START = "Error: CUDA driver initialization failed"


@pytest.mark.parametrize(
    ("outputs", "starts", "retried", "measured"),
    [
        ([(NO_START, "1"), (GOOD, "0")], 2, True, True),
        ([(NO_START, "1"), (NO_START, "1")], 2, True, False),
        ([(GOOD, "0")], 1, False, True),
        ([(FAULT, "1")], 1, False, False),  # a wrong pattern: what was measured stands
        ([(NO_START, "0")], 1, False, False),  # it did end well, and said nothing that we can read
        ([(NO_START, "timeout")], 1, False, False),
    ],
)
def test_a_tool_that_did_not_start_is_started_once_more_and_a_failure_is_not(
    outputs: list[tuple[str, str]], starts: int, retried: bool, measured: bool,
    run: AcceptRun, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    left: Iterator[tuple[str, str]] = iter(outputs)
    calls: list[str] = []

    def answer(name: str, call: str) -> str:
        calls.append(call)
        return sent(*next(left))

    answering(monkeypatch, answer)
    row = stages.measure_stage(host("gpu1"), "nvbandwidth", run)
    again = [check for check in row.checks if check.id == "accept.nvbandwidth.retried"]
    assert (len(calls), bool(again), bool(row.measures)) == (starts, retried, measured)
    assert all(check.status == "warning" and "CUDA driver initialization" in check.message for check in again)


def test_a_stage_whose_tool_gave_nothing_is_run_again_by_resume(
    run: AcceptRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch, lambda name, call: sent(NO_START, "1"))
    run.keep(stages.measure_stage(host("gpu1"), "nvbandwidth", run))
    answering(monkeypatch, lambda name, call: sent(GOOD))
    run.keep(stages.measure_stage(host("gpu2"), "nvbandwidth", run))
    kept = files.finished_rows(run.folder, {name: host(name).key for name in ("gpu1", "gpu2")})
    assert list(kept) == [("gpu2", "nvbandwidth")]


@pytest.mark.parametrize(("mig", "ended"), [("Enabled", "missing"), ("Disabled", "done")])
def test_a_gpu_that_is_cut_is_not_measured_by_one_of_its_instances(
    mig: str, ended: str, run: AcceptRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch, lambda name, call: sent(GOOD))
    one = host("gpu1")
    facts = replace(one.facts, nvml=(NvmlGpu(index=0, slot=GPU.slot, mig_current=mig),))
    row = stages.measure_stage(replace(one, facts=facts), "nvbandwidth", run)
    assert row.ended == ended
    assert mig == "Disabled" or [check.status for check in row.checks] == ["not-proven"]


# ---------------------------------------------------------------- pairs of network cards

BANDWIDTH = case("ib-write-bw-200g").replace("Number of qps   : 1", "Number of qps   : 4")


def port(device: str, rate: str = "200", state: str = "ACTIVE") -> RdmaPort:
    return RdmaPort(device=device, port=1, state=state, rate=rate, layer="InfiniBand")


@pytest.mark.parametrize(
    ("ports", "taken"),
    [
        ([port("mlx5_10"), port("mlx5_9")], ["mlx5_9", "mlx5_10"]),
        ([port("mlx5_0"), port("mlx5_1", "25"), port("mlx5_2", state="DOWN")], ["mlx5_0"]),
        ([port("mlx5_0", ""), port("-x"), port("a b")], []),
    ],
)
def test_the_ports_of_the_highest_rate_are_measured(ports: list[RdmaPort], taken: list[str]) -> None:
    assert [one.device for one in ports_of(ports)] == taken


def pair(run: AcceptRun, monkeypatch: pytest.MonkeyPatch, speeds: dict[str, str], near: str, *ports: RdmaPort) -> Any:
    """gpu1 serves, gpu2 writes; the speeds are by the device of gpu2 (""  for one that nobody listens to)."""

    def answer(name: str, call: str) -> str:
        device = call.partition("-d ")[2].partition(" ")[0]
        beside = {"near": "0-3"} if near in ("both", name) else {}
        if name == "gpu2" and not speeds[device]:
            return sent("Couldn't connect to 10.0.0.2:18515", "1", **beside)
        return sent(BANDWIDTH.replace("193.21", speeds.get(device, "0")).replace("mlx5_4", device), **beside)

    answering(monkeypatch, answer)
    served, called = tool.run_tool, threading.Event()

    def run_tool(end: Any, *words: Any, **more: Any) -> Any:
        """The server ends after its client, as the real one does, however quick their answers are."""
        if end.name == "gpu1":
            assert called.wait(20)
            called.clear()
            return served(end, *words, **more)
        try:
            return served(end, *words, **more)
        finally:
            called.set()

    monkeypatch.setattr(pairs, "run_tool", run_tool)
    own = ports or tuple(map(port, speeds))
    pairs.measure_pairs([host("gpu1", *own), host("gpu2", *map(port, speeds))], run)
    return run.done


def status_of(row: StageRow, name: str = "accept.pair") -> list[str]:
    return [check.status for check in row.checks if check.id == name]


@pytest.mark.parametrize(
    ("speeds", "near", "statuses"),
    [
        ({"mlx5_0": "193.2", "mlx5_1": "196.4"}, "both", ["passed"]),
        ({"mlx5_0": "193.2", "mlx5_1": "150.0"}, "both", ["failed"]),  # one card of many is slow
        ({"mlx5_0": "60.0", "mlx5_1": "196.4"}, "both", ["failed"]),
        ({"mlx5_0": "193.2"}, "gpu1", ["not-proven"]),  # NVIDIA's bound is of CPUs beside the card, at both ends
        ({"mlx5_0": "193.2"}, "", ["not-proven"]),
        ({"mlx5_0": ""}, "both", ["not-proven", "warning"]),
    ],
)
def test_each_card_is_measured_with_its_like_against_a_part_of_its_rate(
    speeds: dict[str, str], near: str, statuses: list[str], run: AcceptRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = pair(run, monkeypatch, speeds, near)
    for name, other in ("gpu1", "gpu2"), ("gpu2", "gpu1"):
        row = done[name, "pair"]
        assert [*status_of(row), *status_of(row, "accept.pair.retried")] == statuses, row.checks
        there = [device for device, speed in speeds.items() if speed]
        assert [(one.where, one.rate) for one in row.measures] == [(f"{d} with {other} {d}", 200) for d in there]


def test_a_card_without_a_partner_is_named(run: AcceptRun, monkeypatch: pytest.MonkeyPatch) -> None:
    more = pair(run, monkeypatch, {"mlx5_0": "193.2"}, "both", port("mlx5_0"), port("mlx5_1"))
    assert sorted(status_of(more["gpu2", "pair"])) == ["not-proven", "passed"]
    assert any("gpu1 mlx5_1" in check.message for check in more["gpu2", "pair"].checks)


def test_hosts_without_such_cards_are_not_asked(run: AcceptRun, monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, lambda name, call: pytest.fail("it was run"))
    pairs.measure_pairs([host("gpu1"), host("gpu2", port("mlx5_0"))], run)
    [check] = run.done["gpu2", "pair"].checks
    assert (check.status, check.message) == ("not-proven", "gpu1 has no active port of InfiniBand or RoCE")


def test_what_was_measured_of_the_first_host_is_not_replaced_by_the_last(
    run: AcceptRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(server: Any, client: Any, _: AcceptRun) -> dict[str, Reading]:
        return {one.name: pairs._no_pair(f"{server.name} {client.name}") for one in (server, client)}

    monkeypatch.setattr(pairs, "_pair", measured)
    pairs.measure_pairs([host("gpu1"), host("gpu2"), host("gpu3")], run)
    said = {name: row.checks[0].message for (name, _), row in run.done.items()}
    assert said == {"gpu1": "gpu1 gpu2", "gpu2": "gpu1 gpu2", "gpu3": "gpu3 gpu1"}
