"""Every question of knowledge/questions.toml, put to NVIDIA's real nvidia-smi of each branch, and the probe on it.

They come from Debian's and Ubuntu's archives and run on the lab's own libnvidia-ml; skipped where neither the archives
nor a copy from them is at hand.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpunode.core.errors import RefusedError
from gpunode.core.facts import parse_probe
from gpunode.core.knowledge.questions import Field
from gpunode.core.model import NodeFacts
from gpunode.core.remote import program
from gpunode.edge.load import load_questions
from gpunode.lab import nvml, vendor
from gpunode.lab.hardware import write_hardware
from gpunode.node import script

QUESTIONS = load_questions()
BRANCHES = [int(branch) for branch in vendor.SMI if int(branch) >= 390]
FIRST, SECOND = "0000:17:00.0", "0000:1e:00.0"
SCRIPT = script("probe.sh")


@dataclass(frozen=True)
class Smi:
    """A real nvidia-smi, and the folder that its GPUs are described in."""

    path: Path
    version: str
    library: Path
    root: Path

    @property
    def branch(self) -> int:
        return int(self.version.partition(".")[0])

    @property
    def environment(self) -> dict[str, str]:
        return {"GPUNODE_LAB_ROOT": str(self.root), "LD_LIBRARY_PATH": str(self.library.parent), "LC_ALL": "C"}

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.path, *words], env=self.environment, capture_output=True, text=True, timeout=60, check=False
        )

    def health(self, *rows: tuple[str, str, str]) -> None:
        (self.root / "standin-health").write_text("".join("\t".join(row) + "\n" for row in rows))

    def probe(self, folder: Path) -> tuple[NodeFacts, list[str]]:
        """The probe's facts with this nvidia-smi on the PATH, and the first word of each start."""
        starts = folder / "starts"
        starts.unlink(missing_ok=True)
        words = " ".join(f"{name}={value}" for name, value in self.environment.items())
        (folder / "nvidia-smi").write_text(f'#!/bin/sh\necho "$*" >>{starts}\nexec env {words} {self.path} "$@"\n')
        (folder / "nvidia-smi").chmod(0o755)
        (folder / "version").write_text(f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {self.version}  Sun 1 2026\n")
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


@pytest.fixture(params=BRANCHES)
def smi(request: pytest.FixtureRequest, tmp_path: Path) -> Smi:
    """The real nvidia-smi of a branch, with two H100 that have an NVLink fabric."""
    if os.uname().machine != "x86_64" or not shutil.which("gcc"):
        pytest.skip("needs a PC with a C compiler")
    root = tmp_path / "lab"
    root.mkdir()
    try:
        real = vendor.nvidia_smi(str(request.param), log=lambda _: None)
        library = nvml.build(log=lambda _: None)
    except RefusedError as error:
        pytest.skip(f"NVIDIA's own programs cannot be had here: {error.what}")
    write_hardware(root, ["h100", "h100"], nouveau=False)
    (root / "sys/module/nvidia").mkdir(parents=True, exist_ok=True)
    (root / "sys/module/nvidia/version").write_text(f"{real.version}\n")
    (root / "sys/bus/pci/drivers/nvidia-nvswitch").mkdir(parents=True, exist_ok=True)
    return Smi(path=real.path, version=real.version, library=library, root=root)


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
        done = smi.run(f"--query-{query}={field.name}", "--format=csv,noheader,nounits")
        if smi.branch < field.since:
            assert done.returncode != 0, f"{smi.version} knows {field.name}, which the table has from {field.since} on"
            continue
        assert done.returncode == 0, (field.name, done.stdout)
        rows = done.stdout.splitlines()
        assert len(rows) == 2, done.stdout
        assert [row for row in rows if not re.fullmatch(pattern_of(field, smi.branch), row)] == [], field.name


VALUES = {"FIELDS": "index", "GPU": "0", "MODE": "0", "WATTS": "400", "PROFILES": "19", "INSTANCE": "1"}


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
        done = smi.run(*words)
        together = "must be reset with" in done.stdout  # understood: GPUs that NVLinks join, before Ampere
        if (done.returncode in (2, 255) and not together) or REFUSED.search(done.stdout + done.stderr):
            refused.append((" ".join(words), done.returncode, done.stdout[:200]))
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
