"""Facts + spec → plan, by recorded cases: tests/cases/plans/CASE/{case.yml,plan.json}.

case.yml names a probe of tests/cases/probes and holds a spec.  A playbook is a function of its plan alone: those cases
have a playbook.yml, too, that together have every step.  GPUNODE_WRITE_CASES=1 writes plan.json, and playbook.yml where
there is one, again, to be read before they are committed.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpunode.core.bundle.target import parse_target
from gpunode.core.errors import GpunodeError, InputError, RefusedError
from gpunode.core.facts import VOLATILE, VOLATILE_DRIVER, parse_probe
from gpunode.core.items import repository, toolkit
from gpunode.core.items.engine import requests
from gpunode.core.items.item import Question
from gpunode.core.items.sysctl import Sysctl
from gpunode.core.model import (
    NO_GPU,
    ConfigFile,
    GpuContainer,
    InstalledPackage,
    KernelFault,
    NodeFacts,
    NotStarted,
    NvmlGpu,
    PciLink,
    Plan,
    Problem,
    RdmaPort,
    Reason,
    Running,
    Service,
    Solution,
    Step,
    Topology,
    TuningChoice,
    Xid,
)
from gpunode.core.plan import make_plan
from gpunode.core.plan.playbook import classes, dump, group_names, make_inventory, make_playbook
from gpunode.core.plan.steps import BY_ID, by_key
from gpunode.core.report.text import Detail, plan_data, plan_text
from gpunode.core.spec import parse_spec
from gpunode.edge import desired, load
from gpunode.edge.desired import DesiredState, Planned

CASES = Path(__file__).parents[1] / "cases"
PLANS = sorted(p.parent for p in CASES.glob("plans/*/case.yml"))
KEY = b"-----BEGIN PGP PUBLIC KEY BLOCK-----\n(a key)\n-----END PGP PUBLIC KEY BLOCK-----\n"


MOUNTS = "accept_nvidia_visible_devices_as_volume_mounts"


@cache
def probe(name: str) -> NodeFacts:
    return parse_probe((CASES / "probes" / name / "probe.txt").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("screen", "draws", "spec", "refused"),
    [
        ("gdm", True, {}, True),
        ("display-manager", True, {}, True),
        ("gdm", False, {}, False),
        ("", True, {}, False),
        ("gdm", True, {"method": "preinstalled"}, False),
    ],
)
def test_a_desktop_does_not_lose_the_packages_that_draw_it(
    screen: str, draws: bool, spec: dict[str, str], refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ubuntu's nvidia-driver-580-open depends on both; what gpunode installs of Canonical's is headless."""
    monkeypatch.setattr(load, "resolve_key", lambda repository, spec: KEY)
    facts, names = probe("ubuntu2404-two-models"), ("libnvidia-gl-580", "xserver-xorg-video-nvidia-580")
    there = {name: InstalledPackage(name=name, version="580.95.05-0ubuntu1") for name in names if draws}
    units = {name: Service(name=name, active="active" if name == screen else "inactive") for name in (screen, "xdm")}
    facts = replace(facts, packages=facts.packages | there, services=units)
    problems = DesiredState({"driver": spec}).plan("node1", facts).plan.problems
    assert [(screen in one.what, names[0] in one.what) for one in problems] == [(True, True)] * refused


def plan_case(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Planned:
    monkeypatch.setattr(load, "resolve_key", lambda repository, spec: KEY)
    case = yaml.safe_load((folder / "case.yml").read_text(encoding="utf-8"))
    return DesiredState(case["spec"]).plan("node1", probe(case["probe"]))


def expected(path: Path, text: str) -> str:
    if os.environ.get("GPUNODE_WRITE_CASES"):
        path.write_text(text, encoding="utf-8")
    return path.read_text(encoding="utf-8")


@pytest.mark.parametrize("folder", PLANS, ids=lambda p: p.name)
def test_a_case_gives_the_recorded_plan(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned = plan_case(folder, monkeypatch)
    text = json.dumps(plan_data(planned.plan), indent=1, ensure_ascii=False, default=str) + "\n"
    assert text == expected(folder / "plan.json", text)


PLAYBOOKS = [folder for folder in PLANS if (folder / "playbook.yml").exists()]


@pytest.mark.parametrize("folder", PLAYBOOKS, ids=lambda p: p.name)
def test_a_plan_gives_the_recorded_playbook(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    playbook = dump(make_playbook([plan_case(folder, monkeypatch).plan]))
    assert playbook == expected(folder / "playbook.yml", playbook)


def test_the_recorded_playbooks_have_every_step_of_the_recorded_plans() -> None:
    def steps(folders: list[Path]) -> set[str]:
        plans = [json.loads((folder / "plan.json").read_text(encoding="utf-8")) for folder in folders]
        return {f"{step['role']}.{step['option']}" for plan in plans for step in plan["steps"]}

    assert steps(PLANS) - steps(PLAYBOOKS) == set()


@pytest.mark.parametrize("folder", PLANS, ids=lambda p: p.name)
def test_steps_come_in_the_order_of_roles_and_options_and_hold_plain_data(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_case(folder, monkeypatch).plan
    order = [list(BY_ID).index(s.id) for s in plan.steps]
    assert order == sorted(set(order))
    assert yaml.safe_load(dump(make_playbook([plan]))) == _plain(make_playbook([plan]))
    assert not (plan.steps and plan.problems)


def _plain(data: Any) -> Any:
    return json.loads(json.dumps(data))


def test_a_kernel_whose_module_has_gone_gets_it_built_and_nothing_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = probe("arch-h100-provisioned")
    kernel = next(kernel for kernel in facts.kernels if kernel.image)
    gone = replace(facts, kernels=(replace(kernel, module="", flavour=""),))
    monkeypatch.setattr(load, "resolve_key", lambda repository, spec: KEY)
    planned = DesiredState({}).plan("node1", gone)
    text = plan_text(planned.plan)
    assert f"1. Build the NVIDIA module for {kernel.release}" in text and "installs:" not in text


def test_on_arch_no_bundle_stands_for_its_repositories() -> None:
    mirror = {"url": "https://mirror.lan/arch/", "key": "KEY", "fingerprint": "8793F200" * 5}
    plan = DesiredState({"sources": {"distribution": mirror}}).plan("node1", probe("arch-h100-fresh")).plan
    assert not plan.steps and "no others" in plan.problems[0].what
    with pytest.raises(InputError, match="no bundles for arch"):
        parse_target("arch/x86_64", load.load_knowledge())


def fresh(monkeypatch: pytest.MonkeyPatch) -> Planned:
    return plan_case(CASES / "plans" / "debian12-h100-fresh", monkeypatch)


def test_a_node_without_a_gpu_is_left_alone_and_reported() -> None:
    facts = replace(probe("debian12-h100-fresh"), gpus=())
    plan = DesiredState({}).plan("node1", facts).plan
    assert not plan.steps and plan.outcome == "pending"
    assert plan.warnings[0].startswith(f"{NO_GPU}; if that is right: verify.allow_no_gpu")
    assert DesiredState({"verify": {"allow_no_gpu": True}}).plan("node1", facts).plan.converged


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"root": False, "user": "joe"}, "user joe, not as root"),
        ({"container": True, "virtualization": "docker"}, "is a container (docker)"),
        ({"init": "other"}, "PID 1 is not systemd"),
    ],
)
def test_a_target_that_cannot_be_managed_is_refused_before_anything(change: dict[str, Any], what: str) -> None:
    plan = DesiredState({}).plan("node1", replace(probe("debian12-h100-fresh"), **change)).plan
    assert not plan.steps
    assert any(what in p.what and p.fix for p in plan.problems)


def test_hosts_with_the_same_steps_share_a_play_and_converged_ones_are_in_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = fresh(monkeypatch).plan
    other = replace(one, host="node2", steps=(replace(one.steps[0], value={"kernel": "other"}), *one.steps[1:]))
    done = replace(one, host="node3", steps=())
    assert [[p.host for p in members] for members in classes([one, other, done]).values()] == [["node1", "node2"]]
    inventory = make_inventory([one, other, done])
    assert set(inventory["all"]["hosts"]) == {"node1", "node2"}
    assert inventory["all"]["hosts"]["node2"]["gpunode_expect"]["kernel"] == "other"
    assert len(make_playbook([one, other, done])) == 1


def test_an_interrupted_transaction_is_finished_first(monkeypatch: pytest.MonkeyPatch) -> None:
    planned = fresh(monkeypatch)
    facts = replace(planned.facts, unfinished=("20261121T040000Z-1",))
    plan = DesiredState({}).plan("node1", facts).plan
    assert plan.steps[0].id == "preflight.recover"
    assert "20261121T040000Z-1" in plan_text(plan, detail=Detail(why=True))


def test_packages_of_a_transaction_that_was_interrupted_are_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a package that is there in two versions nobody knows which one is whole."""
    done = plan_case(CASES / "plans/arch-h100-provisioned", monkeypatch)
    assert done.plan.converged

    def pending(ident: str) -> dict[str, str]:
        facts = replace(done.facts, unfinished=(ident,))
        found = DesiredState({}).pending(replace(done, facts=facts))
        return {key.name: why for key, why in found.items() if key.option == "packages"}

    again = pending("20261122T190745Z-packages-21667")
    assert set(again) == {"nvidia-open", "nvidia-utils", "nvidia-container-toolkit"}
    assert all("of a transaction that was interrupted" in why for why in again.values())
    assert pending("20261122T190745Z-activate-21667") == {}


def test_files_that_set_the_same_repository_up_in_another_way_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    from gpunode.core.model import ConfigFile

    planned = fresh(monkeypatch)
    path = "/etc/apt/sources.list.d/cuda-debian12-x86_64.list"
    url = "https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64/"
    rival = ConfigFile(path=path, sha256="1" * 64, data=f"deb [signed-by=/x.gpg] {url} /\n".encode())
    mixed = ConfigFile(
        path="/etc/apt/sources.list.d/mixed.list",
        sha256="2" * 64,
        data=f"deb {url} /\ndeb https://deb.debian.org/debian bookworm main\n".encode(),
    )
    facts = replace(planned.facts, files={**planned.facts.files, path: rival, mixed.path: mixed})
    plan = DesiredState({}).plan("node1", facts).plan
    files = next(s.value for s in plan.steps if s.id == "driver.sources")
    assert {"path": path, "content": None, "mode": "0644"} in files
    assert mixed.path not in [f["path"] for f in files]


def test_a_plan_for_people_cites_each_source_once_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = fresh(monkeypatch).plan
    lines = plan_text(plan, detail=Detail(sources=True)).splitlines()
    sources = lines[lines.index("  sources:") + 1 :]
    assert len(sources) == len({s.split("] ", 1)[1] for s in sources}) > 3
    assert [s.split("]")[0] for s in sources] == [f"    [{n}" for n in range(1, len(sources) + 1)]
    assert "https://" not in "".join(line for line in lines[: -len(sources)] if "repository" not in line)


def test_a_file_that_differs_is_reported_without_its_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    from gpunode.core.items.driver import NOUVEAU_CONF
    from gpunode.core.model import ConfigFile

    done = fresh(monkeypatch)
    desired = DesiredState({})
    text = desired.templates["nouveau.conf.j2"].encode()

    def words(data: bytes, mode: int) -> str:
        file = ConfigFile(path=NOUVEAU_CONF, sha256=hashlib.sha256(data).hexdigest(), mode=mode, data=data)
        facts = replace(done.facts, files={**done.facts.files, NOUVEAU_CONF: file})
        pending = desired.pending(replace(done, facts=facts))
        return next((why for key, why in pending.items() if key.name == NOUVEAU_CONF), "")

    assert words(b"# nothing\n", 0o644) == "differs"
    assert words(text, 0o600) == "mode 0600; wanted 0644"
    assert words(text, 0o644) == ""


# Another node's values of what facts_hash leaves out.
OTHER: dict[str, Any] = {
    "hostname": "elsewhere",
    "boot_id": "another-boot",
    "nvml": (NvmlGpu(index=7, uuid="GPU-7", mig_current="Enabled"),),
    "package_lock": "1234 unattended-upgr",
    "lease": "two r2",
    "containers": {"crio": Running(count=3, names=("default/web",))},  # its restart stops none: no word
    "xids": (Xid(code=79, slot="0000:17:00.0", line="NVRM: Xid 79"),),
    "not_started": (NotStarted(slot="0000:17:00.0", words="RmInitAdapter failed!"),),
    "kernel_faults": (KernelFault(kind="hung", line="task kworker blocked"),),
    "nvlink_inactive": ("GPU 0 link 3",),
    "pcie": (PciLink(slot="0000:17:00.0", width=8),),
    "rdma": (RdmaPort(device="mlx5_0", port=1),),
    "hidden": ("/dev/nvidia0",),
    "topology": Topology(names=("GPU0",), links=(("X",),), cpus=("0-7",), numa=("1",)),
    "gpu_containers": (GpuContainer(name="web", id="0" * 64, devices=("/dev/nvidia0",)),),  # keeps its GPU: no word
    "unread": ("xids",),
    "rootless_docker": ("1000",),
    "denied": ("xids",),
    "notes": ("files: not permitted",),
}
OTHER_DRIVER: dict[str, Any] = {"smi": "trouble"}


def test_every_field_that_the_hash_leaves_out_has_another_value_here() -> None:
    assert OTHER.keys() == VOLATILE
    assert OTHER_DRIVER.keys() == VOLATILE_DRIVER


@pytest.mark.parametrize("folder", PLANS, ids=lambda p: p.name)
def test_a_plan_rests_on_nothing_that_the_hash_leaves_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = yaml.safe_load((folder / "case.yml").read_text(encoding="utf-8"))["spec"]
    facts = replace(plan_case(folder, monkeypatch).facts, gpu_containers=(), containers={})
    one = DesiredState(spec).plan("node1", facts)
    unaided = DesiredState(spec)  # has planned nothing yet
    other = unaided.plan("node1", replace(facts, **OTHER, driver=replace(facts.driver, **OTHER_DRIVER)))
    assert other.plan == one.plan
    assert other.solution == one.solution
    assert unaided.pending(other) == DesiredState(spec).pending(one)
    assert unaided.smoke(other) == DesiredState(spec).smoke(one)


def test_containers_that_run_now_change_a_plan_in_its_words_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    printed = plan_case(CASES / "plans" / "debian12-gpu-containers", monkeypatch)
    silent = DesiredState(
        yaml.safe_load((CASES / "plans" / "debian12-gpu-containers" / "case.yml").read_text())["spec"]
    )
    plan = silent.plan("node1", replace(printed.facts, gpu_containers=())).plan
    assert [(s.id, s.value) for s in plan.steps] == [(s.id, s.value) for s in printed.plan.steps]
    assert len(printed.plan.warnings) == len(plan.warnings) + 1
    assert "llm-7d9f/server" in plan_text(printed.plan) and "llm-7d9f/server" not in plan_text(plan)


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("debian12-docker-reload", "reloads docker.service: running containers keep running"),
        (
            "debian12-docker-restart",
            "restarts docker.service: 7 running containers stop: web, db, cache, queue, metrics and 2 more",
        ),
    ],
)
def test_a_plan_names_the_containers_that_stop(case: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = plan_case(CASES / "plans" / case, monkeypatch).plan.steps
    unjudged = "not validated by dockerd: Docker 20.10.24+dfsg1 cannot, 23.0 and later can"
    assert [step.disruptive for step in steps if step.disruptive] == [f"{words}; {unjudged}"]


def test_each_of_two_hosts_alike_is_notified_of_its_own_containers(monkeypatch: pytest.MonkeyPatch) -> None:
    one = plan_case(CASES / "plans" / "debian12-docker-restart", monkeypatch).facts
    spec = yaml.safe_load((CASES / "plans" / "debian12-docker-restart" / "case.yml").read_text())["spec"]
    ours, two = DesiredState(spec), replace(one, containers={"docker": Running(count=1, names=("solo",))})
    first, second = (plan_text(ours.plan("node", facts).plan) for facts in (one, two))
    assert "7 running containers stop: web" in first and "solo" not in first
    assert "1 running container stops: solo" in second


def test_hosts_alike_are_planned_once_and_keep_their_names_and_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "resolve_key", lambda repository, spec: KEY)
    asked = []
    really = desired.make_plan

    def make_plan(host: str, *args: Any, **options: Any) -> Any:
        asked.append(host)
        return really(host, *args, **options)

    monkeypatch.setattr(desired, "make_plan", make_plan)
    one = probe("debian12-h100-fresh")
    two = replace(one, **OTHER)
    ours = DesiredState({})
    first, second = ours.plan("node1", one), ours.plan("node2", two)
    assert asked == ["node1"]
    assert (second.plan.host, second.facts) == ("node2", two)
    assert first == replace(second, plan=replace(second.plan, host="node1"), facts=one)
    ours.plan("node3", two, {"reboot": "never"})  # another spec
    ours.plan("node4", replace(one, user="joe", root=False))
    ours.plan("node5", replace(one, user="ann", root=False))  # its refusal names the user
    assert asked == ["node1", "node3", "node4", "node5"]


def test_a_plan_that_is_only_looked_at_needs_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(repository: Any, spec: Any) -> bytes:
        raise GpunodeError("cannot fetch it")

    monkeypatch.setattr(load, "resolve_key", unreachable)
    plan = DesiredState({}, to_run=False).plan("node1", probe("debian12-h100-fresh")).plan
    assert plan.steps
    assert [w for w in plan.warnings if "cannot fetch it" in w and "nvidia-cuda" in w]
    with pytest.raises(GpunodeError, match="cannot fetch it"):
        DesiredState({}).plan("node1", probe("debian12-h100-fresh"))


@pytest.mark.parametrize(("text", "what"), [(b'{"a": ', "/etc/docker/daemon.json:1:7"), (b'{"debug": true}', "")])
def test_a_file_that_is_there_before_its_engine_is_judged_by_the_plan(text: bytes, what: str) -> None:
    """The run would install Docker, which does not start with it, and then refuse to edit it."""
    path, there = "/etc/docker/daemon.json", probe("debian12-h100-fresh")
    others = tuple(one for one in there.runtimes if one.name != "docker")
    facts = replace(there, runtimes=others, files={**there.files, path: ConfigFile(path=path, data=text)})
    plan = DesiredState({"runtimes": {"docker": {"manage": "install"}}}, to_run=False).plan("node1", facts).plan
    assert [problem.what.partition(" ")[0].rstrip(":") for problem in plan.problems] == [what] * bool(what)


def test_a_wrong_key_is_refused_even_in_a_plan_that_is_only_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(repository: Any, spec: Any) -> bytes:
        raise RefusedError("another fingerprint")

    monkeypatch.setattr(load, "resolve_key", wrong)
    with pytest.raises(RefusedError, match="another fingerprint"):
        DesiredState({}, to_run=False).plan("node1", probe("debian12-h100-fresh"))


@pytest.mark.parametrize(
    ("node", "asked", "want"),
    [
        ("debian12-stock-engines", "auto", {"containerd": "keep", "docker": "keep"}),
        ("debian12-stock-engines", "nvidia", {"containerd": "nvidia", "docker": "nvidia"}),
        ("ubuntu2004-cri-dockerd", "auto", {"docker": "nvidia"}),
        ("debian12-kubeadm-two-engines", "auto", {"containerd": "nvidia"}),
        ("debian12-kubeadm-two-engines", "runc", {"containerd": "runc"}),
        ("ubuntu2404-k3s", "auto", {"containerd": "nvidia"}),
    ],
)
def test_the_default_runtime_is_nvidia_where_a_kubelets_pods_need_it(
    node: str, asked: str, want: dict[str, str]
) -> None:
    facts = probe(node)
    spec = parse_spec({"runtimes": {name: {"default_runtime": asked} for name in ("containerd", "docker")}})
    found = {request.runtime: request.default_runtime for request, _ in requests(facts, spec)}
    assert {name: found[name] for name in found if name in ("containerd", "docker")} == want


@pytest.mark.parametrize(
    ("node", "version", "strategies", "want"),
    [
        ("debian12-kubeadm-two-engines", "1.7.24", ["envvar"], None),
        ("debian12-kubeadm-two-engines", "1.7.24", ["cdi-cri"], True),
        ("debian12-kubeadm-two-engines", "1.7.24", ["cdi-annotations", "envvar"], True),
        ("debian12-kubeadm-two-engines", "1.6.20", ["cdi-cri"], True),  # which is refused then
        ("debian12-kubeadm-two-engines", "1.6.20", ["cdi-cri", "envvar"], None),
        ("debian12-stock-engines", "1.7.24", ["cdi-cri"], None),
    ],
)
def test_an_engine_takes_cdi_where_the_device_plugin_names_gpus_by_it(
    node: str, version: str, strategies: list[str], want: bool | None
) -> None:
    """containerd 1.7 has it off, and passes over the kubelet's CDI devices without a word."""
    facts = probe(node)
    engines = tuple(replace(one, version=version) if one.name == "containerd" else one for one in facts.runtimes)
    spec = parse_spec({"kubernetes": {"device_plugin": {"device_list_strategy": strategies}}})
    found = {request.runtime: request.cdi for request, _ in requests(replace(facts, runtimes=engines), spec)}
    assert found["containerd"] is want


@pytest.mark.parametrize(
    ("strategies", "asked", "settings", "problems"),
    [
        (["envvar"], None, {}, 0),
        (["volume-mounts"], None, {MOUNTS: True}, 0),
        (["volume-mounts", "envvar"], True, {MOUNTS: True}, 0),
        (["volume-mounts"], False, {MOUNTS: False}, 1),
    ],
)
def test_the_toolkit_takes_gpus_by_mounts_where_the_device_plugin_gives_them_so(
    strategies: list[str], asked: bool | None, settings: dict[str, bool], problems: int
) -> None:
    plugin = {"device_plugin": {"device_list_strategy": strategies}}
    spec = parse_spec({"kubernetes": plugin, "toolkit": {"config": {MOUNTS: asked}}})
    question = Question(facts=probe("debian12-kubeadm-two-engines"), spec=spec, solution=Solution(), templates={})
    found = list(toolkit.wanted(question))
    assert next((one.settings for one in found if isinstance(one, toolkit.ToolkitConfig)), {}) == settings
    assert len([one for one in found if isinstance(one, Problem) and "volume-mounts" in one.what]) == problems


def with_packages(**packages: str) -> list[Plan]:
    one = Step(role="cuda", option="packages", title="Install", value={})
    return [Plan(host=host, steps=(replace(one, value={"install": text}),)) for host, text in packages.items()]


def test_hosts_with_other_values_share_a_play_and_have_them_in_a_group() -> None:
    alike, mixed = with_packages(a="12.8", b="12.8"), with_packages(a="12.8", c="12.6", b="12.8")
    [play] = make_playbook(alike)
    assert play["name"] == "Cuda" and play["hosts"] == "gpunode_cuda"
    assert play["tasks"][0]["gpunode.node.packages"] == {"packages": {"install": "12.8"}}
    assert make_inventory(alike)["all"]["children"] == {"gpunode_cuda": {"hosts": {"a": {}, "b": {}}}}
    [play] = make_playbook(mixed)
    assert play["hosts"] == "gpunode_cuda", "its name stays"
    assert play["tasks"][0]["gpunode.node.packages"] == {"packages": "{{ gpunode_values.cuda_packages }}"}
    groups = make_inventory(reversed(mixed))["all"]["children"]["gpunode_cuda"]["children"]
    assert groups == {
        "gpunode_cuda_as_a": {
            "hosts": {"b": {}, "a": {}},
            "vars": {"gpunode_values": {"cuda_packages": {"install": "12.8"}}},
        },
        "gpunode_cuda_as_c": {"hosts": {"c": {}}, "vars": {"gpunode_values": {"cuda_packages": {"install": "12.6"}}}},
    }


def test_a_play_of_some_hosts_of_a_run_has_the_group_of_the_run() -> None:
    other = Plan(host="z", steps=(Step(role="cuda", option="files", title="Write", value=[]),))
    plans = [other, *with_packages(a="12.8", b="12.6")]
    names = group_names(plans)
    assert sorted(names.values()) == ["gpunode_cuda", "gpunode_cuda_2"]
    [play] = make_playbook(plans[1:2], names)
    assert (play["name"], play["hosts"]) == ("Cuda (2)", "gpunode_cuda_2")


def test_a_comment_in_the_engine_of_one_node_copies_no_play(monkeypatch: pytest.MonkeyPatch) -> None:
    one = plan_case(CASES / "plans/debian12-h100-fresh", monkeypatch).plan

    def with_comment(step: Step) -> Step:
        if step.id != "runtime.edits":
            return step
        return replace(
            step, value=[{**edit, "expect": {"/etc/containerd/config.toml": "0" * 64}} for edit in step.value]
        )

    other = replace(one, host="node2", steps=tuple(map(with_comment, one.steps)))
    [play] = make_playbook([one, other])
    assert play["name"] == "Driver, toolkit, runtime", "nor do its members change its name"
    hosts = make_inventory([one, other])["all"]["hosts"]
    files = {host: variables["gpunode_expect"]["files"]["containerd"] for host, variables in hosts.items()}
    assert files["node1"] != files["node2"] == {"/etc/containerd/config.toml": "0" * 64}


def test_tasks_stand_in_the_order_of_the_steps_under_their_titles(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_case(CASES / "plans/debian12-h100-fresh", monkeypatch).plan
    [play] = make_playbook([plan])
    assert [task["name"] for task in play["tasks"]] == [step.title for step in plan.steps]


def test_what_the_action_would_refuse_is_refused_by_the_plan_with_the_key_that_has_it() -> None:
    facts, state = probe("debian12-h100-provisioned"), DesiredState({})
    spec = state.spec()
    solution = replace(state.solution(facts, spec), tuning=TuningChoice(sysctl={"net.core.x": "1;2"}))
    asked = Question(facts=facts, spec=spec, solution=solution, templates=state.templates)
    plan = make_plan("node1", asked, key_of=lambda repository: KEY)
    assert not plan.steps
    [problem] = plan.problems
    assert "net.core.x '1;2'" in problem.what and problem.fix == "change what gpunode.yml says of tuning.sysctl"


def test_an_engine_is_not_restarted_for_a_toolkit_that_nobody_installs() -> None:
    facts, state = probe("rocky9-h100-provisioned"), DesiredState({})
    packages = {name: one for name, one in facts.packages.items() if "container-toolkit" not in name}
    facts, spec = replace(facts, packages=packages, toolkit=""), state.spec()
    asked = Question(facts=facts, spec=spec, solution=state.solution(facts, spec), templates=state.templates)

    def restarts(apart: set[str]) -> bool:
        plan = make_plan("node1", asked, key_of=lambda repository: KEY, apart=apart)
        assert any(step.id == "toolkit.packages" for step in plan.steps), plan.problems
        return any(step.id == "runtime.edits" for step in plan.steps)

    assert restarts(set()) and not restarts({"toolkit"})


def test_two_parts_that_want_the_same_otherwise_are_refused_and_alike_they_are_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(load, "resolve_key", lambda repository, spec: KEY)
    facts = probe("ubuntu2204-hgx-h100-kubelet")
    for value, problems in (("1", 0), ("0", 1)):
        plan = DesiredState({"tuning": {"sysctl": {"net.ipv4.ip_forward": value}}}).plan("node1", facts).plan
        assert len(plan.problems) == problems, plan.problems
    assert plan.problems == (
        Problem(
            what="sysctl net.ipv4.ip_forward is wanted twice by the role runtime: 1, and 0",
            fix="change tuning.sysctl in gpunode.yml",
        ),
    )


def test_items_wanted_twice_keep_the_reasons_of_both() -> None:
    one, other = (Sysctl(setting="a", value="1", reasons=(Reason(what=w, why=w),)) for w in "xy")
    items, problems = by_key((one, other, one))
    assert not problems and [reason.what for item in items.values() for reason in item.reasons] == ["x", "y"]


def test_a_key_of_gpunodes_that_was_revoked_is_written_again_and_not_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = CASES / "plans" / "debian12-h100-fresh"
    path = "/usr/share/keyrings/gpunode-nvidia-cuda.asc"
    monkeypatch.setattr(repository, "revoked_files", lambda facts, revoked: (path,))
    [step] = [step for step in plan_case(folder, monkeypatch).plan.steps if step.id == "driver.sources"]
    assert {file["path"]: file["content"] for file in step.value}[path] == KEY.decode()
