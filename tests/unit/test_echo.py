"""A server that sends back all that it is sent (a restricted shell, an appliance, an attacker) is a test of commands.

What a command knows of a host's passwords is on no screen, in no log and in no file of the state directory.
"""

from __future__ import annotations

import getpass
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from sshd import Sshd

from gpunode.cli.main import cli
from gpunode.edge.fleet.runs import HostRow, Runs

SECRET, LOGIN = "correct-horse-7", "battery-staple-8"
# each command that a host's password can come to, with its words; `-i` is added where it takes one
WORDS = {
    "accept": (),
    "check-boot": (),
    "detect": (),
    "doctor": (),
    "kube apply": ("--dry-run",),
    "kube handover": ("gpu-operator",),
    "kube render": ("--server-version", "1.34"),
    "kube status": (),
    "kube verify": (),
    "lock": ("-o", "lock.toml"),
    "plan": ("-o", "plan"),
    "provision": ("--yes",),
    "rollback": ("--check",),
    "rollback --list": (),
    "runs resume": ("last", "--yes"),
    "uninstall": ("--check",),
    "verify": (),
}
SECRETS = {"inventory", "ask_become_pass", "become_password"}  # parameters that passwords come by


def commands(command: click.Command, words: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner
            yield from commands(inner, (*words, name))
    else:
        yield " ".join(words), command


COMMANDS = dict(commands(cli))


def takes(command: click.Command) -> set[str]:
    return {str(param.name) for param in command.params}


def test_every_command_that_is_given_passwords_of_hosts_is_tried() -> None:
    assert {name for name, one in COMMANDS.items() if takes(one) & SECRETS} == {
        one.partition(" --")[0] for one in WORDS
    }


@pytest.fixture(scope="module")
def echo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    server = Sshd(tmp_path_factory.mktemp("echo"), "ForceCommand cat; cat >&2")
    yield server
    server.stop()


@pytest.mark.slow
@pytest.mark.parametrize("name", WORDS)
def test_a_password_that_a_server_sends_back_is_on_no_screen_and_in_no_file(
    name: str, echo: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    host = {
        "ansible_host": "127.0.0.1", "ansible_port": echo.port, "ansible_ssh_private_key_file": str(echo.key),
        "ansible_ssh_args": f"-o UserKnownHostsFile={echo.known_hosts}", "ansible_user": getpass.getuser(),
        "ansible_become": True, "ansible_become_password": SECRET, "ansible_password": LOGIN,
    }  # fmt: skip
    inventory = tmp_path / "hosts.yml"
    inventory.write_text(json.dumps({"all": {"hosts": {"gpu1": host}}}))
    where = {"hosts": [], "inventory": [str(inventory)], "probes": [], "vault_password_files": []}
    asked = {"where": where, "spec": {}, "arguments": [], "rollout": {}, "lock": None}
    row = HostRow(run="20260101", host="gpu1", pool="all", wave=0, plan="a", state="waiting")
    journal = Runs()
    journal.begin("20260101", "provision", asked, f"{socket.gethostname()}:{2**22 + 1}@1", [row])
    journal.close()
    command, _, option = name.partition(" --")
    params = {str(param.name): param for param in COMMANDS[command].params}
    kind = getattr(params.get("output_format"), "type", None)
    formats = {"text", "json"} & set(getattr(kind, "choices", ()))
    words = [*command.split(), *([f"--{option}"] if option else []), *WORDS[name]]
    words += ["-i", str(inventory)] if "inventory" in params else []
    for way in ([], *(["--format", one] for one in formats if one == "json" and not option)):
        ran = CliRunner().invoke(cli, [*words, *way, "-vv", "--log-file", "log"])
        assert "Usage" not in ran.output, ran.output
        assert command.startswith("kube") or "gpu1" in ran.output
        assert SECRET not in ran.output and LOGIN not in ran.output
    files = [Path(folder, file) for folder, _, names in os.walk(tmp_path) for file in names]
    kept = {str(file) for file in files if any(one.encode() in file.read_bytes() for one in (SECRET, LOGIN))}
    assert kept == {str(inventory)} and tmp_path / "log" in files
