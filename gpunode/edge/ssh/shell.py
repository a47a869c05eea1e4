"""A host, and the shell that runs there: its command, its input, what its failures mean; and that shell right here."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from gpunode.core.errors import GpunodeError, InputError, UnreachableError
from gpunode.core.late import dataclass, field, regex
from gpunode.core.mask import HIDDEN, mask
from gpunode.core.remote import STARTED
from gpunode.edge.side_by_side import OUTPUT, Deadline

OUTPUT_LIMIT = 16 << 20  # bytes of standard output, and of standard error, kept from one run


@dataclass(frozen=True, kw_only=True)
class Target:
    """A host and how to reach it.  None and "" leave the choice to ssh_config."""

    name: str  # as the user or the inventory calls it
    address: str = ""  # where to connect; "" = name
    port: int | None = None
    user: str = ""
    keys: tuple[str, ...] = ()  # private key files
    password: str = field(default="", repr=False)
    ssh_args: tuple[str, ...] = ()  # more arguments, as for ssh(1)
    connection: str = "ssh"  # ssh, local, or a connection plugin that only Ansible knows
    check_host_key: bool = True  # False: an unknown key is accepted (a changed one is not)
    become: bool = False
    become_user: str = "root"
    become_password: str = field(default="", repr=False)

    def hidden(self, text: str, *, least: int = 8) -> str:
        """What the host says, without the passwords that it was given; shorter ones may be words of any output."""
        for secret in (self.password, self.become_password):
            text = text.replace(secret, HIDDEN) if len(secret) >= least else text
        return text

    def hidden_in(self, error: GpunodeError) -> GpunodeError:
        """The error without them: a server that echoes sends back what sudo was to read."""
        for name in ("what", "expected", "fix"):
            setattr(error, name, self.hidden(getattr(error, name), least=3))
        error.args = (error.what,)
        return error


# What a host may be called: a name is a pattern of Ansible's (--limit, hosts:) and a file's name too, and comes from
# wherever an inventory comes from, such as a cloud where others name machines.
_NAME = regex(r"(?:\w|::)[\w.:@%+=-]{0,252}")
_EVERY = ("all", "ungrouped")  # groups that Ansible has by itself
# What ssh(1) and a ProxyCommand get: OpenSSH refuses the rest since 9.6, older ones hand it to a shell, or read options
_ADDRESS = regex(r"(?!-)[^\s\x00-\x1f\x7f'`\"$\\;&<>|(){},/]{0,255}")
_USER = regex(r"(?!-)[^\s\x00-\x1f\x7f'`\";&<>|(){}]{0,255}(?<!\\)|")


def check_target(target: Target) -> Target:
    """The target, where its name, address and user are no options, patterns, paths or shell; raises InputError."""
    for what, text, rule, expected in (
        ("name", target.name, _NAME, "letters, digits and . _ - : @ % + =, beginning with a letter or digit"),
        ("address", target.address, _ADDRESS, "a host name or an address, such as 10.0.0.1"),
        ("user", target.user, _USER, "the name of an account"),
    ):
        if not rule.fullmatch(text) or (what == "name" and text in _EVERY):
            raise InputError(
                f"host {target.name!r:.100}: its {what} is {text!r:.100}",
                expected=expected,
                fix="name it plainly in the inventory; its address goes into ansible_host",
            )
    return target


# arguments of ssh(1) that lead to another machine, or let another one pass for it
_LEADING = ("-F", "-i", "-J", "-l", "-p", "-W")
_LEADING_OPTIONS = regex(
    r"(hostkeyalias|hostname|identityfile|port|proxycommand|proxyjump|stricthostkeychecking|user|userknownhostsfile)\b",
    re.IGNORECASE,
)


def route(target: Target) -> dict[str, Any]:
    """Which machine is reached, and as whom, by Ansible's variables; nothing secret, and nothing that is not set.

    >>> route(Target(name="gpu1", address="10.0.0.1", ssh_args=("-C", "-o", "ProxyJump=me@gate")))
    {'ansible_host': '10.0.0.1', 'ansible_connection': 'ssh', 'ansible_ssh_args': '-o ProxyJump=me@gate'}
    """
    values = {
        "ansible_host": target.address or target.name,
        "ansible_port": target.port,
        "ansible_user": target.user,
        "ansible_ssh_private_key_file": " ".join(target.keys),
        "ansible_connection": target.connection,
        "ansible_ssh_args": mask(" ".join(_leading(target.ssh_args))),
    }
    return {name: value for name, value in values.items() if value}


def _leading(words: Sequence[str]) -> Iterator[str]:
    rest = iter(words)
    for word in rest:
        if word == "-o":
            option = next(rest, "")
            if _LEADING_OPTIONS.match(option):
                yield f"-o {option}"
        elif word.startswith("-o") and _LEADING_OPTIONS.match(word, 2):
            yield f"-o {word[2:]}"
        elif word in _LEADING:
            yield f"{word} {next(rest, '')}"
        elif word.startswith(_LEADING):
            yield word


_DASHES = ("–", "—", "−")  # what word processors make of --


def given_by(text: str) -> str:
    """How a file or folder is given that stands where a host should."""
    folder = text.removesuffix("/plan.json")
    if (Path(folder) / "plan.json").is_file():
        return f"{folder} is a plan's folder: gpunode provision {folder}"
    return f"an inventory is given by -i {text}, gpunode.yml by -c, a probe by --probe, a log to the doctor by --log"


def parse_host(text: str, *, ssh_args: tuple[str, ...] = ()) -> Target:
    """[user@]host[:port], [user@][IPv6]:port or ssh://… → Target."""
    bare = text.removeprefix("ssh://").rstrip("/") if text.startswith("ssh://") else text
    if "/" in bare or bare.startswith(("~", ".")):
        raise InputError(
            f"{text!r} is a path{'' if Path(text).exists() else ' where nothing is'}, and no host",
            expected="[user@]host[:port]",
            fix=given_by(text),
        )
    user, at, rest = bare.rpartition("@")
    host, port = rest, ""
    if rest.startswith("["):
        host, _, port = rest[1:].partition("]")
        port = port.removeprefix(":")
    elif rest.count(":") == 1:
        host, _, port = rest.partition(":")
    fix = "options stand before --" if text.startswith("-") else "an IPv6 address with a port: [::1]:22"
    if ":" in user:
        host, text, fix = "", f"…@{rest}", "leave the password out: gpunode uses the agent, keys and ~/.ssh/config"
    elif at and not user:
        host, fix = "", "write the user before @, or leave @ out"
    elif "," in rest:
        host, fix = "", f"separate hosts by spaces: {' '.join(filter(None, bare.split(',')))}"
    elif host.startswith(_DASHES):
        fix = f"write -- in place of {host[0]}, if it is an option"
    if not host or host.startswith(("-", *_DASHES)) or any(c.isspace() for c in host) or (port and not port.isdigit()):
        raise InputError(f"host {text!r}", expected="[user@]host[:port]", fix=fix)
    if int(port or 0) > 65535:
        raise InputError(f"host {text!r} has the port {port}", expected="a port of at most 65535")
    return check_target(Target(name=host, address=host, user=user, port=int(port) if port else None, ssh_args=ssh_args))


# ---------------------------------------------------------------- this machine


def local_run(
    program: str, *, target: Target | None = None, timeout: float = 120, deadline: Deadline | None = None
) -> tuple[int, str, str]:
    """The same as Connection.run, on this machine."""
    target = target or Target(name="localhost", connection="local")
    deadline = deadline or Deadline(timeout)
    deadline.part = OUTPUT
    process = subprocess.Popen(
        ["sh", "-c", shell_command(target)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # so that a time-out ends all of it, and Ctrl-C does not cut it in the middle
    )
    assert process.stdin and process.stdout and process.stderr
    parts: tuple[list[bytes], list[bytes]] = ([], [])

    def drain(pipe: IO[bytes], into: list[bytes]) -> None:
        size = 0
        while chunk := os.read(pipe.fileno(), 1 << 16):
            size += len(chunk)
            into.append(chunk)
            if size > OUTPUT_LIMIT:
                _end_group(process)

    def feed(pipe: IO[bytes]) -> None:
        with contextlib.suppress(BrokenPipeError), pipe:
            pipe.write(shell_input(target, program))

    threads = [
        threading.Thread(target=feed, args=(process.stdin,), daemon=True),
        threading.Thread(target=drain, args=(process.stdout, parts[0]), daemon=True),
        threading.Thread(target=drain, args=(process.stderr, parts[1]), daemon=True),
    ]
    for thread in threads:
        thread.start()
    try:
        with deadline.closes(lambda: _end_group(process)):
            rc = process.wait(deadline.within(target.name, threading.TIMEOUT_MAX))
        for thread in threads:
            thread.join(1)  # a process left behind may hold the pipes for ever
    except subprocess.TimeoutExpired as error:
        raise deadline.late(target.name) from error
    finally:
        _end_group(process)
    if max(sum(map(len, part)) for part in parts) > OUTPUT_LIMIT:
        raise too_much(target)
    stdout, stderr = (b"".join(part).decode(errors="replace") for part in parts)
    return rc, stdout, shell_started(target, rc, stdout, stderr)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def too_much(target: Target) -> GpunodeError:
    return GpunodeError(
        f"{target.name}: the script printed more than {OUTPUT_LIMIT >> 20} MiB",
        fix="see what writes so much on the host: a login script that prints, or a huge configuration file",
    )


# ---------------------------------------------------------------- the shell, and sudo


def shell_command(target: Target) -> str:
    """The command that turns standard input (shell_input) into a running shell, as root where the target says so.

    It is wrapped for any login shell.  A password is read by sudo itself; where sudo (or root) does not want one, its
    line is taken off the input, so that it never reaches the shell.
    """
    if not target.become:
        return "sh -s"
    sudo = f"LC_ALL=C sudo -H -u {shlex.quote(target.become_user)}"
    eat = "IFS= read -r _; " if target.become_password else ""
    script = f'if [ "$(id -un)" = {shlex.quote(target.become_user)} ]; then {eat}exec sh -s; fi; '
    if not target.become_password:
        script += f"{sudo} -n sh -s"
    else:
        script += (
            f"if {sudo} -n sh -c : 2>/dev/null </dev/null; then {eat}{sudo} -n sh -s; else {sudo} -S -p '' sh -s; fi"
        )
    return f"sh -c {shlex.quote(script)}"


def shell_input(target: Target, program: str) -> bytes:
    """What goes to standard input: the sudo password where there is one, then the program."""
    password = f"{target.become_password}\n" if target.become and target.become_password else ""
    return f"{password}echo {STARTED} >&2\n{program}".encode()


def shell_started(target: Target, rc: int, stdout: str, stderr: str) -> str:
    """The program's own standard error; raises UnreachableError when the shell never ran."""
    before, mark, after = stderr.partition(f"{STARTED}\n")
    if mark:
        return after
    stated = " ".join(f"{before}\n{stdout}".split())[:500] or f"exit status {rc}, and not a word"
    if not target.become:
        raise UnreachableError(
            f"{target.name}: no shell could be started: {stated}",
            expected="a login shell that runs `sh -s`",
            fix="log in by hand (ssh) and see what it says",
        )
    who = f"sudo to {target.become_user}"
    if "incorrect password" in stated or "try again" in stated:
        raise UnreachableError(
            f"{target.name}: {who}: wrong password",
            fix="correct ansible_become_password, or what you typed for --ask-become-pass",
        )
    if "must have a tty" in stated:
        raise UnreachableError(
            f"{target.name}: {who} is allowed on a terminal only (requiretty in its sudoers)",
            expected="sudo that works without a terminal, as gpunode and Ansible's pipelining need it",
            fix=f"write `Defaults:{target.user or 'USER'} !requiretty` to a file in /etc/sudoers.d, or connect as root",
        )
    if any(f"{what} is required" in stated for what in ("password", "terminal", "interactive authentication")):
        raise UnreachableError(
            f"{target.name}: {who} asks for a password",
            fix="give ansible_become_password (in a vault), or --ask-become-pass, or allow NOPASSWD in sudoers",
        )
    if "not found" in stated:
        raise UnreachableError(
            f"{target.name}: {who}: sudo is not installed", fix="connect as root, or install sudo on the host"
        )
    raise UnreachableError(
        f"{target.name}: {who} was refused: {stated}",
        expected="an account that sudoers allows to become that user",
        fix="connect as root, or allow the account in /etc/sudoers.d",
    )
