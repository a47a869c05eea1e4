"""knowledge/questions.toml: every word for NVIDIA's programs is in it, and says where it was seen."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from datetime import date
from functools import cache
from importlib.resources import files
from pathlib import Path

import pytest

from gpunode.core.facts import parse_probe
from gpunode.core.knowledge.questions import Field, question_variables
from gpunode.edge.load import load_knowledge, load_questions
from gpunode.node import script

PACKAGE = Path(__file__).parents[2] / "gpunode"
TABLE = tomllib.loads((files("gpunode") / "knowledge/questions.toml").read_text())
QUESTIONS = load_questions()
FIELDS = [*QUESTIONS.gpu.values(), *QUESTIONS.remapped.values()]
PROGRAMS = ("nvidia-smi", "nvidia-ctk", "nvidia-container-cli", "dcgmi", "nvidia-cuda-mps-control")
PARTS = (
    "topo",
    "nvlink",
    "mig",
    "cdi",
    "config",
    "system",
    "info",
    "list",
    "diag",
    "generate",
    "create-dev-char-symlinks",
)
OWN = frozenset("nvidia_smi probe_nvidia_smi".split())

# ---------------------------------------------------------------- the words that gpunode has for them

_PROGRAM = re.compile(rf"(?<![\w./*-])(?:/usr/bin/)?({'|'.join(PROGRAMS)})(?![\w.-])")
_MAY_HOLD_A_COMMAND = re.compile(rf"[\"'](?:{'|'.join(PROGRAMS)})[\"']|\*(?:smi|words)\b")
_OPTION = re.compile(r"--?[A-Za-z][\w-]*(?:=[\w.,]*)?")
# functions of scripts through which nvidia-smi is started
_THROUGH = re.compile(r"\b(?:smi|smi_of \S+|ask \S+) ((?:mig )?-{1,2}\S+.*)")
_FIELD = re.compile(r"\b(?:[a-z_]+\.)+[a-z_]+\b|\b(?:index|uuid|name|gpu_uuid|gpu_bus_id|gpu_name|driver_version)\b")


def sent(text: str) -> Iterator[tuple[str, str]]:
    """(program, option or part) of each call and each advice in a text."""
    for match in _PROGRAM.finditer(text):
        for word in re.split(r"\s+", text[match.end() :].lstrip(" ")):
            word = word.strip("\"'`")
            if option := _OPTION.match(word):
                yield match[1], option[0]
            elif word not in PARTS and not re.fullmatch(r"[$\"{}A-Z@\d]+.*", word):
                break
            elif word in PARTS:
                yield match[1], word
            if re.search(r"[;|&<>)\"'`»]", word):
                break


def lists(path: Path) -> Iterator[list[str]]:
    """Sequences of a Python file that hold words of such a program: a command, or what is added to one."""
    text = path.read_text()
    if not _MAY_HOLD_A_COMMAND.search(text):
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.List | ast.Tuple):
            words = [one.value for one in node.elts if isinstance(one, ast.Constant) and isinstance(one.value, str)]
            starts = isinstance(node.elts[0], ast.Starred) if node.elts else False
            names = {ast.unparse(one.value) for one in node.elts if isinstance(one, ast.Starred)}
            if words and (words[0] in PROGRAMS or (starts and names <= {"smi", "words"})):
                yield [words[0] if words[0] in PROGRAMS else "nvidia-smi", *words]


@cache
def sources() -> tuple[tuple[str, str, str], ...]:
    """(program, word, file) of scripts, templates and Python."""
    return tuple(sorted({(program, word, name) for name, program, word in found_words()}))


def found_words() -> Iterator[tuple[str, str, str]]:
    for path in sorted(PACKAGE.rglob("*")):
        if "lab" in path.parts or path.suffix not in (".sh", ".j2", ".py"):
            continue
        lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
        for line in lines:
            yield from ((path.name, *one) for one in sent(line))
            if path.suffix == ".sh" and (through := _THROUGH.search(line)):
                yield from ((path.name, *one) for one in sent(f"nvidia-smi {through[1]}"))
        for words in lists(path) if path.suffix == ".py" else ():
            for word in words[1:]:
                if _OPTION.fullmatch(word):
                    yield path.name, words[0], word


KNOWN = {
    (command.program, _OPTION.match(word)[0] if _OPTION.match(word) else word)  # type: ignore[index]
    for command in QUESTIONS.commands
    for word in command.words
}


def test_every_word_that_is_sent_to_a_program_of_nvidia_is_in_the_table() -> None:
    names = {program for program, _ in KNOWN}
    short = {(program, word.partition("=")[0]) for program, word in KNOWN}
    unknown = [
        f"{name}: {program} {word}"
        for program, word, name in sources()
        if (program, word) not in KNOWN
        and ("=" in word.rstrip("=") or (program, word.rstrip("=")) not in short)
        and (program, word.partition("=")[0])
        not in {(p, "--query-gpu") for p in names} | {(p, "--query-remapped-rows") for p in names}
    ]
    assert unknown == []


RUN = {
    "nvidia-smi": "test_questions_real.py",
    "nvidia-cuda-mps-control": "test_mps_real.py",
    "nvidia-ctk": "test_vendor_toolkit.py",
    "nvidia-container-cli": "test_ubuntu_fabric.py",
    "dcgmi": "",  # in no archive but NVIDIA's own: its row stands by NVIDIA's documentation, and by published output
}


def test_each_program_is_run_by_a_test_or_named_as_one_that_is_not() -> None:
    assert {command.program for command in QUESTIONS.commands} == set(RUN)
    tests = {path.name: path.read_text() for path in Path(__file__).parents[1].rglob("test_*.py")}
    assert [name for name, file in RUN.items() if file and name not in tests[file]] == []
    assert {one.source for one in QUESTIONS.commands if not RUN[one.program]} == {"dcgm; dcgmseen"}


def test_the_search_for_words_finds_calls_lists_and_advice() -> None:
    found = {(program, word) for program, word, _ in sources()}
    assert {
        ("nvidia-smi", "--query-remapped-rows="),
        ("nvidia-smi", "nvlink"),
        ("nvidia-smi", "--status"),
        ("nvidia-smi", "-cgi"),
        ("nvidia-smi", "--gpu-reset"),
        ("nvidia-smi", "-c"),
        ("nvidia-ctk", "generate"),
        ("nvidia-container-cli", "--load-kmods"),
        ("dcgmi", "-r"),
        ("nvidia-cuda-mps-control", "-f"),
    } <= found, sorted(found)


def fields() -> Iterator[tuple[str, str, str]]:
    """(file, query, field) of every --query-… that names fields."""
    for path in sorted(PACKAGE.rglob("*")):
        if "lab" in path.parts or path.suffix not in (".sh", ".py"):
            continue
        text = path.read_text()
        named = dict(re.findall(r"(?m)^([A-Z]+)=([a-z_.,]+)$", text))  # BASE=index,uuid,… of scripts
        for query, given in re.findall(r"--query-(gpu|remapped-rows)=(\"?\$?\{?[\w.,]+\}?\"?)", text):
            word = given.strip('"${}')
            for field in named.get(word, word).split(","):
                if not given.strip('"').startswith(("$", "{")) or word in named:
                    yield path.name, query, field
        if path.name == "mig.sh":
            yield from ((path.name, "gpu", field) for field in re.findall(r"\bask \S+ ([a-z.]+)", text))


def test_every_field_that_is_asked_is_in_the_table() -> None:
    known = {"gpu": QUESTIONS.gpu, "remapped-rows": QUESTIONS.remapped}
    asked = {*fields()}
    assert ("mig.sh", "gpu", "mig.mode.pending") in asked
    assert sorted((name, field) for name, query, field in asked if field not in known[query]) == []
    assert set(QUESTIONS.probe) <= set(QUESTIONS.gpu)
    assert set(QUESTIONS.probe_remapped) <= set(QUESTIONS.remapped)


# ---------------------------------------------------------------- the table itself


def test_every_row_names_sources_that_the_file_has() -> None:
    sources = {*TABLE["sources"]}
    stated = [part for one in FIELDS for source in one.sources for part in source.split("; ")]
    stated += [part for one in QUESTIONS.commands for part in one.source.split("; ")]
    assert {part.partition(" (")[0] for part in stated} == sources
    assert set(TABLE["dates"]) == {name for name in sources if not TABLE["sources"][name].startswith("unverified: ")}
    assert date.fromisoformat(TABLE["checked"]) >= max(map(date.fromisoformat, TABLE["dates"].values()))


def test_the_branches_are_those_that_the_project_knows_or_older() -> None:
    oldest = min(branch.branch for branch in load_knowledge().branches.values())
    assert {field.since for field in FIELDS} <= {*range(min(oldest, 390), 700)}
    assert [one.name for one in FIELDS if one.name.startswith("mig.") and one.since < 450] == []


def test_a_branch_is_asked_for_what_it_knows() -> None:
    assert "mig.mode.current" not in QUESTIONS.asked(418)
    assert "fabric.state" not in QUESTIONS.asked(510)
    assert {"fabric.state", "fabric.status"} <= {*QUESTIONS.asked(525)}
    assert "gpu_recovery_action" not in QUESTIONS.asked(550)
    assert "remapped_rows.pending" not in QUESTIONS.asked(575)
    assert QUESTIONS.asked(580) == QUESTIONS.probe
    assert question_variables(QUESTIONS)["SMI_FIELDS"].startswith("index retired_pages.pending uuid ")


def test_the_answers_have_the_notation_of_the_branch() -> None:
    state = QUESTIONS.gpu["fabric.state"]
    assert (state.patterns(550)[0], state.patterns(579)[0], state.patterns(580)[0]) == (
        "state  Completed",
        "state  Completed",
        "Completed",
    )


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.name)
def test_the_patterns_are_patterns(field: Field) -> None:
    for branch in field.answers:
        assert all(re.compile(pattern) for pattern in field.patterns(branch))


# ---------------------------------------------------------------- what is read of it

UUID = "GPU-11111111-2222-3333-4444-555555555555"


def row(branch: int, **answers: str) -> str:
    """The probe's section of a GPU that says this; every other field says that there is none."""
    said = {"index": "0", "uuid": UUID, "pci.bus_id": "00000000:17:00.0", "driver_version": f"{branch}.1"}
    names = QUESTIONS.asked(branch)
    cells = ", ".join({**said, **{k.replace("__", "."): v for k, v in answers.items()}}.get(n, "[N/A]") for n in names)
    return f"#: gpunode-probe 1\n#: nvidia_smi\n| fields {','.join(names)}\n| {cells}\n#: end\n"


@pytest.mark.parametrize("word", QUESTIONS.none)
def test_words_for_none_are_read_as_none(word: str) -> None:
    [gpu] = parse_probe(row(580, ecc__mode__current=word, fabric__state=word, remapped_rows__failure=word)).nvml
    assert (gpu.ecc_current, gpu.fabric_state, gpu.remap_failure, gpu.fault) == ("N/A", "N/A", "N/A", "")


@pytest.mark.parametrize("word", QUESTIONS.unread)
def test_words_about_the_question_are_neither_a_value_nor_a_fault(word: str) -> None:
    [gpu] = parse_probe(row(580, ecc__mode__current=word, fabric__state=word, remapped_rows__failure=word)).nvml
    assert (gpu.ecc_current, gpu.fabric_state, gpu.remap_failure, gpu.fault) == ("", "", "", "")


@pytest.mark.parametrize("word", QUESTIONS.fault)
def test_words_of_a_gpu_at_fault_are_its_fault(word: str) -> None:
    facts = parse_probe(row(580, memory__total=word, ecc__mode__current=word))
    [gpu] = facts.nvml
    assert (gpu.fault, gpu.ecc_current, gpu.memory_mib) == (word.strip("[]"), "", None)
    assert facts.notes == ()


def test_the_gravest_word_is_the_fault_and_others_that_were_read_stay() -> None:
    words = {"name": "NVIDIA H100", "memory__total": "[Unknown Error]", "ecc__mode__current": "[GPU is lost]"}
    [gpu] = parse_probe(row(535, **words, retired_pages__pending="[GPU requires reset]")).nvml
    assert (gpu.fault, gpu.name, gpu.slot) == ("GPU is lost", "NVIDIA H100", "0000:17:00.0")


@pytest.mark.parametrize(
    ("branch", "state", "status"), [(525, "state  ", "status "), (550, "state  ", "status "), (580, "", "")]
)
def test_the_fabric_is_read_in_the_notation_of_every_branch(branch: int, state: str, status: str) -> None:
    answers = {"fabric__state": f"{state}In Progress", "fabric__status": f"{status}Unknown Error"}
    [gpu] = parse_probe(row(branch, **answers)).nvml
    assert (gpu.fabric_state, gpu.fabric_status, gpu.fault) == ("In Progress", "Unknown Error", "")


def test_the_probe_carries_the_table() -> None:
    assert f"SMI_FIELDS='{question_variables(QUESTIONS)['SMI_FIELDS']}'\n" in script("probe.sh")
