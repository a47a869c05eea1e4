"""One GPU, file or engine with words in place of values: the rest of its node is planned and judged as before."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from gpunode.core.checks.health import health_checks
from gpunode.core.doctor.state import state_faults
from gpunode.core.facts import facts_to_data, parse_probe
from gpunode.core.facts.vet import rules, vetted
from gpunode.core.grammar import Grammar
from gpunode.core.model import NodeFacts, Plan
from gpunode.core.model.node import volatile_fields
from gpunode.edge import load
from gpunode.edge.desired import DesiredState

CASES = Path(__file__).parents[1] / "cases/probes"
NODES = ("ubuntu2204-hgx-h100-kubelet", "rocky9-h100-provisioned")
# NVIDIA's programs and driver print these in place of a value, knowledge/questions.toml has those of nvidia-smi
UUID, BIOS = "GPU-????????-????-????-????-????????????", "??.??.??.??.??"
WORDS = (UUID, BIOS, "Unknown Error", "GPU is lost", "GPU requires reset", "Unknown", "N/A", "[N/A]", "ERR!", "")
WORDS += ("[Unknown Error]", "[GPU is lost]", "[GPU requires reset]", "[Not Supported]", "[Timeout]", "{{ lookup }}")


@pytest.fixture(autouse=True)
def no_keys_are_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "resolve_key", lambda repository, spec: b"a key")


@cache
def text_of(name: str) -> str:
    return (CASES / name / "probe.txt").read_text()


@cache
def desired() -> DesiredState:
    return DesiredState({}, to_run=False)


def plan_of(facts: NodeFacts) -> Plan:
    return desired().plan("node1", facts).plan


def unharmed(facts: NodeFacts, healthy: Plan, *without: str) -> None:
    """The node is planned, with the steps of the healthy one but for those that are named; the doctor can read it."""
    plan = plan_of(facts)
    state_faults(facts, {}, None)
    kept = [step for step in healthy.steps if step.id not in without]
    assert (facts.malformed, plan.problems) == ((), ())
    assert [step for step in plan.steps if step.id not in without] == kept


def test_no_word_of_nvidia_smi_in_any_cell_of_a_gpu_changes_the_plan(name: str = NODES[0]) -> None:
    healthy = plan_of(parse_probe(text_of(name)))
    row = next(line for line in text_of(name).splitlines() if line.startswith("| 0, "))
    cells = row[2:].split(", ")
    for word in WORDS:
        for number in range(1, len(cells)):
            ill = ", ".join([*cells[:number], word, *cells[number + 1 :]])
            unharmed(parse_probe(text_of(name).replace(row, f"| {ill}")), healthy)


def test_a_gpu_that_the_driver_did_not_start_changes_no_plan_and_verify_names_it_with_the_drivers_words() -> None:
    """The words of driver 580.178.04, whose nvidia-smi lists the others, and of its /proc."""
    text = text_of("ubuntu2204-hgx-h100-kubelet")
    healthy = parse_probe(text)
    lost = healthy.nvml[3]
    text = re.sub(rf"^\| {lost.index}, .*\n", "", text, flags=re.MULTILINE)
    log = f"[  50.1] NVRM: GPU {lost.slot}: RmInitAdapter failed! (0x62:0x65:2028)"
    text = text.replace("#: xids\n", f"#: xids\n| {log}\n").replace("#: cdi\n", f"#: cdi\n| gpu 3 {UUID}\n")
    facts = parse_probe(text)
    assert len(facts.nvml) == len(healthy.nvml) - 1
    unharmed(facts, plan_of(healthy))
    found = {check.id: check for check in health_checks(facts, load.load_knowledge())}
    assert found["gpu.count"].status == "failed"
    missing = f"missing: {lost.slot} (NVIDIA H100 80GB HBM3): «RmInitAdapter failed! (0x62:0x65:2028)»"
    assert found["gpu.count"].message == f"PCI shows 8 GPUs, the driver 7; {missing}"
    assert not [check for check in found.values() if "compromised" in check.message + check.fix]


def test_where_no_gpu_started_the_words_of_nvidia_smi_stand_next_to_those_of_the_kernel() -> None:
    text = text_of("rocky9-h100-provisioned")
    row = next(line for line in text.splitlines() if line.startswith("| 0, "))
    text = text.replace(row, "| No devices were found\n| \n| exit: 6")
    text = text.replace("#: xids\n", "#: xids\n| NVRM: RmInitAdapter failed! (0x26:0xffff:1172)\n")
    [count] = [one for one in health_checks(parse_probe(text), load.load_knowledge()) if one.id == "gpu.count"]
    assert count.message.startswith("nvidia-smi: No devices were found; PCI shows 1 GPU, the driver 0; missing: 0000:")
    assert count.message.endswith("): «RmInitAdapter failed! (0x26:0xffff:1172)»")


def test_where_nvidia_smi_never_answers_the_gpu_is_named_that_the_kernel_log_names() -> None:
    text, healthy = text_of(NODES[0]), parse_probe(text_of(NODES[0]))
    text = re.sub(r"^\| \d, .*\n", "", text, flags=re.MULTILINE).replace(
        "#: nvlink", "| exit: no answer within 20 s\n#: nvlink"
    )
    log = f"NVRM: GPU {healthy.nvml[3].slot}: RmInitAdapter failed! (0x62:0x65:2028)"
    facts = parse_probe(text.replace("#: xids\n", f"#: xids\n| {log}\n"))
    unharmed(facts, plan_of(healthy))
    [count] = [one for one in health_checks(facts, load.load_knowledge()) if one.id == "gpu.count"]
    assert count.message.startswith("nvidia-smi: no answer within 20 s; PCI shows 8 GPUs, the driver 0")
    named = f"{healthy.nvml[3].slot} (NVIDIA H100 80GB HBM3)"
    assert count.message.endswith(f"missing: {named}: «RmInitAdapter failed! (0x62:0x65:2028)»")


def test_a_gpu_that_fell_off_the_bus_is_told_from_one_that_does_not_start() -> None:
    """A machine in QEMU with NVIDIA's driver 580.178.04: of the second GPU all is ones, the first one never starts."""
    facts = parse_probe(text_of("ubuntu2404-h100-off-the-bus"))
    [count] = [one for one in health_checks(facts, load.load_knowledge()) if one.id == "gpu.count"]
    first, second = count.message.partition("missing: ")[2].split(", ")
    assert first == "0000:01:00.0 (NVIDIA H100 80GB HBM3): «RmInitAdapter failed! (0x62:0x65:2028)»"
    assert second == "0000:02:00.0 (NVIDIA H100 80GB HBM3): «no answer on PCI: it has fallen off the bus»"
    assert [one.words for one in facts.not_started if one.slot == "0000:02:00.0"][-1].endswith("(0x22:0x56:776)")
    found = state_faults(facts, {}, None)
    assert [one.text for one in found["gpu-lost"]] == [
        "0000:02:00.0 does not answer on PCI: all that is read there is ones"
    ]


def test_a_gpu_that_no_driver_took_is_named_beside_those_that_do_not_start() -> None:
    """Without a BAR, the driver's own words name it in a line of their own (NVRM: BAR2 is 0M @ 0x0)."""
    text = text_of("ubuntu2404-h100-off-the-bus")
    unbound = "0000:04:00.0 10de:2330 0302 subsystem=10de:16c1 driver=- vf=no"
    facts = parse_probe(text.replace("#: lspci\n", f"| {unbound}\n#: lspci\n", 1))
    [count] = [one for one in health_checks(facts, load.load_knowledge()) if one.id == "gpu.count"]
    assert count.message.endswith("0000:04:00.0 (NVIDIA H100 80GB HBM3): «no driver has taken it»")


# what all of a plan rests on; a version of what is installed changes what is to be installed, as it should
WHOLE = ("distro", "unfinished", "kernels", "packages", "broken_packages")


def parts(facts: NodeFacts) -> Iterator[tuple[str, Any]]:
    """(field, thing): each element of a tuple or mapping of objects, also of an object's own."""
    for name in (one.name for one in fields(NodeFacts) if one.name not in (*WHOLE, *volatile_fields(NodeFacts))):
        value = getattr(facts, name)
        for inner in [getattr(value, one.name) for one in fields(value)] if is_dataclass(value) else [value]:
            things = inner.values() if isinstance(inner, Mapping) else inner if isinstance(inner, tuple) else ()
            yield from ((name, thing) for thing in things if is_dataclass(thing))


def put(value: Any, old: Any, new: Any) -> Any:
    if value is old:
        return new
    if isinstance(value, tuple):
        return tuple(put(one, old, new) for one in value)
    if isinstance(value, Mapping):
        return {key: put(one, old, new) for key, one in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{one.name: put(getattr(value, one.name), old, new) for one in fields(value)})
    return value


@pytest.mark.parametrize("name", NODES)
def test_a_word_in_place_of_any_value_of_one_thing_stops_no_node(name: str) -> None:
    facts = parse_probe(text_of(name))
    tried = 0
    for field, thing in parts(facts):
        for key in (key for key, rule in rules(type(thing)).items() if isinstance(rule, Grammar)):
            named = (field, key) == ("files", "path")  # is also the key: see below
            if named or not isinstance(getattr(thing, key), str):
                continue
            word = WORDS[tried % len(WORDS)]
            if rules(type(thing))[key].fits(word):  # type: ignore[union-attr]  # a grammar
                word = "{{ lookup }}"
            tried += 1
            ill = vetted(replace(facts, **{field: put(getattr(facts, field), thing, replace(thing, **{key: word}))}))
            plan = plan_of(ill)
            assert (ill.malformed, plan.problems) == ((), ()), (field, key)
            assert "{{ lookup" not in str({k: v for k, v in facts_to_data(ill).items() if k != "invalid"})
            assert any("left out" in one for one in plan.warnings)
            checks = [one for one in health_checks(ill, load.load_knowledge()) if one.id == "probe.values"]
            assert [one.status for one in checks] == ["not-proven"]
    assert tried > 50


def test_an_engine_whose_file_has_an_invalid_name_is_left_as_it_is_and_the_rest_is_done() -> None:
    text = text_of("ubuntu2204-hgx-h100-kubelet")
    healthy, plan = plan_of(parse_probe(text)), plan_of(parse_probe(text.replace("99-nvidia.toml", "99{{ a }}.toml")))
    assert {step.role for step in healthy.steps} - {step.role for step in plan.steps} == {"runtime"}
    assert [s for s in plan.steps if s.role == "driver"] == [s for s in healthy.steps if s.role == "driver"]
    assert not plan.problems and any(one.startswith("files: /etc/containerd/conf.d: '/etc") for one in plan.warnings)
