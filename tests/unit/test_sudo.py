"""How a shell becomes root by sudo, and each way in which sudo refuses."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpunode.core.errors import UnreachableError
from gpunode.edge.ssh import shell
from gpunode.edge.ssh.many import Ran
from gpunode.edge.ssh.shell import Target

SUDO_USER = "gpunode-test"


@pytest.fixture(scope="module")
def sudo_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An unprivileged account that sudo asks for the password «pass word»; gone at the end."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("sudo", "useradd", "visudo"))):
        pytest.skip("needs root, sudo and useradd: makes an account of its own for the test")
    rule = Path("/etc/sudoers.d/gpunode-test")
    subprocess.run(["useradd", "-M", "-N", "-s", "/bin/sh", SUDO_USER], check=True)
    try:
        subprocess.run(["chpasswd"], input=f"{SUDO_USER}:pass word\n", text=True, check=True)
        yield rule
    finally:
        rule.unlink(missing_ok=True)
        subprocess.run(["userdel", SUDO_USER], check=True, capture_output=True)


def sudo_run(rule: Path, text: str, password: str, program_text: str = "id -un") -> tuple[int, str, str]:
    """The program as the test account, becoming root under the sudoers rule."""
    rule.write_text(text)
    rule.chmod(0o440)
    target = Target(name="node", become=True, become_password=password)
    account = pwd.getpwnam(SUDO_USER)
    ran = subprocess.run(
        ["sh", "-c", shell.shell_command(target)],
        input=shell.shell_input(target, program_text),
        capture_output=True,
        user=account.pw_uid,
        group=account.pw_gid,
        extra_groups=[],
        cwd="/",
        start_new_session=True,
        timeout=60,
    )
    out, err = ran.stdout.decode(), ran.stderr.decode()
    return ran.returncode, out, shell.shell_started(target, ran.returncode, out, err)


def test_sudo_without_password_gives_a_root_shell(sudo_user: Path) -> None:
    assert sudo_run(sudo_user, f"{SUDO_USER} ALL=(ALL) NOPASSWD: ALL\n", "") == (0, "root\n", "")


def test_sudo_with_password_gives_a_root_shell(sudo_user: Path) -> None:
    assert sudo_run(sudo_user, f"{SUDO_USER} ALL=(ALL) ALL\n", "pass word") == (0, "root\n", "")


def test_a_password_that_sudo_does_not_want_never_reaches_the_shell(sudo_user: Path) -> None:
    rule = f"{SUDO_USER} ALL=(ALL) NOPASSWD: ALL\n"
    assert sudo_run(sudo_user, rule, "pass word", "id -un; cat") == (0, "root\n", "")


ODD = {
    "a lecture each time": "Defaults:{} lecture=always",
    "another prompt": 'Defaults:{} passprompt="token of %p: ", passprompt_override',
    "no memory": "Defaults:{} timestamp_timeout=0",
    "a terminal of its own": "Defaults:{} use_pty",
    "insults": 'Defaults:{} insults, badpass_message="no"',
    "another home and path": 'Defaults:{} always_set_home, secure_path="/bin:/usr/bin"',
    "a umask": "Defaults:{} umask=0777, umask_override",
    "a log of what is typed": "Defaults:{} log_input, log_output, iolog_dir=/tmp/gpunode-iolog",
    "a mail": "Defaults:{} mail_always, mailerpath=/bin/true",
    "one try": "Defaults:{} passwd_tries=1",
}


@pytest.mark.slow
@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_rules_that_are_odd_give_a_root_shell_and_no_word_of_theirs(sudo_user: Path, odd: str) -> None:
    try:
        for rights in ("ALL=(ALL) ALL", "ALL=(ALL:ALL) NOPASSWD: ALL", "ALL=(root) PASSWD: ALL, !/bin/su"):
            rule = f"{odd}\n{{}} {rights}\n".replace("{}", SUDO_USER)
            assert sudo_run(sudo_user, rule, "pass word", "id -un; cat") == (0, "root\n", ""), rights
    finally:
        shutil.rmtree("/tmp/gpunode-iolog", ignore_errors=True)


@pytest.mark.parametrize(
    ("rule", "password", "says", "fix"),
    [
        ("{} ALL=(ALL) ALL\n", "", "asks for a password", "--ask-become-pass"),
        pytest.param(
            "{} ALL=(ALL) ALL\n", "wrong", "wrong password", "ansible_become_password", marks=pytest.mark.slow
        ),
        ("# nothing for {}\n", "pass word", "was refused", "/etc/sudoers.d"),
        ("{} ALL=(ALL) NOPASSWD: /bin/true\n", "", "asks for a password", "NOPASSWD"),
        ("{} ALL=(daemon) NOPASSWD: ALL\n", "", "asks for a password", "NOPASSWD"),
        ("{} ALL=(ALL) ALL, !/bin/sh, !/usr/bin/sh, !/bin/dash\n", "pass word", "was refused", "/etc/sudoers.d"),
        ("Defaults:{} requiretty\n{} ALL=(ALL) ALL\n", "pass word", "on a terminal only", "!requiretty"),
    ],
)
def test_each_way_sudo_refuses_has_its_own_message(
    sudo_user: Path, rule: str, password: str, says: str, fix: str
) -> None:
    with pytest.raises(UnreachableError) as caught:
        sudo_run(sudo_user, rule.replace("{}", SUDO_USER), password)
    assert says in caught.value.what
    assert fix in caught.value.fix
    assert "pass word" not in str(caught.value)


def test_secrets_do_not_show_in_a_target() -> None:
    target = Target(name="node", password="hunter2", become_password="hunter3")
    assert "hunter" not in repr(Ran(target=target))
    assert "hunter" not in shell.shell_command(replace(target, become=True))


@pytest.mark.parametrize(
    ("printed", "what", "fix"),
    [
        ("sudo: sorry, you must have a tty to run sudo", "on a terminal only (requiretty", "Defaults:ann !requiretty"),
        ("sudo: a password is required", "asks for a password", "NOPASSWD"),
        ("sudo: interactive authentication is required", "asks for a password", "NOPASSWD"),  # sudo-rs 0.2.13
        (
            "sudo: a terminal is required to read the password; either use the -S option or …",
            "asks for a password",
            "NOPASSWD",
        ),
    ],
)
def test_a_terminal_and_a_password_are_distinguished(printed: str, what: str, fix: str) -> None:
    target = Target(name="gpu1", user="ann", become=True)
    with pytest.raises(UnreachableError) as raised:
        shell.shell_started(target, 1, "", f"{printed}\n")
    assert raised.value.what.startswith("gpu1: sudo to root ") and what in raised.value.what
    assert fix in raised.value.fix
