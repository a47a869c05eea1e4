"""Run a shell program on nodes: by SSH (paramiko, configured by ssh_config), or on this machine.

The program (core/remote.py) goes to the standard input of `sh -s`, as root by sudo where asked, and its output comes
back, bounded in time and size.  Every way to fail is an UnreachableError that names host, cause and next step.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import select
import shlex
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from gpunode.core.errors import GpunodeError, UnreachableError
from gpunode.edge.hostkeys import HostKeyChanged, add_host_key, check_host_key, known_keys

if TYPE_CHECKING:
    import paramiko

OUTPUT_LIMIT = 16 << 20  # bytes of standard output, and of standard error, kept from one run
_MAX_JUMPS = 8
_STARTED = "gpunode-shell-started"  # first line on standard error: login and sudo went well, the shell runs


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


@dataclass(frozen=True, kw_only=True)
class Ran:
    """What came of a program on one host: its output, or the error that kept it from running."""

    target: Target
    rc: int = 0
    stdout: str = ""
    stderr: str = ""
    error: GpunodeError | None = None


class NotServed(UnreachableError):
    """paramiko could not connect, but ssh(1) knows a way that paramiko does not have: Ansible may try."""


# ---------------------------------------------------------------- many hosts


def run_many(
    targets: Sequence[Target],
    program: str,
    *,
    forks: int = 50,
    connect_timeout: float = 10,
    timeout: float = 120,
    accept_new: bool = False,
    on_done: Callable[[Ran], None] = lambda ran: None,
) -> list[Ran]:
    """Run the program on all targets, `forks` at a time; results in the order of `targets`, errors among them."""
    todo: queue.SimpleQueue[tuple[int, Target]] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[int, Ran]] = queue.SimpleQueue()
    for item in enumerate(targets):
        todo.put(item)

    with Jumps(timeout=connect_timeout, accept_new=accept_new) as jumps:

        def one(target: Target) -> Ran:
            try:
                if target.connection == "local":
                    rc, stdout, stderr = local_run(program, target=target, timeout=timeout)
                else:
                    with connect(target, timeout=connect_timeout, accept_new=accept_new, jumps=jumps) as connection:
                        rc, stdout, stderr = connection.run(program, timeout=timeout)
            except GpunodeError as error:
                return Ran(target=target, error=error)
            except Exception as error:  # a bug met on one host must not take the others along
                logging.getLogger(__name__).debug("%s", target.name, exc_info=True)
                return Ran(target=target, error=GpunodeError(f"unexpected {type(error).__name__}: {error}"))
            return Ran(target=target, rc=rc, stdout=stdout, stderr=stderr)

        def work() -> None:
            with contextlib.suppress(queue.Empty):
                while True:
                    index, target = todo.get_nowait()
                    done.put((index, one(target)))

        # daemon threads: Ctrl-C ends the process at once, whatever a dead host keeps them waiting for
        for _ in range(min(forks, len(targets))):
            threading.Thread(target=work, daemon=True).start()
        results: dict[int, Ran] = {}
        while len(results) < len(targets):
            index, ran = done.get()
            results[index] = ran
            on_done(ran)
    return [results[index] for index in range(len(targets))]


# ---------------------------------------------------------------- one host by SSH


def ssh_options(target: Target) -> dict[str, list[str]]:
    """What ssh(1) would do for the target, by its own word (`ssh -G`): option in lower case → values.

    So Include, Match, ProxyJump and the rest of ssh_config are read by the program they were written for.
    """
    args = ["ssh", "-G", *_reach(target)]
    try:
        found = subprocess.run(args, capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL, check=False)
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
    options: dict[str, list[str]] = {}
    for line in found.stdout.splitlines():
        key, _, value = line.partition(" ")
        options.setdefault(key, []).append(value)
    return options


def _reach(target: Target) -> list[str]:
    """The arguments with which ssh(1) would connect to the target."""
    args = [*target.ssh_args]
    args += ["-p", str(target.port)] if target.port else []
    args += ["-l", target.user] if target.user else []
    for key in target.keys:
        args += ["-o", f'IdentityFile="{key}"']
    return [*args, "--", target.address or target.name]


@contextlib.contextmanager
def connect(
    target: Target, *, timeout: float = 10, accept_new: bool = False, jumps: Jumps | None = None
) -> Iterator[Connection]:
    """An authenticated connection to the target, its host key verified; closed at the end.

    `timeout` in seconds bounds each of: TCP, the banner, the key exchange, authentication.  `accept_new` adds unknown
    host keys to known_hosts.  Raises UnreachableError, or NotServed where OpenSSH itself may succeed.
    """
    options = ssh_options(target)
    with contextlib.ExitStack() as stack:
        jumps = jumps or stack.enter_context(Jumps(timeout=timeout, accept_new=accept_new))
        try:
            transport = stack.enter_context(_transport(target, options, timeout, accept_new, jumps))
        except HostKeyChanged:
            raise  # another way in would lead to the same stranger
        except UnreachableError as error:
            reason = _beyond_paramiko(target, options)
            if reason:
                raise NotServed(f"{error.what} ({reason})", expected=error.expected, fix=error.fix) from error
            raise
        yield Connection(target, transport)


class Connection:
    """An open connection to one host."""

    def __init__(self, target: Target, transport: paramiko.Transport) -> None:
        self.target = target
        self.transport = transport

    def run(self, program: str, *, timeout: float = 120) -> tuple[int, str, str]:
        """Feed the program to `sh -s` on the host → exit status, standard output, standard error.

        Raises UnreachableError when no shell started (sudo, login shell) or time ran out, GpunodeError when the
        output went over OUTPUT_LIMIT.
        """
        import paramiko

        deadline = time.monotonic() + timeout
        try:
            channel = self.transport.open_session(timeout=timeout)
            with contextlib.closing(channel):
                channel.settimeout(timeout)
                channel.exec_command(shell_command(self.target))
                with contextlib.suppress(OSError):  # a shell that ended early reads no more; its output says why
                    channel.sendall(shell_input(self.target, program))
                channel.shutdown_write()
                stdout, stderr = _read(channel, self.target, deadline, timeout)
                rc = channel.recv_exit_status() if channel.exit_status_ready() else -1
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise UnreachableError(
                f"{self.target.name}: the connection broke: {error or type(error).__name__}",
                fix="try again; if it stays so, look at sshd's log on the host",
            ) from error
        return rc, stdout, shell_started(self.target, rc, stdout, stderr)


def _read(channel: paramiko.Channel, target: Target, deadline: float, timeout: float) -> tuple[str, str]:
    """Both outputs until the program ended; what a process that it left behind writes later is not waited for."""
    parts: tuple[list[bytes], list[bytes]] = ([], [])
    sizes = [0, 0]
    poll = select.poll()
    poll.register(channel.fileno(), select.POLLIN)
    while True:
        took = False
        for index, (ready, recv) in enumerate(
            ((channel.recv_ready, channel.recv), (channel.recv_stderr_ready, channel.recv_stderr))
        ):
            while ready():
                parts[index].append(recv(1 << 16))
                sizes[index] += len(parts[index][-1])
                took = True
        if max(sizes) > OUTPUT_LIMIT:
            raise _too_much(target)
        if time.monotonic() > deadline:
            raise _too_slow(target, timeout)
        if took:
            continue
        if channel.exit_status_ready() or channel.closed:
            break
        if channel.eof_received:  # poll would not wait any more: the exit status follows within moments
            channel.status_event.wait(min(0.2, max(0.0, deadline - time.monotonic())))
        else:
            poll.poll(min(200.0, max(1.0, 1000 * (deadline - time.monotonic()))))
    return b"".join(parts[0]).decode(errors="replace"), b"".join(parts[1]).decode(errors="replace")


# ---------------------------------------------------------------- this machine


def local_run(program: str, *, target: Target | None = None, timeout: float = 120) -> tuple[int, str, str]:
    """The same as Connection.run, on this machine."""
    target = target or Target(name="localhost", connection="local")
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
        rc = process.wait(timeout)
        for thread in threads:
            thread.join(1)  # a process left behind may hold the pipes for ever
    except subprocess.TimeoutExpired as error:
        raise _too_slow(target, timeout) from error
    finally:
        _end_group(process)
    if max(sum(map(len, part)) for part in parts) > OUTPUT_LIMIT:
        raise _too_much(target)
    stdout, stderr = (b"".join(part).decode(errors="replace") for part in parts)
    return rc, stdout, shell_started(target, rc, stdout, stderr)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _too_slow(target: Target, timeout: float) -> UnreachableError:
    return UnreachableError(
        f"{target.name}: the host answered, but its script did not end within {timeout:g} s",
        fix="see what hangs there (a dead mount, a stuck nvidia-smi), or allow more with --timeout",
    )


def _too_much(target: Target) -> GpunodeError:
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
    return f"{password}echo {_STARTED} >&2\n{program}".encode()


def shell_started(target: Target, rc: int, stdout: str, stderr: str) -> str:
    """The program's own standard error; raises UnreachableError when the shell never ran."""
    before, mark, after = stderr.partition(f"{_STARTED}\n")
    if mark:
        return after
    said = " ".join(f"{before}\n{stdout}".split())[:500] or f"exit status {rc}, and not a word"
    if not target.become:
        raise UnreachableError(
            f"{target.name}: no shell could be started: {said}",
            expected="a login shell that runs `sh -s`",
            fix="log in by hand (ssh) and see what it says",
        )
    who = f"sudo to {target.become_user}"
    if "incorrect password" in said or "try again" in said:
        raise UnreachableError(
            f"{target.name}: {who}: wrong password",
            fix="correct ansible_become_password, or what you typed for --ask-become-pass",
        )
    if "password is required" in said or "terminal is required" in said or "must have a tty" in said:
        raise UnreachableError(
            f"{target.name}: {who} asks for a password",
            fix="give ansible_become_password (in a vault), or --ask-become-pass, or allow NOPASSWD in sudoers",
        )
    if "not found" in said:
        raise UnreachableError(
            f"{target.name}: {who}: sudo is not installed", fix="connect as root, or install sudo on the host"
        )
    raise UnreachableError(
        f"{target.name}: {who} was refused: {said}",
        expected="an account that sudoers allows to become that user",
        fix="connect as root, or allow the account in /etc/sudoers.d",
    )


# ---------------------------------------------------------------- transport


@contextlib.contextmanager
def _transport(
    target: Target, options: Mapping[str, list[str]], timeout: float, accept_new: bool, jumps: Jumps
) -> Iterator[paramiko.Transport]:
    """Connect, verify the host key, authenticate."""
    import paramiko

    logging.getLogger("paramiko").addHandler(logging.NullHandler())  # else its threads write to the screen
    where = _endpoint(options)
    known_as = _known_as(options)
    files = _known_hosts_files(options)
    known = known_keys(files, known_as)
    with contextlib.ExitStack() as stack:
        sock = stack.enter_context(_socket(target, options, timeout, jumps))
        try:
            transport = stack.enter_context(contextlib.closing(paramiko.Transport(sock)))
            transport.banner_timeout = transport.auth_timeout = transport.channel_timeout = timeout
            _prefer_known_types(transport, {entry.kind for entry in known if not entry.marker})
            transport.start_client(timeout=timeout)
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise UnreachableError(
                f"{target.name}: no SSH server talks at {where}: {error or type(error).__name__}",
                expected=f"an SSH banner and key exchange within {timeout:g} s",
                fix="check address and port, and sshd on the host (systemctl status ssh, its log)",
            ) from error
        shown = transport.get_remote_server_key()
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

    files = [path for path in _paths(options, "identityfile", target) if Path(path).is_file()]
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
    return lambda transport: transport.auth_publickey(user, key)  # type: ignore[no-any-return]


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
    target: Target, options: Mapping[str, list[str]], timeout: float, jumps: Jumps
) -> Iterator[socket.socket | paramiko.Channel]:
    """A byte stream to the host: TCP, through jump hosts, or by ProxyCommand."""
    host, port = options["hostname"][0], int(options["port"][0])
    jump = options.get("proxyjump", ["none"])[0]
    command = options.get("proxycommand", ["none"])[0]
    if jump != "none":
        with contextlib.closing(jumps.channel(target, jump, host, port)) as channel:
            yield channel
    elif command != "none":
        with _proxy(_expand(command, target, options)) as sock:
            yield sock
    else:
        with _tcp(target, host, port, timeout) as sock:
            yield sock


def _tcp(target: Target, host: str, port: int, timeout: float) -> socket.socket:
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
def _proxy(command: str) -> Iterator[socket.socket]:
    """ProxyCommand, run by the shell as ssh(1) does it, its standard input and output being one end of a socket pair."""
    ours, theirs = socket.socketpair()
    with ours, tempfile.TemporaryFile() as log:
        with theirs:
            process = subprocess.Popen(["sh", "-c", f"exec {command}"], stdin=theirs, stdout=theirs, stderr=log)
        try:
            yield ours
        except UnreachableError as error:
            log.seek(0)
            said = log.read(500).decode(errors="replace").strip()
            raise UnreachableError(
                f"{error.what} (by ProxyCommand {command!r}: {said or 'no message'})",
                expected=error.expected,
                fix=error.fix,
            ) from error
        finally:
            process.terminate()
            process.wait()


class Jumps:
    """Connections to jump hosts, each opened once and shared: a bastion would drop fifty log-ins at a time."""

    def __init__(self, *, timeout: float, accept_new: bool) -> None:
        self._timeout = timeout
        self._accept_new = accept_new
        self._open: dict[tuple[str, tuple[str, ...]], Connection | UnreachableError] = {}
        self._lock = threading.RLock()  # a jump host may itself be behind one
        self._stack = contextlib.ExitStack()
        self._depth = 0

    def __enter__(self) -> Jumps:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def channel(self, target: Target, jump: str, host: str, port: int) -> paramiko.Channel:
        """A stream to host:port through `jump`, a value of ProxyJump: [user@]host[:port][,…]."""
        import paramiko

        with self._lock:
            connection = self._connection(target, jump)
        if isinstance(connection, UnreachableError):
            raise UnreachableError(
                f"{target.name}: jump host {connection.what}", expected=connection.expected, fix=connection.fix
            )
        try:
            return connection.transport.open_channel(
                "direct-tcpip", (host, port), ("127.0.0.1", 0), timeout=self._timeout
            )
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise UnreachableError(
                f"{target.name}: jump host {jump} cannot reach {host} port {port}: {error or type(error).__name__}",
                fix="check from the jump host: name, port, firewall, and AllowTcpForwarding of its sshd",
            ) from error

    def _connection(self, target: Target, jump: str) -> Connection | UnreachableError:
        # ssh(1) hands its jump hosts the configuration file and the hosts before them, nothing else
        before, _, last = jump.rpartition(",")
        args = (*_config_file(target.ssh_args), *(("-J", before) if before else ()))
        if (last, args) not in self._open:
            self._depth += 1
            try:
                if self._depth > _MAX_JUMPS:
                    raise UnreachableError(
                        f"{last}: jump hosts lead in a circle", fix="exclude the jump host from ProxyJump in ssh_config"
                    )
                hop = parse_host(last, ssh_args=args)
                opened = connect(hop, timeout=self._timeout, accept_new=self._accept_new, jumps=self)
                self._open[last, args] = self._stack.enter_context(opened)
            except UnreachableError as error:
                self._open[last, args] = error
            finally:
                self._depth -= 1
        return self._open[last, args]


def parse_host(text: str, *, ssh_args: tuple[str, ...] = (), become: bool = False, become_password: str = "") -> Target:
    """[user@]host[:port], [user@][IPv6]:port or ssh://… → Target."""
    user, _, rest = text.removeprefix("ssh://").rpartition("@")
    host, port = rest, ""
    if rest.startswith("["):
        host, _, port = rest[1:].partition("]")
        port = port.removeprefix(":")
    elif rest.count(":") == 1:
        host, _, port = rest.partition(":")
    if not host or host.startswith("-") or any(c.isspace() for c in host) or (port and not port.isdigit()):
        from gpunode.core.errors import InputError

        raise InputError(f"host {text!r}", expected="[user@]host[:port]", fix="an IPv6 address with a port: [::1]:22")
    return Target(
        name=host,
        address=host,
        user=user,
        port=int(port) if port else None,
        ssh_args=ssh_args,
        become=become,
        become_password=become_password,
    )


# ---------------------------------------------------------------- ssh_config


def _beyond_paramiko(target: Target, options: Mapping[str, list[str]]) -> str:
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
        entry.marker == "@cert-authority" for entry in known_keys(_known_hosts_files(options), _known_as(options))
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


def _endpoint(options: Mapping[str, list[str]]) -> str:
    return f"{options['hostname'][0]} port {options['port'][0]}"


def _known_as(options: Mapping[str, list[str]]) -> str:
    """The host's name in known_hosts (sshd(8))."""
    host, port = options["hostname"][0].lower(), options["port"][0]
    if "hostkeyalias" in options:
        return options["hostkeyalias"][0]
    return host if port == "22" else f"[{host}]:{port}"


def _known_hosts_files(options: Mapping[str, list[str]]) -> list[str]:
    """The user's files first: the first of them takes new keys."""
    found = [
        str(Path(path).expanduser())
        for name in ("userknownhostsfile", "globalknownhostsfile")
        for value in options.get(name, [])
        for path in shlex.split(value)
    ]
    return [path for path in found if path != "none"]


def _paths(options: Mapping[str, list[str]], name: str, target: Target) -> list[str]:
    return [
        str(Path(_expand(value, target, options)).expanduser()) for value in options.get(name, []) if value != "none"
    ]


def _expand(text: str, target: Target, options: Mapping[str, list[str]]) -> str:
    """The tokens of ssh_config(5) that ProxyCommand and IdentityFile know."""
    import getpass
    import re

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
