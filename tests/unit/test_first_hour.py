"""What a newcomer's first commands say: not found is not absent, and every file that counts is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gpunode.cli.main import cli
from gpunode.core.errors import RefusedError
from gpunode.core.facts import parse_probe
from gpunode.edge import detect as edge_detect
from gpunode.edge.detect import Detected

PROBES = Path(__file__).parents[1] / "cases" / "probes"
HEADERS = "#: gpunode-probe 1\n#: system\n#: os_release\n#: pci\n#: packages\n#: end\n"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def run(*words: object) -> Result:
    return CliRunner().invoke(cli, [str(word) for word in words], standalone_mode=False)


@pytest.mark.parametrize(
    ("node", "none"), [("debian12-h100-fresh", False), ("debian12-no-gpu", True)], ids=["a GPU", "none"]
)
def test_this_machine_has_no_gpu_where_its_probe_says_so_and_not_where_a_plan_failed(
    monkeypatch: pytest.MonkeyPatch, node: str, none: bool
) -> None:
    """Without a network the repository's key cannot be fetched, and there is no plan."""
    found = [Detected(host="localhost", facts=parse_probe((PROBES / node / "probe.txt").read_text()))]
    monkeypatch.setattr(edge_detect, "probe", lambda hosts, where, **_: found)
    Path("gpunode.yml").write_text("proxy: http://127.0.0.1:1\n")
    done = run("provision", "--local", "--yes")
    assert ("This machine has no NVIDIA GPU" in done.output) == none
    assert ("cannot fetch" in done.output) == (not none) and done.return_value == (3 if none else 1)


@pytest.mark.parametrize("verb", ["plan", "lock", "detect"])
def test_a_probe_without_content_is_no_answer(verb: str) -> None:
    """As probe.sh prints it where its library is missing: every section, and nothing in them."""
    Path("gpu1.probe").write_text(HEADERS)
    done = run(verb, "--probe", "gpu1.probe")
    assert done.return_value == 5 and "no os-release, no kernel" in done.output and "nothing to do" not in done.output


@pytest.mark.parametrize("section", ["os_release", "pci", "system"])
def test_each_section_that_every_linux_has_is_asked_for(section: str) -> None:
    text = (PROBES / "debian12-h100-fresh/probe.txt").read_text()
    start = text.index(f"#: {section}\n")
    with pytest.raises(RefusedError):
        parse_probe(text[:start] + text[text.index("\n#: ", start) + 1 :], of_node=True)
    assert parse_probe(text, of_node=True).gpus
