"""Probe texts → facts, on recorded and composed texts (docs/probe.md says which) and on garbage.

GPUNODE_WRITE_CASES=1 writes the facts.json of a probe.txt that says something else now, to be read.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpunode.core.edits import RuntimeRequest, edit_runtime
from gpunode.core.errors import InputError
from gpunode.core.facts import facts_from_data, facts_hash, facts_to_data, parse_probe
from gpunode.core.facts.driver import with_virtual
from gpunode.core.items.kubelet import driver_in_force
from gpunode.core.model import NodeFacts, NvmlGpu, PciDevice
from gpunode.edge.load import load_knowledge

CASES = Path(__file__).parent.parent / "cases" / "probes"
NAMES = sorted(folder.name for folder in CASES.iterdir())


def text_of(name: str) -> str:
    return (CASES / name / "probe.txt").read_text()


def facts_of(name: str) -> NodeFacts:
    return parse_probe(text_of(name))


@pytest.mark.parametrize("name", NAMES)
def test_a_probe_gives_the_facts_written_next_to_it(name: str) -> None:
    path, facts = CASES / name / "facts.json", facts_of(name)
    if os.environ.get("GPUNODE_WRITE_CASES") and facts != facts_from_data(json.loads(path.read_text())):
        text = json.dumps(facts_to_data(facts, brief=True), indent=1, sort_keys=True, ensure_ascii=False)
        path.write_text(f"{text}\n")
    assert facts == facts_from_data(json.loads(path.read_text()))


def test_sections_of_another_release_are_passed_over() -> None:
    text = sections(system="hostname node1", clients="1 python3", tools="sh /bin/sh", later_section="of whatever kind")
    assert parse_probe(text) == parse_probe(sections(system="hostname node1"))


@pytest.mark.parametrize("name", NAMES)
def test_facts_survive_json_in_full_and_in_brief(name: str) -> None:
    facts = facts_of(name)
    for brief in (False, True):
        assert facts_from_data(json.loads(json.dumps(facts_to_data(facts, brief=brief)))) == facts


@pytest.mark.parametrize("name", NAMES)
def test_every_line_of_a_case_is_understood(name: str) -> None:
    assert not [note for note in facts_of(name).notes if "not understood" in note]


def seen(facts: NodeFacts) -> dict[str, object]:
    """What a person reads off a probe text at first sight."""
    return {
        "distro": facts.distro.key,
        "gpus": [g.id for g in facts.gpus],
        "driver": (facts.driver.loaded, facts.driver.loaded_flavour, facts.driver.userspace),
        "runtimes": {r.name: (r.version, driver_in_force(facts, r)) for r in facts.runtimes},
        "secure_boot": facts.secure_boot,
    }


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("container-no-gpu", ("debian:12", [], ("", "", ""), {"podman": ("4.3.1", "cgroupfs")}, None)),
        (
            "debian12-h100-fresh",
            (
                "debian:12",
                ["10de:2330"],
                ("", "", ""),
                {"containerd": ("1.6.20~ds1", "cgroupfs"), "docker": ("20.10.24+dfsg1", "systemd")},
                False,
            ),
        ),
        (
            "debian12-h100-provisioned",
            (
                "debian:12",
                ["10de:2330"],
                ("580.95.05", "open", "580.95.05"),
                {"containerd": ("1.6.20~ds1", "systemd"), "docker": ("20.10.24+dfsg1", "systemd")},
                False,
            ),
        ),
        (
            "ubuntu2404-two-models",
            ("ubuntu:24.04", ["10de:2204", "10de:2236"], ("575.64.03", "proprietary", "575.64.03"), {}, True),
        ),
        (
            "ubuntu2204-hgx-h100-kubelet",
            (
                "ubuntu:22.04",
                ["10de:2330"] * 8,
                ("570.195.03", "proprietary", "570.195.03"),
                {"containerd": ("1.7.28", "systemd")},
                False,
            ),
        ),
        ("ubuntu2404-gb10", ("ubuntu:24.04", ["10de:2e12"], ("580.95.05", "open", "580.95.05"), {}, True)),
        ("wsl-ubuntu2404", ("ubuntu:24.04", [], ("", "", "581.42"), {}, None)),
        ("jetson-orin", ("ubuntu:22.04", [], ("540.4.0", "open", "540.4.0"), {}, False)),
        (
            "debian12-driver-mismatch",
            ("debian:12", ["10de:20b5"], ("535.247.01", "proprietary", "550.163.01"), {}, None),
        ),
        (
            "debian12-no-root",
            ("debian:12", ["10de:2236", "10de:2236"], ("", "", ""), {"containerd": ("1.6.20~ds1", None)}, None),
        ),
    ],
)
def test_the_facts_are_what_a_person_reads_in_the_text(name: str, expected: tuple[object, ...]) -> None:
    assert tuple(seen(facts_of(name)).values()) == expected


def test_a_provisioned_node_shows_modules_holds_and_the_interrupted_transaction() -> None:
    facts = facts_of("debian12-h100-provisioned")
    assert [(k.release, k.running, k.module, k.flavour, k.dkms) for k in facts.kernels] == [
        ("6.1.0-40-amd64", False, "580.95.05", "open", "installed"),
        ("6.1.0-41-amd64", True, "580.95.05", "open", "installed"),
    ]
    assert {name for name, p in facts.packages.items() if p.held} == {
        "nvidia-open",
        "nvidia-kernel-open-dkms",
        "libnvidia-ml1",
        "nvidia-container-toolkit",
    }
    assert "nvidia-legacy-check" not in facts.packages, "removed, only its configuration is left"
    assert facts.packages["libnvidia-ml1:i386"].arch == "i386"
    assert facts.unfinished == ("01J9B",)
    assert (facts.cuda, facts.cuda_default, facts.toolkit) == (("12.8", "13.0"), "12.8", "1.18.1")
    assert (facts.files["/etc/modules-load.d/gpunode.conf"].data) == b"overlay\nbr_netfilter\n"


def test_health_is_read_from_the_hgx_probe() -> None:
    facts = facts_of("ubuntu2204-hgx-h100-kubelet")
    assert len(facts.nvswitches) == 4
    assert facts.nvlink_inactive == ("GPU 2 link 11",)
    assert [g.fabric_state for g in facts.nvml] == [*["Completed"] * 6, "In Progress", "Completed"]
    assert facts.nvml[7].mig_current == "Enabled"
    kubernetes = facts.kubernetes
    assert (kubernetes.kind, kubernetes.role, kubernetes.kubelet) == ("kubeadm", "worker", "1.31.13")
    assert (kubernetes.cri_socket, kubernetes.cgroup_driver) == ("/run/containerd/containerd.sock", "systemd")
    assert kubernetes.gpu_operator
    assert driver_in_force(facts, facts.runtimes[0]) == "systemd"


def test_how_gpus_are_joined_is_read_from_the_hgx_probe() -> None:
    topology = facts_of("ubuntu2204-hgx-h100-kubelet").topology
    assert topology.names == (*(f"GPU{n}" for n in range(8)), "NIC0", "NIC1")
    assert topology.links[4] == (*["NV18"] * 4, "X", *["NV18"] * 3, "SYS", "PXB")
    assert topology.cpus == (*["0-47,96-143"] * 4, *["48-95,144-191"] * 4, "", "")
    assert topology.numa == (*"00001111", "", "")


JOINED = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tPIX\t0-7\nGPU1\tPIX\t X \t0-7\n"


@pytest.mark.parametrize(
    ("text", "links", "cpus", "numa"),
    [
        (JOINED, (("X", "PIX"), ("PIX", "X")), ("0-7", "0-7"), ("", "")),  # drivers before 450: no NUMA node
        (JOINED.replace("0-7", "N/A"), (("X", "PIX"), ("PIX", "X")), ("", ""), ("", "")),
        (JOINED.partition("GPU1\tPIX")[0], (), (), ()),  # cut off
        (JOINED.replace("\tPIX\t X ", ""), (), (), ()),  # a row that is too short
        ("Failed to initialize NVML: Unknown Error\nexit: 9", (), (), ()),
        ("", (), (), ()),
    ],
)
def test_a_matrix_is_read_whole_or_not_at_all(text: str, links: object, cpus: object, numa: object) -> None:
    found = parse_probe(sections(topology=text)).topology
    assert (found.links, found.cpus, found.numa) == (links, cpus, numa)


LINKS_UP = "GPU {}: NVIDIA A100-SXM4-80GB (UUID: GPU-{})\n\t Link 0: 25 GB/s\n\t Link 1: {}\n"
LINKS_DOWN = "GPU {}: {} (UUID: GPU-{})\nNVML:{}Unable to retrieve {} information as all links are inActive\n"


@pytest.mark.parametrize(("space", "name"), [(" ", "NVLink"), ("", "Nvlink"), (" ", "Nvlink")])
def test_a_gpu_all_of_whose_links_are_down_is_seen_where_its_like_has_some_up(space: str, name: str) -> None:
    down = LINKS_DOWN.format(1, "NVIDIA A100-SXM4-80GB", "1", space, name)
    text = LINKS_UP.format(0, "0", "25 GB/s") + down + LINKS_UP.format(2, "2", "<inactive>")
    assert parse_probe(sections(nvlink=text)).nvlink_inactive == ("GPU 1: all links", "GPU 2 link 1")
    for other in (LINKS_DOWN.format(0, "NVIDIA A100-SXM4-80GB", "0", space, name), LINKS_UP.format(0, "0", "25 GB/s")):
        card = LINKS_DOWN.format(1, "NVIDIA GeForce RTX 3090", "1", space, name)  # without a bridge, beside any other
        assert parse_probe(sections(nvlink=other + card)).nvlink_inactive == ()


def test_xids_are_read_with_a_mig_instance_and_as_drivers_before_340_write_them() -> None:
    text = (
        "[71.3] NVRM: Xid (PCI:0000:3b:00 GPU-I:02): 94, pid=812, name=train, Contained: SM (0x1)\n"
        "[72.3] NVRM: Xid (PCI:0000:3b:00 GPU-I:02 GPU-CI:00): 43, pid=812, name=train\n"
        "[73.3] NVRM: Xid (0000:04:00): 13, 0003 00000000\n"
        "[74.3] NVRM: Xid (PCI:0000:19:00.0): 119, Timeout"
    )
    seen = [(xid.code, xid.slot) for xid in parse_probe(sections(xids=text)).xids]
    assert seen == [(94, "0000:3b:00.0"), (43, "0000:3b:00.0"), (13, "0000:04:00.0"), (119, "0000:19:00.0")]


def test_no_answer_of_a_real_gpu_that_is_well_is_taken_for_a_fault() -> None:
    """Every field of --query-gpu, asked on a virtual machine with an H100; its serial number and UUID are redacted."""
    names, row = (CASES.parent / "smi/h100-80gb-hbm3-vm-580.159.04.csv").read_text().splitlines()
    fields = [name.partition(" ")[0] for name in names.split(", ")]
    [gpu] = parse_probe(sections(nvidia_smi=f"fields {','.join(fields)}\n{row}")).nvml
    assert (len(fields), gpu.fault, gpu.name) == (198, "", "NVIDIA H100 80GB HBM3")
    assert (gpu.recovery, gpu.fabric_state, gpu.retired_pending) == ("None", "N/A", "N/A")


def test_the_matrix_of_a_real_gpu_is_read() -> None:
    """Its head is underlined, also where it goes into a file."""
    record = CASES.parent / "selftest/h100-80gb-hbm3-vm/nvidia-smi-topo.txt"
    topology = parse_probe(sections(topology=record.read_text())).topology
    assert (topology.names, topology.links, topology.cpus, topology.numa) == (("GPU0",), (("X",),), ("0-15",), ("0",))


@pytest.mark.parametrize("card", ["mlx4_0", "hfi1_0", "NIC0", "mlx5_bond_0"])
def test_the_topology_has_every_column_before_the_cpus(card: str) -> None:
    text = (
        f"\t\x1b[4mGPU0\tGPU1\t{card}\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
        f"GPU0\t X \tPHB\tSYS\t0-7\t0\t\tN/A\nGPU1\tPHB\t X \tPIX\t8-15\t1\t\tN/A\n{card}\tSYS\tPIX\t X \t\t\t\n"
    )
    topology = parse_probe(sections(topology=text)).topology
    assert topology.names == ("GPU0", "GPU1", card)
    assert topology.links[1] == ("PHB", "X", "PIX")
    assert (topology.cpus, topology.numa) == (("0-7", "8-15", ""), ("0", "1", ""))


def test_a_pci_domain_is_cut_only_where_it_is_zero() -> None:
    row = "fields index,pci.bus_id\n0, 00010000:01:00.0\n1, 00000000:01:00.0\n2, 0000000F:01:00.0"
    slots = [gpu.slot for gpu in parse_probe(sections(nvidia_smi=row)).nvml]
    assert slots == ["10000:01:00.0", "0000:01:00.0", "000f:01:00.0"]


def test_a_card_without_bridge_has_no_nvlink_down_and_broken_packages_and_locks_are_named() -> None:
    facts = facts_of("ubuntu2404-two-models")
    assert facts.nvlink_inactive == ()
    assert facts.broken_packages == ("linux-image-6.8.0-88-generic", "zlib1g-dev")
    assert facts.package_lock == "unattended-upgr (process 5120) holds /var/lib/dpkg/lock-frontend"
    assert [(x.code, x.slot) for x in facts.xids] == [(63, "0000:21:00.0"), (31, "0000:01:00.0")]
    assert [(g.ecc_uncorrected, g.remap_pending) for g in facts.nvml] == [(None, "N/A"), (2, "Yes")]


def test_memory_that_the_driver_does_not_tell_is_none() -> None:
    assert [g.memory_mib for g in facts_of("ubuntu2404-gb10").nvml] == [None]


def test_what_nvidia_smi_says_when_it_fails_is_kept() -> None:
    facts = facts_of("debian12-driver-mismatch")
    assert facts.driver.smi == "Failed to initialize NVML: Driver/library version mismatch"
    assert facts.nvml == ()
    assert facts.driver.runfile == "535.247.01"
    assert [k.dkms for k in facts.kernels] == ["installed", "added"]


def test_what_could_not_be_read_without_root_is_noted() -> None:
    facts = facts_of("debian12-no-root")
    assert (facts.root, facts.user) == (False, "deploy")
    assert facts.files["/etc/containerd/config.toml"].data is None
    assert facts.files["/etc/apt/trusted.gpg.d/cuda.gpg"].target == "/usr/share/keyrings/cuda.gpg"
    assert facts.runtimes[0].effective_error == "", "who may not read the file says nothing against it"
    assert "file /etc/containerd/config.toml: not permitted" in facts.notes
    assert [g.virtual_function for g in facts.gpus] == [False, True]


PLACES = [("wsl-ubuntu2404", "wsl", False, ""), ("container-no-gpu", "docker", True, "")]


@pytest.mark.parametrize(("name", "virtualization", "container", "tegra"), PLACES)
def test_wsl_and_containers_are_distinguished(name: str, virtualization: str, container: bool, tegra: str) -> None:
    facts = facts_of(name)
    assert (facts.virtualization, facts.container, facts.tegra) == (virtualization, container, tegra)


def test_a_jetson_is_known_by_its_device_tree() -> None:
    assert facts_of("jetson-orin").tegra.startswith("NVIDIA Jetson Orin Nano")


def test_an_igx_is_a_tegra_board_also_with_a_graphics_card() -> None:
    text = text_of("jetson-orin")
    text = re.sub(r"^\| compatible .*$", "| compatible nvidia,p3740-0002+p3701-0008 nvidia,tegra234", text, flags=re.M)
    text = re.sub(r"^\| model .*$", "| model NVIDIA IGX Orin Development Kit", text, flags=re.M)
    assert parse_probe(text).tegra == "NVIDIA IGX Orin Development Kit"


def sections(**content: str) -> str:
    parts = [f"#: {name}\n" + "".join(f"| {line}\n" for line in text.splitlines()) for name, text in content.items()]
    return "#: gpunode-probe 1\n" + "".join(parts) + "#: end\n"


LOCKED = (
    "ii \tnvidia-driver\t3:580.95.05-1.el9\tx86_64\nii \tkernel\t0:5.14.0-570.el9\tx86_64\nii \tdkms\t0:3.2.1-1\tnoarch"
)


@pytest.mark.parametrize(
    ("holds", "held"),
    [
        ("nvidia-driver-3:580.95.05-1.el9.*", {"nvidia-driver"}),
        ('[[packages]]\nname = "kernel"', {"kernel"}),
        ("type: package\nsolvable_name: nvidia*", {"nvidia-driver"}),
        ("IgnorePkg dkms kernel", {"dkms", "kernel"}),
        ("# nvidia-driver-3:580.95.05", set()),
    ],
)
def test_version_locks_of_dnf_zypper_and_pacman_hold_packages(holds: str, held: set[str]) -> None:
    facts = parse_probe(sections(packages=f"manager dnf\n{LOCKED}", holds=holds))
    assert {name for name, package in facts.packages.items() if package.held} == held
    assert facts.packages["nvidia-driver"].version == "3:580.95.05-1.el9"
    assert facts.packages["kernel"].version == "5.14.0-570.el9"


DOCKERD = (  # 26.1.5 and 20.10.24 of Debian, with a file that has an unknown key
    "unable to configure the Docker daemon with file /etc/docker/daemon.json: the following directives don't match any "
    "configuration option: defaut-runtime\n\nexit: 1",
    "Status: unknown flag: --validate\nSee 'dockerd --help'., Code: 125\n\nexit: 1",
    "unable to configure the Docker daemon with file /etc/docker/daemon.json: open /etc/docker/daemon.json: permission "
    "denied\n\nexit: 1",
)


def test_what_dockerd_says_against_its_file_stands_in_the_plan_with_the_key() -> None:
    engines = {"runtimes": "binary docker /usr/sbin/dockerd\nDocker version 26.1.5+dfsg1, build 411e817"}
    found = [parse_probe(sections(**engines, docker_check=said)) for said in (*DOCKERD, "configuration OK")]
    why = "the following directives don't match any configuration option: defaut-runtime"
    assert [facts.runtimes[0].effective_error for facts in found] == [why, "", "", ""]
    edits = [edit_runtime(facts, RuntimeRequest(runtime="docker")) for facts in found]
    assert [problem.what for edit in edits for problem in edit.problems] == [
        f"dockerd does not start with /etc/docker/daemon.json: {why}"
    ]


def test_a_file_that_changed_while_it_was_read_has_no_data() -> None:
    facts = parse_probe("#: gpunode-probe 1\n#: files\n#: file /etc/a\n| 644 root:root 9\n| YWJj\n#: end\n")
    assert facts.files["/etc/a"].data is None
    assert facts.notes == ("file /etc/a: 3 of 9 bytes: it changed while it was read",)


def test_banners_before_the_probe_and_carriage_returns_do_not_matter() -> None:
    text = text_of("debian12-h100-fresh")
    assert parse_probe("Welcome to node-a01\n\n" + text.replace("\n", "\r\n")) == parse_probe(text)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "not a probe: line 1 is ''"),
        ("sh: not found\n", "not a probe: line 1 is 'sh: not found'"),
        ("#: gpunode-probe 2\n#: end\n", "probe of another format: line 1 is '#: gpunode-probe 2'"),
        ("#: gpunode-probe 1\n#: system\n| hostname a\n", "the probe is cut off at line 3, in section 'system'"),
    ],
)
def test_what_is_no_whole_probe_is_refused_with_its_line(text: str, what: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_probe(text)
    assert caught.value.what == what
    assert caught.value.fix


def parses_or_refuses(text: str) -> None:
    try:
        facts = parse_probe(text)
    except InputError:
        return
    facts_hash(facts)


@given(st.text())
def test_no_text_makes_the_parser_fail_in_another_way(text: str) -> None:
    parses_or_refuses(text)
    parses_or_refuses(f"#: gpunode-probe 1\n{text}\n#: end\n")


@given(st.sampled_from(NAMES), st.data())
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_no_mutation_of_a_probe_makes_the_parser_fail_in_another_way(name: str, data: st.DataObject) -> None:
    text = text_of(name)
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 200)))
    parses_or_refuses(text[:start] + data.draw(st.text(max_size=20)) + text[end:])


WORDS = st.sampled_from(
    "system kernels pci driver nvidia_smi nvlink topology units runtimes packages holds locks files cuda "
    "journal".split()
)
CONTENT = st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=60), max_size=6)


@given(st.dictionaries(WORDS, CONTENT))
def test_no_section_content_makes_the_parser_refuse(content: dict[str, list[str]]) -> None:
    quoted = {name: "\n".join(lines) for name, lines in content.items()}
    facts_hash(parse_probe(sections(**quoted)))


@given(st.sampled_from(NAMES), st.integers(min_value=1))
@settings(deadline=None)
def test_every_cut_off_probe_is_refused(name: str, cut: int) -> None:
    text = text_of(name).rstrip("\n")
    with pytest.raises(InputError):
        parse_probe(text[: -1 - cut % (len(text) - 1)])


def test_the_hash_stays_when_only_volatile_facts_change() -> None:
    facts = facts_of("debian12-h100-provisioned")
    later = dataclasses.replace(
        facts,
        boot_id="other",
        nvml=(),
        notes=("x",),
        package_lock="apt",
        lease="other run",
        driver=dataclasses.replace(facts.driver, smi="trouble"),
    )
    assert facts_hash(later) == facts_hash(facts)


@pytest.mark.parametrize(
    "change",
    [
        {"arch": "aarch64"},
        {"kernels": ()},
        {"gpus": ()},
        {"packages": {}},
        {"files": {}},
        {"services": {}},
        {"unfinished": ()},
        {"user": "joe"},
        {"runtimes": ()},
        {"secure_boot": True},
    ],
    ids=lambda change: next(iter(change)),
)
def test_the_hash_changes_with_what_a_plan_rests_on(change: dict[str, object]) -> None:
    facts = facts_of("debian12-h100-provisioned")
    assert facts_hash(dataclasses.replace(facts, **change)) != facts_hash(facts)


def test_data_that_is_no_facts_is_refused() -> None:
    with pytest.raises(InputError):
        facts_from_data({"kernels": 3})


VIRTUAL = (
    "NVIDIA L4-12Q",
    "GRID T4-16Q",
    "NVIDIA A40-8A",
    "NVIDIA A100-4-20C",
    "GRID A100D-1-10CME",
    "GRID P40-1B",
)


def test_a_gpu_that_a_hypervisor_shares_out_is_known_by_its_name() -> None:
    """And no model that the knowledge has is taken for one."""
    physical = {gpu.name for gpu in load_knowledge().gpus.values()}
    gpus = (PciDevice(slot="0000:17:00.0", id="10de:27b8", class_code="0302"),)
    found = {
        name: with_virtual(gpus, [NvmlGpu(index=0, slot="0000:17:00.0", name=name)])[0].virtual_function
        for name in (*VIRTUAL, *physical)
    }
    assert len(physical) > 500
    assert [name for name, virtual in found.items() if virtual] == [*VIRTUAL]


def test_a_gpu_that_the_driver_never_started_has_no_uuid_and_stops_no_node() -> None:
    """What /proc/driver/nvidia/gpus has of a GPU whose firmware did not start (580.178.04)."""
    unknown = "| gpu 0 GPU-????????-????-????-????-????????????"
    text = re.sub(r"\| gpu 0 GPU-\S+", unknown, text_of("rocky9-h100-provisioned"))
    assert unknown in text
    facts = parse_probe(text)
    assert (facts.malformed, [(gpu.minor, gpu.uuid) for gpu in facts.cdi.gpus]) == ((), [(0, "")])
