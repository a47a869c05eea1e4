"""`tuning` of gpunode.yml: what is refused, planned, set by the unit's program, and written into boot entries."""

from __future__ import annotations

import hashlib
import json
import os
import re
import resource
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpunode.core.checks.host import host_checks
from gpunode.core.checks.pcie import peer_checks
from gpunode.core.errors import InputError
from gpunode.core.facts import parse_probe
from gpunode.core.items import gpudirect, host_settings, kernel_argument, memlock, sysctl
from gpunode.core.items.activation import activate_request
from gpunode.core.model import ConfigFile, NodeFacts, Outcome, PciLink, RdmaPort, Service, Tuning
from gpunode.core.remote import parse_outcome, program
from gpunode.core.spec import parse_spec
from gpunode.core.untrusted import load_yaml
from gpunode.edge import load
from gpunode.edge.desired import DesiredState
from gpunode.edge.load import load_knowledge, load_tuning
from gpunode.node import script

TEMPLATES = Path(__file__).parents[2] / "gpunode/templates"
H100 = Path(__file__).parents[1] / "cases/probes/debian12-h100-provisioned/probe.txt"
GRUB = kernel_argument.FILES["update-grub"]
SWITCH, PORT_1, PORT_2, NIC = "0000:10:00.0", "0000:11:00.0", "0000:11:01.0", "0000:18:00.0"


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "resolve_key", lambda *_: b"-----BEGIN PGP PUBLIC KEY BLOCK-----\n")


def node(**more: Any) -> NodeFacts:
    """Bare metal, where the GPU and a network card are behind one switch whose ports redirect."""
    facts = parse_probe(H100.read_text())
    [gpu] = facts.gpus
    links = (
        PciLink(slot=SWITCH, acs="none"),
        PciLink(slot=PORT_1, parent=SWITCH, acs="0x001d"),
        PciLink(slot=PORT_2, parent=SWITCH, acs="0x001d"),
        PciLink(slot=gpu.slot, parent=PORT_1, acs="none"),
        PciLink(slot=NIC, parent=PORT_2, acs="none"),
    )
    base: dict[str, Any] = {
        "virtualization": "none",
        "pcie": links,
        "rdma": (RdmaPort(device="mlx5_0", port=1, slot=NIC),),
        "tuning": Tuning(governors=("schedutil",), loader="update-grub"),
    }
    return replace(facts, **{**base, **more})


def planned(facts: NodeFacts, tuning: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """(values of the steps by role and option, problems)."""
    plan = DesiredState({"driver": {"method": "preinstalled"}, "tuning": dict(tuning)}).plan("node1", facts).plan
    return {step.id: step.value for step in plan.steps}, [problem.what for problem in plan.problems]


def files_of(steps: Mapping[str, Any], role: str) -> dict[str, str | None]:
    return {file["path"]: file["content"] for file in steps.get(f"{role}.files", ())}


@pytest.mark.parametrize(
    ("tuning", "words"),
    [
        ({"isolcpus": "1-7"}, "tuning.isolcpus is refused: it takes CPUs from the scheduler"),
        ({"mitigations": "off"}, "tuning.mitigations is refused"),
        ({"selinux": "off"}, "tuning.selinux is refused"),
        ({"sysctl": {"kernel.panic": "1"}}, "tuning.sysctl has 'kernel.panic'"),
        ({"sysctl": {"net.core.rmem_max": "1; reboot"}}, "tuning.sysctl.net.core.rmem_max is '1; reboot'"),
    ],
)
def test_what_is_never_set_is_refused_with_the_reason(tuning: Mapping[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        parse_spec({"tuning": tuning})


def test_off_is_a_word_without_quotes_too() -> None:
    text = "tuning: {acs: off, init_on_alloc: 'off'}\nfabric: {imex: off}\n"
    spec = parse_spec(load_yaml(text, "gpunode.yml"))
    assert (spec.tuning.acs, spec.tuning.init_on_alloc, spec.fabric.imex) == ("off", "off", "off")


def test_nothing_is_set_by_default_and_every_key_has_a_row() -> None:
    assert parse_spec({}).tuning.given == () and parse_spec({}).tuning.sysctl == {}
    keys = {row.key for row in load_tuning()}
    everything = dict.fromkeys(vars(parse_spec({}).tuning), "x")
    assert keys == set(everything) - {"sysctl"}


@pytest.mark.parametrize(
    ("tuning", "more", "words"),
    [
        ({"init_on_alloc": "off"}, {}, "tuning.init_on_alloc: it is for machines with NVIDIA's Grace CPU"),
        ({"numa_balancing": "off"}, {}, "tuning.numa_balancing: it is for machines with NVIDIA's Grace CPU"),
        ({"iommu": "passthrough"}, {"tuning": Tuning()}, "tuning.iommu: neither update-grub"),
        ({"acs": "off"}, {"virtualization": "kvm"}, "tuning.acs: this is a virtual machine"),
        ({"acs": "off"}, {"gpus": "vfio-pci"}, "tuning.acs: GPUs are given to virtual machines (vfio-pci)"),
        ({"acs": "off"}, {"tuning": Tuning(lockdown="integrity")}, "tuning.acs: the kernel is locked down"),
        ({"governor": "performance"}, {"tuning": Tuning()}, "tuning.governor: the CPUs of this node have no frequency"),
    ],
)
def test_what_a_node_cannot_is_refused_with_the_reason(
    tuning: Mapping[str, Any], more: dict[str, Any], words: str
) -> None:
    if driver := more.get("gpus"):
        more = {"gpus": tuple(replace(gpu, driver=driver) for gpu in node().gpus)}
    [problem] = planned(node(**more), tuning)[1]
    assert problem.startswith(words)


def test_under_lockdown_what_the_kernel_itself_has_turned_off_is_no_problem() -> None:
    facts = node(tuning=Tuning(lockdown="integrity"))
    off = tuple(replace(link, acs=link.acs.replace("0x001d", "0x0011")) for link in facts.pcie)
    assert planned(replace(facts, pcie=off), {"acs": "off"})[1] == []


PEER = Tuning(peer_memory="yes", peermem="built")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"tuning": PEER}, ""),
        ({"tuning": PEER, "rdma": ()}, "tuning.peermem: this node has no RDMA device"),
        ({"tuning": PEER, "rdma": (), "unread": ("links",)}, ""),
        (
            {"tuning": replace(PEER, peer_memory="no")},
            "tuning.peermem: the RDMA stack of the kernel has no peer memory",
        ),
        (
            {"tuning": replace(PEER, peermem="stub", ofed="OFED-internal-25.01-0.6.0")},
            "tuning.peermem: the driver's nvidia-peermem was built without peer memory, and does not load: have its "
            "modules built again (dkms), now that OFED-internal-25.01-0.6.0 is there",
        ),
        ({"tuning": replace(PEER, peermem="absent")}, "tuning.peermem: the loaded driver has no nvidia-peermem"),
        ({"tuning": Tuning(), "unread": ("tuning",)}, ""),
        ({"tuning": Tuning(peer_memory="no"), "modules": ("nvidia", "nvidia_peermem")}, ""),
    ],
)
def test_peermem_is_loaded_only_where_it_can_be(more: dict[str, Any], words: str) -> None:
    steps, problems = planned(node(**more), {"peermem": "load"})
    if words:
        assert len(problems) == 1 and problems[0].startswith(words)
        return
    assert problems == [] and files_of(steps, "fabric")[gpudirect.CONF].splitlines()[1:] == ["nvidia_peermem"]
    assert steps["fabric.activate"]["load"] == ["nvidia_peermem"]
    [file] = [one for one in steps["fabric.files"] if one["path"] == gpudirect.CONF]
    data = file["content"].encode()
    there = ConfigFile(path=file["path"], sha256=hashlib.sha256(data).hexdigest(), size=len(data), data=data)
    done = node(**{**more, "files": {**node().files, file["path"]: there}, "modules": ("nvidia", "nvidia_peermem")})
    assert not [id_ for id_ in planned(done, {"peermem": "load"})[0] if id_.startswith("fabric")]


def test_gdrcopy_is_loaded_where_somebody_has_installed_it_and_is_no_package_of_ours() -> None:
    [problem] = planned(node(), {"gdrcopy": "load"})[1]
    assert problem.startswith("tuning.gdrcopy: GDRCopy's module gdrdrv is not on this node, and no repository")
    [listed] = re.findall(r"for module in (.*nvidia_peermem.*); do", script("probe.sh"))
    assert {"gdrdrv", "nvidia_peermem"} <= set(listed.split()), "else a node is changed at every run"
    steps, problems = planned(node(tuning=Tuning(gdrdrv=True)), {"gdrcopy": "load"})
    assert (problems, steps["fabric.activate"]["load"]) == ([], ["gdrdrv"])
    conf = ConfigFile(path=gpudirect.CONF, sha256="0" * 64, data=b"gdrdrv\n")
    gone, _ = planned(node(files={**node().files, gpudirect.CONF: conf}), {})
    assert files_of(gone, "fabric")[gpudirect.CONF] is None, "and nothing is unloaded under a program"


@pytest.mark.parametrize(("flavour", "noted"), [("open", True), ("proprietary", False)])
def test_peermem_beside_dma_buf_is_noted(flavour: str, noted: bool) -> None:
    tuning = replace(PEER, kernel_options={"PCI_P2PDMA": "y"})
    facts = node(tuning=tuning, driver=replace(node().driver, loaded_flavour=flavour))
    desired = DesiredState({"driver": {"method": "preinstalled"}, "tuning": {"peermem": "load"}})
    warnings = desired.plan("node1", facts).plan.warnings
    assert any("calls this way legacy" in text for text in warnings)
    assert any("DMA-BUF works here already" in text for text in warnings) is noted


def test_ofed_is_named_and_left_alone() -> None:
    active = (RdmaPort(device="mlx5_0", port=1, slot=NIC, state="ACTIVE"),)
    tuning = Tuning(ofed="OFED-internal-25.01-0.6.0", kernel_options={"PCI_P2PDMA": "y"})
    for flavour, status in (("open", "passed"), ("proprietary", "warning")):
        facts = node(rdma=active, tuning=tuning, driver=replace(node().driver, loaded_flavour=flavour))
        [check] = [one for one in host_checks(facts, load_knowledge()) if one.id == "gpudirect.rdma"]
        assert check.status == status
        assert check.message.endswith("; OFED-internal-25.01-0.6.0 is installed, and stays as it is")


@pytest.mark.parametrize(
    ("symbols", "depends", "said"),
    [
        ("ffffffffc0a0 T ib_register_peer_memory_client\t[ib_uverbs]\n", "nvidia,ib_uverbs", ("yes", "built")),
        ("ffffffffc0a0 T ib_register_client\t[ib_core]\n", "", ("no", "stub")),
        ("ffffffffc0a0 t __ib_register_peer_memory_client_old\n", None, ("no", "absent")),
    ],
)
def test_the_probe_tells_a_stub_of_peermem(
    symbols: str, depends: str | None, said: tuple[str, str], tmp_path: Path
) -> None:
    (tmp_path / "kallsyms").write_text(symbols)
    (tmp_path / "bin").mkdir()
    answers = {
        "ofed_info": "echo OFED-internal-25.01-0.6.0:",
        "modinfo": f"echo {depends}" if depends is not None else "exit 1",
    }
    for name, text in answers.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    text = script("probe.sh").partition("#!/bin/sh")[0].replace("/proc/kallsyms", str(tmp_path / "kallsyms"))
    path = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    done = subprocess.run(["sh"], input=f"{text}\npeer_memory\n", capture_output=True, text=True, check=False, env=path)
    assert done.stderr == ""
    tuning = parse_probe(f"#: gpunode-probe 1\n#: tuning\n{done.stdout}#: end\n").tuning
    assert (tuning.ofed, tuning.peer_memory, tuning.peermem) == ("OFED-internal-25.01-0.6.0", *said)


def test_the_page_has_every_setting_with_its_evidence_and_risk() -> None:
    table = (Path(__file__).parents[2] / "docs/tuning.md").read_text()
    for row in load_tuning():
        [line] = [text for text in table.splitlines() if text.startswith(f"| `{row.key}: ")]
        assert f"| {row.evidence} |" in line and row.warning in line
        assert all(
            word.rpartition(".")[2].partition("=")[0] in line for words in row.set.values() for word in words.split()
        )


def test_what_verify_finds_is_fixed_by_keys_that_there_are() -> None:
    facts = node(
        rdma=(RdmaPort(device="mlx5_0", port=1, slot=NIC, state="ACTIVE"),),
        pcie=tuple(replace(link, iommu="DMA") for link in node().pcie),
        services={
            "docker": Service(name="docker", active="active", memlock="8388608"),
            "nvidia-imex": Service(name="nvidia-imex", enabled="enabled"),
        },
        tuning=Tuning(governors=("schedutil",), imex_dra=True),
    )
    checks = [*host_checks(facts, load_knowledge()), *peer_checks(facts)]
    keys = {one.id: found.groups() for one in checks if (found := re.search(r"(tuning|fabric)\.(\w+): (\w+)", one.fix))}
    assert keys.keys() == {"pcie.acs", "iommu.mode", "cpu.governor", "engine.memlock", "fabric.imex"}
    for section, key, value in keys.values():
        assert getattr(getattr(parse_spec({section: {key: value}}), section), key) == value


@pytest.mark.parametrize(
    ("process", "unit", "status", "restarts"),
    [
        ("8388608", "infinity", "warning", True),
        ("unlimited", "8388608", "passed", False),
        ("", "18446744073709551615", "passed", False),
        ("", "8388608", "warning", True),
    ],
    ids=["not restarted since", "raised by hand", "not read of the process", "neither"],
)
def test_the_limit_that_counts_is_that_of_the_process(process: str, unit: str, status: str, restarts: bool) -> None:
    end, id_ = "| process 812\t/usr/bin/containerd", "| MainPID=812\n"
    text = H100.read_text().replace(end, f"| locked 812 {process}\n{end}" if process else end)
    services = parse_probe(text.replace(id_, f"{id_}| LimitMEMLOCK={unit}\n")).services
    only = node(services={"containerd": services["containerd"]}, virtualization="none")
    active = replace(only, rdma=(RdmaPort(device="mlx5_0", port=1, slot=NIC, state="ACTIVE"),))
    assert [one.status for one in host_checks(active, load_knowledge()) if one.id == "engine.memlock"] == [status]
    assert _restarted(only) is restarts
    assert _restarted(replace(only, virtualization="lxc")) is (unit == "8388608"), "it may not raise limits"


def _restarted(facts: NodeFacts) -> bool:
    steps, _ = planned(facts, {"memlock": "unlimited"})
    return "containerd.service" in steps.get("runtime.activate", {}).get("restart", ())


def test_the_probe_reads_the_limit_of_a_process_from_the_kernel() -> None:
    kind = resource.RLIMIT_MEMLOCK
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as process:
        resource.prlimit(process.pid, kind, (65536, resource.prlimit(process.pid, kind)[1]))
        text = script("probe.sh").partition("#!/bin/sh")[0]
        text += "booted_systemd() { :; }; known_units() { REPLY=a.service; }\n"
        text += f"in_full() {{ printf 'MainPID=%s\\n' {process.pid} 0; }}; probe_units; locked 0\n"
        done = subprocess.run(["sh"], input=text, capture_output=True, text=True, check=False)
        process.kill()
    assert [line for line in done.stdout.splitlines() if "locked" in line] == [f"| locked {process.pid} 65536"]
    assert done.stderr == ""


@pytest.mark.parametrize("place", ["extra", "updates/dkms", "kernel/drivers/misc", ""])
def test_gdrcopy_s_module_is_found_where_its_packages_put_it(place: str, tmp_path: Path) -> None:
    folder = tmp_path / os.uname().release / place
    folder.mkdir(parents=True)
    if place:
        (folder / "gdrdrv.ko.xz").touch()
    text = script("probe.sh").partition("#!/bin/sh")[0].replace("/lib/modules/", f"{tmp_path}/") + "probe_tuning\n"
    done = subprocess.run(["sh"], input=text, capture_output=True, text=True, check=False)
    assert ("| gdrdrv yes" in done.stdout.splitlines()) is bool(place)


@pytest.mark.parametrize(
    ("word", "known"), [("iommu=pt", True), ("iommu=pt,strict", True), ("iommu=force,pt", True), ("iommu=nopt", False)]
)
def test_an_argument_set_by_hand_needs_no_boot_loader(word: str, known: bool) -> None:
    hand = node(tuning=Tuning(arguments=(word,)))
    assert (planned(hand, {"iommu": "passthrough"})[1] == []) is known
    both = node(tuning=Tuning(loader="grubby", arguments=(word,), next_arguments=(word,)))
    argument = kernel_argument.KernelArgument(word="iommu=pt")
    assert (argument.actual(both) == argument.wanted) is known
    ours = files_of(planned(both, {"iommu": "passthrough"})[0], "driver").get(kernel_argument.FILES["grubby"])
    assert (ours is None) is known, "what a person has set does not become gpunode's"


def test_everything_is_planned_and_a_node_that_has_it_is_left() -> None:
    asked = {
        "iommu": "passthrough",
        "acs": "off",
        "governor": "performance",
        "memlock": "unlimited",
        "inotify": "raised",
        "sysctl": {"net.core.rmem_max": "536870912"},
    }
    services = {"containerd": Service(name="containerd", active="active", enabled="enabled", memlock="8388608")}
    before = node(services=services)
    steps, problems = planned(before, asked)
    assert problems == []
    assert files_of(steps, "driver")[GRUB] == (
        "# written by gpunode: arguments of the kernel's command line\n"
        'GRUB_CMDLINE_LINUX_DEFAULT="$GRUB_CMDLINE_LINUX_DEFAULT iommu=pt"\n'
    )
    assert steps["driver.activate"]["arguments"] == {"iommu=pt": "present"}
    assert steps["driver.activate"]["reboot"] == "if-needed"
    values = files_of(steps, "fabric")[host_settings.VALUES]
    assert values == f"# written by gpunode\ngovernor performance\nacs {PORT_1}\nacs {PORT_2}\n"
    assert steps["fabric.activate"]["services"] == [host_settings.UNIT]
    runtime = files_of(steps, "runtime")
    assert str(runtime[sysctl.TUNING_CONF]).splitlines()[1:] == [
        "fs.inotify.max_user_instances = 65535",
        "fs.inotify.max_user_watches = 524288",
        "net.core.rmem_max = 536870912",
    ]
    assert f"/etc/systemd/system/containerd.service.d/{memlock._NAME}" in runtime
    assert steps["runtime.activate"]["restart"] == ["containerd.service"]
    assert steps["runtime.activate"]["sysctl"]["net.core.rmem_max"] == "536870912"
    desired = DesiredState({"driver": {"method": "preinstalled"}, "tuning": asked})
    assert any("no longer kept" in text for text in desired.plan("node1", before).plan.warnings), "risks are shown"
    after = _with(before, steps)
    left = desired.pending(desired.plan("node1", after))
    assert [
        key for key in left if key.role in ("driver", "fabric") or "memlock" in key.name or "sysctl" in key.name
    ] == []
    drift = replace(after, tuning=replace(after.tuning, governors=("schedutil",)))
    assert planned(drift, asked)[0]["fabric.activate"] == {"services": [], "restart": [host_settings.UNIT]}


def _with(facts: NodeFacts, steps: Mapping[str, Any]) -> NodeFacts:
    """The node as these steps leave it, after a reboot."""
    files = dict(facts.files)
    for id_ in ("driver.files", "fabric.files", "runtime.files"):
        for one in steps.get(id_, ()):
            data = one["content"].encode()
            digest = hashlib.sha256(data).hexdigest()
            files[one["path"]] = ConfigFile(
                path=one["path"], sha256=digest, mode=int(one["mode"], 8), size=len(data), data=data
            )
    services = {name: replace(one, memlock="infinity") for name, one in facts.services.items()}
    services["gpunode-host"] = Service(name="gpunode-host", active="active", enabled="enabled")
    return replace(
        facts,
        files=files,
        services=services,
        sysctl={**facts.sysctl, **steps["runtime.activate"]["sysctl"]},
        pcie=tuple(replace(one, acs=one.acs.replace("0x001d", "0x0011")) for one in facts.pcie),
        tuning=replace(facts.tuning, governors=("performance",), arguments=("iommu=pt",), next_arguments=("iommu=pt",)),
    )


def test_an_argument_that_is_no_longer_asked_for_goes_from_the_boot_entries() -> None:
    steps, _ = planned(node(), {"iommu": "passthrough"})
    [file] = [one for one in steps["driver.files"] if one["path"] == GRUB]
    there = ConfigFile(path=GRUB, sha256="0" * 64, data=file["content"].encode())
    tuning = replace(node().tuning, arguments=("iommu=pt",), next_arguments=("iommu=pt",))
    gone, _ = planned(node(files={**node().files, GRUB: there}, tuning=tuning), {})
    assert files_of(gone, "driver")[GRUB] is None
    assert gone["driver.activate"]["arguments"] == {"iommu=pt": "absent"}


def test_grubby_has_a_file_that_says_what_is_gpunodes() -> None:
    grubby = node(tuning=Tuning(loader="grubby"))
    path = kernel_argument.FILES["grubby"]
    assert str(files_of(planned(grubby, {"iommu": "passthrough"})[0], "driver")[path]).splitlines()[-1] == "iommu=pt"
    by_hand = node(tuning=Tuning(loader="grubby", arguments=("iommu=pt",), next_arguments=("iommu=pt",)))
    steps, problems = planned(by_hand, {"iommu": "passthrough"})
    assert path not in files_of(steps, "driver") and problems == [], "else it would go when it is no longer asked for"


@pytest.mark.parametrize("shell", [["dash"], ["bash"], ["busybox", "sh"]], ids=" ".join)
def test_the_unit_sets_reads_back_and_restores(shell: list[str], tmp_path: Path) -> None:
    """setpci is a stub with a register a slot: no bridge with ACS is at hand."""
    cpus, values, before = tmp_path / "cpufreq", tmp_path / "values", tmp_path / "before"
    for number, was in enumerate(("schedutil", "performance")):
        (cpus / f"policy{number}").mkdir(parents=True)
        (cpus / f"policy{number}/scaling_governor").write_text(f"{was}\n")
    (tmp_path / "setpci").write_text(
        f"""#!/bin/sh
[ "$1" = -s ] || exit 1
file={tmp_path}/acs.$2
case $3 in
ECAP_ACS+6.w) cat "$file" ;;
ECAP_ACS+6.w=0:2c) printf '%04x\\n' "$((0x$(cat "$file") & ~0x2c))" >"$file.new" && mv "$file.new" "$file" ;;
ECAP_ACS+6.w=*) echo "${{3#*=}}" >"$file" ;;
*) exit 1 ;;
esac
"""
    )
    (tmp_path / "setpci").chmod(0o755)
    (tmp_path / f"acs.{PORT_1}").write_text("001d\n")
    text = (TEMPLATES / "host-settings.sh.j2").read_text()
    for place, own in {
        host_settings.VALUES: values,
        "/run/gpunode-host-settings": before,
        "/sys/devices/system/cpu/cpufreq": cpus,
        "PATH=/usr/local/sbin": f"PATH={tmp_path}:/usr/local/sbin",
    }.items():
        assert place in text
        text = text.replace(place, str(own))

    def run(word: str) -> tuple[int, str, list[str]]:
        done = subprocess.run([*shell, "-s", word], input=text, capture_output=True, text=True, check=False)
        governors = [path.read_text().strip() for path in sorted(cpus.glob("*/scaling_governor"))]
        return done.returncode, (tmp_path / f"acs.{PORT_1}").read_text().strip(), governors

    values.write_text(f"# written by gpunode\ngovernor performance\nacs {PORT_1}\n")
    assert run("apply") == run("apply") == (0, "0011", ["performance", "performance"])
    assert run("restore") == (0, "001d", ["schedutil", "performance"]) and not before.exists()
    values.write_text("acs 0000:99:00.0\n")
    assert run("apply")[0] == 1, "a bridge that is not there"


def test_the_real_setpci_knows_the_register(tmp_path: Path) -> None:
    """By a dump of lspci -xxxx, which it reads in place of a machine."""
    if subprocess.run(["which", "setpci"], capture_output=True, check=False).returncode:
        pytest.skip("needs pciutils")
    config = bytearray(4096)
    config[0:4], config[0x100:0x104] = b"\xde\x10\x30\x23", b"\x0d\x00\x01\x00"
    config[0x06], config[0x34], config[0x40:0x42] = 0x10, 0x40, b"\x10\x00"  # it is PCI Express
    config[0x106:0x108] = b"\x1d\x00"
    rows = (f"{at:02x}: {config[at : at + 16].hex(' ')}" for at in range(0, 4096, 16))
    (tmp_path / "dump").write_text("00:01.0 Bridge\n" + "\n".join(rows) + "\n")
    words = ["setpci", "-A", "dump", "-O", f"dump.name={tmp_path}/dump", "-s", "00:01.0", "ECAP_ACS+6.w"]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "001d\n"


LOADERS = {
    "update-grub": """#!/bin/sh
. "$NODE/default/grub"
for file in "$NODE"/default/grub.d/*.cfg; do [ ! -e "$file" ] || . "$file"; done
echo "linux /vmlinuz root=UUID=1 ro $GRUB_CMDLINE_LINUX_DEFAULT" >"$NODE/grub.cfg"
""",
    "grubby": """#!/bin/sh
args=$(cat "$NODE/args")
case $1:$2 in
--info=DEFAULT:) echo "args=\\"$args\\"" ;;
--update-kernel=ALL:--args=*)
  new=${2#--args=}
  echo "$(echo "$args" | tr ' ' '\\n' | grep -v "^${new%%=*}=" | tr '\\n' ' ')$new" >"$NODE/args" ;;
--update-kernel=ALL:--remove-args=*)
  echo "$args" | tr ' ' '\\n' | grep -vx -- "${2#--remove-args=}" | tr '\\n' ' ' >"$NODE/args" ;;
*) exit 1 ;;
esac
""",
}


class BootEntries:
    """A node of either loader; the real ones run in tests/lab/test_tuning.py."""

    def __init__(self, folder: Path, loader: str) -> None:
        self.folder, self.loader = folder, loader
        for name in ("bin", "state", "default/grub.d"):
            (folder / name).mkdir(parents=True)
        (folder / "bin" / loader).write_text(LOADERS[loader])
        (folder / "bin" / loader).chmod(0o755)
        (folder / "default/grub").write_text('GRUB_CMDLINE_LINUX_DEFAULT="quiet iommu=on"\n')
        (folder / "args").write_text("ro quiet iommu=on\n")
        (folder / "cmdline").write_text("ro quiet\n")
        if loader == "update-grub":
            self.run_loader()

    def run_loader(self) -> None:
        subprocess.run([self.folder / "bin" / self.loader], env={**os.environ, "NODE": str(self.folder)}, check=True)

    def script(self, name: str, **request: bytes) -> Outcome:
        text = script(name)
        for place in ("/boot/grub/grub.cfg", "/proc/cmdline", "/etc/default"):
            text = text.replace(place, f"{self.folder}/{place.rpartition('/')[2]}")
        given = {"state": f"{self.folder}/state\n".encode(), **request}
        env = {"PATH": f"{self.folder}/bin:/usr/bin:/bin", "NODE": str(self.folder)}
        done = subprocess.run(["sh"], input=program(text, given), capture_output=True, text=True, check=False, env=env)
        return parse_outcome(done.stdout, done.returncode)

    def entry(self) -> str:
        return (self.folder / ("grub.cfg" if self.loader == "update-grub" else "args")).read_text()


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.slow
def test_an_argument_is_in_the_boot_entries_asks_for_one_reboot_and_is_undone(loader: str, tmp_path: Path) -> None:
    node = BootEntries(tmp_path, loader)
    before = node.entry()
    ours = tmp_path / "default/grub.d/90-gpunode.cfg"
    ours.write_text('GRUB_CMDLINE_LINUX_DEFAULT="$GRUB_CMDLINE_LINUX_DEFAULT iommu=pt"\n')
    request = activate_request({"arguments": {"iommu=pt": "present"}})
    checked = node.script("activate.sh", **request, check=b"1\n")
    assert checked.status == "changed" and node.entry() == before
    done = node.script("activate.sh", **request)
    assert done.message == "reboot needed: iommu=pt is on the kernel's command line from the next boot on", done
    assert "iommu=pt" in node.entry()
    (tmp_path / "cmdline").write_text("ro quiet iommu=pt\n")
    assert node.script("activate.sh", **request).status == "unchanged"
    [record] = [
        json.loads(line) for line in (tmp_path / "state/journal.jsonl").read_text().splitlines() if "argument" in line
    ]
    assert (record["name"], record["from"], record["to"]) == ("iommu", "iommu=on", "iommu=pt")
    ours.unlink()  # undo removes the file first
    undone = node.script("restore.sh", argument=b"iommu iommu=on\n")
    assert undone.status == "changed" and sorted(node.entry().split()) == sorted(before.split())


@pytest.mark.slow
def test_an_argument_with_more_values_is_left_as_a_person_has_set_it(tmp_path: Path) -> None:
    node = BootEntries(tmp_path, "grubby")
    (tmp_path / "args").write_text("ro iommu=pt,strict\n")
    (tmp_path / "cmdline").write_text("ro iommu=pt,strict\n")
    request = activate_request({"arguments": {"iommu=pt": "present"}})
    assert node.script("activate.sh", **request).status == "unchanged"
    assert node.entry() == "ro iommu=pt,strict\n"
