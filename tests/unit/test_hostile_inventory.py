"""What an inventory that others write into may do: gpunode evaluates no more of it than Ansible does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from gpunode.cli.main import cli
from gpunode.core.errors import GpunodeError, InputError
from gpunode.edge.ansible.inventory import load_inventory
from gpunode.edge.ssh.shell import parse_host


def inventory(folder: Path, hosts: dict[str, Any], **variables: Any) -> str:
    path = folder / "hosts.json"
    path.write_text(json.dumps({"all": {"hosts": hosts, "vars": variables}}))
    return str(path)


@pytest.fixture(autouse=True)
def away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


NAMES = ["-oProxyCommand=touch X", "a/b", "../../x", "..", ".", "/etc/passwd", "a\nb", "a\r\nb", "a\tb", "a b", "a\0b",
         "{{ 7*7 }}", "$(id)", "`id`", "a;b", "a|b", "@file", "!gpu1", "&all", "~.*", "*", "g?u", "a,b", "all",
         "ungrouped", "\x1b[31mred", "a\u202egnp.exe", "a\u200bb", "a\u2028b", "x" * 300, "", "a\\b", "a'b",
         'a"b']  # fmt: skip
ADDRESSES = ["-oProxyCommand=touch X", "-W", "a b", "a\nb", "$(touch X)", "`touch X`", "a;touch X", "a|b", "a'b",
             "x" * 300, "a\\b", "../x", "a\x1bb"]  # fmt: skip
USERS = ["-oProxyCommand=x", "a b", "a;b", "`a`", "a\nb", "a\\"]


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_a_name_that_is_an_option_a_path_or_a_pattern_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as raised:
        load_inventory([inventory(tmp_path, {name: {"ansible_connection": "local"}})])
    assert len(raised.value.what) < 1000 and not any(ord(c) < 32 and c != "\n" for c in raised.value.what)


@pytest.mark.parametrize(
    ("variable", "text"),
    [*(("ansible_host", one) for one in ADDRESSES), *(("ansible_user", one) for one in USERS)],
    ids=ascii,
)
@pytest.mark.parametrize("more", [{}, {"ansible_become": True, "ansible_become_method": "su"}], ids=["ssh", "su"])
def test_an_address_or_user_that_is_an_option_or_shell_is_refused(
    variable: str, text: str, more: dict[str, Any], tmp_path: Path
) -> None:
    """By su the host goes straight to Ansible, which hands its address to ssh(1) bare."""
    with pytest.raises(InputError, match=r"host 'gpu1': its (address|user) is"):
        load_inventory([inventory(tmp_path, {"gpu1": {variable: text, **more}})])


@pytest.mark.parametrize(
    "name", ["gpu1", "gpu-1.example.org", "10.0.0.1", "fe80::1%eth0", "::1", "ops@gpu1", "rechner_ä", "a+b"]
)
def test_names_that_people_give_are_taken(name: str, tmp_path: Path) -> None:
    [host] = load_inventory(
        [inventory(tmp_path, {name: {"ansible_user": "DOM\\ops", "ansible_host": "gpu1.example.org"}})]
    )
    assert (host.name, host.target.user, host.target.address) == (name, "DOM\\ops", "gpu1.example.org")


@pytest.mark.parametrize("text", ["a;b", "$(id)", "a`b", "-x@gpu1", "a'b@gpu1", "gpu1\x1b", "*", "all"])
def test_a_host_on_the_command_line_is_held_to_the_same(text: str) -> None:
    with pytest.raises(InputError):
        parse_host(text)


def test_a_template_in_a_name_or_in_what_nobody_asks_for_is_not_evaluated(tmp_path: Path) -> None:
    """Ansible evaluates a variable when somebody uses it: gpunode uses those that say how to reach the host."""
    mark = tmp_path / "evaluated"
    run = f"{{{{ lookup('pipe', 'touch {mark}') }}}}"
    path = inventory(tmp_path, {"gpu1": {"note": run, "ansible_connection": "local"}}, other=run, motd=[{"a": run}])
    assert [host.name for host in load_inventory([path])] == ["gpu1"]
    done = CliRunner().invoke(cli, ["detect", "-i", path, "--format", "json"], standalone_mode=False)
    assert done.return_value == 0, done.output
    assert not mark.exists()
    used = inventory(tmp_path, {"gpu1": {"ansible_user": run}})
    load_inventory([used])
    assert mark.exists(), "what says how to reach a host is the author's, as in Ansible"


def test_a_text_in_gpunode_spec_that_came_out_of_a_template_is_not_a_template_again(tmp_path: Path) -> None:
    mark = tmp_path / "evaluated"
    inner = "{{ '{{' }} lookup('pipe', 'touch " + str(mark) + "') {{ '}}' }}"
    path = inventory(tmp_path, {"gpu1": {"gpunode_spec": {"proxy": inner}, "ansible_connection": "local"}})
    [host] = load_inventory([path])
    assert host.spec == {"proxy": f"{{{{ lookup('pipe', 'touch {mark}') }}}}"}
    assert not mark.exists()


@pytest.mark.parametrize(
    "text", ["all: &a {hosts: {gpu1: {x: *a}}}", "all: {hosts: !!python/object:os.system {}}", "a: [", "\0", "all: 7"]
)
def test_a_broken_inventory_is_an_input_error(text: str, tmp_path: Path) -> None:
    (tmp_path / "hosts.yml").write_text(text)
    with pytest.raises(GpunodeError):
        load_inventory([str(tmp_path / "hosts.yml")])


def test_a_host_that_stands_there_twice_is_one_host(tmp_path: Path) -> None:
    (tmp_path / "hosts.yml").write_text(
        yaml.safe_dump(
            {"a": {"hosts": {"gpu1": {"ansible_user": "x"}}}, "b": {"hosts": {"gpu1": {"ansible_user": "y"}}}}
        )
    )
    [host] = load_inventory([str(tmp_path / "hosts.yml"), "gpu1,"])
    assert (host.name, set(host.groups)) == ("gpu1", {"a", "b"})
