"""Every question of knowledge/questions.toml, put to NVIDIA's real nvidia-smi of each branch, and the probe on it.

They come from Debian's and Ubuntu's archives and run on the lab's own libnvidia-ml; skipped where neither the archives
nor a copy from them is at hand.
"""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from real_smi import RealSmi, branches
from real_smi import Smi as RealOne

from gpunode.core.facts import parse_probe
from gpunode.core.knowledge.questions import Field
from gpunode.core.model import NodeFacts
from gpunode.core.remote import program
from gpunode.edge.load import load_questions
from gpunode.lab import nvml
from gpunode.node import script

QUESTIONS = load_questions()
FIRST, SECOND = "0000:17:00.0", "0000:1e:00.0"
SCRIPT = script("probe.sh")


@dataclass(frozen=True)
class Smi:
    """A real nvidia-smi (see real_smi.py), with the words of standin-health by slot, and the probe on it."""

    real: RealOne

    @property
    def branch(self) -> int:
        return int(self.real.program.version.partition(".")[0])

    def run(self, *words: str) -> tuple[int, str]:
        return self.real(*words)

    def health(self, *rows: tuple[str, str, str]) -> None:
        (self.real.root / "standin-health").write_text("".join("\t".join(row) + "\n" for row in rows))

    def probe(self, folder: Path) -> tuple[NodeFacts, list[str]]:
        """The probe's facts with this nvidia-smi on the PATH, and the first word of each start."""
        starts = folder / "starts"
        starts.unlink(missing_ok=True)
        real = self.real
        given = nvml.environment(real.library, real.root, real.program.version)
        words = " ".join(f"{name}={given[name]}" for name in given if name.startswith(("GPUNODE_LAB_", "LD_")))
        (folder / "nvidia-smi").write_text(
            f'#!/bin/sh\necho "$*" >>{starts}\nexec env {words} {real.program.path} "$@"\n'
        )
        (folder / "nvidia-smi").chmod(0o755)
        (folder / "version").write_text(
            f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {real.program.version}  Sun 1\n"
        )
        text = SCRIPT.replace("/proc/driver/nvidia/version", str(folder / "version"))
        done = subprocess.run(
            ["sh", "-s"],
            input=program(text, {"sections": b"driver nvidia_smi nvlink topology"}),
            env={"PATH": f"{folder}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return parse_probe(done.stdout), starts.read_text().splitlines()


@pytest.fixture(params=branches())
def smi(request: pytest.FixtureRequest, real_smi: RealSmi) -> Smi:
    """The real nvidia-smi of a branch, with two H100."""
    return Smi(real=real_smi(request.param))


REFUSED = re.compile(
    r"is not a valid field|Invalid combination of input|Failed to parse|Unrecognized|is not a valid|Option .* is not"
)


def pattern_of(field: Field, branch: int) -> str:
    none = (*QUESTIONS.none, *QUESTIONS.unread)
    return "|".join(f"(?:{one})" for one in (*field.patterns(branch), *map(re.escape, none)))


@pytest.mark.parametrize("query", ["gpu", "remapped-rows"])
def test_every_field_is_known_from_its_first_branch_on_and_answers_as_the_table_says(query: str, smi: Smi) -> None:
    known = QUESTIONS.gpu if query == "gpu" else QUESTIONS.remapped
    for field in known.values():
        status, text = smi.run(f"--query-{query}={field.name}", "--format=csv,noheader,nounits")
        if smi.branch < field.since:
            assert status != 0, f"{smi.branch} knows {field.name}, which the table has from {field.since} on"
            continue
        assert status == 0, (field.name, text)
        rows = text.splitlines()
        assert len(rows) == 2, text
        assert [row for row in rows if not re.fullmatch(pattern_of(field, smi.branch), row)] == [], field.name


VALUES = {
    "FIELDS": "index",
    "GPU": "0",
    "MODE": "0",
    "WATTS": "400",
    "LEAST,MOST": "1200,1600",
    "PROFILES": "19",
    "INSTANCE": "1",
    "SECTION": "PERFORMANCE",
    "CAPABILITY": "r",
}


def test_every_other_word_is_accepted_from_its_first_branch_on(smi: Smi) -> None:
    refused = []
    for command in QUESTIONS.commands:
        if command.program != "nvidia-smi" or smi.branch < int(command.since):
            continue
        words = [VALUES.get(word, word) for word in command.words]
        words = [word.replace("=FIELDS", "=gpu_bus_id") for word in words]
        if words[:1] == ["mig"]:
            smi.run("-mig", "1")
        if words[:1] == ["-i"] or any(word.startswith("--format") for word in words):
            words = [*words, "--query-gpu=index"]
        if any(word.startswith("--query") for word in words) and not any(w.startswith("--format") for w in words):
            words = [*words, "--format=csv"]
        if words == ["mig", "-i", "0"]:
            words = [*words, "-lgi"]
        status, text = smi.run(*words)
        together = "must be reset with" in text  # understood: GPUs that NVLinks join, before Ampere
        if (status in (2, 255) and not together) or REFUSED.search(text):
            refused.append((" ".join(words), status, text[:200]))
    assert refused == []


def test_the_probe_starts_nvidia_smi_once_for_the_fields_and_has_nothing_to_remark(smi: Smi, tmp_path: Path) -> None:
    facts, starts = smi.probe(tmp_path)
    assert [start.partition("=")[0] for start in starts] == [
        "--query-gpu",
        *(["--query-remapped-rows"] if 450 <= smi.branch < 580 else []),
        "nvlink --status",
        "topo -m",
    ]
    assert facts.notes == ()
    assert facts.driver.smi == ""
    remap = "No" if smi.branch >= 450 else "N/A"
    for gpu in facts.nvml:
        assert (gpu.remap_pending, gpu.remap_failure, gpu.retired_pending) == (remap, remap, "N/A")
        assert (gpu.ecc_current, gpu.ecc_uncorrected, gpu.fault) == ("Enabled", 0, "")
        assert gpu.mig_current == gpu.mig_pending == ("Disabled" if smi.branch >= 450 else "N/A")
        assert gpu.recovery == ("None" if smi.branch >= 570 else "")
    assert [gpu.slot for gpu in facts.nvml] == [FIRST, SECOND]
    assert facts.topology.names == ("GPU0", "GPU1")
    assert facts.nvlink_inactive == ()


def test_the_probe_reads_rows_that_wait_or_could_not_be_remapped(smi: Smi, tmp_path: Path) -> None:
    smi.health((FIRST, "remapped_rows.pending", "Yes"), (SECOND, "remapped_rows.failure", "Yes"))
    facts, _ = smi.probe(tmp_path)
    read = [(gpu.remap_pending, gpu.remap_failure) for gpu in facts.nvml]
    assert read == ([("Yes", "No"), ("No", "Yes")] if smi.branch >= 450 else [("N/A", "N/A")] * 2)


@pytest.mark.parametrize(
    ("state", "status"), [("Completed", "Success"), ("In Progress", "N/A"), ("Completed", "Unknown Error")]
)
def test_the_probe_reads_the_fabric(state: str, status: str, smi: Smi, tmp_path: Path) -> None:
    smi.health((FIRST, "fabric.state", state), (FIRST, "fabric.status", status))
    facts, _ = smi.probe(tmp_path)
    assert (facts.nvml[0].fabric_state, facts.nvml[0].fabric_status) == (
        (state, status) if smi.branch >= 525 else ("", "")
    )
    assert facts.nvml[0].fault == ""


@pytest.mark.parametrize(("field", "word"), [("reset", "GPU requires reset"), ("lost", "GPU is lost")])
def test_the_probe_names_a_gpu_that_requires_a_reset_or_is_lost(
    field: str, word: str, smi: Smi, tmp_path: Path
) -> None:
    smi.health((SECOND, field, "1"))
    facts, _ = smi.probe(tmp_path)
    faults = [gpu.fault for gpu in facts.nvml]
    if faults != ["", word]:
        assert word in facts.driver.smi  # nvidia-smi ends with the first GPU that it cannot open
    assert not [note for note in facts.notes if "not a valid state" in note]


def test_the_probe_names_a_gpu_all_of_whose_links_are_down(smi: Smi, tmp_path: Path) -> None:
    smi.health((SECOND, "nvlink", "down"))
    facts, _ = smi.probe(tmp_path)
    assert facts.nvlink_inactive == ("GPU 1: all links",)
    smi.health((SECOND, "nvlink.3", "down"))
    facts, _ = smi.probe(tmp_path)
    assert facts.nvlink_inactive == ("GPU 1 link 3",)
