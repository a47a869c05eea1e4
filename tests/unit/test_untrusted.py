"""What a text of somebody else's may cost is bounded before it is read: aliases, entities, packed lists, depth."""

from __future__ import annotations

import ast
import bz2
import gzip
import lzma
import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpunode.core.bundle.rpm import Modules, parse_modules, parse_primary, parse_repomd
from gpunode.core.edits.text import yamltext
from gpunode.core.errors import GpunodeError, InputError
from gpunode.core.facts.cdi import read_spec
from gpunode.core.untrusted import EXPANDED, check_xml, load_json, load_yaml, load_yaml_documents
from gpunode.edge.bundle import unpack
from gpunode.edge.load import load_spec
from tools.published import parse_chart

PACKAGE = Path(__file__).parents[2] / "gpunode"


def aliases(levels: int, *, last: str) -> str:
    """Half a kilobyte that stands for ten to the power of levels."""
    lines = ["x0: &a0 [lol,lol,lol,lol,lol,lol,lol,lol,lol,lol]"]
    lines += [f"x{n}: &a{n} [{','.join([f'*a{n - 1}'] * 10)}]" for n in range(1, levels + 1)]
    return "\n".join([*lines, last.format(f"*a{levels}")]) + "\n"


BOMB = aliases(8, last="kind: nvidia.com/gpu\ncdiVersion: {}\ndevices: []")
READERS: dict[str, Callable[[str], object]] = {
    "a CDI specification": lambda text: read_spec("/etc/cdi/nvidia.yaml", text.encode()),
    "a file that is edited": lambda text: yamltext.parse("/etc/rancher/k3s/config.yaml", text.encode()),
    "a list of modules": parse_modules,
    "an index of charts": lambda text: parse_chart(text, "gpu-operator"),
    "documents": lambda text: load_yaml_documents(text, "x.yaml"),
}


@pytest.mark.parametrize("reader", READERS)
def test_aliases_that_stand_for_too_much_are_refused_where_they_are(reader: str) -> None:
    with pytest.raises(InputError, match=f"stand for more than {EXPANDED} values"):
        READERS[reader](BOMB)


def test_so_are_those_of_gpunode_yml(tmp_path: Path) -> None:
    (tmp_path / "gpunode.yml").write_text(aliases(8, last="proxy: {}"))
    with pytest.raises(InputError, match="stand for more than"):
        load_spec(tmp_path / "gpunode.yml")


def test_an_alias_of_a_long_text_counts_by_its_length() -> None:
    with pytest.raises(InputError, match="stand for more than"):
        load_yaml(f"a: &a {'x' * 50_000}\nb: [{','.join(['*a'] * 50)}]\n", "x.yaml")


def test_a_value_that_is_part_of_itself_is_refused() -> None:
    with pytest.raises(InputError, match=r"x\.yaml:1:8"):
        load_yaml("a: &a [*a]\n", "x.yaml")


def test_what_people_write_with_aliases_is_read() -> None:
    text = "base: &base {image: x, args: [a, b]}\none: {<<: *base, args: []}\ntwo: *base\n"
    assert load_yaml(text, "x.yaml") == yaml.safe_load(text)


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused_in_words(text: str) -> None:
    for read in (load_yaml, load_yaml_documents, load_json):
        try:
            read(text, "x")
        except InputError as error:
            assert error.what.startswith("x")


@pytest.mark.parametrize("text", ["[" * 100_000, "- " * 100_000, "{a: " * 50_000, '{"a":' * 100_000, "1" * 5_000])
def test_depth_and_long_numbers_are_an_input_error_or_a_value(text: str) -> None:
    for read in (load_yaml, load_json):
        try:
            read(text, "x")
        except InputError as error:
            assert len(error.what) < 400


def test_xml_with_entities_is_refused() -> None:
    with pytest.raises(InputError, match="declares entities"):
        check_xml('<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>', "repomd.xml")
    with pytest.raises(InputError, match="declares entities"):
        parse_repomd('<!DOCTYPE a [<!ENTITY b "c">]><repomd/>', "repomd.xml")


# ---------------------------------------------------------------- lists of repositories

PACK: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
    ".zst": lambda data: subprocess.run(["zstd", "-qc"], input=data, capture_output=True, check=True).stdout,
    "": bytes,
}


@pytest.mark.parametrize("ending", unpack.ENDINGS)
def test_a_list_is_unpacked_up_to_the_size_that_it_may_have(ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if ending == ".zst" and not shutil.which("zstd"):
        pytest.skip("needs zstd")
    monkeypatch.setattr(unpack, "PIECE", 1 << 16)  # so that it comes in several
    data = b"Package: a\n" * 30_000
    packed = PACK[ending](data)
    assert unpack.unpacked(packed, ending, "there") == data
    assert unpack.unpacked(packed, ending, "there", len(data)) == data
    with pytest.raises(GpunodeError, match="there is longer than 1000 bytes"):
        unpack.unpacked(packed, ending, "there", 1000)


def test_several_members_of_gzip_are_one_list() -> None:
    assert unpack.unpacked(gzip.compress(b"one\n") + gzip.compress(b"two\n"), ".gz", "there") == b"one\ntwo\n"


@pytest.mark.parametrize("ending", [".gz", ".xz", ".bz2", ".zst"])
@pytest.mark.parametrize("part", [1, 20, 400])
def test_a_list_that_is_cut_off_is_an_error(ending: str, part: int) -> None:
    if ending == ".zst" and not shutil.which("zstd"):
        pytest.skip("needs zstd")
    packed = PACK[ending](random.Random(1).randbytes(5000))
    with pytest.raises(GpunodeError, match=r"cannot be unpacked|is longer"):
        unpack.unpacked(packed[:-part], ending, "there")


@pytest.mark.parametrize(
    "text",
    [
        "document: modulemd\ndata: [1]\n",
        "document: modulemd\ndata: {name: a, stream: [b]}\n",
        "document: modulemd\ndata: {name: a, stream: b, artifacts: {rpms: 7}}\n",
        "document: modulemd\ndata: {name: a, stream: b, artifacts: {rpms: [[a]]}}\n",
        "document: modulemd-defaults\ndata: {module: [a], stream: b}\n",
        "document: [\n",
    ],
)
def test_a_broken_list_of_modules_is_an_input_error(text: str) -> None:
    with pytest.raises(InputError):
        parse_modules(text)


def test_modules_without_packages_and_other_documents_are_read() -> None:
    text = "--- {document: modulemd, data: {name: a, stream: 8}}\n--- {document: other}\n--- 7\n"
    assert parse_modules(text) == Modules(artifacts={("a", "8"): frozenset()})


def test_a_list_of_packages_is_read_in_one_go() -> None:
    """Sixty thousand packages that never end: once, not once for each."""
    assert list(parse_primary('<package type="rpm">' * 60_000, "", repository="r", base="b", origin="o")) == []


@pytest.mark.parametrize("inside", ["<name>", "<name>\ud800</name>"], ids=["no end", "a surrogate, which is no UTF-8"])
def test_a_broken_package_is_named(inside: str) -> None:
    with pytest.raises(GpunodeError, match="broken XML"):
        list(parse_primary(f'<package type="rpm">{inside}</package>', "", repository="r", base="b", origin="o"))


# ---------------------------------------------------------------- nobody else reads them

# What reads texts that gpunode wrote itself, or that its caller has bounded: file → why
OWN = {
    "core/doctor/state.py": "JSON of a node, of 1 MiB at most; JSON has no aliases",
    "core/edits/engines/docker_file.py": "daemon.json, of 1 MiB at most, which jsontext has parsed before",
    "core/edits/text/yamltext.py": "nodes with their places, behind check_aliases",
    "core/edits/undo.py": "the record of an edit",
    "core/bundle/manifest.py": "a manifest, whose size its reader bounds",
    "kube/core/owned.py": "gpunode's own record in the cluster, of 1 MiB at most",
    "core/selftest/readings.py": "a record of this machine",
    "core/selftest/record.py": "a record of this machine",
    "core/undo/journal.py": "a line of the journal, whose size the probe bounds",
    "edge/state.py": "gpunode's own record of runs",
    "edge/ansible/inventory.py": "what gpunode has just written",
    "edge/bundle/registry.py": "an answer, of a bounded size; JSON has no aliases",
    "edge/bundle/verify.py": "gpunode's own memory",
    "edge/extras.py": "pip's own record",
    "edge/fleet/runs.py": "gpunode's own database",
    "edge/host/nvml.py": "what gpunode's own process printed",
    "edge/host/target.py": "gpunode's own journal",
    "kube/edge/client.py": "an answer of the API; JSON has no aliases",
    "edge/load.py": "gpunode.yml with a loader of its own, behind check_aliases",
    "edge/records.py": "gpunode's own records of nodes",
    "edge/report.py": "a folder of gpunode",
    "edge/saved.py": "a folder of gpunode",
    "edge/secrets.py": "what gpunode has just written",
    "edge/ssh/many.py": "what Ansible wrote of a script's run",
    "edge/starter.py": "gpunode's own template",
}
LOADERS = {
    "yaml": {"load", "load_all", "safe_load", "safe_load_all", "compose", "compose_all"},
    "json": {"load", "loads"},
}


def loads(path: Path) -> bool:
    text = path.read_text()
    if not any(f"{name}." in text for name in LOADERS):
        return False
    nodes = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute))
    return any(isinstance(n.value, ast.Name) and n.attr in LOADERS.get(n.value.id, ()) for n in nodes)


def test_texts_of_others_are_read_by_the_one_reader() -> None:
    found = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if not {"lab", "collection"} & set(path.relative_to(PACKAGE).parts) and loads(path)
    }
    assert found - {"core/untrusted.py", "cli/lab.py"} == set(OWN)
