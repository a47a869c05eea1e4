"""The form of knowledge/*.toml: every row has its proof, no key stands twice, words are known words."""

from __future__ import annotations

import json
import re
import tomllib
from datetime import date
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import yaml
from rows import over

from gpunode.core.facts import parse_probe
from gpunode.core.knowledge import parse_knowledge, source_date_of
from gpunode.core.numbers import version_tuple
from gpunode.core.solve import SolveRequest, solve
from gpunode.edge.load import knowledge_tables, load_knowledge
from gpunode.lab.images import RELEASES

CASES = Path(__file__).parents[1] / "cases"
FOLDER = files("gpunode") / "knowledge"
TABLES = {n: tomllib.loads((FOLDER / f"{n}.toml").read_text()) for n in ("gpus", "drivers", "cuda", "repos")}
KNOWLEDGE = load_knowledge()
ROWS: list[tuple[str, dict[str, Any]]] = [
    *((f"branch {r['branch']}", r) for r in TABLES["drivers"]["branches"]),
    *((f"key {r['id']}", r) for r in TABLES["repos"]["keys"]),
    *((f"distro {r['keys'][0]}", r) for r in TABLES["repos"]["distros"]),
    *((f"built modules {r['keys'][0]}", r) for r in TABLES["repos"]["precompiled"]),
    *((f"packages {n}", r) for n, r in TABLES["repos"]["packages"].items()),
    *((f"repository {n}", r) for n, r in TABLES["repos"]["repositories"].items()),
]


@over(ROWS, name=lambda row: row[0])
def test_a_row_has_its_source_and_the_day_it_was_checked(name: str, row: dict[str, Any]) -> None:
    assert row["source"]
    assert date.fromisoformat(row["checked"]) <= date.fromisoformat(KNOWLEDGE.as_of)


@pytest.mark.parametrize("table", TABLES)
def test_a_source_has_a_date_or_says_that_it_is_unverified(table: str) -> None:
    sources, dates = TABLES[table]["sources"], TABLES[table]["dates"]
    assert set(dates) <= set(sources)
    assert {name for name, text in sources.items() if text.startswith("unverified: ")} == set(sources) - set(dates)
    assert all(date.fromisoformat(day) <= date(2026, 11, 27) for day in dates.values())


def test_the_date_of_a_row_is_that_of_its_newest_source_and_of_none_where_no_source_was_read() -> None:
    file = {"dates": {"old": "2021-03-01", "new": "2026-09-09"}}
    dated = [source_date_of({"source": text}, file) for text in ("old", "know; old", "old; new (page 3)", "know")]
    assert dated == ["2021-03-01", "2021-03-01", "2026-09-09", ""]
    assert source_date_of({"source": "a page", "source_date": "2026-04-01"}, file) == "2026-04-01"


@pytest.mark.parametrize("table", ["gpus", "cuda"])
def test_a_table_of_uniform_rows_is_dated_as_a_whole(table: str) -> None:
    assert date.fromisoformat(TABLES[table]["checked"]) <= date.fromisoformat(KNOWLEDGE.as_of)
    assert all(r["source"] for r in TABLES["cuda"]["toolkits"])


def test_all_gpus_are_there_each_once() -> None:
    lines = [r for r in TABLES["gpus"]["tables"]["gpus"].splitlines() if r]
    assert len(lines) == len(KNOWLEDGE.gpus) == 845
    assert len(KNOWLEDGE.legacy) == 609
    assert len(KNOWLEDGE.nvswitches) == 27
    assert not set(KNOWLEDGE.gpus) & (set(KNOWLEDGE.legacy) | set(KNOWLEDGE.nvswitches))


def test_every_gpu_is_described_in_known_words() -> None:
    kinds = {"datacenter", "workstation", "geforce", "mining", "tegra", "grace-soc", "unnamed", "not-a-gpu"}
    for gpu in KNOWLEDGE.gpus.values():
        assert re.fullmatch(r"10de:[0-9a-f]{4}", gpu.id)
        assert gpu.name and gpu.arch in KNOWLEDGE.architectures, gpu.id
        assert gpu.kind in kinds, gpu.id
        assert gpu.fabric in ("", "nvswitch", "imex"), gpu.id
        assert gpu.mig in ("", "mig-parted", "guide", "chip", "unknown"), gpu.id
        assert gpu.open in ("no", "yes", "only"), gpu.id
        assert gpu.confidence in ("", "low", "medium"), gpu.id
        assert gpu.source and set(gpu.source) <= set(TABLES["gpus"]["sources"]), gpu.id
        assert gpu.compute_capability == "" or gpu.compute_capability in KNOWLEDGE.capabilities, gpu.id


@pytest.mark.parametrize(
    ("pci_id", "name", "arch", "open_modules", "fabric"),
    [
        ("10de:2330", "NVIDIA H100 80GB HBM3", "Hopper", "yes", "nvswitch"),
        ("10de:2331", "NVIDIA H100 PCIe", "Hopper", "yes", ""),
        ("10de:2342", "NVIDIA GH200 120GB", "Hopper", "only", ""),
        ("10de:2901", "NVIDIA B200", "Blackwell", "only", "nvswitch"),
        ("10de:1b80", "NVIDIA GeForce GTX 1080", "Pascal", "no", ""),
        ("10de:1eb8", "Tesla T4", "Turing", "yes", ""),
    ],
)
def test_well_known_gpus_are_what_they_are(pci_id: str, name: str, arch: str, open_modules: str, fabric: str) -> None:
    gpu = KNOWLEDGE.gpu(pci_id.upper())
    assert gpu is not None
    assert (gpu.name, gpu.arch, gpu.open, gpu.fabric) == (name, arch, open_modules, fabric)


def test_branches_are_in_order_with_known_generations() -> None:
    numbers = [r["branch"] for r in TABLES["drivers"]["branches"]]
    assert numbers == sorted(set(numbers))
    known = {*KNOWLEDGE.architectures, "Curie", "Tesla", "Fermi"}
    for branch in KNOWLEDGE.branches.values():
        assert {branch.min_arch, branch.max_arch} <= known, branch.branch
        assert branch.kind in ("LTSB", "PB", "NFB", "legacy", "unknown")
        assert branch.open in ("no", "datacenter", "yes", "only")
        assert re.fullmatch(r"(\d{4}-\d\d|past)?", branch.eol)
        assert not branch.latest or version_tuple(branch.latest)[0] == branch.branch


def test_distributions_stand_once_and_name_a_known_key() -> None:
    keys = [k for r in TABLES["repos"]["distros"] for k in r["keys"]]
    assert len(keys) == len(set(keys))
    for row in KNOWLEDGE.distros.values():
        assert row.signed_by in KNOWLEDGE.keys or not row.signed_by, row.key
        assert {*row.branches, *row.own, *row.own_dkms, *row.own_flavours} <= set(KNOWLEDGE.branches), row.key
        assert list(row.branches) == sorted(set(row.branches)) and 0 not in row.branches, row.key
        assert set(row.own_flavours.values()) <= {"open", "proprietary"}, row.key


# NVIDIA publishes these keys without their fingerprints, and no second source names them: the spec has to
NO_FINGERPRINT = {"CDF6BA43", "1940C73E", "35A7D095"}


@pytest.mark.parametrize("key", [key for key in KNOWLEDGE.solved_distros() if KNOWLEDGE.distros[key].dir])
def test_a_distribution_that_is_solved_has_a_fingerprint_to_compare_with(key: str) -> None:
    signed_by = KNOWLEDGE.distros[key].signed_by
    known = re.fullmatch(r"[0-9A-F]{40}", KNOWLEDGE.keys[signed_by].fingerprint)
    assert bool(known) is (signed_by not in NO_FINGERPRINT)


def test_cuda_releases_name_drivers_and_no_digit_is_lost() -> None:
    assert KNOWLEDGE.cuda["12.8"].native == "570.26"
    assert KNOWLEDGE.cuda["13.0"].compat == "580.65.06"
    assert all(re.fullmatch(r"(\d{3}(\.\d+)*)?", r.native) for r in KNOWLEDGE.cuda.values())


def test_rocky_9_4_has_the_row_of_rocky_9() -> None:
    assert KNOWLEDGE.distro("rocky:9.4") is KNOWLEDGE.distros["rocky:9"]
    assert KNOWLEDGE.distro("rocky:5.4") is None


def test_what_the_knowledge_calls_tested_is_what_the_lab_and_the_recorded_plans_have() -> None:
    machines = {"amd64": "x86_64", "arm64": "aarch64"}
    labs = {f"{name.partition('+')[0]}/{machines[release.arch]}" for name, release in RELEASES.items()}
    planned = set()
    for case in (CASES / "plans").glob("*/case.yml"):
        named = yaml.safe_load(case.read_text(encoding="utf-8"))["probe"]
        facts = parse_probe((CASES / "probes" / named / "probe.txt").read_text(encoding="utf-8"))
        row = KNOWLEDGE.distro(facts.distro.key)
        if json.loads((case.parent / "plan.json").read_text(encoding="utf-8"))["problems"]:
            continue  # a refusal is no plan
        if row and facts.arch in row.archs:
            planned.add(f"{row.key}/{facts.arch}")
    assert set(KNOWLEDGE.tested["nodes"]) == labs
    assert set(KNOWLEDGE.tested["plans"]) == planned - labs
    assert KNOWLEDGE.evidence("debian:12", "x86_64") == "nodes" and KNOWLEDGE.evidence("rhel:9", "x86_64") == ""


def test_every_distribution_is_verified_and_one_that_is_not_gives_a_warning() -> None:
    assert [row.key for row in KNOWLEDGE.distros.values() if not row.verified] == []
    tables = knowledge_tables()
    row = next(one for one in tables["repos"]["distros"] if "debian:12" in one["keys"])
    doubtful = {**row, "source": "know"}
    rows = [doubtful if one is row else one for one in tables["repos"]["distros"]]
    known = parse_knowledge(**{**tables, "repos": {**tables["repos"], "distros": rows}})
    solution = solve(SolveRequest(gpus=("10de:2330",), distro="debian:12"), known)
    warnings = [reason for reason in solution.reasons if reason.level == "warning"]
    assert any(r.what == "knowledge" and "debian:12 is unverified" in r.why for r in warnings)
