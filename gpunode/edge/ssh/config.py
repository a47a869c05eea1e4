"""What ssh(1) would do for a host, by its own word."""

from __future__ import annotations

import contextlib
import getpass
import re
import shlex
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path

from gpunode.core.errors import UnreachableError
from gpunode.core.grouped import grouped
from gpunode.edge.side_by_side import Deadline
from gpunode.edge.ssh.hostkeys import known_keys
from gpunode.edge.ssh.shell import Target


def ssh_options(target: Target, deadline: Deadline) -> dict[str, list[str]]:
    """What ssh(1) would do for the target, by its own word (`ssh -G`): option in lower case → values.

    So Include, Match, ProxyJump and the rest of ssh_config are read by the program they were written for.
    """
    args = ["ssh", "-G", *_reach(target)]
    try:
        found = _ran(args, deadline, 30)
    except FileNotFoundError as error:
        raise UnreachableError(
            "the program ssh is not installed on this machine",
            expected="ssh on PATH: it reads ssh_config here, and Ansible connects with it",
            fix="install openssh-client",
        ) from error
    except subprocess.TimeoutExpired as error:
        raise UnreachableError(f"{target.name}: ssh -G did not end", fix="look at Match exec in ssh_config") from error
    if found.returncode:
        raise UnreachableError(
            f"{target.name}: ssh does not understand its configuration: {found.stderr.strip()}",
            fix=f"try: {shlex.join(args)}",
        )
    words = (line.partition(" ") for line in found.stdout.splitlines())
    return grouped((key, value) for key, _, value in words)


def _ran(args: list[str], deadline: Deadline, seconds: float) -> subprocess.CompletedProcess[str]:
    """As subprocess.run; the program ends when the deadline is cut."""
    with (
        subprocess.Popen(
            args, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process,
        deadline.closes(process.kill),
    ):
        try:
            stdout, stderr = process.communicate(timeout=seconds)
        finally:
            process.kill()
    return subprocess.CompletedProcess(args, process.returncode, stdout, stderr)


def _reach(target: Target) -> list[str]:
    """The arguments with which ssh(1) would connect to the target."""
    args = [*target.ssh_args]
    args += ["-p", str(target.port)] if target.port else []
    args += ["-l", target.user] if target.user else []
    for key in target.keys:
        args += ["-o", f'IdentityFile="{key}"']
    return [*args, "--", target.address or target.name]


# ---------------------------------------------------------------- ssh_config


def beyond_paramiko(target: Target, options: Mapping[str, list[str]]) -> str:
    """Why ssh(1) may get in where paramiko did not; "" when nothing speaks for it."""

    def value(name: str) -> str:
        return options.get(name, ["none"])[0]

    if value("pkcs11provider") != "none":
        return "ssh_config names a PKCS11Provider"
    if value("identityagent") not in ("none", "SSH_AUTH_SOCK"):
        return "ssh_config names an IdentityAgent"
    if value("proxyusefdpass") == "yes":
        return "ssh_config says ProxyUseFdpass"
    if value("knownhostscommand") != "none" or any(
        entry.marker == "@cert-authority" for entry in known_keys(known_hosts_files(options), known_as(options))
    ):
        return "known_hosts trusts a certificate authority or a KnownHostsCommand"
    if value("controlpath") != "none" and _succeeds("ssh", "-O", "check", *_reach(target)):
        return "ssh has an open master connection"
    if value("gssapiauthentication") == "yes" and _succeeds("klist", "-s"):
        return "there is a Kerberos ticket"
    return ""


def _succeeds(*command: str) -> bool:
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        ran = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=10, check=False)
        return ran.returncode == 0
    return False


def endpoint(options: Mapping[str, list[str]]) -> str:
    return f"{options['hostname'][0]} port {options['port'][0]}"


def known_as(options: Mapping[str, list[str]]) -> str:
    """The host's name in known_hosts (sshd(8))."""
    host, port = options["hostname"][0].lower(), options["port"][0]
    if "hostkeyalias" in options:
        return options["hostkeyalias"][0]
    return host if port == "22" else f"[{host}]:{port}"


def known_hosts_files(options: Mapping[str, list[str]]) -> list[str]:
    """The user's files first: the first of them takes new keys."""
    found = [
        str(Path(path).expanduser())
        for name in ("userknownhostsfile", "globalknownhostsfile")
        for value in options.get(name, [])
        for path in shlex.split(value)
    ]
    return [path for path in found if path != "none"]


def config_file(ssh_args: tuple[str, ...]) -> tuple[str, ...]:
    """The `-F FILE` among arguments for ssh(1), () when there is none."""
    for index, arg in enumerate(ssh_args):
        if arg.startswith("-F"):
            return ("-F", arg[2:] or "".join(ssh_args[index + 1 : index + 2]))
    return ()


def paths(options: Mapping[str, list[str]], name: str, target: Target) -> list[str]:
    return [
        str(Path(expand(value, target, options)).expanduser()) for value in options.get(name, []) if value != "none"
    ]


def expand(text: str, target: Target, options: Mapping[str, list[str]]) -> str:
    """The tokens of ssh_config(5) that ProxyCommand and IdentityFile know."""
    tokens = {
        "%": "%",
        "h": options["hostname"][0],
        "p": options["port"][0],
        "r": options["user"][0],
        "n": target.address or target.name,
        "k": options.get("hostkeyalias", options["hostname"])[0],
        "d": str(Path.home()),
        "u": getpass.getuser(),
        "l": socket.gethostname(),
    }
    return re.sub("%(.)", lambda match: tokens.get(match[1], match[0]), text)
