"""Byte streams to a host that SSH runs over: TCP, and the program of a ProxyCommand."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import tempfile
from collections.abc import Iterator

from gpunode.core.errors import UnreachableError
from gpunode.edge.ssh.shell import Target


def tcp(target: Target, host: str, port: int, timeout: float) -> socket.socket:
    """A connection; raises UnreachableError that says what to do about the name, the port or the way there."""
    where = f"{host} port {port}"
    try:
        return socket.create_connection((host, port), timeout)
    except socket.gaierror as error:
        raise UnreachableError(
            f"{target.name}: the name {host!r} does not resolve: {error.strerror}",
            expected="a name that DNS or /etc/hosts knows, or an address",
            fix="check the spelling, or give the address (ansible_host, or HostName in ssh_config)",
        ) from error
    except ConnectionRefusedError as error:
        raise UnreachableError(
            f"{target.name}: {where} refuses connections",
            expected="an SSH server that listens there",
            fix="start sshd on the host, or name the right port (ansible_port, host:port, or Port in ssh_config)",
        ) from error
    except TimeoutError as error:
        raise UnreachableError(
            f"{target.name}: {where} did not answer within {timeout:g} s",
            fix="check that the host is up and that no firewall drops the packets, or wait longer: --connect-timeout",
        ) from error
    except OSError as error:
        raise UnreachableError(
            f"{target.name}: {where} cannot be reached: {error.strerror or error}", fix="check network and routes"
        ) from error


@contextlib.contextmanager
def proxy(command: str) -> Iterator[socket.socket]:
    """ProxyCommand, run by the shell as ssh(1) does it; its standard input and output are one end of a socket pair."""
    ours, theirs = socket.socketpair()
    with ours, tempfile.TemporaryFile() as log:
        with theirs:
            end = theirs.fileno()
            process = subprocess.Popen(["sh", "-c", f"exec {command}"], stdin=end, stdout=end, stderr=log)
        try:
            yield ours
        except UnreachableError as error:
            log.seek(0)
            stated = log.read(500).decode(errors="replace").strip()
            raise UnreachableError(
                f"{error.what} (by ProxyCommand {command!r}: {stated or 'no message'})",
                expected=error.expected,
                fix=error.fix,
            ) from error
        finally:
            process.terminate()
            process.wait()
