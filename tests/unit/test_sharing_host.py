"""What a host does about sharing: the spec against the GPUs that are there, as a table; and the plan's step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml

from gpunode.core.checks.health import sharing_checks
from gpunode.core.errors import InputError
from gpunode.core.facts import facts_hash, parse_probe
from gpunode.core.items.sharing import (
    MIG_CONFIG,
    MIG_PROGRAM,
    MPS_SETTINGS,
    MPS_UNIT,
    UNITS,
    boot_program,
    mig_request,
    mps_request,
)
from gpunode.core.model import (
    ConfigFile,
    Kubernetes,
    MigInstance,
    NodeFacts,
    NvmlGpu,
    PciDevice,
    Plan,
    Service,
    Sharing,
    SharingChoice,
)
from gpunode.core.sharing.host import choose_sharing
from gpunode.core.spec import parse_spec
from gpunode.edge import load
from gpunode.edge.desired import DesiredState
from gpunode.edge.load import load_knowledge, load_mig
from gpunode.node import script

A100, H100, T4, P40 = "10de:20b2", "10de:2330", "10de:1eb8", "10de:1b38"


def node(*ids: str, **more: Any) -> NodeFacts:
    gpus = tuple(PciDevice(slot=f"0000:{0x17 + i:02x}:00.0", id=one, class_code="0302") for i, one in enumerate(ids))
    return NodeFacts(gpus=gpus, **more)


def choose(facts: NodeFacts, *, driver: str = "580.95.05", **sharing: Any) -> SharingChoice:
    spec = parse_spec({"sharing": sharing}, where="gpunode.yml").sharing
    return choose_sharing(facts, spec, load_mig(), load_knowledge(), driver=driver)


def layouts(choice: SharingChoice) -> list[str]:
    return [" ".join(f"{i.profile}@{i.start}" for i in one.instances) for one in choice.mig or ()]


@pytest.mark.parametrize(
    ("gpus", "mig", "expected"),
    [
        ((H100,), {"profiles": {"1g.10gb": 7}}, [" ".join(f"1g.10gb@{n}" for n in range(7))]),
        ((H100, A100), {"profiles": {"3g.40gb": 2}}, ["3g.40gb@0 3g.40gb@4"] * 2),
        ((H100, H100), {"profiles": {"3g.40gb": 2}, "gpus": {"1": {}}}, ["3g.40gb@0 3g.40gb@4", ""]),
        ((T4, H100), {"gpus": {"1": {"7g.80gb": 1}}}, ["", "7g.80gb@0"]),
        ((H100,), {"profiles": {"3g.40gb": 0, "1g.10gb": 1}}, ["1g.10gb@0"]),  # a group unsets what all have
        ((H100,), {"strategy": "mixed", "profiles": {"MIG 1G.10GB": 1}}, "named as 1g.10gb"),
        ((H100,), {"strategy": "mixed", "profiles": {"2g.20gb": 1, "4g.40gb": 1}}, ["4g.40gb@0 2g.20gb@4"]),
    ],
)
def test_a_request_that_fits_is_a_place_for_each_instance(gpus: Any, mig: Any, expected: Any) -> None:
    found = choose(node(*gpus), strategy="mig", mig=mig)
    if isinstance(expected, str):
        assert "write it as 1g.10gb" in found.problems[0].fix
    else:
        assert (layouts(found), found.problems) == (expected, ())


REFUSALS = [
    ((H100,), {"strategy": "mig", "mig": {"profiles": {"3g.40gb": 3}}}, "takes at most 2", "2 × 3g.40gb"),
    (
        (H100,),
        {"strategy": "mig", "mig": {"strategy": "mixed", "profiles": {"4g.40gb": 1, "3g.40gb": 1, "1g.10gb": 1}}},
        "8 compute slices, and a GPU has 7",
        "gpunode sharing profiles",
    ),
    ((H100,), {"strategy": "mig", "mig": {"profiles": {"1g.5gb": 1}}}, "has no MIG profile '1g.5gb'", "'1g.10gb'"),
    ((T4,), {"strategy": "mig", "mig": {"profiles": {"1g.5gb": 1}}}, "has no MIG", "time-slicing or mps"),
    ((H100, T4), {"strategy": "mig", "mig": {"profiles": {"1g.10gb": 1}}}, "GPU 1 (0000:18:00.0)", "time-slicing"),
    ((H100,), {"strategy": "mig", "mig": {"profiles": {"1g.10gb": -1}}}, "-1 × 1g.10gb", "from 0"),
    ((H100,), {"strategy": "mig", "mig": {"profiles": {"1g.10gb": 0}}}, "names no profile", "sharing.mig.profiles"),
    ((H100,), {"strategy": "mig", "mig": {"gpus": {"1": {"1g.10gb": 1}}}}, "the node has 1", "from 0 to 0"),
    ((H100,), {"strategy": "mig", "mig": {"gpus": {"one": {"1g.10gb": 1}}}}, "the GPU 'one'", "'0', '1'"),
    ((H100,), {"strategy": "mig"}, "names no profile", "sharing.mig.profiles"),
    ((H100,), {"strategy": "mig", "replicas": 2, "mig": {"profiles": {"1g.10gb": 1}}}, "has no replicas", "remove it"),
    ((H100,), {"strategy": "mps", "replicas": 1}, "replicas is 1", "2 or more"),
    ((H100,), {"strategy": "mps", "replicas": 49}, "at most 48 MPS clients", "48 or less"),
    ((H100,), {"strategy": "time-slicing", "replicas": 100000}, "no program would get on", "1000"),
    (
        (H100,),
        {"strategy": "mps", "replicas": 2, "mig": {"profiles": {"1g.10gb": 1}}},
        "MPS does not work on",
        "choose",
    ),
    ((P40,), {"strategy": "mps", "replicas": 2}, "compute capability 6.1", "time-slicing"),
    (
        (H100,),
        {"strategy": "mig", "mig": {"profiles": {"1g.10gb": 1, "2g.20gb": 1}}},
        "2 profiles (1g.10gb, 2g.20gb) with mig.strategy single",
        "mixed",
    ),
]


@pytest.mark.parametrize(("gpus", "sharing", "what", "fix"), REFUSALS, ids=[r[2] for r in REFUSALS])
def test_what_cannot_be_is_one_problem_that_says_what_would(gpus: Any, sharing: Any, what: str, fix: str) -> None:
    found = choose(node(*gpus), **sharing)
    assert found.mig is None and found.mps == 0
    [problem] = found.problems
    assert what in problem.what
    assert fix in problem.fix


@pytest.mark.parametrize(
    ("gpu", "profile", "driver", "what"),
    [
        (H100, "1g.10gb", "520.61.05", "driver 520.61.05 cannot cut it"),
        (A100, "1g.20gb", "515.65.01", "came with driver branch 525"),
        (A100, "1g.20gb", "525.60.13", ""),
    ],
)
def test_a_driver_too_old_for_a_gpu_or_a_profile_is_refused(gpu: str, profile: str, driver: str, what: str) -> None:
    found = choose(node(gpu), driver=driver, strategy="mig", mig={"profiles": {profile: 1}})
    assert [what in problem.what for problem in found.problems] == ([True] if what else [])


def test_whoever_else_cuts_the_gpus_at_boot_is_named() -> None:
    wanted = {"strategy": "mig", "mig": {"profiles": {"1g.10gb": 7}}}
    manager = {"nvidia-mig-manager": Service(name="nvidia-mig-manager", enabled="enabled")}
    assert "nvidia-mig-manager.service" in choose(node(H100, services=manager), **wanted).problems[0].what
    operator = Kubernetes(kind="kubeadm", gpu_operator=True)
    assert "GPU Operator" in choose(node(H100, kubernetes=operator), **wanted).problems[0].what


def test_with_a_kubelet_the_device_plugin_has_mps_and_single_wants_every_gpu_cut() -> None:
    kubelet = Kubernetes(kind="kubeadm")
    found = choose(node(H100, kubernetes=kubelet), strategy="mps", replicas=4)
    assert (found.mps, found.problems) == (0, ())
    assert "device plugin" in found.reasons[0].why
    half = choose(node(H100, H100, kubernetes=kubelet), strategy="mig", mig={"gpus": {"0": {"1g.10gb": 7}}})
    assert "1 of 2 GPUs stay whole" in half.problems[0].what


# ---------------------------------------------------------------- the plan


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "resolve_key", lambda repository, spec: b"key")


PROBE = """#: gpunode-probe 1
#: system
| init systemd
| machine x86_64
| uid 0
| user root
#: os_release
| ID=debian
| VERSION_ID="12"
#: pci
| 0000:17:00.0 10de:2330 0302 subsystem=- driver=nvidia vf=no
#: driver
| module nvidia 580.95.05
#: nvidia_smi
| fields index,pci.bus_id,mig.mode.current,mig.mode.pending,memory.total
| 0, 00000000:17:00.0, {mode}, {mode}, 81559
#: sharing
{sharing}
#: end
"""
ROWS = """| +-------------------------------------------------------+
| | GPU instances:                                        |
| | GPU   Name             Profile  Instance   Placement  |
| |                          ID       ID       Start:Size |
| |=======================================================|
| |   0  MIG 3g.40gb            9        1          4:4     |
| +-------------------------------------------------------+
| |   0  MIG 3g.40gb            9        2          0:4     |
| +-------------------------------------------------------+
| +--------------------------------------------------------------------+
| | Compute instances:                                                 |
| | GPU     GPU       Name             Profile   Instance   Placement  |
| |       Instance                       ID        ID       Start:Size |
| |         ID                                                         |
| |====================================================================|
| |   0      1       MIG 3g.40gb          2         0          0:4     |
| +--------------------------------------------------------------------+
| |   0      2       MIG 1c.3g.40gb       0         0          0:1     |
| +--------------------------------------------------------------------+
| |   0      2       MIG 2c.3g.40gb       1         1          1:2     |
| +--------------------------------------------------------------------+
"""
REQUEST = {"strategy": "mig", "mig": {"profiles": {"3g.40gb": 2}}}


def cut(rows: str = "", mode: str = "Disabled") -> NodeFacts:
    return parse_probe(PROBE.format(mode=mode, sharing=rows or "| program "))


def plan(facts: NodeFacts, sharing: dict[str, Any]) -> Plan:
    return (
        DesiredState({"driver": {"branch": "none"}, "toolkit": {"version": "none"}, "sharing": sharing})
        .plan("node1", facts)
        .plan
    )


def test_the_tables_of_nvidia_smi_are_read_with_the_compute_instances_of_each_instance() -> None:
    assert cut(ROWS).sharing.instances == (
        MigInstance(gpu=0, id=1, profile="3g.40gb", start=4, size=4, computes=1),
        MigInstance(gpu=0, id=2, profile="3g.40gb", start=0, size=4, computes=2),
    )


def test_the_units_are_taken_from_the_disk_and_pids_are_no_part_of_what_a_plan_rests_on() -> None:
    unit = "| unit gpunode-mig.service active enabled\n| mps 7\n| threads 25.0"
    facts = cut(unit)
    assert facts.services["gpunode-mig"] == Service(name="gpunode-mig", active="active", enabled="enabled")
    assert facts.sharing == Sharing(mps_daemons=("7",), mps_threads="25")
    assert facts_hash(facts) == facts_hash(cut(unit.replace("mps 7", "mps 8")))
    assert facts_hash(facts) != facts_hash(cut(unit.replace("25", "50")))


def mig_step(found: Plan) -> Any:
    return next((s for s in found.steps if s.id == "sharing.mig"), None)


def test_the_step_has_every_gpu_the_unit_and_a_layout_that_mig_parted_reads() -> None:
    step = mig_step(plan(cut(), REQUEST))
    assert step.value["gpus"] == [
        {
            "slot": "0000:17:00.0",
            "mode": "on",
            "instances": [{"profile": "3g.40gb", "id": 9, "start": 0}, {"profile": "3g.40gb", "id": 9, "start": 4}],
        }
    ]
    assert yaml.safe_load(step.value["config"])["mig-configs"] == {
        "all-disabled": [{"devices": "all", "mig-enabled": False}],
        "gpunode": [{"devices": [0], "mig-enabled": True, "mig-devices": {"3g.40gb": 2}}],
    }
    assert step.value["reboot"] == "if-needed"
    assert "no program may use GPU 0000:17:00.0 meanwhile" in step.disruptive
    assert [r.why for r in step.reasons if r.what == "GPU 0000:17:00.0"] == ["off; wanted 2 × 3g.40gb"]
    assert "+  gpunode:" in step.diff


def converged(value: dict[str, Any]) -> NodeFacts:
    """The node after that step, instances in the other order than they were asked for."""
    import hashlib

    program = hashlib.sha256(boot_program(value, script("mig.sh"))).hexdigest()
    facts = cut(ROWS, mode="Enabled")
    texts = {f"{UNITS}gpunode-mig.service": value["unit"], MIG_CONFIG: value["config"]}
    files = {p: ConfigFile(path=p, sha256=hashlib.sha256(t.encode()).hexdigest()) for p, t in texts.items()}
    unit = Service(name="gpunode-mig", active="active", enabled="enabled")
    sharing = replace(facts.sharing, mig_program=program)
    return replace(facts, sharing=sharing, files={**facts.files, **files}, services={"gpunode-mig": unit})


def test_a_node_that_is_cut_as_requested_has_nothing_to_do_and_another_request_names_the_difference() -> None:
    facts = converged(mig_step(plan(cut(), REQUEST)).value)
    assert mig_step(plan(facts, REQUEST)) is None
    other = mig_step(plan(facts, {"strategy": "mig", "mig": {"profiles": {"1g.10gb": 7}}}))
    assert [r.why for r in other.reasons if r.what.startswith("GPU")] == ["2 × 3g.40gb; wanted 7 × 1g.10gb"]
    without = replace(facts, sharing=replace(facts.sharing, instances=()))  # MIG on, and nothing in it
    assert mig_step(plan(without, REQUEST)).reasons[0].why == "on, without an instance; wanted 2 × 3g.40gb"


def test_without_the_request_what_gpunode_made_is_undone_and_what_others_made_is_left() -> None:
    facts = converged(mig_step(plan(cut(), REQUEST)).value)
    step = mig_step(plan(facts, {}))
    assert step.value == {
        "gpus": [{"slot": "0000:17:00.0", "mode": "off", "instances": []}],
        "remove": True,
        "reboot": "if-needed",
    }
    assert {r.what for r in step.reasons} >= {MIG_PROGRAM, MIG_CONFIG, f"{UNITS}gpunode-mig.service"}
    assert mig_step(plan(cut(ROWS, mode="Enabled"), {})) is None  # a person's own


@pytest.mark.parametrize(
    ("strategy", "kubernetes", "said"),
    [("time-slicing", False, 1), ("time-slicing", True, 0), ("mig", False, 0), ("none", False, 0)],
)
def test_what_only_a_cluster_goes_by_is_said_where_there_is_none(strategy: str, kubernetes: bool, said: int) -> None:
    facts = replace(cut(), kubernetes=Kubernetes(kind="kubeadm" * kubernetes))
    more = {"mig": REQUEST, "time-slicing": {"replicas": 4}}.get(strategy, {})
    warnings = plan(facts, {**more, "strategy": strategy}).warnings
    assert sum("is for the pods of a cluster" in text for text in warnings) == said


MANAGED = {"strategy": "mig", "mig": {"manager": "mig-manager", "profiles": {"3g.40gb": 2}}}


@pytest.mark.parametrize("sharing", [MANAGED, {"mig": {"manager": "mig-manager"}}])
def test_what_nvidias_mig_manager_takes_over_loses_our_unit_and_keeps_its_instances(sharing: dict[str, Any]) -> None:
    facts = converged(mig_step(plan(cut(), REQUEST)).value)
    step = mig_step(plan(facts, sharing))
    assert step.value == {"gpus": [], "remove": True, "reboot": "if-needed"}
    assert {r.what for r in step.reasons} >= {MIG_PROGRAM, MIG_CONFIG, f"{UNITS}gpunode-mig.service"}
    request = mig_request(step.value, facts, "")
    assert (request["gpus"], request["instances"], request["remove"]) == (b"", b"", b"1\n")
    assert removed(request) == [f"{UNITS}gpunode-mig.service", MIG_CONFIG, MIG_PROGRAM]


def removed(request: dict[str, bytes]) -> list[str]:
    """The files of a transaction that only removes some."""
    lines = [line.split("\t") for line in request["changes"].decode().splitlines()]
    assert {line[1] for line in lines} == {"remove"}
    return [line[-1] for line in lines]


def test_the_host_does_nothing_where_nvidias_mig_manager_makes_the_instances() -> None:
    assert mig_step(plan(cut(), MANAGED)) is None
    operator = Kubernetes(kind="kubeadm", gpu_operator=True)
    found = choose(node(H100, kubernetes=operator), **MANAGED)
    assert (found.problems, found.mig, found.mps) == ((), None, 0)
    assert [reason.what for reason in found.reasons] == ["no MIG by gpunode on the host"]


def test_mps_runs_as_a_unit_and_goes_when_it_is_no_longer_wanted() -> None:
    wanted = {"strategy": "mps", "replicas": 4}
    [step] = [s for s in plan(cut(), wanted).steps if s.role == "sharing"]
    assert (step.id, step.value["replicas"]) == ("sharing.mps", 4)
    assert "nvidia-cuda-mps-control -f" in step.value["unit"]
    text = step.value["unit"]
    import hashlib

    unit = ConfigFile(path=f"{UNITS}{MPS_UNIT}", sha256=hashlib.sha256(text.encode()).hexdigest())
    files = {unit.path: unit, "/etc/gpunode/mps": ConfigFile(path="/etc/gpunode/mps", sha256="0")}
    running = replace(
        cut(),
        files=files,
        services={"gpunode-mps": Service(name="gpunode-mps", active="active", enabled="enabled")},
        sharing=Sharing(mps_daemons=("7",), mps_threads="25"),
    )
    assert [s for s in plan(running, wanted).steps if s.role == "sharing"] == []
    [half] = [s for s in plan(running, {"strategy": "mps", "replicas": 2}).steps if s.role == "sharing"]
    assert [r.why for r in half.reasons] == ["25 %; wanted 50 %"]
    [gone] = [s for s in plan(running, {}).steps if s.role == "sharing"]
    assert gone.value == {"remove": True}


# ---------------------------------------------------------------- the requests

GPU = {"slot": "0000:17:00.0", "mode": "on", "instances": [{"profile": "1g.10gb+me", "id": 20, "start": -1}]}


def test_a_request_is_a_line_a_gpu_and_the_program_of_the_boot_has_the_same() -> None:
    value = {"gpus": [GPU], "unit": "[Unit]\n", "config": "version: v1\n", "labels": True, "reboot": "never"}
    request = mig_request(value, NodeFacts(), "exit 0\n", check=True)
    assert request["gpus"] == b"0000:17:00.0 on 1g.10gb+me/20\n"
    assert request["instances"] == b"0000:17:00.0 create 20\n"
    paths = (f"{UNITS}gpunode-mig.service", MIG_CONFIG, MIG_PROGRAM)
    assert request["changes"].decode() == "".join(f"{n}\twrite\t0644\tany\t-\t{p}\n" for n, p in enumerate(paths))
    assert [request[f"data.{n}"][:10] for n in range(3)] == [b"[Unit]\n", b"version: v", b"#!/bin/sh\n"]
    assert set(request) - {"data.0", "data.1", "data.2"} == {"gpus", "instances", "changes", "labels", "check"}
    unit = f"{UNITS}gpunode-mps.service"
    written = f"0\twrite\t0644\tany\t-\t{unit}\n".encode()
    assert mps_request({"replicas": 4, "unit": "x"}) == {"replicas": b"4\n", "changes": written, "data.0": b"x"}
    assert removed(mps_request({"remove": True}, check=True)) == [unit, MPS_SETTINGS]
    with pytest.raises(InputError, match="2 to 48"):
        mps_request({"replicas": 49, "unit": "x"})


def asked(id: int = 9, *, start: int | None = None, profile: str = "3g.40gb") -> dict[str, Any]:
    """A wished instance, or the wish for one wherever it fits."""
    return {"profile": profile, "id": id} | ({} if start is None else {"start": start})


def there(id: int, profile: str, start: int, *, computes: int = 1) -> MigInstance:
    return MigInstance(gpu=1, id=id, profile=profile, start=start, size=4, computes=computes)


@pytest.mark.parametrize(
    ("have", "requested", "changes"),
    [
        ((), (asked(9, start=4), asked(9, start=0)), ["create 9:0", "create 9:4"]),
        ((there(1, "3g.40gb", 4),), (asked(9, start=0), asked(9, start=4)), ["create 9:0"]),
        ((there(1, "3g.40gb", 4),), (asked(9), asked(9)), ["create 9"]),
        ((there(1, "3g.40gb", 4),), (asked(9, start=0),), ["destroy 1", "create 9:0"]),
        ((there(1, "3g.40gb", 0, computes=0),), (asked(9, start=0),), ["destroy 1", "create 9:0"]),
        ((there(1, "3g.40gb", 0), there(2, "1g.10gb", 4)), (), ["destroy 1", "destroy 2"]),
        ((there(5, "1g.10gb", 0),), (asked(-1, profile="1g.10gb", start=6),), ["destroy 5", "create 1g.10gb:6"]),
    ],
)
def test_what_goes_and_what_is_made_is_worked_out_of_what_is_there(
    have: tuple[MigInstance, ...], requested: tuple[dict[str, Any], ...], changes: list[str]
) -> None:
    slot = "0000:b3:00.0"
    other = MigInstance(gpu=0, id=1, profile="7g.80gb", start=0, size=8, computes=1)
    nvml = (NvmlGpu(index=0, slot="0000:17:00.0"), NvmlGpu(index=1, slot=slot))
    facts = NodeFacts(nvml=nvml, sharing=Sharing(instances=(other, *have)))
    value = {"gpus": [{"slot": slot, "mode": "on" if requested else "off", "instances": list(requested)}]}
    lines = mig_request(value, facts, "")["instances"].decode().splitlines()
    seen = [f"{slot} have {i.id} {f'{i.profile} {i.start}' if i.computes else '- -'}" for i in have]
    assert [line for line in lines if " have " in line] == seen
    assert [line.removeprefix(f"{slot} ") for line in lines if " have " not in line] == changes


@pytest.mark.parametrize(
    "value",
    [
        {"gpus": [{**GPU, "slot": "17:00.0; rm -rf /"}]},
        {"gpus": [{**GPU, "mode": "maybe"}]},
        {"gpus": [{**GPU, "instances": [{"profile": "1g.10gb 2g.20gb"}]}]},
        {"gpus": [{**GPU, "instances": [{"profile": "1g.10gb", "id": "19"}]}]},
        {"gpus": [GPU], "reboot": "now"},
        {"gpu": []},
    ],
)
def test_a_value_that_is_none_is_refused_before_it_reaches_a_node(value: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        mig_request(value, NodeFacts(), "")


@pytest.mark.parametrize("value", [{"replicas": 1, "unit": "x"}, {"replicas": "4", "unit": "x"}, {"replicas": 4}])
def test_an_mps_value_that_is_none_is_refused(value: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        mps_request(value)


def test_gpus_are_numbered_as_nvidia_smi_does() -> None:
    facts = replace(cut(), nvml=(NvmlGpu(index=0, slot="0000:17:00.0", mig_current="Disabled"),))
    assert yaml.safe_load(mig_step(plan(facts, REQUEST)).value["config"])["mig-configs"]["gpunode"][0]["devices"] == [0]


# ---------------------------------------------------------------- verify


def checks(facts: NodeFacts) -> list[tuple[str, str, str]]:
    return [(c.id, c.status, c.message) for c in sharing_checks(facts)]


def test_verify_says_how_the_gpus_are_cut_and_what_is_wrong_with_it() -> None:
    good = converged(mig_step(plan(cut(), REQUEST)).value)
    assert checks(good) == [("sharing.mig", "passed", "GPU 0: 2 × 3g.40gb")]
    assert checks(cut()) == []
    by_hand = checks(replace(good, services={}))
    assert by_hand == [
        ("sharing.mig", "warning", "GPU 0: 2 × 3g.40gb; nothing makes these instances again at the next boot")
    ]
    empty = replace(good, sharing=replace(good.sharing, instances=()))
    assert checks(empty)[0][1:] == ("failed", "GPU 0: MIG is on without an instance, so no program can use it")
    first, second = good.sharing.instances
    lame = replace(good, sharing=replace(good.sharing, instances=(first, replace(second, computes=0))))
    assert "instance 2 (3g.40gb) has no compute instance" in checks(lame)[0][2]
    waits = replace(good, nvml=(replace(good.nvml[0], mig_pending="Disabled"),))
    assert "MIG is Enabled, and Disabled after a reset" in checks(waits)[0][2]
    broken = replace(good, sharing=replace(good.sharing, mig_status="failed", mig_message="no room"))
    assert checks(broken)[0][1:] == ("failed", "the GPUs could not be cut: no room")


def test_verify_says_whether_the_mps_daemon_runs() -> None:
    enabled = {"gpunode-mps": Service(name="gpunode-mps", active="failed", enabled="enabled")}
    ends = replace(cut(), services=enabled)
    assert checks(ends)[0][:2] == ("sharing.mps", "failed")
    one = Sharing(mps_daemons=("7",), mps_threads="25")
    assert checks(replace(cut(), sharing=one)) == [
        ("sharing.mps", "passed", "the MPS control daemon runs (PID 7), 25 % of a GPU's threads a client")
    ]
    assert checks(replace(cut(), sharing=Sharing(mps_daemons=("7", "8"))))[0][1] == "warning"
