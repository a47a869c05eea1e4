"""SSH by paramiko: as ssh_config says, host key verified, through jump hosts."""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpunode.core.errors import UnreachableError
from gpunode.core.meant import meant
from gpunode.edge.side_by_side import OUTPUT, SENDING, Deadline
from gpunode.edge.ssh import config as sshconfig
from gpunode.edge.ssh.hostkeys import HostKeyChanged, add_host_key, check_host_key, known_keys
from gpunode.edge.ssh.shell import (
    OUTPUT_LIMIT,
    Target,
    given_by,
    parse_host,
    shell_command,
    shell_input,
    shell_started,
    too_much,
)

if TYPE_CHECKING:
    import paramiko

sys.modules.setdefault("invoke", None)  # type: ignore[arg-type]  # paramiko's for `Match exec`, which ssh -G reads here
_MAX_JUMPS = 8
_PIECE = 1 << 15  # bytes that are handed to a channel at a time
_SILENCE = 1.0  # seconds without output after which a program that has ended is not waited for any longer


class NotServed(UnreachableError):
    """paramiko could not connect, but ssh(1) knows a way that paramiko does not have: Ansible may try."""


# ---------------------------------------------------------------- one host by SSH


@contextlib.contextmanager
def connect(
    target: Target,
    *,
    timeout: float = 10,
    accept_new: bool = False,
    jumps: Jumps | None = None,
    deadline: Deadline | None = None,
) -> Iterator[Connection]:
    """An authenticated connection to the target, its host key verified; closed at the end.

    `timeout` in seconds bounds each of: TCP, the banner, the key exchange, authentication.  `accept_new` adds unknown
    host keys to known_hosts.  What is open is closed when `deadline` is cut.  Raises UnreachableError, or NotServed
    where OpenSSH itself may succeed.
    """
    deadline = deadline or Deadline()
    options = sshconfig.ssh_options(target, deadline)
    with contextlib.ExitStack() as stack:
        jumps = jumps or stack.enter_context(Jumps(timeout=timeout, accept_new=accept_new))
        try:
            transport = stack.enter_context(_transport(target, options, timeout, accept_new, jumps, deadline))
        except HostKeyChanged:
            raise  # another way in would lead to the same stranger
        except UnreachableError as error:
            reason = "" if deadline.is_cut else sshconfig.beyond_paramiko(target, options)
            if reason:
                raise NotServed(f"{error.what} ({reason})", expected=error.expected, fix=error.fix) from error
            raise
        yield Connection(target, transport)


class Connection:
    """An open connection to one host."""

    def __init__(self, target: Target, transport: paramiko.Transport) -> None:
        self.target = target
        self.transport = transport

    def run(self, program: str, *, timeout: float = 120, deadline: Deadline | None = None) -> tuple[int, str, str]:
        """Feed the program to `sh -s` on the host → exit status, standard output, standard error.

        Raises UnreachableError when no shell started (sudo, login shell) or time ran out (`timeout`, unless there is a
        `deadline` that somebody watches), GpunodeError when the output went over OUTPUT_LIMIT.
        """
        if deadline:
            return self._run(program, deadline)
        with Deadline(timeout).watched() as own, own.closes(self.transport.close):
            return self._run(program, own)

    def _run(self, program: str, deadline: Deadline) -> tuple[int, str, str]:
        import paramiko

        name = self.target.name
        try:
            deadline.part = "opening a channel"
            channel = self.transport.open_session(timeout=deadline.within(name))
            with closing(channel):
                channel.exec_command(shell_command(self.target))
                deadline.part = SENDING
                _send(channel, shell_input(self.target, program), deadline, name)
                deadline.part = OUTPUT
                stdout, stderr = _read(channel, self.target, deadline)
                rc = channel.recv_exit_status() if channel.exit_status_ready() else -1
        except (paramiko.SSHException, OSError, EOFError) as error:
            if deadline.left <= 0:
                raise deadline.late(name) from error
            raise UnreachableError(
                f"{name}: the connection broke: {error or type(error).__name__}",
                fix="try again; if it stays so, look at sshd's log on the host",
            ) from error
        return rc, stdout, shell_started(self.target, rc, stdout, stderr)


def _send(channel: paramiko.Channel, data: bytes, deadline: Deadline, name: str) -> None:
    """As much at a time as the server takes; a shell that ended early reads no more, and its output says why."""
    left = memoryview(data)
    while left:
        channel.settimeout(deadline.within(name, threading.TIMEOUT_MAX))
        try:
            took = channel.send(left[:_PIECE].tobytes())
        except TimeoutError as error:
            raise deadline.late(name) from error
        except OSError:
            break
        if not took:
            break
        left = left[took:]
    with contextlib.suppress(OSError, EOFError):
        channel.shutdown_write()


@contextlib.contextmanager
def closing(stream: Any) -> Iterator[Any]:
    """A channel or SFTP client, closed afterwards; over a broken connection the other side learns nothing."""
    import paramiko

    try:
        yield stream
    finally:
        with contextlib.suppress(paramiko.SSHException, OSError, EOFError):
            stream.close()


def _read(channel: paramiko.Channel, target: Target, deadline: Deadline) -> tuple[str, str]:
    """Both outputs until the program ended; what a process that it left behind writes later is not waited for."""
    parts: tuple[list[bytes], list[bytes]] = ([], [])
    sizes = [0, 0]
    poll = select.poll()
    poll.register(channel.fileno(), select.POLLIN)
    last = time.monotonic()
    while True:
        closed = channel.closed  # asked before the data is taken: none comes after it
        ended = closed or channel.eof_received
        took = False
        for index, (ready, recv) in enumerate(
            ((channel.recv_ready, channel.recv), (channel.recv_stderr_ready, channel.recv_stderr))
        ):
            while ready() and sizes[index] <= OUTPUT_LIMIT:
                parts[index].append(recv(1 << 16))
                sizes[index] += len(parts[index][-1])
                took = True
        now = time.monotonic()
        if max(sizes) > OUTPUT_LIMIT:
            raise too_much(target)
        deadline.within(target.name)
        if took:
            last = now
        elif closed or (channel.exit_status_ready() and (ended or now - last > _SILENCE)):
            break
        elif ended:  # poll would not wait any more: the exit status follows within moments
            channel.status_event.wait(0.2)
        else:
            poll.poll(200)
    return b"".join(parts[0]).decode(errors="replace"), b"".join(parts[1]).decode(errors="replace")


# ---------------------------------------------------------------- transport


@contextlib.contextmanager
def _transport(
    target: Target, options: Mapping[str, list[str]], timeout: float, accept_new: bool, jumps: Jumps, deadline: Deadline
) -> Iterator[paramiko.Transport]:
    """Connect, verify the host key, authenticate."""
    import paramiko

    logging.getLogger("paramiko").addHandler(logging.NullHandler())  # else its threads write to the screen
    where = sshconfig.endpoint(options)
    known_as = sshconfig.known_as(options)
    files = sshconfig.known_hosts_files(options)
    known = known_keys(files, known_as)
    with contextlib.ExitStack() as stack:
        sock = stack.enter_context(_socket(target, options, timeout, jumps, deadline))
        try:
            deadline.part = "the key exchange"
            transport = stack.enter_context(contextlib.closing(paramiko.Transport(sock)))
            stack.enter_context(deadline.closes(transport.close))
            transport.banner_timeout = transport.auth_timeout = transport.channel_timeout = timeout
            _prefer_known_types(transport, {entry.kind for entry in known if not entry.marker})
            transport.start_client(timeout=timeout)
            if not transport.initial_kex_done:  # at its timeout start_client just comes back
                raise TimeoutError("no answer")
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise UnreachableError(
                f"{target.name}: no SSH server talks at {where}: {error or type(error).__name__}",
                expected=f"an SSH banner and key exchange within {timeout:g} s",
                fix="check address and port, and sshd on the host (systemctl status ssh, its log)",
            ) from error
        shown = transport.get_remote_server_key()
        # ssh(1) also takes the key that stands for the host without its port, unless the entry with it says otherwise
        if all(entry.marker for entry in known):
            bare = known_keys(files, options["hostname"][0])
            known += tuple(entry for entry in bare if entry.key == shown.get_base64() and entry not in known)
        strict = options.get("stricthostkeychecking", ["ask"])[0]
        trust_new = accept_new or not target.check_host_key or strict in ("no", "off", "false", "accept-new")
        new = check_host_key(
            known,
            host=target.name,
            name=known_as,
            kind=shown.get_name(),
            key=shown.get_base64(),
            files=files,
            accept_new=trust_new,
        )
        if new and files:
            hashed = options.get("hashknownhosts", ["no"])[0] == "yes"
            add_host_key(files[0], name=known_as, kind=shown.get_name(), key=shown.get_base64(), hashed=hashed)
        deadline.part = "logging in"
        _authenticate(transport, target, options, where)
        yield transport


def _authenticate(transport: paramiko.Transport, target: Target, options: Mapping[str, list[str]], where: str) -> None:
    """Offer what there is, in ssh(1)'s order: keys of the agent, key files, the password."""
    import paramiko

    user = options["user"][0]
    tried: list[str] = []
    for name, attempt in _credentials(target, options, user, tried):
        tried.append(name)
        try:
            if not attempt(transport):  # what is left says which methods must follow (two factors)
                return
        except paramiko.BadAuthenticationType as error:
            tried[-1] += f" (only {', '.join(error.allowed_types)} allowed)"
        except paramiko.AuthenticationException:
            continue
        except (paramiko.SSHException, OSError, EOFError) as error:
            tried[-1] += f" ({error or type(error).__name__})"
        if not transport.is_active():
            break
    raise UnreachableError(
        f"{target.name}: {where} does not let {user} in; tried: {', '.join(tried) or 'nothing, there is no key here'}",
        expected=f"a key listed in authorized_keys of {user} there",
        fix="name the right account and key (ansible_user, ansible_ssh_private_key_file, or ssh_config), ssh-add it, "
        f"or allow it there: ssh-copy-id -p {options['port'][0]} {user}@{options['hostname'][0]}",
    )


def _credentials(
    target: Target, options: Mapping[str, list[str]], user: str, tried: list[str]
) -> Iterator[tuple[str, Callable[[Any], list[str]]]]:
    """Name and attempt of each credential; key files that cannot be used are noted in `tried`."""
    import paramiko

    named = sshconfig.paths(options, "identityfile", target)
    files = [path for path in named if Path(path).is_file()]
    if not {"~/.ssh/id_rsa", "~/.ssh/id_ed25519"} <= {*options.get("identityfile", ())}:  # those of ssh(1) itself
        tried += [f"{path} (there is no such file)" for path in named if path not in files]
    only = options.get("identitiesonly", ["no"])[0] == "yes"
    wanted = {_public_blob(path) for path in files} if only else set()
    with contextlib.suppress(paramiko.SSHException, OSError):
        for key in paramiko.Agent().get_keys():
            if not only or key.get_base64() in wanted:
                yield f"agent key {key.comment or key.get_name()}", _by_key(user, key)
    for path in files:
        try:
            key_of_file = _load_key(path, target.password)
        except (TypeError, paramiko.PasswordRequiredException):
            tried.append(f"{path} (encrypted: ssh-add it)")
        except Exception as error:  # cryptography has many ways to say that a file is no key that it can use
            tried.append(f"{path} (unusable: {error or type(error).__name__})")
        else:
            yield path, _by_key(user, key_of_file)
    if target.password:
        yield "password", lambda transport: transport.auth_password(user, target.password)


def _load_key(path: str, password: str) -> paramiko.PKey:
    """The key in a file; the log-in password is tried as its passphrase too, as Ansible documents it."""
    import paramiko

    try:
        return paramiko.PKey.from_path(path)
    except TypeError:  # encrypted
        if not password:
            raise
        # positional, as bytes: what the releases of paramiko that we support have in common
        return paramiko.PKey.from_path(path, password.encode())  # type: ignore[arg-type]


def _by_key(user: str, key: Any) -> Callable[[Any], list[str]]:
    return lambda transport: transport.auth_publickey(user, key)


def _public_blob(path: str) -> str:
    try:
        return Path(f"{path}.pub").read_text(encoding="utf-8").split()[1]
    except (OSError, IndexError, UnicodeDecodeError):
        return ""


def _prefer_known_types(transport: paramiko.Transport, kinds: set[str]) -> None:
    """Ask the server for a key of a type that known_hosts has, as ssh(1) does; else a known host would look changed."""
    security = transport.get_security_options()
    wanted = {k for kind in kinds for k in (("rsa-sha2-512", "rsa-sha2-256") if kind == "ssh-rsa" else (kind,))}
    security.key_types = tuple(sorted(security.key_types, key=lambda kind: kind not in wanted))


@contextlib.contextmanager
def _socket(
    target: Target, options: Mapping[str, list[str]], timeout: float, jumps: Jumps, deadline: Deadline
) -> Iterator[socket.socket | paramiko.Channel]:
    """A byte stream to the host: TCP, through jump hosts, or by ProxyCommand."""
    host, port = options["hostname"][0], int(options["port"][0])
    jump = options.get("proxyjump", ["none"])[0]
    command = options.get("proxycommand", ["none"])[0]
    if jump != "none":
        with closing(jumps.channel(target, jump, host, port, deadline)) as channel:
            yield channel
    elif command != "none":
        with proxy(sshconfig.expand(command, target, options), deadline) as sock:
            yield sock
    else:
        with tcp(target, host, port, deadline.within(target.name, timeout)) as sock, deadline.closes(sock.close):
            yield sock


class Jumps:
    """Connections to jump hosts, each opened once and shared: a bastion would drop fifty log-ins at a time."""

    def __init__(self, *, timeout: float, accept_new: bool) -> None:
        self._timeout = timeout
        self._accept_new = accept_new
        self._open: dict[tuple[str, tuple[str, ...]], Connection | UnreachableError] = {}
        self._lock = threading.RLock()  # a jump host may itself be behind one
        self._deadlines: list[Deadline] = []
        self._stack = contextlib.ExitStack()
        self._depth = 0

    def __enter__(self) -> Jumps:
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        if kind:  # nothing is waited for
            for deadline in self._deadlines:
                deadline.cut()
        else:
            self._stack.close()

    def channel(self, target: Target, jump: str, host: str, port: int, deadline: Deadline) -> paramiko.Channel:
        """A stream to host:port through `jump`, a value of ProxyJump: [user@]host[:port][,…]."""
        import paramiko

        with self._lock:
            connection = self._connection(target, jump, deadline)
        if isinstance(connection, UnreachableError):
            raise UnreachableError(
                f"{target.name}: jump host {connection.what}", expected=connection.expected, fix=connection.fix
            )
        try:
            return connection.transport.open_channel(
                "direct-tcpip", (host, port), ("127.0.0.1", 0), timeout=deadline.within(target.name, self._timeout)
            )
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise UnreachableError(
                f"{target.name}: jump host {jump} cannot reach {host} port {port}: {error or type(error).__name__}",
                fix="check from the jump host: name, port, firewall, and AllowTcpForwarding of its sshd",
            ) from error

    def _connection(self, target: Target, jump: str, deadline: Deadline) -> Connection | UnreachableError:
        # ssh(1) hands its jump hosts the configuration file and the hosts before them, nothing else
        before, _, last = jump.rpartition(",")
        args = (*sshconfig.config_file(target.ssh_args), *(("-J", before) if before else ()))
        if (last, args) not in self._open:
            self._depth += 1
            try:
                if self._depth > _MAX_JUMPS:
                    raise UnreachableError(
                        f"{last}: jump hosts lead in a circle", fix="exclude the jump host from ProxyJump in ssh_config"
                    )
                hop = parse_host(last, ssh_args=args)
                own = Deadline()  # once it is open, it stays so for the others
                self._deadlines.append(own)
                with deadline.closes(own.cut):
                    opened = connect(hop, timeout=self._timeout, accept_new=self._accept_new, jumps=self, deadline=own)
                    self._open[last, args] = self._stack.enter_context(opened)
            except UnreachableError as error:
                self._open[last, args] = error
            finally:
                self._depth -= 1
        return self._open[last, args]


# ---------------------------------------------------------------- streams


def tcp(target: Target, host: str, port: int, timeout: float) -> socket.socket:
    """A connection; raises UnreachableError that says what to do about the name, the port or the way there."""
    where = f"{host} port {port}"
    try:
        return socket.create_connection((host, port), timeout)
    except socket.gaierror as error:
        raise UnreachableError(
            f"{target.name}: {where}: the name does not resolve: {error.strerror}",
            expected="a name that DNS or /etc/hosts knows, or an address",
            fix=_meant_otherwise(host),
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
        fix = "a link-local address needs its interface: fe80::1%eth0" if host.startswith("fe80") else ""
        what = f"{target.name}: {where} cannot be reached: {error.strerror or error}"
        raise UnreachableError(what, fix=fix or "check network and routes") from error


def _meant_otherwise(host: str) -> str:
    """What to do about a name that does not resolve: it may be this machine, or the name of a file here."""
    if host == "local":
        return "for this machine itself: --local"
    other = "check the spelling, or give the address (ansible_host, or HostName in ssh_config)"
    near = meant(host, (path.name for path in Path().iterdir()), other, cutoff=0.8)
    return given_by(host) if Path(host).exists() else near


@contextlib.contextmanager
def proxy(command: str, deadline: Deadline) -> Iterator[socket.socket]:
    """ProxyCommand, run by the shell as ssh(1) does it; its standard input and output are one end of a socket pair."""
    ours, theirs = socket.socketpair()
    with ours, tempfile.TemporaryFile() as log:
        with theirs:
            end = theirs.fileno()
            process = subprocess.Popen(["sh", "-c", f"exec {command}"], stdin=end, stdout=end, stderr=log)
        try:
            with deadline.closes(process.kill):
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
