"""The inventory that is meant where none is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from gpunode.cli.main import cli
from gpunode.edge.ansible.default_inventory import default_inventory

HOSTS = "all:\n  hosts:\n    gpu7: {ansible_host: 127.0.0.1, ansible_port: 1}\n"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("ANSIBLE_INVENTORY", "ANSIBLE_CONFIG"):
        monkeypatch.delenv(name, raising=False)


def test_none_is_named_anywhere() -> None:
    assert default_inventory(Path()) == ()


def test_hosts_yml_of_the_folder_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANSIBLE_INVENTORY", "/elsewhere/hosts")
    Path("site").mkdir()
    Path("site/hosts.yml").write_text(HOSTS)
    assert default_inventory(Path("site")) == ("site/hosts.yml",)
    assert default_inventory(Path()) == ("/elsewhere/hosts",)


def test_ansible_cfg_names_it(tmp_path: Path) -> None:
    (tmp_path / "ansible.cfg").write_text("[defaults]\ninventory = estate/hosts, more\n")
    assert default_inventory(Path()) == (str(tmp_path / "estate/hosts"), str(tmp_path / "more"))


def test_an_ansible_cfg_without_one_is_none(tmp_path: Path) -> None:
    (tmp_path / "ansible.cfg").write_text("[defaults]\nforks = 5\n")
    assert default_inventory(Path()) == ()


@pytest.mark.parametrize("command", ["detect", "plan", "verify", "doctor"])
def test_commands_take_it_and_say_so(command: str) -> None:
    Path("hosts.yml").write_text(HOSTS)
    result = CliRunner().invoke(cli, [command, "--connect-timeout", "1"], standalone_mode=False)
    assert "inventory: hosts.yml\n" in result.stderr
    assert "gpu7" in result.output
    assert result.return_value == 4


ASKING = [["detect"], ["plan"], ["verify"], ["doctor"], ["provision"], ["uninstall", "--check"], ["rollback", "--list"]]


@pytest.mark.parametrize("words", ASKING, ids=" ".join)
def test_without_one_a_command_names_what_it_takes(words: list[str]) -> None:
    result = CliRunner().invoke(cli, words, standalone_mode=False)
    assert result.return_value == 2
    assert "no host given\n  expected: one of: HOST…, -i INVENTORY, --local\n" in result.stderr
    assert "gpunode init writes hosts.yml" in result.stderr


@pytest.mark.parametrize("words", ASKING, ids=" ".join)
def test_one_that_ansible_names_and_that_is_missing_is_named(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANSIBLE_INVENTORY", str(tmp_path / "gone.yml"))
    result = CliRunner().invoke(cli, words, standalone_mode=False)
    assert result.return_value == 2 and f"inventory {tmp_path}/gone.yml does not exist" in result.stderr
    # a host that is named needs none
    assert "does not exist" not in CliRunner().invoke(cli, ["detect", "root@127.0.0.1:1"]).stderr


def test_beside_the_file_that_c_names() -> None:
    Path("site").mkdir()
    Path("site/hosts.yml").write_text(HOSTS)
    Path("site/gpunode.yml").write_text("{}\n")
    result = CliRunner().invoke(cli, ["plan", "-c", "site/gpunode.yml", "--connect-timeout", "1"])
    assert "inventory: site/hosts.yml\n" in result.stderr


@pytest.mark.parametrize("given", [["--local"], ["--probe", "x"], ["root@gpu9"]])
def test_not_where_hosts_are_named(given: list[str]) -> None:
    Path("hosts.yml").write_text(HOSTS)
    result = CliRunner().invoke(cli, ["detect", "--connect-timeout", "1", *given])
    assert "inventory:" not in result.stderr


def test_a_host_that_it_has_is_reached_as_it_says() -> None:
    Path("hosts.yml").write_text(HOSTS + "    gpu8: {ansible_host: 127.0.0.1, ansible_port: 1}\n")
    for command in (["detect", "gpu7"], ["uninstall", "gpu7", "--check"]):
        result = CliRunner().invoke(cli, [*command, "--connect-timeout", "1"])
        assert "inventory: hosts.yml\n" in result.stderr and "127.0.0.1" in result.output
        assert "gpu8" not in result.output
    result = CliRunner().invoke(cli, ["detect", "gpu7", "gpu9", "--connect-timeout", "1"])
    assert "inventory:" not in result.stderr


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["gpu77"], "warning: gpu77 is no host of hosts.yml: did you mean 'gpu7'?\n"),
        (["gpu7", "root@gpu7"], "warning: root@gpu7 is no host of hosts.yml: did you mean 'gpu7'?\n"),
        (["other.example"], ""),
    ],
)
def test_a_host_of_nearly_its_name_is_asked_about(given: list[str], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("hosts.yml").write_text(HOSTS)
    monkeypatch.setattr("gpunode.edge.detect.probe", lambda hosts, *_, **__: hosts)
    warned = CliRunner().invoke(cli, ["detect", "--connect-timeout", "1", *given]).stderr
    assert "".join(line for line in warned.splitlines(keepends=True) if "is no host of" in line) == said


def test_json_is_json() -> None:
    Path("hosts.yml").write_text(HOSTS)
    result = CliRunner().invoke(cli, ["detect", "--connect-timeout", "1", "--format", "json"])
    assert "inventory:" not in result.output


def _completed(words: list[str], typed: str) -> list[tuple[str, str]]:
    found = ShellComplete(cli, {}, "gpunode", "_GPUNODE_COMPLETE").get_completions(words, typed)
    return [(item.type, item.value) for item in found]


@pytest.mark.parametrize("words", [["plan", "-i"], ["provision", "--inventory"], ["plan", "-c"]])
def test_the_shell_completes_files(words: list[str]) -> None:
    assert _completed(words, "ho") == [("file", "ho")]


def test_hosts_and_groups_are_completed() -> None:
    Path("site.yml").write_text("pool:\n  hosts:\n    gpu7: {}\n    gpu8: {}\n    cpu1: {}\n")
    assert _completed(["plan", "-i", "site.yml", "--limit"], "gpu") == [("plain", "gpu7"), ("plain", "gpu8")]
    assert _completed(["plan", "-i", "site.yml", "--limit"], "p") == [("plain", "pool")]
    assert _completed(["plan", "-i", "missing.yml", "--limit"], "p") == []


def test_keys_are_completed() -> None:
    assert ("plain", "driver.branch") in _completed(["explain"], "driver.b")
