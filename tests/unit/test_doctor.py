"""doctor: every fault shown once and nearly shown once; logs of any size and form; the state of a node; the command."""

from __future__ import annotations

import gzip
import json
import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.doctor import LINES as ORDINARY
from gpunode.cli.main import cli
from gpunode.core.doctor import (
    diagnose,
    diagnosis_data,
    diagnosis_text,
    parse_faults,
    scan,
    split_sections,
    state_faults,
)
from gpunode.core.errors import InputError
from gpunode.core.model import (
    Cdi,
    CdiGpu,
    CdiSpec,
    ConfigFile,
    DriverState,
    Kernel,
    NodeFacts,
    NvmlGpu,
    Package,
    PciDevice,
    Runtime,
    Service,
    Xid,
)
from gpunode.edge.doctor import load_faults
from gpunode.edge.load import load_scheduler_rules

FOLDER = Path(__file__).parents[1] / "cases" / "doctor"
CASES = yaml.safe_load((FOLDER / "cases.yml").read_text(encoding="utf-8"))
LINES = yaml.safe_load((FOLDER / "lines.yml").read_text(encoding="utf-8"))
TEXTS = yaml.safe_load((FOLDER / "texts.yml").read_text(encoding="utf-8"))
FAULTS = load_faults()
IN_LOGS = [fault.id for fault in FAULTS.faults.values() if fault.signs]


def ids(text: str) -> set[str]:
    return {finding.fault.id for finding in diagnose(FAULTS, [scan(FAULTS, "log", [text])]).findings}


def test_every_fault_with_signs_has_a_case_and_no_other() -> None:
    assert sorted(CASES) == sorted(IN_LOGS)
    assert len(IN_LOGS) >= 180


@pytest.mark.parametrize("name", IN_LOGS)
def test_a_fault_is_found_where_it_shows_and_not_where_something_is_like_it(name: str) -> None:
    assert name in ids(CASES[name]["shows"])
    assert name not in ids(CASES[name]["near"])


@pytest.mark.parametrize("name", IN_LOGS)
def test_what_shows_a_fault_shows_no_unrelated_one(name: str) -> None:
    """Others that are found too are its causes or consequences, or a wider name of the same thing."""
    related = {"cuda-802": {"cuda-802-kaslr"}, "cuda-802-kaslr": {"cuda-802"}}
    found = ids(CASES[name]["shows"]) - {name}
    known = set(FAULTS.faults[name].causes) | related.get(name, set())
    known |= {other.id for other in FAULTS.faults.values() if name in other.causes}
    assert found <= known


@pytest.mark.parametrize(("name", "line"), [(name, line) for name in LINES for line in LINES[name]])
def test_one_message_or_title_shows_its_fault_and_no_other(name: str, line: str) -> None:
    assert ids(line) == {name}


@pytest.mark.parametrize("name", TEXTS)
def test_what_stands_in_a_text_is_found_and_nothing_else(name: str) -> None:
    case = TEXTS[name]
    result = diagnose(FAULTS, [scan(FAULTS, "log", [case["text"]])])
    roots = {finding.fault.id for finding in result.findings if finding.root}
    follows = {finding.fault.id for finding in result.findings if not finding.root}
    assert (roots, follows) == (set(case.get("roots", [])), set(case.get("follows", [])))
    assert {f"{'s' * xid.nvswitch}{xid.code}" for xid in result.xids} == set(case.get("xids", []))


NOISE = "2026-11-22T01:02:03+0800 主机 systemd[1]: Started 日志.\n{}\nNov 22 kubelet: unrelated\n"


@pytest.mark.parametrize(
    "dress",
    [
        lambda text: f"> {text}",
        lambda text: f"```\n{text}\n```",
        lambda text: f"\x1b[31m{text}\x1b[0m",
        lambda text: NOISE.format(text),
        lambda text: text.replace('"', "&quot;").replace("'", "&#39;"),
        lambda text: json.dumps({"log": text.replace("\n", " ") + "\n", "stream": "stderr"}),
        lambda text: text.replace("\n", "\r\n"),
    ],
    ids=["quoted", "fenced", "coloured", "among noise", "html", "json log", "carriage returns"],
)
@pytest.mark.parametrize(
    "name", ["nvml-version-mismatch", "docker-no-driver", "k8s-no-runtime", "modprobe-key-rejected"]
)
def test_decoration_hides_nothing(name: str, dress: Any) -> None:
    assert name in ids(dress(CASES[name]["shows"]))


@pytest.mark.parametrize("width", [40, 60, 80, 100])
@pytest.mark.parametrize("name", ["smi-cannot-communicate", "docker-no-driver", "cuda-803", "rminitadapter"])
def test_lines_that_a_terminal_or_a_forum_has_broken_are_read_as_one(name: str, width: int) -> None:
    text = CASES[name]["shows"]
    hard = "\n".join(text[i : i + width] for i in range(0, len(text), width))
    assert name in ids(hard)


def test_a_sign_in_broken_lines_is_less_certain() -> None:
    text = CASES["cuda-803"]["shows"]
    (whole,) = diagnose(FAULTS, [scan(FAULTS, "log", [text])]).findings
    (broken,) = diagnose(FAULTS, [scan(FAULTS, "log", [re.sub(" (has|display)", r"\n\1", text)])]).findings
    assert whole.confidence != broken.confidence


def test_roots_stand_above_what_follows_from_them() -> None:
    text = "\n".join(
        CASES[name]["shows"] for name in ("sched-insufficient", "smi-cannot-communicate", "dkms-no-headers")
    )
    findings = diagnose(FAULTS, [scan(FAULTS, "log", [text])]).findings
    assert findings[0].fault.id == "dkms-no-headers" and findings[0].root
    roots = {finding.fault.id: finding.root for finding in findings}
    assert roots["smi-cannot-communicate"] is False


def test_causes_over_several_steps_count_and_circles_do_not_hang() -> None:
    rows = [
        {"id": name, "layer": "driver", "severity": "error", "match": [name], "cause": "c", "fix": "f", "source": "s"}
        for name in ("one", "two", "three")
    ]
    rows[0]["causes"], rows[1]["causes"], rows[2]["causes"] = ["two"], ["three"], ["two"]
    faults = parse_faults({"fault": rows}, {"xid": [], "source": ""}, {"sxid": [], "class": {}, "source": ""})
    found = {f.fault.id: f.root for f in diagnose(faults, [scan(faults, "log", ["one\nthree\n"])]).findings}
    assert found == {"one": True, "three": False}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"causes": ["nothing"]}, "names nothing"),
        ({"said_by": ["nothing"]}, "names nothing"),
        ({"match": ["Upper"]}, "Upper"),
        ({"match": ["it's"]}, "it's"),
        ({"match": [["a", "("]]}, "one"),
    ],
)
def test_rows_that_cannot_be_used_are_refused(row: dict[str, Any], message: str) -> None:
    base = {
        "id": "one",
        "layer": "driver",
        "severity": "error",
        "match": ["a"],
        "cause": "c",
        "fix": "f",
        "source": "s",
    }
    with pytest.raises(InputError, match=re.escape(message)):
        parse_faults({"fault": [base | row]}, {"xid": [], "source": ""}, {"sxid": [], "class": {}, "source": ""})


def test_every_row_has_a_source_and_says_what_to_do() -> None:
    for fault in FAULTS.faults.values():
        assert fault.cause and fault.fix and fault.source, fault.id
        assert "as above" not in f"{fault.cause} {fault.fix}", fault.id


# ---------------------------------------------------------------- Xid codes

XIDS = [
    ("NVRM: Xid (PCI:0000:ca:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.", [79]),
    ("[1.2] NVRM: Xid (0000:01:00): 31, Ch 00000010", [31]),
    ("NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7194, Contained: CE User Channel (0x9)", [94]),
    (
        "NVRM: GPU at PCI:0000:3b:00: GPU-1\nNVRM: Xid (PCI:0000:3b:00): 48, pid=1\nNVRM: Xid (PCI:0000:3b:00): 63, x",
        [48, 63],
    ),
    ("I keep getting Xid 79 errors on one of my cards", [79]),
    ("see table; Xid 48 is told of, but\nNVRM: Xid (PCI:0000:3b:00): 13, Graphics", [13]),
    ("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up", [20034]),
    ("NVRM: The NVIDIA GPU 0000:b3:00.0\nNVRM: (PCI ID: 10de:26b5) in this system has\nNVRM: fallen off the bus", [79]),
    ("the paxid 79 of our table", []),
    ("Xid 62/45 -> Xid 119 on the desktop", [62, 45, 119]),
    ("Xid 79 and 154 in dmesg, Xid 13 and 2 nodes", [79, 154, 13]),
    ("XID 149.37 (err status 0x00000000) NVLINK_NETIR_ERROR detected on GPU PCI:0019:01:00", [149]),
    ("SysLogsXIDErrorIsNotHealthy Message:ErrorCode:119 PCI:0002:00:00 GPU_UUID:GPU-1", [119]),
    ('XidCriticalError  True  Mon, 23 Jun 2025 18:45:43 +0000  {"31":true}  6e43a052', [31]),
    ("Warning  NvidiaXID31Warning  12m  eks-node-monitoring-agent", [31]),
    ("GPU Xid errors detected: 48", [48]),
    ("GPU 3 hat Xid-Fehler 79", [79]),
    ("XIDエラー 119 が出た", [119]),
    ("GPU报XID 48错误，之前出现了 13 号 XID", [48, 13]),
    ("Xid 오류 79 발생", [79]),
    ("XID errors found: XID {63} on GPU 0", [63]),
    ("GPU 先报 Xid 119，随后报 Xid 154", [119, 154]),
    ("越界时驱动会报 Xid 13", []),
    ('syslog_health_monitor_xid_errors{err_code="79",node="a"} 0', []),
    ("nvswitch0: SXid 20034 on dgx-03", [20034]),
    ('DCGM_EXP_XID_ERRORS_COUNT{gpu="0",xid="43"} 1', [43]),
    ('DCGM_EXP_XID_ERRORS_COUNT{gpu="0",xid="43"} 0', []),
    ("Xid 79 means that the GPU has fallen off the bus.", []),
    ("XID 31 号错误是由 MMU 报告的错误", []),
    ("the driver logs Xid 48 when a double bit error is detected", []),
    ("grep for Xid 79; it is not Xid 31, and unlike Xid 13 it stays", []),
    ("some codes (e.g. Xid 62) are not exported", []),
    ("the host has no Xid; others were traced to Xid 79", []),
    ("inject Xid 95 and wait\nGPU had an uncontained error (Xid 95)", []),
    ("Xid 13/31/43/45 are of programs", []),
    ("Xid 7777", []),
]


@pytest.mark.parametrize(("text", "codes"), XIDS)
def test_xid_codes_are_read(text: str, codes: list[int]) -> None:
    found = diagnose(FAULTS, [scan(FAULTS, "log", [text])]).xids
    assert [xid.code for xid in found] == codes


def test_a_code_is_counted_with_its_gpus_and_nvidias_actions() -> None:
    text = "".join(f"NVRM: Xid (PCI:0000:{bus}:00): 79, pid=1\n" for bus in ("3b", "3b", "86"))
    (row,) = diagnosis_data(diagnose(FAULTS, [scan(FAULTS, "log", [text])]), FAULTS)["xids"]
    assert (row["code"], row["count"], row["gpus"]) == (79, 3, ["0000:3b:00", "0000:86:00"])
    assert row["mnemonic"] and row["immediate"] and row["source"]


def test_a_code_of_an_nvswitch_has_its_class_and_counts_once_an_event() -> None:
    lines = "".join(
        f"nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, {rest}\n"
        for rest in ("Fatal, Link 60 LTSSM Fault Up", "Severity 1 Engine instance 60", "Data {0x1, 0x1}") * 2
    )
    (row,) = diagnosis_data(diagnose(FAULTS, [scan(FAULTS, "log", [lines])]), FAULTS)["xids"]
    assert (row["kind"], row["severity"], row["count"], row["gpus"]) == ("SXid", "fatal", 2, ["0000:05:00.0"])
    assert row["description"] == "LTSSM Fault Up" and row["immediate"] and "fabric-manager" in row["source"]


def test_every_sxid_says_what_it_means_and_the_fatal_ones_what_to_do() -> None:
    assert len(FAULTS.sxids) >= 90
    for sxid in FAULTS.sxids.values():
        assert sxid.plain and sxid.description, sxid.code
        assert sxid.immediate or sxid.severity in ("corrected", "non-fatal"), sxid.code
        assert 10_000 <= sxid.code < 100_000


def test_every_code_of_the_catalogue_is_known_by_a_line() -> None:
    assert len(FAULTS.xids) >= 110
    text = "".join(f"NVRM: Xid (PCI:0000:01:00): {code}, x\n" for code in FAULTS.xids)
    assert [x.code for x in diagnose(FAULTS, [scan(FAULTS, "log", [text])]).xids] == list(FAULTS.xids)


# ---------------------------------------------------------------- form and size


@given(st.text(max_size=400), st.integers(1, 60))
def test_no_text_breaks_it_and_chunks_change_nothing(text: str, size: int) -> None:
    shows = CASES["cuda-35"]["shows"]
    lines = [f"{line}\n" for line in f"{text}\n{shows}\n{text}".split("\n")]
    chunks = ["".join(lines[i : i + size]) for i in range(0, len(lines), size)]
    whole = diagnosis_data(diagnose(FAULTS, [scan(FAULTS, "log", ["".join(lines)])]), FAULTS)
    assert whole == diagnosis_data(diagnose(FAULTS, [scan(FAULTS, "log", chunks)]), FAULTS)
    assert "cuda-35" in {finding["id"] for finding in whole["findings"]}


def test_evidence_names_the_line_and_is_bounded() -> None:
    text = "unrelated\n" * 41 + (CASES["cuda-35"]["shows"] + "\n") * 1000
    (finding,) = diagnose(FAULTS, [scan(FAULTS, "a.log", [text])]).findings
    assert finding.evidence[0].line == 42 and len(finding.evidence) == 5


def test_no_pattern_is_tried_on_the_ordinary_lines_of_a_long_log() -> None:
    """Words that every line has, such as gpu or init, make a bad text of a sign: 100 MB would take minutes."""
    for line in ORDINARY:
        untold = [
            (fault.id, sign.text)
            for _, signs in FAULTS.finder.iter(line.lower())
            for fault, sign in signs
            if not sign.told
        ]
        assert untold == []


def test_nothing_known_is_said_and_not_guessed() -> None:
    diagnosis = diagnose(FAULTS, [scan(FAULTS, "log", ["my GPU is slow and the fan is loud\n"])])
    assert diagnosis.sound and "nothing known matches" in diagnosis_text(diagnosis, FAULTS)


# ---------------------------------------------------------------- the state of a node

GPU = PciDevice(slot="0000:17:00.0", id="10de:2330", class_code="0302")
SWITCH = PciDevice(slot="0000:c1:00.0", id="10de:22a3", class_code="0680")
SOUND = NodeFacts(
    gpus=(GPU,),
    nvml=(NvmlGpu(index=0, uuid="GPU-1"),),
    driver=DriverState(loaded="580.95.05", userspace="580.95.05"),
    kernels=(Kernel(release="6.1.0-1", running=True, image=True, module="580.95.05"),),
)


def docker(text: bytes) -> dict[str, Any]:
    path = "/etc/docker/daemon.json"
    return {"runtimes": (Runtime(name="docker", config=path),), "files": {path: ConfigFile(path=path, data=text)}}


STATES: list[tuple[str, dict[str, Any]]] = [
    ("nvml-version-mismatch", {"driver": DriverState(loaded="570.1", userspace="580.95.05")}),
    (
        "modprobe-not-found",
        {"driver": DriverState(userspace="580.95.05"), "nvml": (), "kernels": (Kernel(release="6.1", running=True),)},
    ),
    ("module-next-kernel", {"kernels": (*SOUND.kernels, Kernel(release="6.1.0-2", image=True))}),
    ("gpu-lost", {"gpus": (GPU, replace(GPU, slot="0000:18:00.0"))}),
    ("gpu-lost", {"xids": (Xid(code=79, slot="0000:17:00", line="NVRM: Xid (PCI:0000:17:00): 79"),)}),
    ("fabric-manager-missing", {"nvswitches": (SWITCH,)}),
    ("mig-pending", {"nvml": (NvmlGpu(index=0, mig_current="Disabled", mig_pending="Enabled"),)}),
    ("reset-required", {"nvml": (NvmlGpu(index=0, remap_pending="Yes"),)}),
    ("docker-default-runtime-missing", docker(b'{"default-runtime": "nvidia"}')),
    ("docker-daemon-json", docker(b"{,}")),
    (
        "apt-docker2-conflict",
        {"packages": {n: Package(name=n, version="1") for n in ("nvidia-docker2", "nvidia-container-toolkit")}},
    ),
    (
        "cdi-stale",
        {
            "cdi": Cdi(
                specs=(CdiSpec(path="/etc/cdi/nvidia.yaml", kind="nvidia.com/gpu", driver="570.1"),),
                gpus=(CdiGpu(minor=0),),
            )
        },
    ),
]


@pytest.mark.parametrize(("name", "change"), STATES, ids=[name for name, _ in STATES])
def test_a_fault_in_the_state_is_found(name: str, change: dict[str, Any]) -> None:
    assert name not in state_faults(SOUND, {}, None)
    assert name in state_faults(replace(SOUND, **change), {}, None)


def test_a_sound_node_has_no_fault() -> None:
    running = {"nvidia-fabricmanager": Service(name="nvidia-fabricmanager", active="active")}
    sound = replace(SOUND, nvswitches=(SWITCH,), services=running)
    assert state_faults(sound, {}, load_scheduler_rules()) == {}


MANIFEST = "spec:\n  containers:\n  - image: registry.k8s.io/kube-scheduler:v1.{}.4\n    command: [kube-scheduler{}]\n"
API = "apiVersion: kubescheduler.config.k8s.io/{}\n"
KIND = {"sched-kind"}
SECTIONS: list[tuple[dict[str, str], set[str]]] = [
    ({"kubelet-devices": '{"Data": {"RegisteredDevices": {"nvidia.com/gpu": ["GPU-1"]}}, "Checksum": 1}'}, set()),
    ({"kubelet-devices": '{"Data": {"RegisteredDevices": {"nvidia.com/gpu": null}}}'}, {"plugin-no-devices"}),
    ({"kubelet-devices": '{"Data": {"RegisteredDevices": {"intel.com/nic": ["a"]}}}'}, {"plugin-not-registered"}),
    ({"kubelet-devices": "torn {"}, set()),
    ({"kube-scheduler-manifest": MANIFEST.format(31, ""), "kube-scheduler-config": API.format("v1")}, set()),
    ({"kube-scheduler-manifest": MANIFEST.format(31, ""), "kube-scheduler-config": API.format("v1beta2")}, KIND),
    ({"kube-scheduler-manifest": MANIFEST.format(28, ", --policy-config-file=/x")}, {"sched-policy-flag"}),
]  # fmt: skip


@pytest.mark.parametrize(("sections", "names"), SECTIONS)
def test_what_kubelet_and_scheduler_have_on_disk_is_judged(sections: dict[str, str], names: set[str]) -> None:
    assert set(state_faults(SOUND, sections, load_scheduler_rules())) == names


def test_the_node_script_is_taken_apart() -> None:
    text = "=== gpunode log kernel\na\nb\n=== gpunode log apt\nc\n"
    assert split_sections(text) == {"kernel": "a\nb\n", "apt": "c\n"}
    assert split_sections("") == {}


# ---------------------------------------------------------------- the command


def run(*args: str, text: str | None = None) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["doctor", *args], input=text, standalone_mode=False)
    return result.return_value if result.exception is None else 99, result.output


def test_logs_from_files_packed_or_not_and_from_standard_input(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(CASES["cuda-35"]["shows"])
    (tmp_path / "b.log.gz").write_bytes(gzip.compress(CASES["cuda-803"]["shows"].encode()))
    code, out = run("--log", str(tmp_path / "a.log"), "--log", str(tmp_path / "b.log.gz"), "--format", "json")
    data = json.loads(out)
    assert code == 1 and {f["id"] for f in data["findings"]} == {"cuda-35", "cuda-803"} and data["xids"] == []
    assert set(data["findings"][0]) >= {"id", "root", "evidence", "cause", "fix", "confidence", "source"}
    code, out = run("--log", "-", text=CASES["docker-no-driver"]["shows"])
    assert code == 1 and "docker-no-driver" in out and "gpunode provision" in out


def test_a_log_that_says_nothing_known_is_exit_code_0(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("all is well\n")
    code, out = run("--log", str(tmp_path / "a.log"))
    assert code == 0 and "nothing known matches" in out


@pytest.mark.parametrize("name", ["missing.log", "broken.gz", "broken.xz"])
def test_a_log_that_cannot_be_read_is_named(name: str, tmp_path: Path) -> None:
    if "broken" in name:
        (tmp_path / name).write_bytes(b"this is not packed")
    code, out = run("--log", str(tmp_path / name))
    assert code == 2 and name in out


def test_a_saved_probe_is_judged_by_its_state(tmp_path: Path) -> None:
    probes = Path(__file__).parents[1] / "cases" / "probes"
    code, out = run("--probe", str(probes / "debian12-driver-mismatch" / "probe.txt"), "--format", "json")
    (host,) = json.loads(out)["hosts"]
    assert code == 1 and "nvml-version-mismatch" in {f["id"] for f in host["findings"]}


@pytest.mark.parametrize("kind", ["xid", "sxid"])
def test_the_tables_have_no_code_twice(kind: str) -> None:
    text = (Path(__file__).parents[2] / "gpunode" / "knowledge" / f"{kind}s.toml").read_text(encoding="utf-8")
    codes = [row["code"] for row in tomllib.loads(text)[kind]]
    assert len(codes) == len(set(codes))
