"""doctor: messages with their lines, logs of any size and form, the state of a node, the command."""

from __future__ import annotations

import gzip
import io
import json
import re
import tarfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from rows import over

from benchmarks.doctor import LINES as ORDINARY
from gpunode.cli.common import spec_option, target_options
from gpunode.cli.main import cli
from gpunode.core.checks.health import health_checks
from gpunode.core.doctor import Diagnosis, diagnose, diagnosis_data, diagnosis_text, scan
from gpunode.core.doctor.logs import KEPT, PART
from gpunode.core.doctor.read import diagnose_logs
from gpunode.core.doctor.state import excluded, split_sections, state_faults
from gpunode.core.doctor.table import LAYERS, Fault, Faults, Message, parse_faults, parse_messages
from gpunode.core.doctor.text import Evidence
from gpunode.core.errors import InputError
from gpunode.core.facts import parse_probe
from gpunode.core.facts.cdi import PATH
from gpunode.core.model import (
    Cdi,
    CdiGpu,
    CdiSpec,
    ConfigFile,
    DeviceNode,
    DriverState,
    InstalledPackage,
    Kernel,
    Kubernetes,
    NodeFacts,
    NvmlGpu,
    PciDevice,
    Running,
    Runtime,
    Service,
    Xid,
)
from gpunode.edge.detect import Targets
from gpunode.edge.doctor import Examined, _examined, load_codes, load_faults
from gpunode.edge.load import load_knowledge, load_scheduler_rules

FOLDER = Path(__file__).parents[1] / "cases" / "doctor"
TEXTS = {
    name: case
    for file in ("texts.yml", "reports.yml")
    for name, case in yaml.safe_load((FOLDER / file).read_text(encoding="utf-8")).items()
}
NEAR = yaml.safe_load((FOLDER / "near.yml").read_text(encoding="utf-8"))
FAULTS = load_faults()
PATTERN = 120  # characters of a pattern
MISMATCH = "Failed to initialize NVML: Driver/library version mismatch"
NO_HEADERS = (
    "Error! Your kernel headers for kernel 5.15.0-91-generic cannot be found at /lib/modules/5.15.0-91-generic/build."
)


def ids(text: str) -> set[str]:
    return {finding.fault.id for finding in diagnosed(text).findings}


def diagnosed(text: str) -> Diagnosis:
    return diagnose_logs(FAULTS, [("log", FAULTS.parts.split([text]))])


def shown(message: Message) -> str:
    """The line of a message, after what it needs in its log."""
    return "\n".join([*message.needs[:1], message.line])


def a_line_of(fault: str) -> str:
    return next(shown(message) for message in FAULTS.messages if message.fault == fault)


# ---------------------------------------------------------------- messages and faults


@over(FAULTS.messages, name=lambda message: f"{message.program}: {message.text}")
def test_a_message_is_in_its_own_line_and_no_other_fault_is(message: Message) -> None:
    assert ids(shown(message)) == {message.fault, *message.also}


@over(FAULTS.messages, name=lambda message: f"{message.program}: {message.text}")
def test_a_message_has_its_source_and_is_no_common_word(message: Message) -> None:
    assert message.program and message.line and message.source
    assert message.pattern or len(message.text) >= 8 or not message.text.isascii()


@over([m for m in FAULTS.messages if m.pattern], name=lambda message: f"{message.program}: {message.pattern}")
def test_a_pattern_is_short_and_looks_at_one_place(message: Message) -> None:
    """No beginning that is tried at each letter of a line, nothing that looks ahead or back, no long gap."""
    assert len(message.pattern) <= PATTERN
    bare = re.sub(r"\[[^\]]*\]", "[]", message.pattern)
    assert not re.match(r"\(?(\.|\\[SsWw])[*+]", bare)
    assert not re.match(r"\w+\\S\*\.\{", bare), "a line of that word alone: each letter begins as many ends"
    assert "(?" not in bare.replace("(?:", "")
    assert not re.search(r"(?<!\\)\.[*+]", bare)
    assert all(int(gap) <= PART // 2 for gap in re.findall(r"\{\d*,(\d+)\}", message.pattern))


def test_faults_and_messages_know_each_other() -> None:
    assert {name for one in FAULTS.messages for name in (one.fault, *one.also)} <= FAULTS.faults.keys()
    doctor = Path(__file__).parents[2] / "gpunode" / "core" / "doctor"
    source = "".join((doctor / name).read_text(encoding="utf-8") for name in ("state.py", "__init__.py"))
    by_table = [*FAULTS.checks.signs.values(), *FAULTS.checks.warnings.values(), *FAULTS.checks.units.values()]
    by_table += [*(c.fault for causes in FAULTS.checks.symptoms.values() for c in causes)]
    source += "".join(f'"{name}"' for name in [*by_table, *(code.fault for code in load_codes().xids.values())])
    assert {*by_table, *FAULTS.checks.symptoms} - {""} <= FAULTS.faults.keys()
    silent = FAULTS.faults.keys() - {name for m in FAULTS.messages for name in (m.fault, *m.also)}
    assert all(f'"{name}"' in source for name in silent), "a fault is shown by a message or by the state of a node"
    texts = [(m.text, m.pattern, m.needs) for m in FAULTS.messages]
    assert len(texts) == len(set(texts)), "no message twice"


@over(FAULTS.faults.values(), name=lambda fault: fault.id)
def test_every_fault_has_a_source_and_says_what_to_do(fault: Fault) -> None:
    assert fault.cause and fault.fix and fault.source and fault.layer in LAYERS


@over(NEAR.items())
def test_what_has_words_of_a_message_does_not_show_its_fault(name: str, text: str) -> None:
    assert name not in ids(text)


@over(TEXTS.items())
def test_what_is_in_a_text_is_found_and_nothing_else(name: str, case: dict[str, Any]) -> None:
    result = diagnosed(case["text"])
    roots = {finding.fault.id for finding in result.findings if finding.root}
    follows = {finding.fault.id for finding in result.findings if not finding.root}
    assert (roots, follows) == (set(case.get("roots", [])), set(case.get("follows", [])))
    assert {one.fault.id for one in result.earlier} == set(case.get("earlier", []))
    assert {f"{'s' * xid.nvswitch}{xid.code}" for xid in result.xids} == {str(x) for x in case.get("xids", [])}


@over([(name, size) for name, case in TEXTS.items() if "____" in case["text"] for size in (1, 3, 10)])
def test_a_report_is_read_the_same_however_it_comes(name: str, size: int) -> None:
    lines = TEXTS[name]["text"].splitlines(keepends=True)
    chunks = ["".join(lines[at : at + size]) for at in range(0, len(lines), size)]
    in_pieces = diagnose_logs(FAULTS, [("log", FAULTS.parts.split(chunks))])
    assert diagnosis_data(in_pieces, FAULTS) == diagnosis_data(diagnosed(TEXTS[name]["text"]), FAULTS)


ROW = {"severity": "error", "cause": "c", "fix": "f", "source": "s"}
ACTIONS = {"action": [{"id": "reload", "disturbs": "d", "check": "c"}], "default": {"driver": "reload"}}


def faults_of(*rows: tuple[str, str, list[str]]) -> Faults:
    """Faults with a text each and their consequences."""
    messages = [{"fault": name, "text": text, "line": text} for name, text, _ in rows]
    faults = [{"id": name, "causes": causes, **ROW} for name, _, causes in rows]
    return Faults(
        parse_messages({"x": {"source": [{"from": "s", "message": messages}]}}),
        lambda: parse_faults({"driver": {"fault": faults}}, ACTIONS),
        load_codes,
    )


def test_causes_over_several_steps_count_and_circles_do_not_hang() -> None:
    faults = faults_of(("one", "one", ["two"]), ("two", "two", ["three"]), ("three", "three", ["two"]))
    found = {f.fault.id: f.root for f in diagnose(faults, [scan(faults, "log", ["one\nthree\n"])]).findings}
    assert found == {"one": True, "three": False}


def test_of_messages_that_overlap_the_longer_one_is_meant() -> None:
    faults = faults_of(("short", "nvml error", []), ("long", "nvml error: timeout", []), ("apart", "hook", []))
    for line, names in (("nvml error: timeout, hook", {"long", "apart"}), ("nvml error: lost", {"short"})):
        assert scan(faults, "log", [line]).found().keys() == names


def test_a_general_message_counts_where_nothing_else_of_its_line_is_known() -> None:
    general = "nvidia-container-cli: initialization error: "
    assert ids(f"{general}change root failed") == {"cli-init-failed"}
    assert ids(f"{general}nvml error: driver not loaded") == {"smi-cannot-communicate"}


@over(
    [
        ({"text": "Upper"}, "Upper"),
        ({"text": 'a "b"'}, 'a "b"'),
        ({"text": "not there"}, "not there"),
        ({"sign": "x"}, "sign"),
    ]
)
def test_messages_that_cannot_be_used_are_refused(change: dict[str, Any], words: str) -> None:
    row = {"fault": "one", "text": "a", "line": "a"} | change
    with pytest.raises(InputError, match=re.escape(words)):
        parse_messages({"x": {"source": [{"from": "s", "message": [row]}]}})


@over([({"causes": ["nothing"]}, "names nothing"), ({"meaning": "x"}, "meaning"), ({"action": "wait"}, "wait")])
def test_faults_that_cannot_be_used_are_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        parse_faults({"driver": {"fault": [{"id": "one", **ROW} | change]}}, ACTIONS)


NOISE = "2026-11-22T01:02:03+0800 主机 systemd[1]: Started 日志.\n{}\nNov 22 kubelet: unrelated\n"
DRESSES = {
    "quoted": lambda text: f"> {text}",
    "fenced": lambda text: f"```\n{text}\n```",
    "coloured": lambda text: f"\x1b[31m{text}\x1b[0m",
    "among noise": NOISE.format,
    "html": lambda text: text.replace('"', "&quot;").replace("'", "&#39;"),
    "json log": lambda text: json.dumps({"log": text.replace("\n", " ") + "\n", "stream": "stderr"}),
    "carriage returns": lambda text: text.replace("\n", "\r\n"),
}
DRESSED = ("nvml-version-mismatch", "docker-no-driver", "k8s-no-runtime", "modprobe-key-rejected")


@over([(dress, name) for dress in DRESSES for name in DRESSED])
def test_decoration_hides_nothing(dress: str, name: str) -> None:
    assert name in ids(DRESSES[dress](a_line_of(name)))


BROKEN = ("smi-cannot-communicate", "docker-no-driver", "cuda-803", "rminitadapter")


@over([(name, width) for name in BROKEN for width in (40, 60, 80, 100)])
def test_lines_that_a_terminal_has_broken_are_read_as_one(name: str, width: int) -> None:
    text = a_line_of(name)
    assert name in ids("\n".join(text[i : i + width] for i in range(0, len(text), width)))


def test_a_message_in_broken_lines_is_less_certain_and_names_the_line() -> None:
    (whole,) = diagnose(FAULTS, [scan(FAULTS, "log", [MISMATCH])]).findings
    (broken,) = diagnose(
        FAULTS, [scan(FAULTS, "log", ["first\nsecond\n" + MISMATCH.replace(" version", "\n> version")])]
    ).findings
    assert (whole.confidence, broken.confidence) == ("high", "medium")
    assert broken.evidence[0].line == 4


def test_a_message_broken_between_two_chunks_is_read_as_one() -> None:
    one, two = MISMATCH.split(" version")
    found = scan(FAULTS, "log", [f"x\n{one}\n", f"version{two}\ny\n"]).found()
    assert found["nvml-version-mismatch"].count == 1


def test_roots_are_above_what_follows_from_them() -> None:
    text = "\n".join([a_line_of("sched-insufficient"), a_line_of("smi-cannot-communicate"), NO_HEADERS])
    findings = diagnose(FAULTS, [scan(FAULTS, "log", [text])]).findings
    assert findings[0].fault.id == "dkms-no-headers" and findings[0].root
    roots = {finding.fault.id: finding.root for finding in findings}
    assert roots["smi-cannot-communicate"] is False


def test_faults_and_codes_are_read_when_something_was_found() -> None:
    def unread() -> Any:
        raise AssertionError("read for nothing")

    quiet = Faults(FAULTS.messages, unread, unread)
    assert diagnose(quiet, [scan(quiet, "log", ["all is well\n"])]).sound


# ---------------------------------------------------------------- form and size


@given(st.text(max_size=400), st.integers(1, 60))
def test_no_text_breaks_it_and_chunks_change_nothing(text: str, size: int) -> None:
    shows = a_line_of("cuda-35")
    lines = [f"{line}\n" for line in f"{text}\n{shows}\n{text}".split("\n")]
    chunks = ["".join(lines[i : i + size]) for i in range(0, len(lines), size)]
    whole = diagnosis_data(diagnose(FAULTS, [scan(FAULTS, "log", ["".join(lines)])]), FAULTS)
    assert whole == diagnosis_data(diagnose(FAULTS, [scan(FAULTS, "log", chunks)]), FAULTS)
    assert "cuda-35" in {finding["id"] for finding in whole["findings"]}


def test_evidence_has_the_newest_lines_and_says_how_many_there_are() -> None:
    text = "unrelated\n" * 41 + f"{MISMATCH}\n" * 1000
    (finding,) = diagnose(FAULTS, [scan(FAULTS, "a.log", [text])]).findings
    assert (finding.count, finding.first) == (1000, 42)
    assert [evidence.line for evidence in finding.evidence] == [*range(1041, 1041 - KEPT, -1)]


@over(
    [
        'Error: default OCI runtime "nvidia" not found: invalid argument',
        '{"log": "Error: default OCI runtime \\"nvidia\\" not found: invalid argument\\n", "stream": "stderr"}',
        "Error: default OCI runtime &quot;nvidia&quot; not found",
        "Error:\tdefault OCI runtime\u00a0“nvidia” not found",
    ]
)
def test_a_line_is_shown_as_it_was_whatever_it_was_read_as(line: str) -> None:
    for before in ("", 'another "line"\n', "a \\" + '"quote\\" &amp; more\n'):
        (finding,) = diagnose(FAULTS, [scan(FAULTS, "log", [f"{before}\x1b[31m{line}\x1b[0m\n"])]).findings
        assert finding.fault.id == "docker-unknown-runtime" and finding.evidence[0].text == line
    long = f"{(chr(92) + chr(34)) * 3000} {line} {'&quot;quoted&quot; ' * 400}"
    (finding,) = diagnose(FAULTS, [scan(FAULTS, "log", [long])]).findings
    assert line in finding.evidence[0].text and finding.evidence[0].text in long


def test_a_broken_line_is_shown_joined_with_its_own_quotation_marks() -> None:
    text = 'Error: default OCI\n> runtime "nvidia" not found: invalid argument\n'
    (finding,) = diagnose(FAULTS, [scan(FAULTS, "log", [text])]).findings
    assert 'default OCI runtime "nvidia" not found' in finding.evidence[0].text


def test_no_message_begins_in_the_ordinary_lines_of_a_long_log() -> None:
    """Words that every line has, such as gpu or init, make a bad text of a message: 100 MB would take minutes."""
    for line in ORDINARY:
        begun = [found.text for _, found in FAULTS.finder.iter(line.lower()) if found.messages or found.reports]
        assert begun == []


def read_by_patterns(monkeypatch: pytest.MonkeyPatch, text: str) -> list[int]:
    """The lengths of all parts of a log that patterns read."""
    parts: list[int] = []
    real = Message.span

    def counted(message: Message, line: str, first: int, start: int, end: int) -> tuple[int, int] | None:
        if message.pattern:
            parts.append(end - start)
        return real(message, line, first, start, end)

    with monkeypatch.context() as patch:
        patch.setattr(Message, "span", counted)
        scan(FAULTS, "log", [text])
    return parts


def hostile() -> Iterator[str]:
    """Texts of messages with a pattern, again and again."""
    for message in [m for m in FAULTS.messages if m.pattern][::7]:
        yield message.text
        yield f"{message.text} "


@pytest.mark.slow
def test_a_line_of_any_length_costs_no_more_than_its_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pattern sees a part of a line once, and no more of it than twice the part; counted, not timed."""
    for fill in hostile():
        small, large = (
            read_by_patterns(monkeypatch, (fill * (size // len(fill) + 1))[:size]) for size in (16_000, 64_000)
        )
        assert max(small + large, default=0) <= 2 * PART
        assert sum(large) <= 5 * sum(small), f"four times the text, four times the work: {fill}"
        patterns = sum(bool(m.pattern) and m.text in 3 * fill for m in FAULTS.messages)
        assert sum(small) <= 3 * 2 * 16_000 * patterns + 6 * PART * patterns, fill


@over([(before, after) for before in (0, 999, 1_000, 1_001, 2_047, 4_096, 100_000, 2_100_000) for after in (0, 5_000)])
def test_in_a_long_line_and_in_a_long_log_a_message_is_found_wherever_it_is(before: int, after: int) -> None:
    filling = ("lorem ipsum " * (before // 12 + 1))[:before]
    message = "nvidia 0000:01:00.0: PCIe Bus Error: severity=Corrected, type=Data Link Layer"
    line = f"{filling} {message} {'dolor sit ' * (after // 10)}\n"
    [evidence] = scan(FAULTS, "log", ["first\n", line]).found()["pcie-errors"].evidence
    assert evidence.line == 2 and len(evidence.text) <= 400
    assert message in evidence.text or len(line) <= PART
    assert scan(FAULTS, "log", [f"{filling}\n", f"{message}\n"]).found().keys() == {"pcie-errors"}


@over(range(3_500, 4_200, 37))
def test_in_a_long_line_a_code_is_read_once_and_whole(start: int) -> None:
    reports = "NVRM: Xid (PCI:0000:01:00): 79, pid=1, GPU has fallen off the bus. "
    for sizes in ((start,), (start, start), (start, 9_000, 50)):
        line = "".join("x" * size + f" {reports}" for size in sizes)
        seen = scan(FAULTS, "log", [f"{line}\n"]).xids()
        assert [(xid.code, xid.count) for xid in seen] == [(79, len(sizes))]


BACKSLASHES = st.sampled_from(["\\", "&#0", "&#x", "\x1b[", "Xid (", "NVRM: ", "nvidia", " ", "1", "\n", '"', ">"])


@given(st.lists(BACKSLASHES, max_size=8), st.integers(1, 3_000))
def test_runs_of_what_is_decoded_break_nothing(parts: list[str], times: int) -> None:
    found = scan(FAULTS, "log", ["".join(parts) * times])
    found.found(), found.xids()


NODE = """Name:               gpu-1
Capacity:
  cpu:                64
  nvidia.com/gpu:     8
Allocatable:
  cpu:                64
  nvidia.com/gpu:     {}
System Info:
"""
IN_YAML = """\
  status:
    allocatable:
      cpu: "48"
      nvidia.com/gpu: "{}"
    capacity:
      cpu: "48"
      nvidia.com/gpu: "16"
"""
IN_JSON = """\
        "allocatable": {{
            "cpu": "48",
            "nvidia.com/gpu": "{}"
        }},
        "capacity": {{
            "cpu": "48",
            "nvidia.com/gpu": "16"
        }},
"""
ANSWERS = [
    (IN_YAML.format(0), {"plugin-no-devices"}),
    (IN_YAML.format(15), {"dp-xid-unhealthy"}),
    (IN_YAML.format(16), set()),
    (IN_JSON.format(0), {"plugin-no-devices"}),
    (IN_JSON.format(16), set()),
    ("nvidia/580.95.05, 6.8.0-40-generic, x86_64: added\n", {"dkms-bad-exit"}),
    ("nvidia, 470.57.02, 5.4.0-42-generic, x86_64: built\n", {"dkms-bad-exit"}),
    ("nvidia/580.95.05: added\nnvidia/580.95.05, 6.8.0-40-generic, x86_64: installed\n", set()),
    ("zfs/2.1.5: added\n", set()),
    (NODE.format(0), {"plugin-no-devices"}),
    (NODE.format(7), {"dp-xid-unhealthy"}),
    (NODE.format(8), set()),
    ("  nvidia.com/gpu:     0\n  nvidia.com/gpu:     0\n", {"plugin-no-devices"}),
    ("  nvidia.com/gpu:     8\n  nvidia.com/gpu:     8\n", set()),
    (NODE.format("0\n  nvidia.com/mig-1g.10gb:     7"), set()),
]


@over(ANSWERS, name=lambda row: row[0])
def test_what_programs_answer_is_judged_where_they_call_it_no_fault(text: str, names: set[str]) -> None:
    for shown in (text, f"$ command\n{text}$ another\nall is well\n"):
        result = diagnosed(shown)
        assert {one.fault.id for one in result.findings} == names
        assert all(one.confidence == "high" and one.evidence[0].line for one in result.findings)


SHAPES = {  # what programs write in one line: with colours, entities and escapes; as JSON; with codes
    "messages": "API mismatch: the client \x1b[31m 'a' &quot; ",
    "JSON": '{"log":"\x1b[31mNVRM: &quot;Unknown symbol&quot; in nvidia: \\"x\\" &amp; disagrees on ',
    "codes": "\x1b[1mNVRM: Xid (PCI:0000:3b:00): 45,\x1b[0m pid='1' &gt; ",
}


REPEATED = {  # what programs answer, often
    "modules": "nvidia/535.129.03, 5.15.0-89-generic, x86_64: added\n",
    "kernels": "Linux n1 5.15.0-91-generic #101-Ubuntu\nfilename:   /lib/modules/5.15.0-89-generic/dkms/nvidia.ko\n",
    "tables": "| NVIDIA-SMI 535.129.03  Driver Version: 535.129.03  \n",
    "devices": "01:00.0 VGA compatible controller: NVIDIA Corporation X\n\tKernel driver in use: nouveau\n",
    "nodes": "  nvidia.com/gpu: 0\n",
}


def grows_with_its_length(size: int, read: Callable[[int], object]) -> bool:
    """In CPU time, the least of three: four times the text at most nine times as long, where squares take sixteen."""
    used = {size: 9.0, 4 * size: 9.0}
    for length in [*used] * 3:
        start = time.process_time()
        read(length)
        used[length] = min(used[length], time.process_time() - start)
    return used[4 * size] < 9 * used[size]


@over(SHAPES)
def test_a_line_with_colours_and_entities_costs_its_length(shape: str) -> None:
    def read(size: int) -> None:
        line = SHAPES[shape] * (size // len(SHAPES[shape])) + "\n"
        assert not scan(FAULTS, "log", [line]).found().keys() - {"nvml-version-mismatch", "modprobe-unknown-symbol"}

    assert grows_with_its_length(25_000, read)


@over(REPEATED)
def test_answers_cost_their_length_however_often_they_are_there(shape: str) -> None:
    text = REPEATED[shape]
    assert grows_with_its_length(60_000, lambda size: diagnosed(text * (size // len(text))))


BROKEN_BEFORE = "NVRM: RmInitAdapter failed! (0x62:0x65:1792)"
JOURNALS = {
    "short": "Nov 25 10:00:00 n1 kernel: {}\n",
    "export": "__CURSOR=s=1\n_BOOT_ID=0\nSYSLOG_IDENTIFIER=kernel\nMESSAGE={}\n\n",
    "json": '{{"_BOOT_ID":"0","SYSLOG_IDENTIFIER":"kernel","MESSAGE":"{}"}}\n',
}


@over(JOURNALS)
def test_an_earlier_boot_of_a_journal_is_over_in_each_of_its_forms(form: str) -> None:
    before = JOURNALS[form].format(BROKEN_BEFORE)
    assert ids(before) == {"rminitadapter"}
    after = diagnosed(before + JOURNALS[form].format("Linux version 6.8.0-40-generic (buildd@lcy02)"))
    assert after.sound and [one.fault.id for one in after.earlier] == ["rminitadapter"]
    assert "over       rminitadapter" in diagnosis_text(after, FAULTS)
    assert "rminitadapter" not in diagnosis_text(after, FAULTS, quiet=True), "of a host, without -v"


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


def driver_packages(held: str, other: str) -> dict[str, InstalledPackage]:
    rows = [
        InstalledPackage(name="nvidia-driver-cuda", version=f"{held}-1", held=True),
        InstalledPackage(name="libnvidia-compute", version=f"1:{other}-1"),
        InstalledPackage(name="libnvidia-container1", version="999.1.0-1"),  # no part of the driver
    ]
    return {row.name: row for row in rows}


ENTRY = "deb [signed-by={}] https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64/ /\n"
LISTS = {"/etc/apt/sources.list.d/a.list": "/a.gpg", "/etc/apt/sources.list.d/b.list": "/b.gpg"}
TWICE = {path: ConfigFile(path=path, data=ENTRY.format(key).encode()) for path, key in LISTS.items()}
NODES = tuple(DeviceNode(path=f"/dev/nvidia{n}", number=f"195:{n}") for n in range(2))
STATES: list[tuple[str, dict[str, Any]]] = [
    ("nvml-version-mismatch", {"driver": DriverState(loaded="570.1", userspace="580.95.05")}),
    ("module-next-kernel", {"kernels": (*SOUND.kernels, Kernel(release="6.1.0-2", image=True))}),
    ("gpu-lost", {"gpus": (GPU, replace(GPU, slot="0000:18:00.0"))}),
    ("gpu-lost", {"xids": (Xid(code=79, slot="0000:17:00", line="NVRM: Xid (PCI:0000:17:00): 79"),)}),
    ("fabric-manager-missing", {"nvswitches": (SWITCH,)}),
    (
        "fabric-manager-missing",
        {
            "nvswitches": (SWITCH,),
            "kubernetes": Kubernetes(driver_container=True),
            "nvml": (NvmlGpu(index=0, fabric_state="In Progress"),),
        },
    ),
    ("nvrm-no-pci", {"gpus": ()}),
    (
        "modprobe-not-found",
        {
            "gpus": (),
            "driver": DriverState(userspace="595.91.07"),
            "kernels": (Kernel(release="6.1.0-1", running=True, image=True, headers=True),),
        },
    ),
    ("mig-pending", {"nvml": (NvmlGpu(index=0, mig_current="Disabled", mig_pending="Enabled"),)}),
    ("reset-required", {"nvml": (NvmlGpu(index=0, remap_pending="Yes"),)}),
    ("reset-required", {"nvml": (NvmlGpu(index=0, fault="GPU requires reset"),)}),
    ("reset-required", {"nvml": (NvmlGpu(index=0, recovery="Drain and Reset"),)}),
    ("row-remap-failed", {"nvml": (NvmlGpu(index=0, remap_failure="Yes"),)}),
    ("gpu-lost", {"nvml": (NvmlGpu(index=0, fault="GPU is lost"),)}),
    ("smi-unable-handle", {"nvml": (NvmlGpu(index=0, fault="Unknown Error"),)}),
    ("fm-state-in-progress", {"nvml": (NvmlGpu(index=0, fabric_state="Not Started"),)}),
    ("fm-state-in-progress", {"nvml": (NvmlGpu(index=0, fabric_state="Completed", fabric_status="Unknown Error"),)}),
    ("nvlink-inactive", {"nvlink_inactive": ("GPU 0: all links",)}),
    ("docker-default-runtime-missing", docker(b'{"default-runtime": "nvidia"}')),
    ("docker-daemon-json", docker(b"{,}")),
    ("program-lost", {"lost_programs": {"/usr/bin/nvidia-smi": "nvidia-driver-cuda"}}),
    (
        "apt-docker2-conflict",
        {
            "packages": {
                n: InstalledPackage(name=n, version="1") for n in ("nvidia-docker2", "nvidia-container-toolkit")
            }
        },
    ),
    ("dp-mig-none", {"nvml": (NvmlGpu(index=0, mig_current="Enabled", mig_pending="Enabled"),)}),
    ("apt-held-broken", {"packages": driver_packages("570.1.1", "580.95.05")}),
    ("apt-signed-by-conflict", {"files": TWICE}),
    ("imex-failed", {"services": {"nvidia-imex": Service(name="nvidia-imex", active="failed")}}),
    ("kubelet-down", {"services": {"kubelet": Service(name="kubelet", active="failed")}}),
    ("device-node-missing", {"device_nodes": NODES[1:], "cdi": Cdi(gpus=(CdiGpu(minor=0), CdiGpu(minor=1)))}),
    (
        "cdi-foreign",
        {
            "cdi": Cdi(
                specs=(
                    CdiSpec(path="/etc/cdi/mine.yaml", kind="nvidia.com/gpu", driver="570.1"),
                    CdiSpec(path="/run/cdi/nvidia.yaml", kind="nvidia.com/gpu", minors=(0,)),
                ),
                gpus=(CdiGpu(minor=0),),
            )
        },
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


@over(STATES, name=lambda row: row[0])
def test_a_fault_in_the_state_is_found(name: str, change: dict[str, Any]) -> None:
    assert name not in state_faults(SOUND, {}, None, FAULTS.checks)
    assert name in state_faults(replace(SOUND, **change), {}, None, FAULTS.checks)


def unloaded(*, module: str = "580.95.05", driver: str = "", **kernel: Any) -> NodeFacts:
    """A node whose driver is installed and whose module is not loaded."""
    row = Kernel(
        release="6.1.0-1", running=True, image=True, module=module, **{"headers": True, "dkms": "installed"} | kernel
    )
    return replace(
        SOUND,
        nvml=(),
        gpus=(replace(GPU, driver=driver),),
        driver=DriverState(userspace="580.95.05"),
        kernels=(row,),
        packages={"nvidia-dkms-580-open": InstalledPackage(name="nvidia-dkms-580-open", version="580.95.05")},
    )


NEVER_LOADED = {
    "/etc/modprobe.d/no.conf": ConfigFile(path="/etc/modprobe.d/no.conf", data=b"install nvidia /bin/false\n")
}
CANONICALS = {name: InstalledPackage(name=name, version="1") for name in ("nvidia-headless-no-dkms-580-server-open",)}
UNLOADED: list[tuple[str, NodeFacts]] = [
    ("driver-missing", replace(unloaded(module="", dkms=""), driver=DriverState(), packages={})),
    ("dkms-no-headers", unloaded(module="", headers=False, dkms="")),
    ("dkms-bad-exit", unloaded(module="", dkms="added")),
    ("modprobe-not-found", unloaded(module="", dkms="")),
    ("modprobe-not-found", replace(unloaded(module="", headers=False, dkms=""), packages={})),  # not built here
    ("modprobe-not-found", replace(unloaded(module="", headers=False, dkms=""), packages=CANONICALS)),
    ("module-not-loaded", replace(unloaded(dkms=""), packages=CANONICALS, secure_boot=True)),
    ("modprobe-not-found", unloaded(module="570.1")),
    ("nouveau-in-use", unloaded(driver="nouveau")),
    ("modprobe-blocked", replace(unloaded(), files=NEVER_LOADED)),
    ("modprobe-key-rejected", replace(unloaded(), secure_boot=True)),
    ("module-not-loaded", replace(unloaded(), secure_boot=False)),
    ("", unloaded(driver="vfio-pci")),
    ("", replace(unloaded(), virtualization="wsl")),
    ("", replace(unloaded(module="", dkms=""), driver=DriverState(), kubernetes=Kubernetes(gpu_operator=True))),
]


@over(UNLOADED, name=lambda row: row[0])
def test_why_no_module_is_loaded_is_decided_by_looking(name: str, facts: NodeFacts) -> None:
    """One cause, the symptom as what follows from it, and in words which causes were ruled out."""
    state = state_faults(facts, {}, None, FAULTS.checks)
    findings = diagnose(FAULTS, [], state).findings
    assert [(one.fault.id, one.root) for one in findings] == [(name, True), ("smi-cannot-communicate", False)][
        : 2 * bool(name)
    ]
    loaded = next(one for one in health_checks(facts, load_knowledge()) if one.id == "driver.loaded")
    why = state[name][0].text.partition("; not: ")[0] if name else ""
    assert loaded.message == f"no NVIDIA kernel module is loaded{f': {why}' if why else ''}"
    if name == "module-not-loaded":
        assert "; not: driver-missing, dkms-no-headers" in state[name][0].text


def test_of_a_log_the_commands_that_decide_come_next() -> None:
    known = diagnosed("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.")
    assert len(known.asks) == 2 and "dkms status" in known.asks[1].ask
    assert (
        diagnosed(f"{NO_HEADERS}\nNVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.").asks
        == ()
    )
    assert [ask.ask for ask in diagnosed("fine").asks][-1] == "gpunode doctor --local"
    assert all(len(ask.ask) < 120 for causes in FAULTS.checks.symptoms.values() for ask in causes)


APART = {  # a message with two causes → what its answer tells apart
    "rminitadapter": ("the firmware's package", "cold power cycle"),
    "cuda-999": ("nvidia-modprobe", "bad state"),
    "cuda-100": ("a container was not given one", "no instances"),
    "fm-failed": ("another version", "not needed here"),
    "fm-state-in-progress": ("start it", "the switch trays"),
    "installer-failed": ("the compiler's first error", "Secure Boot"),
    "cuda-46": ("reset", "exclusive"),
    "cli-mount-error": ("rootless", "a version before the driver's"),
    "fm-no-nvswitch": ("no fabric", "GPUs with a fabric"),
    "nvml-unknown-error": ("daemon-reload", "the engine runs as root"),
}


@over(APART)
def test_of_a_message_with_two_causes_both_are_asked_for(name: str) -> None:
    means = [ask.means for ask in diagnosed(a_line_of(name)).asks]
    assert len(means) == 2 and all(word in text for word, text in zip(APART[name], means, strict=True))


# faults with several causes that all have the fix that they name
ONE_FIX = set(
    "dnf-gpg dpkg-nvidia-configure package-not-found modprobe-exec-format compiler-missing nvrm-unsupported-gpu "
    "nvcc-unsupported-arch no-cuda-build toolkit-not-installed k8s-no-runtime sched-kind vgpu-license "
    "gpushare-no-gpu sched-port dcgm-missing dp-mps-not-ready".split()
)


def test_of_each_fault_with_several_causes_these_are_asked_for_or_each_has_its_fix() -> None:
    """Where the fix is to look, the commands that decide are there; else the fix has more than one part."""
    asked = FAULTS.checks.symptoms.keys()
    several = re.compile(r"\bor\b|;|, on ")
    one_part = {
        fault.id
        for fault in FAULTS.faults.values()
        if several.search(re.sub(r"\([^)]*\)", "", fault.cause)) and not several.search(fault.fix)
    }
    assert one_part - asked == ONE_FIX
    assert {fault.id for fault in FAULTS.faults.values() if fault.action.id == "look"} <= asked


AUTHORS = {  # a line that no message knows → what is asked first
    "level=error msg=strange io.containerd.grpc.v1": "journalctl -b -u containerd",
    "n1 dockerd[7]: strange": "journalctl -b -u docker",
    "docker: Error response from daemon: strange": "journalctl -b -u docker",
    "n1 crio[7]: strange": "journalctl -b -u crio",
    "n1 kubelet[7]: E1128 10:00:00 strange": "journalctl -b -u kubelet",
    "Warning  Strange  2m  kubelet  strange": "kubectl describe pod",
    "pod/nvidia-device-plugin-x: strange": "kubectl logs -n NAMESPACE POD-OF-THE-DEVICE-PLUGIN",
    "nv-hostengine: strange": "journalctl -b -u nvidia-dcgm",
    "slurmd: strange": "journalctl -b -u slurmd",
    "level=WARN source=gpu.go:1 msg=strange": "systemctl set-environment OLLAMA_DEBUG=1",
    "strange": "nvidia-smi; dmesg",
}


@over(AUTHORS)
def test_of_a_text_that_matches_nothing_its_author_is_asked_first(line: str) -> None:
    found = diagnosed(line)
    assert found.sound and len(found.asks) == 2 and found.asks[0].ask.startswith(AUTHORS[line])


def test_a_sound_node_has_no_fault() -> None:
    running = {"nvidia-fabricmanager": Service(name="nvidia-fabricmanager", active="active")}
    sound = replace(SOUND, nvswitches=(SWITCH,), services=running)
    assert state_faults(sound, {}, load_scheduler_rules(), FAULTS.checks) == {}


PROBES = Path(__file__).parents[1] / "cases" / "probes"
ILL = {  # saved probe → the root causes in its state; a fresh node has no driver, and the others are sound
    "container-no-gpu": "nvrm-no-pci",
    "debian12-crio-podman": "cdi-stale",
    "debian12-driver-mismatch": "nvml-version-mismatch module-next-kernel",
    "debian12-kubeadm-two-engines": "cgroup-driver-mismatch k8s-no-runtime",
    "debian12-no-gpu": "nvrm-no-pci",
    "debian12-no-root": "driver-missing",
    "debian12-stock-engines": "driver-missing",
    "ubuntu2004-cri-dockerd": "cgroup-driver-mismatch k8s-no-runtime",
    "ubuntu2204-hgx-h100-kubelet": "fm-state-in-progress nvlink-inactive dp-mig-none",
    "ubuntu2404-microk8s": "cgroup-driver-mismatch",
    "ubuntu2404-h100-off-the-bus": "gpu-lost",
    "ubuntu2404-two-models": "reset-required module-next-kernel",
}


@over(sorted(path.parent.name for path in PROBES.glob("*/probe.txt")))
def test_of_each_saved_node_the_state_says_what_is_known_of_it(name: str) -> None:
    facts = parse_probe((PROBES / name / "probe.txt").read_text(encoding="utf-8"))
    findings = diagnose(FAULTS, [], state_faults(facts, {}, load_scheduler_rules(), FAULTS.checks)).findings
    known = ILL.get(name, "driver-missing" if name.endswith("-fresh") else "")
    assert {one.fault.id for one in findings if one.root} == set(known.split())


def test_a_unit_that_runs_now_refutes_what_a_log_says_of_its_start() -> None:
    """The package starts the daemon before the module is loaded; the daemon runs since the module is."""
    text = "systemd[1]: nvidia-persistenced.service: Failed with result 'exit-code'.\n"
    scans = [scan(FAULTS, "journal", [text])]
    assert {f.fault.id for f in diagnose(FAULTS, scans).findings} == {"persistenced-fail"}
    assert {f.fault.id for f in diagnose(FAULTS, scans, active={"docker"}).findings} == {"persistenced-fail"}
    assert diagnose(FAULTS, scans, active={"nvidia-persistenced", "docker"}).sound


@over(["containerd-cri-disabled", "kubelet-down"])
def test_a_kubelet_that_runs_has_found_its_engine(name: str) -> None:
    """At boot it may begin before its engine answers."""
    scans = [scan(FAULTS, "kubelet", [a_line_of(name)])]
    assert name in {f.fault.id for f in diagnose(FAULTS, scans).findings}
    assert diagnose(FAULTS, scans, active={"kubelet", "containerd"}).sound


def test_a_driver_that_answers_refutes_that_it_is_not_loaded() -> None:
    text = "modprobe: ERROR: could not insert 'nvidia': Key was rejected by service\n"
    scans = [scan(FAULTS, "apt", [text])]
    assert [f.fault.id for f in diagnose(FAULTS, scans).findings] == ["modprobe-key-rejected"]
    now = diagnose(FAULTS, scans, proven={"driver-answers"})
    assert now.sound and [f.fault.id for f in now.earlier] == ["modprobe-key-rejected"]


PACKAGES = {"nvidia-container-toolkit-base": InstalledPackage(name="nvidia-container-toolkit-base", version="1.20.1-1")}
WITH_RUNTIME = b'{"runtimes": {"nvidia": {"path": "/usr/bin/nvidia-container-runtime"}}}'
OF_A_FOLDER = b'{"runtimes": {"nvidia": {"path": "/usr/local/nvidia/toolkit/nvidia-container-runtime"}}}'
ONE = (CdiGpu(minor=0),)
SPEC = CdiSpec(path="/run/cdi/nvidia.yaml", kind="nvidia.com/gpu", devices=("0", "all"), minors=(0,))
TOOLKIT_CONFIG = "/etc/nvidia-container-runtime/config.toml"
IN_VAIN = (
    'level=error msg="start returned error: CDI device injection failed: unresolvable CDI devices nvidia.com/gpu={}"'
)
STARTED = {"docker": Running(count=0, runtimes=("nvidia", "runc"), knows_hook=True)}
NO_VARIABLES = b"accept-nvidia-visible-devices-envvar-when-unprivileged = false"
NO_NODE = 'error gathering device information while adding custom device "/dev/nvidia{}": no such file or directory'
# a log's line; the state of the node that refutes it, and one that does not
OVER: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    (
        a_line_of("shim-exec-missing"),
        {"toolkit": "1.20.1", "packages": PACKAGES, **docker(WITH_RUNTIME)},
        {"toolkit": "1.20.1", "packages": PACKAGES, **docker(OF_A_FOLDER)},
    ),
    (
        a_line_of("shim-exec-missing"),
        {"toolkit": "1.20.1", "packages": PACKAGES, **docker(WITH_RUNTIME)},
        {"toolkit": "1.20.1", **docker(WITH_RUNTIME)},
    ),
    (a_line_of("docker-no-driver"), {"containers": STARTED}, {"containers": {"docker": Running(count=0)}}),
    (
        a_line_of("cdi-invalid"),
        {"cdi": Cdi(specs=(SPEC,), gpus=ONE)},
        {"cdi": Cdi(gpus=ONE)},
    ),
    (
        IN_VAIN.format("all"),
        {"cdi": Cdi(specs=(SPEC,), gpus=ONE)},
        {"cdi": Cdi(specs=(replace(SPEC, devices=("0",)),), gpus=ONE)},
    ),
    (IN_VAIN.format("0"), {"cdi": Cdi(specs=(SPEC,), gpus=ONE)}, {"cdi": Cdi(gpus=ONE)}),
    (a_line_of("docker-unknown-runtime"), {"containers": STARTED}, docker(WITH_RUNTIME)),
    (
        a_line_of("cdi-stale"),
        {"cdi": Cdi(specs=(SPEC,), gpus=ONE)},
        {"cdi": Cdi(specs=(SPEC,), gpus=ONE, missing=("/dev/dri/card7",))},
    ),
    (NO_NODE.format("0"), {"device_nodes": NODES}, {}),
    (
        NO_NODE.format("ctl"),
        {"device_nodes": (*NODES, DeviceNode(path="/dev/nvidiactl", number="195:255"))},
        {"device_nodes": NODES},
    ),
    (
        a_line_of("visible-devices-refused"),
        {"files": {TOOLKIT_CONFIG: ConfigFile(path=TOOLKIT_CONFIG, data=b"disable-require = false")}},
        {"files": {TOOLKIT_CONFIG: ConfigFile(path=TOOLKIT_CONFIG, data=NO_VARIABLES)}},
    ),
    (
        a_line_of("toolkit-config-broken"),
        {"files": {TOOLKIT_CONFIG: ConfigFile(path=TOOLKIT_CONFIG, data=b"disable-require = false")}},
        {"files": {TOOLKIT_CONFIG: ConfigFile(path=TOOLKIT_CONFIG, data=b"disable-require =")}},
    ),
]


@over(OVER, name=lambda row: row[0][:60])
def test_what_the_node_is_now_refutes_what_its_engines_said(
    line: str, now: dict[str, Any], other: dict[str, Any]
) -> None:
    def examined(state: dict[str, Any]) -> Diagnosis:
        found = _examined("node", replace(SOUND, **state), f"=== gpunode log docker\n{line}\n", ()).diagnosis
        assert found
        return found

    assert not [one for one in examined(now).findings if one.evidence[0].line] and len(examined(now).earlier) == 1
    assert [one for one in examined(other).findings if one.evidence[0].line] and not examined(other).earlier


def test_a_cdi_device_that_nobody_knows_is_answered_by_what_makes_a_specification() -> None:
    """NVIDIA's service, which was named here, makes none where the driver's module is not in /lib/modules."""
    [found] = diagnosed(IN_VAIN.format("all")).findings
    assert found.fix.startswith(f"nvidia-ctk cdi generate --output={PATH}; ") and "restart" not in found.fix


def test_the_fabric_manager_of_a_driver_container_has_no_unit() -> None:
    joined = tuple(replace(gpu, fabric_state="Completed") for gpu in SOUND.nvml)
    contained = replace(SOUND, nvswitches=(SWITCH,), nvml=joined, kubernetes=Kubernetes(driver_container=True))
    assert state_faults(contained, {}, None, FAULTS.checks) == {}


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


@over(SECTIONS)
def test_what_kubelet_and_scheduler_have_on_disk_is_judged(sections: dict[str, str], names: set[str]) -> None:
    assert set(state_faults(SOUND, sections, load_scheduler_rules())) == names


def kubelets(name: str = "ubuntu2204-hgx-h100-kubelet", *, without: str = "", **change: Any) -> NodeFacts:
    """A saved node with a kubelet, without one of its engine's files."""
    facts = parse_probe((PROBES / name / "probe.txt").read_text(encoding="utf-8"))
    files = {path: file for path, file in facts.files.items() if path != without}
    return replace(facts, files=files, **change)


KUBEADM = Kubernetes(kind="kubeadm", kubelet="1.33.1", cri_socket="/run/containerd/containerd.sock")
DROP_IN = "/etc/containerd/conf.d/99-nvidia.toml"
NONE_OFFERED = {"kubelet-devices": '{"Data": {"RegisteredDevices": {"nvidia.com/gpu": []}}}'}
CLASS = {"runtime-classes": "nvidia=nvidia\nasked=\n"}
OTHER_CLASS = {"runtime-classes": "kata=kata-qemu\nasked=\n"}
PODS: list[tuple[str, NodeFacts, dict[str, str], str]] = [
    ("registered, and the default", kubelets(), CLASS, ""),
    ("not registered", kubelets(without=DROP_IN), {}, "k8s-no-runtime"),
    ("a class without a runtime", kubelets(without=DROP_IN), CLASS, "k8s-no-runtime"),
    ("no toolkit", kubelets(without=DROP_IN, toolkit="", kubernetes=KUBEADM), {}, "toolkit-not-installed"),
    ("the operator's container brings it", kubelets(toolkit="", kubernetes=Kubernetes(gpu_operator=True)), {}, ""),
    ("the cluster did not answer", kubelets(), {"runtime-classes": "error: connection refused\n"}, ""),
    ("Docker's default", kubelets("ubuntu2004-cri-dockerd"), NONE_OFFERED, "k8s-no-runtime plugin-no-devices"),
]


@over(PODS, name=lambda row: row[0])
def test_what_keeps_pods_from_the_gpus_is_decided_by_looking(
    _: str, facts: NodeFacts, sections: dict[str, str], names: str
) -> None:
    by_pods = {"k8s-no-runtime", "toolkit-not-installed", "dp-nvml-load", "plugin-no-devices"}
    assert by_pods & state_faults(facts, sections, None, FAULTS.checks).keys() == set(names.split())


def test_a_default_that_no_runtime_class_replaces_is_why_the_plugin_offers_nothing() -> None:
    text = b'imports = []\nversion = 2\n[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]\n'
    (engine,) = [r for r in kubelets().runtimes if r.name == "containerd"]
    file = replace(kubelets().files[engine.config], data=text)
    facts = replace(kubelets(), runtimes=(engine,), files={engine.config: file})
    for sections, there in ((NONE_OFFERED | OTHER_CLASS, True), (NONE_OFFERED | CLASS, False), (NONE_OFFERED, False)):
        assert ("dp-nvml-load" in state_faults(facts, sections, None, FAULTS.checks)) is there
    findings = diagnose(FAULTS, [], state_faults(facts, NONE_OFFERED | OTHER_CLASS, None, FAULTS.checks)).findings
    assert {one.fault.id: one.root for one in findings}["plugin-no-devices"] is False


def test_an_extender_that_nothing_answers_for_is_named() -> None:
    for code, there in (("1", True), ("124", True), ("0", False)):
        section = {"kube-scheduler-extender": f"http://127.0.0.1:32766 {code}\n"}
        assert ("extender-refused" in state_faults(SOUND, section, None, FAULTS.checks)) is there


@over(["modprobe-blocked", "dkms-no-headers"])
def test_what_the_node_shows_outranks_what_its_logs_say(name: str) -> None:
    """The module is there for this kernel and nothing keeps it out: nobody has loaded it."""
    facts = replace(unloaded(), secure_boot=False)
    state = state_faults(facts, {}, None, FAULTS.checks)
    shown_by_log = [scan(FAULTS, "log", [a_line_of(name)])]
    assert name in {one.fault.id for one in diagnose(FAULTS, shown_by_log, state).findings}
    result = diagnose(FAULTS, shown_by_log, state, excluded=excluded(facts, FAULTS.checks))
    assert [one.fault.id for one in result.findings if one.root] == ["module-not-loaded"]
    assert [one.fault.id for one in result.earlier] == [name]
    unknown = replace(facts, secure_boot=None, unread=("files",), kernels=(replace(facts.kernels[0], headers=False),))
    assert not {name, "modprobe-key-rejected"} & excluded(unknown, FAULTS.checks), "what is not known excludes nothing"


def test_a_module_of_the_distributions_that_the_kernel_rejected_is_not_only_not_loaded() -> None:
    """As Ubuntu's kernel 6.8 says of Canonical's module whose signature is gone."""
    facts = replace(unloaded(dkms=""), packages=CANONICALS, secure_boot=True)
    log = ["nvidia-nvlink: Unregistered Nvlink Core, major device number 236", "Loading of unsigned module is rejected"]
    state = state_faults(facts, {}, None, FAULTS.checks)
    found = diagnose(FAULTS, [scan(FAULTS, "log", log)], state, excluded=excluded(facts, FAULTS.checks)).findings
    assert [one.fault.id for one in found if one.root] == ["modprobe-key-rejected"]


def test_the_node_script_is_taken_apart() -> None:
    text = "=== gpunode log kernel\na\nb\n=== gpunode log apt\nc\n"
    assert split_sections(text) == {"kernel": "a\nb\n", "apt": "c\n"}
    assert split_sections("") == {}


# ---------------------------------------------------------------- the command


def run(*args: str, text: str | None = None) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["doctor", *args], input=text, standalone_mode=False)
    return result.return_value if result.exception is None else 99, result.output


def test_logs_from_files_packed_or_not_and_from_standard_input(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(a_line_of("cuda-35"))
    (tmp_path / "b.log.gz").write_bytes(gzip.compress(a_line_of("cuda-803").encode()))
    code, out = run("--log", str(tmp_path / "a.log"), "--log", str(tmp_path / "b.log.gz"), "--format", "json")
    data = json.loads(out)
    assert code == 1 and {f["id"] for f in data["findings"]} == {"cuda-35", "cuda-803"}
    assert (data["xids"], data["next"], data["earlier"]) == ([], [], [])
    assert set(data["findings"][0]) >= {
        "id",
        "root",
        "evidence",
        "cause",
        "fix",
        "action",
        "check",
        "confidence",
        "source",
    }
    code, out = run("--log", "-", text=a_line_of("docker-no-driver"))
    assert code == 1 and "docker-no-driver" in out and "gpunode provision" in out


OF_AN_ARCHIVE: list[tuple[str, str, bool]] = [  # path, a fault whose line it has, whether that counts
    # sosreport
    ("sosreport-n1/sos_commands/kernel/dmesg", "rminitadapter", True),
    ("sosreport-n1/sos_commands/logs/journalctl_--no-pager_--catalog_--boot", "gfw-boot", True),
    ("sosreport-n1/sos_commands/logs/journalctl_--no-pager_--catalog_--boot_-1", "gfw-boot", False),
    ("sosreport-n1/sos_commands/docker/journalctl_--no-pager_--unit_docker", "docker-unknown-runtime", True),
    ("sosreport-n1/sos_commands/nvidia/nvidia-smi_-q", "smi-no-devices", True),
    ("sosreport-n1/var/log/apt/term.log", "dpkg-nvidia-configure", True),
    ("sosreport-n1/var/log/messages", "gfw-boot", True),
    ("sosreport-n1/var/log/messages-20261101", "gfw-boot", False),
    ("sosreport-n1/home/app/training.txt", "cuda-35", False),
    ("sosreport-nvidia1/sos_logs/sos.log", "smi-not-found", False),
    ("sosreport-nvidia1/sos_commands/process/ps_auxwww", "smi-not-found", False),
    # must-gather, GPU Operator's and OpenShift's
    ("./gpu_operand_pod_nvidia-device-plugin-daemonset-x.log", "dp-mps-root", True),
    ("./gpu_operand_pod_nvidia-device-plugin-daemonset-x.previous.log", "dp-mps-root", False),
    ("./gpu_operand_pod_nvidia-operator-validator-x.descr", "sched-insufficient", True),
    ("./gpu_operator_pod.log", "op-no-gpu-node", True),
    ("./gpu_operand_pods.yaml", "sched-insufficient", False),
    ("nvidia-gpu-operator_20261127_1200/must-gather.stderr.log", "dp-mps-root", False),
    ("must-gather/quay-io/namespaces/nvidia-gpu-operator/pods/x/y/y/logs/current.log", "dp-mps-root", True),
    ("must-gather/quay-io/namespaces/nvidia-gpu-operator/pods/x/y/y/logs/previous.log", "dp-mps-root", False),
    ("must-gather/quay-io/namespaces/openshift-dns/pods/x/y/y/logs/current.log", "dp-mps-root", False),
    ("must-gather/quay-io/namespaces/nvidia-gpu-operator/core/events.yaml", "sched-insufficient", True),
    ("must-gather/quay-io/host_service_logs/masters/kubelet_service.log", "kubelet-down", True),
]


def archive(path: Path, files: dict[str, str]) -> str:
    with tarfile.open(path, "w:xz") as made:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            made.addfile(member, io.BytesIO(text.encode()))
    return str(path)


@pytest.mark.parametrize(("path", "fault", "counts"), OF_AN_ARCHIVE)
def test_an_archive_is_read_by_its_paths(path: str, fault: str, counts: bool, tmp_path: Path) -> None:
    code, out = run("--log", archive(tmp_path / "a.tar.xz", {path: a_line_of(fault)}), "--format", "json")
    assert (code, {f["id"] for f in json.loads(out)["findings"]}) == ((1, {fault}) if counts else (0, set()))


def test_the_reports_of_an_archive_are_of_a_machine_each(tmp_path: Path) -> None:
    """One node's driver answers; that proves nothing of another node's."""
    healthy = TEXTS["a healthy machine, whose report is full of words"]["text"]
    ill = TEXTS["an installation that another one has followed"]["text"]
    files = {"./nvidia-bug-report_n1.log": healthy, "./nvidia-bug-report_n2.log": ill}
    _, out = run("--log", archive(tmp_path / "a.tar.xz", files), "--format", "json")
    assert {f["id"] for f in json.loads(out)["findings"]} == {"smi-cannot-communicate"}


VERSIONS = [
    ("cli-cgroup", "NVIDIA Container Toolkit CLI version 1.17.8", "no right to set device rules"),
    ("cli-cgroup", "cli-version: 1.7.0", "toolkit 1.8 or later, which"),
    ("cli-cgroup", "", "toolkit >= 1.8; rootless"),
    ("docker-cdi-disabled", " Server Version: 20.10.24+dfsg1", "Docker 25.0 or later"),
    ("docker-cdi-disabled", "Docker version 29.1.0, build 1", "CDI is on in this Docker"),
    ("docker-cdi-disabled", "Docker version 27.1.1, build 1", 'Docker: "features"'),
]


@over(VERSIONS)
def test_the_fix_is_the_one_for_the_version_in_the_text(fault: str, answer: str, fix: str) -> None:
    found = diagnosed(f"{answer}\n{a_line_of(fault)}\n").findings
    assert [one.fix.startswith(fix) for one in found if one.fault.id == fault] == [True]


def test_fix_hands_over_to_provision_and_looks_once_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only where provision fixes what was found; what is left after it is said."""
    asked: list[tuple[str, ...]] = []
    left = [{"engine-stopped": ["x"]}, {}, {"power-cable": ["x"]}]

    def examined(targets: Targets, on_done: Any, on_examined: Any, read_spec: Any) -> list[Examined]:
        state = {name: [Evidence(source="state", line=0, text=t) for t in seen] for name, seen in left.pop(0).items()}
        one = Examined(host="n1", diagnosis=diagnose(FAULTS, [], state))
        on_examined(one)
        return [one]

    @click.command()
    @target_options
    @spec_option
    @click.option("--yes", is_flag=True)
    def provision(targets: Targets, spec_data: dict[str, Any], yes: bool) -> int:
        asked.append((*targets.inventory, targets.limit, f"{targets.become} {yes}", *spec_data))
        return 0

    monkeypatch.chdir(tmp_path)
    (tmp_path / "gpunode.yml").write_text("driver: {branch: auto}\n")
    monkeypatch.setattr("gpunode.edge.doctor.examine_hosts", examined)
    monkeypatch.setattr("gpunode.cli.provision.provision", provision)
    code, out = run("-i", "n1,", "--become", "--fix", "--yes")
    assert (code, asked) == (0, [("n1,", "n1", "True True", "driver")]) and "nothing known matches" in out
    assert run("-i", "n1,", "--fix")[0] == 1 and len(asked) == 1, "a cable is nothing for provision"
    left += [{"engine-stopped": ["x"]}, {}]
    (tmp_path / "other.yml").write_text("reboot: never\n")
    assert run("-i", "n1,", "--fix", "-c", "other.yml")[0] == 0 and asked[-1][-1] == "reboot"
    assert run("--log", "-", "--fix", text="x")[0] == 99, "a usage error"


def test_a_log_that_says_nothing_known_is_exit_code_0(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("all is well\n")
    code, out = run("--log", str(tmp_path / "a.log"))
    assert code == 0 and "nothing known matches" in out


@pytest.mark.parametrize("name", ["missing.log", "broken.gz", "broken.xz", "broken.tar.gz"])
def test_a_log_that_cannot_be_read_is_named(name: str, tmp_path: Path) -> None:
    if "broken" in name:
        (tmp_path / name).write_bytes(b"this is not packed")
    code, out = run("--log", str(tmp_path / name))
    assert code == 2 and name in out


@pytest.mark.parametrize("text", [None, "driver: [580", "driverr: {}\n"], ids=["none", "YAML", "key"])
def test_a_diagnosis_needs_no_gpunode_yml_and_no_valid_one(
    text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = str(PROBES / "debian12-driver-mismatch" / "probe.txt")
    expected = run("--probe", probe)
    monkeypatch.chdir(tmp_path)
    if text is not None:
        (tmp_path / "gpunode.yml").write_text(text)
    assert run("--probe", probe) == expected and "kernel module" in expected[1]
    bare = str(PROBES / "debian12-no-gpu" / "probe.txt")
    assert "no NVIDIA GPU on PCI" in run("--probe", bare)[1]
    assert run("--probe", bare, "-c", "nowhere.yml")[0] != 1, "a file that is named has to be there"


def test_a_saved_probe_is_judged_by_its_state(tmp_path: Path) -> None:
    code, out = run("--probe", str(PROBES / "debian12-driver-mismatch" / "probe.txt"), "--format", "json")
    (host,) = json.loads(out)["hosts"]
    assert code == 1 and "nvml-version-mismatch" in {f["id"] for f in host["findings"]}


TRUE_OF = {  # class of a fix → what its words name
    "hardware": r"power|BIOS|RMA|replaced|reseat|airflow",
    "reset": r"\breset|destroy instances",
    "reboot": r"boot|command line|remove the install",
    "reload": r"modprobe|reload|unload|before the module loads",
}


def test_the_class_of_a_fix_is_what_its_words_do() -> None:
    """Enrolling a key of Secure Boot is a reboot, and takes no node out of service."""
    wrong = [
        f"{fault.id}: {fault.action.id}: {fault.fix}"
        for fault in FAULTS.faults.values()
        if (words := TRUE_OF.get(fault.action.id)) and not re.search(words, fault.fix)
    ]
    assert not wrong
    little = [one for one in FAULTS.faults.values() if one.action.id not in {*TRUE_OF, "look"}]
    assert not [one.id for one in little if re.search(r"(?<!or )\breboot|\bdrain the node", one.fix)]
    assert FAULTS.faults["modprobe-key-rejected"].action.id == "reboot"
