"""gpunode knowledge: rows with their sources, and the GPU table against public lists."""

from __future__ import annotations

import json
import tomllib
from datetime import date
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from gpunode.cli.main import cli
from gpunode.core.errors import InputError
from gpunode.core.knowledge import parse_knowledge
from gpunode.core.knowledge.rows import faults
from gpunode.edge.load import knowledge_tables, load_knowledge
from gpunode.edge.tables import knowledge_text
from tools.pciids import between, compare, parse_pci_ids, parse_supported_gpus
from tools.refresh import refresh

PCI_IDS = """# a list
1000  Somebody else
\t2330  Not NVIDIA
10de  NVIDIA Corporation
\t10f0  GP104 High Definition Audio Controller
\t2330  GH100 [H100 SXM5 80GB]
\t\t10de 16c0  a board
\t22a3  GH100 [H100 NVSwitch]
\t2bff  GB202GLM [RTX PRO 7000 Blackwell Generation Laptop GPU]
\t3fff  GR104 [GeForce RTX 6090]
10df  Emulex
\t2bfe  GB202 [Not NVIDIA]
"""


def run(*args: str) -> Result:
    return CliRunner().invoke(cli, ["knowledge", *args], standalone_mode=False)


def refreshed(*args: str) -> Result:
    done = CliRunner().invoke(refresh, args, standalone_mode=False)
    assert done.exception is None, done.output
    return done


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        ("10de:2330", "H100"),
        ("2330", "GPU 10de:2330"),
        ("580", "driver branch 580"),
        ("12.8", "CUDA release 12.8"),
        ("rocky:9.4", "distribution rhel:9"),
        ("3bf863cc", "EB693B3035CD5710E231E123A4B469963BF863CC"),
        ("debian-own", "packages debian-own"),
    ],
)
def test_a_row_is_shown_with_its_source_and_age(key: str, shown: str) -> None:
    done = run("show", key)
    assert done.return_value == 0
    assert shown in done.output
    assert " days ago)" in done.output
    rows = json.loads(run("show", key, "--format", "json").output)["rows"]
    assert all(row["source"] and row["checked"] and row["source_date"] for row in rows)


def test_age_counts_from_the_source_and_not_from_the_day_somebody_looked() -> None:
    (row,) = json.loads(run("show", "595", "--format", "json").output)["rows"]
    assert row["source_date"] < row["checked"]
    assert row["age_days"] >= (date.today() - date.fromisoformat("2026-11-04")).days > 0
    found = json.loads(run("check", "--max-age", "100000", "--format", "json").output)
    assert found["old"] == []
    every = json.loads(run("check", "--max-age", "0", "--format", "json").output)["old"]
    branches = {row["keys"][0] for row in every if row["table"] == "driver branch"}
    assert "620" in branches and not {"304", "470", "535"} & branches  # their support ended: nothing changes any more


def test_a_row_of_which_no_source_was_read_is_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "repos.toml").write_text(knowledge_text("repos").replace('source = "archpkg"', 'source = "know"'))
    monkeypatch.setenv("GPUNODE_KNOWLEDGE", str(tmp_path))
    assert "unverified: no source was read" in run("show", "arch").output
    assert "unverified: distribution arch: no source of it was read" in run("check", "--max-age", "100000").output


UNPROVEN = (
    (
        "drivers",
        'kind = "LTSB"\nlatest = "620.70.06"',
        'kind = "unknown"\nlatest = "620.70.06"',
        "620: its kind",
    ),
    ("drivers", 'eol = "2029-09"', 'eol = ""', "driver branch 620: the end of its support is not known"),
    ("drivers", '"matrix620; redist; dig620"', '"matrix615"', "620: its source «matrix615» does not speak of it"),
    (
        "repos",
        'source = "trixie; dig610;',
        'source = "index; dig610;',
        "debian:13: its source «index» does not",
    ),
    ("drivers", '"matrix2021; debian"', '"releases"', "driver branch 450: no source of it was read (unverified:"),
)


@pytest.mark.parametrize(("table", "old", "new", "says"), UNPROVEN)
def test_what_cannot_be_proven_is_named(
    table: str, old: str, new: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert old in knowledge_text(table)
    changed = knowledge_text(table).replace(old, new, 1)
    before = run("check", "--max-age", "100000")
    (tmp_path / f"{table}.toml").write_text(changed)
    monkeypatch.setenv("GPUNODE_KNOWLEDGE", str(tmp_path))
    after = run("check", "--max-age", "100000")
    assert says not in before.output and says in after.output
    assert after.return_value == 3


def test_a_column_that_rests_on_nothing_that_was_read_is_named() -> None:
    assert "unverified" not in run("check", "--max-age", "100000").output, "every row has a source that was read"
    tables = knowledge_tables()
    read = {name: day for name, day in tables["gpus"]["dates"].items() if name != "cc"}
    [fault] = faults({**tables, "gpus": {**tables["gpus"], "dates": read}}, load_knowledge())
    assert (fault.table, fault.keys) == ("GPU", ("compute capability",))


def test_what_cannot_change_has_no_age() -> None:
    every = json.loads(run("check", "--max-age", "0", "--format", "json").output)["old"]
    releases = {row["keys"][0].partition(".")[0] for row in every if row["table"] == "CUDA release"}
    assert releases == {"13"}
    assert "GPU" not in {row["table"] for row in every}


def test_an_unknown_key_is_bad_input_and_no_key_lists_the_tables() -> None:
    assert run("show", "nothing-of-the-kind").return_value == 2
    assert "GPU               845 rows" in run("show").output


def test_the_list_counts_the_rows_of_each_table() -> None:
    tables = json.loads(run("show", "--format", "json").output)["tables"]
    repos = knowledge_tables()["repos"]
    assert tables["GPU"]["rows"] == 845
    assert tables["driver branch"]["rows"] == len(load_knowledge().branches)
    assert tables["distribution"]["rows"] == len(repos["distros"])
    assert set(tables) == {
        "GPU", "driver branch", "CUDA release", "distribution", "repository key", "repository", "built modules",
        "packages",
    }  # fmt: skip


def test_check_names_what_is_old() -> None:
    assert "no source is older" in run("check", "--max-age", "100000").output
    done = run("check", "--max-age", "0")
    assert done.return_value == 3 and "rows have sources older than 0 days" in done.output


def test_refresh_adds_rows_that_the_solver_then_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    (tmp_path / "pci.ids").write_text(PCI_IDS)
    supported = {"chips": [{"devid": "0x3FFF", "name": "NVIDIA GeForce RTX 6090"}, {"devid": "0x3FFE", "name": "X"}]}
    (tmp_path / "gpus.json").write_text(json.dumps(supported))
    out = tmp_path / "own"
    args = ("--pci-ids", str(tmp_path / "pci.ids"), "--supported-gpus", str(tmp_path / "gpus.json"), "-o", str(out))
    done = refreshed(*args)
    assert "left out 10de:3ffe" in done.output
    tables = knowledge_tables() | {"gpus": tomllib.loads((out / "gpus.toml").read_text())}
    fresh = parse_knowledge(**tables)
    assert fresh.gpus["10de:2bff"].arch == "Blackwell"
    assert (fresh.gpus["10de:2bff"].kind, fresh.gpus["10de:2bff"].mobile) == ("workstation", True)
    assert (fresh.gpus["10de:3fff"].chip, fresh.gpus["10de:3fff"].arch) == ("GR104", "Rubin")
    assert {i: m for i, m in fresh.gpus.items() if i not in ("10de:2bff", "10de:3fff")} == load_knowledge().gpus
    assert list(fresh.gpus) == sorted(fresh.gpus)
    assert not compare(parse_pci_ids(PCI_IDS), fresh).missing

    monkeypatch.setenv("GPUNODE_KNOWLEDGE", str(out))
    load_knowledge.cache_clear()
    request.addfinalizer(load_knowledge.cache_clear)
    assert "RTX 6090" in run("show", "10de:3fff").output
    (out / "gpus.toml").write_text("tables = [")
    assert run("show").return_value == 2


def test_a_driver_s_own_list_is_enough_where_the_neighbours_have_one_chip(tmp_path: Path) -> None:
    chips = [
        {"devid": "0x2c3c", "name": "NVIDIA RTX PRO 4600 Blackwell Server Edition", "features": ["kernelopen"]},
        {"devid": "0x2c3c", "subvendorid": "0x10de", "subdevid": "0x21f4", "name": "NVIDIA of one maker"},
        {"devid": "0x2bb6", "name": "NVIDIA Between"},
        {"devid": "0xfffe", "name": "NVIDIA Beyond"},
    ]
    known = load_knowledge()
    assert "10de:2c3c" not in known.gpus and "10de:2bb6" not in known.gpus
    (tmp_path / "gpus.json").write_text(json.dumps({"chips": chips}))
    done = refreshed("--supported-gpus", str(tmp_path / "gpus.json"), "-o", str(tmp_path))
    table = tomllib.loads((tmp_path / "gpus.toml").read_text())
    fresh = parse_knowledge(**knowledge_tables() | {"gpus": table})
    new = fresh.gpus["10de:2c3c"]
    assert (new.name, new.chip, new.kind) == ("RTX PRO 4600 Blackwell Server Edition", "GB203", "datacenter")
    assert set(fresh.gpus) - set(known.gpus) == {"10de:2c3c", "10de:2bb6"}
    assert "left out 10de:fffe Beyond: no list names its chip" in done.output
    assert table["sources"]["s"] == "a supported-gpus.json, given to tools/refresh.py"
    assert "p" not in table["sources"]


def test_neighbours_tell_the_chip_of_nearly_every_gpu_that_is_known_and_the_generation_of_all() -> None:
    gpus = load_knowledge().gpus
    generations = {model.chip: model.arch for model in gpus.values()}
    reported = {i: between(i, {other: model for other, model in gpus.items() if other != i}) for i in gpus}
    reported = {pci_id: chip for pci_id, chip in reported.items() if chip}
    assert {i: generations[chip] for i, chip in reported.items()} == {i: gpus[i].arch for i in reported}
    right = sum(gpus[pci_id].chip == chip for pci_id, chip in reported.items())
    assert (len(reported), right) == (725, 721)


@pytest.mark.parametrize(
    ("head", "checked"), [("", ""), ("#\tVersion: 2023.04.10\n", ""), ("#\tVersion: 2031.02.03\n", "2031-02-03")]
)
def test_a_list_makes_the_table_no_younger_than_it_is_itself(tmp_path: Path, head: str, checked: str) -> None:
    (tmp_path / "pci.ids").write_text(head + PCI_IDS)
    refreshed("--pci-ids", str(tmp_path / "pci.ids"), "-o", str(tmp_path))
    table = tomllib.loads((tmp_path / "gpus.toml").read_text())
    assert table["checked"] == (checked or knowledge_tables()["gpus"]["checked"])
    meant = {"": "unknown date", "2023": "2023-04-10", "2031": "2031-02-03"}[head[11:15]]
    assert meant in table["sources"]["p"]


def test_a_pci_ids_of_this_machine_names_no_gpu_with_another_chip() -> None:
    path = next((Path(p) for p in ("/usr/share/misc/pci.ids", "/usr/share/hwdata/pci.ids") if Path(p).exists()), None)
    if path is None:
        pytest.skip("no pci.ids here (Debian's package pci.ids)")
    found = parse_pci_ids(path.read_text(encoding="utf-8", errors="replace"))
    compared = compare(found, load_knowledge())
    assert (compared.missing, compared.other_chip) == ((), ())


@given(st.text())
def test_no_list_makes_the_parsers_raise_anything_but_bad_input(text: str) -> None:
    for parse in (parse_pci_ids, parse_supported_gpus, lambda t: parse_pci_ids(f"\n10de  NVIDIA\n{t}")):
        try:
            parse(text)
        except InputError as error:
            assert error.expected
