"""doctor: every fault shown once and nearly shown once; logs of any size and form; the state of a node; the command."""

from __future__ import annotations

import gzip
import json
import re
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
from gpunode.core.doctor.logs import WINDOW
from gpunode.core.doctor.table import Fault, _finder
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


class Counted:
    """A pattern that counts what it is given."""

    def __init__(self, pattern: re.Pattern[str], given: list[int]) -> None:
        self.real, self.pattern, self.given = pattern, pattern.pattern, given

    def search(self, text: str) -> re.Match[str] | None:
        self.given.append(len(text))
        return self.real.search(text)


def work(text: str) -> list[int]:
    """The lengths of all texts that patterns of signs are given for a log."""
    given: list[int] = []
    rows: dict[str, Any] = {}
    for name, fault in FAULTS.faults.items():
        signs = tuple(replace(s, pattern=Counted(s.pattern, given)) if s.pattern else s for s in fault.signs)  # type: ignore[arg-type]
        rows[name] = replace(fault, signs=signs)
    scan(replace(FAULTS, faults=rows, finder=_finder(rows.values())), "log", [text])
    return given


HOSTILE = {
    "a sign again and again": "library version mismatch ",
    "several signs": "nvidia-smi cuda driver/library version mismatch kubelet daemon.json dkms ",
    "words of packages": "nvidia",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_line_of_any_length_costs_no_more_than_its_length(name: str) -> None:
    """Each pattern sees a part of a line once, and no more of it than a window."""
    fill = HOSTILE[name]
    small, large = (work((fill * (size // len(fill) + 1))[:size]) for size in (64_000, 256_000))
    assert max(small + large, default=0) <= WINDOW
    assert sum(large) <= 5 * sum(small), "four times the text, four times the work"
    patterns = len({sign.pattern for fault in FAULTS.faults.values() for sign in fault.signs if sign.text in fill})
    assert sum(small) <= 2.2 * 64_000 * patterns + WINDOW * patterns


@pytest.mark.parametrize("before", [0, 1_000, 2_047, 2_048, 3_000, 4_095, 4_096, 10_000, 100_000])
def test_in_a_long_line_a_sign_is_found_wherever_it_is(before: int) -> None:
    message = "Failed to initialize NVML: Driver/library version mismatch"
    filling = ("lorem ipsum " * 20_000)[:before]
    for after in (0, 5_000):
        line = f"{filling} {message} {'dolor sit ' * (after // 10)}\n"
        found = scan(FAULTS, "log", ["first\n", line]).found()
        [evidence] = found["nvml-version-mismatch"]
        assert evidence.line == 2 and len(evidence.text) <= 400
        assert message in evidence.text or len(line) <= WINDOW


@pytest.mark.parametrize("start", range(3_500, 4_200, 37))
def test_in_a_long_line_a_code_is_read_once_and_whole(start: int) -> None:
    reports = "NVRM: Xid (PCI:0000:01:00): 79, pid=1, GPU has fallen off the bus. "
    for sizes in ((start,), (start, start), (start, 9_000, 50)):
        line = "".join("x" * size + f" {reports}" for size in sizes)
        seen = scan(FAULTS, "log", [f"{line}\n"]).xids()
        assert [(xid.code, xid.count) for xid in seen] == [(79, len(sizes))]


BACKSLASHES = st.sampled_from(["\\", "&#0", "&#x", "\x1b[", "Xid (", "NVRM: ", "nvidia", " ", "1", "\n", '"'])


@given(st.lists(BACKSLASHES, max_size=8), st.integers(1, 3_000))
def test_runs_of_what_is_decoded_break_nothing(parts: list[str], times: int) -> None:
    found = scan(FAULTS, "log", ["".join(parts) * times])
    found.found(), found.xids()


@pytest.mark.parametrize("fault", FAULTS.faults.values(), ids=lambda fault: fault.id)
def test_no_pattern_begins_with_the_rest_of_a_word(fault: Fault) -> None:
    """Such a beginning is tried at each letter of a word, and says nothing: the sign is looked for anywhere."""
    for sign in fault.signs:
        text = sign.pattern.pattern if sign.pattern else ""
        assert not re.match(r"\(?(\\[Sw]|\.)[*+]", text), text
        assert not re.search(r"(?<!\\)\\[Sw]\*\)?\.\{0,\d+\}", text), text


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
    ({"kubelet-devices": "torn {"}, {"kubelet-checkpoint"}),
    ({"kubelet-devices": "[]"}, {"kubelet-checkpoint"}),
    ({"kubelet-devices": "[" * 100_000}, {"kubelet-checkpoint"}),
    ({"kubelet-devices": '{"Data": {"RegisteredDevices": ["nvidia.com/gpu"]}}'}, {"kubelet-checkpoint"}),
    ({"kube-scheduler-manifest": MANIFEST.format("9" * 20_000, ""), "kube-scheduler-config": API.format("v1")}, set()),
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
