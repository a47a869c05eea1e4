"""A real sshd on loopback for the tests: own host keys, own configuration, high port, gone at the end."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import paramiko
import pytest

from gpunode.edge.ssh.shell import Target


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def keygen(path: Path, *, passphrase: str = "", kind: str = "ed25519") -> Path:
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-f", path, "-C", path.name], check=True)
    return path


class Sshd:
    """sshd that lets the current user in with `key`, and the files of a client that knows it."""

    def __init__(self, folder: Path, *extra: str) -> None:
        binary = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
        if not binary or not shutil.which("ssh-keygen") or not shutil.which("ssh"):
            pytest.skip("needs a real sshd and ssh: apt-get install openssh-server openssh-client")
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)  # sshd's privilege separation folder
        folder.chmod(0o700)
        self.folder = folder
        self.port = free_port()
        self.host_key = keygen(folder / "host")
        self.key = keygen(folder / "user")
        (folder / "authorized_keys").write_text((folder / "user.pub").read_text())
        self.known_hosts = folder / "known_hosts"
        self.known_hosts.write_text(f"[127.0.0.1]:{self.port} {self.host_public}\n")
        (folder / "sshd_config").write_text(
            "\n".join(
                [
                    *extra,
                    f"Port {self.port}",
                    "ListenAddress 127.0.0.1",
                    f"HostKey {self.host_key}",
                    f"PidFile {folder}/pid",
                    f"AuthorizedKeysFile {folder}/authorized_keys",
                    "PasswordAuthentication no",
                    "StrictModes no",
                    "UsePAM no",
                    "PermitRootLogin yes",
                    "MaxStartups 100",
                    "",
                ]
            )
        )
        self.process = subprocess.Popen(
            [binary, "-D", "-e", "-f", folder / "sshd_config"], stderr=(folder / "log").open("w")
        )
        deadline = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                if time.monotonic() > deadline or self.process.poll() is not None:
                    pytest.fail(f"sshd does not listen: {(folder / 'log').read_text()}")
                time.sleep(0.05)

    @property
    def host_public(self) -> str:
        """Type and key, as known_hosts wants them."""
        return " ".join(Path(f"{self.host_key}.pub").read_text().split()[:2])

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(10)

    def target(self, *config: str, name: str = "node", **fields: object) -> Target:
        """A target that reaches this sshd by an ssh_config of its own; `config` are more lines of it."""
        file = self.folder / f"ssh_config.{abs(hash((config, name)))}"
        file.write_text(
            "\n".join(
                [
                    *config,
                    f"UserKnownHostsFile {self.known_hosts}",
                    "GlobalKnownHostsFile none",
                    "IdentitiesOnly yes",
                    f"IdentityFile {self.key}",
                    "GSSAPIAuthentication no",
                    "",
                ]
            )
        )
        values: dict[str, object] = {
            "name": name,
            "address": "127.0.0.1",
            "port": self.port,
            "user": getpass.getuser(),
            "ssh_args": ("-F", str(file)),
        }
        return Target(**{**values, **fields})  # type: ignore[arg-type]


class Open(paramiko.ServerInterface):
    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        return paramiko.AUTH_SUCCESSFUL  # type: ignore[attr-defined,no-any-return]

    def check_auth_password(self, username: str, password: str) -> int:
        return paramiko.AUTH_SUCCESSFUL  # type: ignore[attr-defined,no-any-return]

    def get_allowed_auths(self, username: str) -> str:
        return "password,publickey"

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.OPEN_SUCCEEDED  # type: ignore[attr-defined,no-any-return]

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        return True


@contextlib.contextmanager
def narrow_server() -> Iterator[int]:
    """The port of a server whose channels take 16 bytes, and that reads one of them a second."""
    listening = socket.create_server(("127.0.0.1", 0))
    key = paramiko.RSAKey.generate(2048)
    ended = threading.Event()

    def serve() -> None:
        sock, _ = listening.accept()
        transport = paramiko.Transport(sock)
        transport.default_window_size = 16
        transport.add_server_key(key)
        transport.start_server(server=Open())
        channel = transport.accept(20)
        while channel is not None and not ended.wait(1):
            channel.recv(1)

    threading.Thread(target=serve, daemon=True).start()
    yield listening.getsockname()[1]
    ended.set()
    listening.close()
