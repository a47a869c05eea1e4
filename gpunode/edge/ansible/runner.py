"""The only user of ansible-runner: run a playbook and tell what came of each host."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import secrets
import shlex
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from gpunode.core.errors import Exit, GpunodeError, InputError, InterruptedByUser
from gpunode.core.late import dataclass, field, fields
from gpunode.core.mask import mask
from gpunode.core.model import Changed
from gpunode.core.printable import printable, with_texts
from gpunode.edge import supervise
from gpunode.edge.ansible.step_limit import CHANGING
from gpunode.edge.isolate import isolated
from gpunode.edge.programs import program_of, use_installed_locale
from gpunode.edge.ssh.shell import Target
from gpunode.edge.state import make_private

# What Ansible, ssh and become need of the caller's environment, and no more: secrets in it stay out of artifacts.
# PYTHONPATH, because the plugins are to import the gpunode that runs them, not another one that is installed.
ENVIRONMENT = frozenset(
    "HOME USER LOGNAME PATH LANG LC_ALL TERM TZ TMPDIR SSH_AUTH_SOCK SSH_ASKPASS XDG_STATE_HOME XDG_RUNTIME_DIR "
    "KRB5CCNAME PYTHONPATH VIRTUAL_ENV http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY CONTAINERS_CONF "
    "CONTAINER_HOST DOCKER_HOST DOCKER_CONTEXT DOCKER_CONFIG DOCKER_CERT_PATH DOCKER_TLS_VERIFY".split()
)
LOG = logging.getLogger("gpunode")
ANSIBLE_PREFIX = "ANSIBLE_"
ENDED = ("ok", "changed", "failed", "unreachable")  # kinds of events that end a task on a host
CANCEL_SECONDS = 0.25  # between looks whether a playbook is to end
ENDS = supervise.GRACE + 5  # seconds in which a playbook that is let go of is gone


@dataclass(frozen=True, kw_only=True)
class Event:
    """One thing that happened: `kind` is started, waiting, ok, changed, failed, unreachable or skipped."""

    host: str
    kind: str
    task: str
    seconds: float = 0.0
    message: str = ""
    result: dict[str, Any] = field(default_factory=dict)


@dataclass(kw_only=True)
class HostRun:
    """What a playbook run did to one host, gathered from its events."""

    exit: Exit = Exit.OK
    message: str = ""
    fix: str = ""
    changed: list[Changed] = field(default_factory=list)
    diffs: list[str] = field(default_factory=list)
    checks: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    changing: set[str] = field(default_factory=set)  # the tasks that changed something


class PlayInterrupted(InterruptedByUser):
    """A playbook that was ended; `hosts` is what had come of them by then.  How to resume is for its caller to say."""

    def __init__(self, hosts: Mapping[str, HostRun]) -> None:
        super().__init__("interrupted")
        self.hosts = hosts


@dataclass(frozen=True, kw_only=True)
class PlayOptions:
    """How Ansible goes through its hosts."""

    forks: int = 50
    check: bool = False
    diff: bool = False
    become_password: str = field(default="", repr=False)
    targets: tuple[Target, ...] = field(default=(), repr=False)  # whose passwords no event and no artifact keeps


# what gpunode says or asks itself, by the names in Ansible, and what is used in its place
_OURS = {"subset": "--limit", "check": "--check", "inventory": "-i", "forks": "--forks", "become_ask_pass": "-K"}
_OURS |= dict.fromkeys(("listhosts", "listtasks", "listtags", "syntax"), "command plan")
_OURS |= {"ask_pass": "inventory", "ask_vault_pass": "--vault-password-file", "step": "question, without --yes"}


def check_arguments(words: Sequence[str]) -> None:
    """Raises InputError for arguments that ansible-playbook refuses, or that would undo what gpunode decides."""
    use_installed_locale()
    from ansible.cli.playbook import PlaybookCLI

    def refuse(what: str, fix: str = "name hosts, and give gpunode's options, before --") -> NoReturn:
        raise InputError(f"what follows -- goes to ansible-playbook: {what}", fix=fix)

    command = PlaybookCLI(["ansible-playbook"])
    command.init_parser()
    command.parser.error = refuse
    command.parser.set_defaults(**dict.fromkeys(_OURS))
    found = vars(command.parser.parse_args(["playbook.yml", *words]))
    if others := found.pop("args")[1:]:
        refuse(f"{' '.join(others)} is no option of it")
    for name in (name for name in _OURS if found[name] is not None):
        refuse("this gpunode says itself", f"use gpunode's {_OURS[name]}")


def run_playbook(
    folder: Path,
    playbook: str,
    *,
    inventory: Sequence[str],
    options: PlayOptions | None = None,
    arguments: Sequence[str] = (),
    on_event: Callable[[Event], None] = lambda event: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> dict[str, HostRun]:
    """Run `playbook` of `folder` on `inventory`; artifacts go to folder/artifacts.  Hosts without an event are absent.

    Raises GpunodeError when Ansible itself failed (syntax, a missing collection), PlayInterrupted on Ctrl-C.
    """
    import ansible_runner

    use_installed_locale()
    how = options or PlayOptions()
    hosts: dict[str, HostRun] = {}
    own = {target.name: target for target in how.targets if target.password or target.become_password}

    def handle(data: dict[str, Any]) -> bool:
        if target := own.get(str((data.get("event_data") or {}).get("host"))):
            data.update(with_texts(data, target.hidden))  # in place: ansible-runner keeps it
        waits = _waiting(data, hosts)
        if waits:
            on_event(waits)
        event = _read(data, hosts)
        if event:
            LOG.debug("%s: %s: %s (%.1f s) %s", event.host, event.task, event.kind, event.seconds, event.message)
            on_event(event)
        return bool(event and event.kind in ("failed", "unreachable"))  # else: no file of its own in artifacts/

    def cancel() -> bool:
        if cancelled():
            leash.let_go()
        return False  # ansible-runner's own way kills ansible-playbook alone, not its workers

    leash = _Leash(folder)
    passwords = {"^BECOME password.*:\\s*$": how.become_password} if how.become_password else {}
    words = [f"--forks={how.forks}"]
    words += [
        f"--{name}" for name, on in (("ask-become-pass", passwords), ("check", how.check), ("diff", how.diff)) if on
    ]
    words += arguments
    (folder / "artifacts").mkdir(mode=0o700, exist_ok=True)
    with _allowed_environment(folder), leash:
        run = ansible_runner.interface.init_runner(
            private_data_dir=str(folder),
            project_dir=str(folder),
            playbook=playbook,
            inventory=list(inventory),
            cmdline=shlex.join(words),
            passwords=passwords,
            event_handler=handle,
            cancel_callback=cancel,
            quiet=True,
            suppress_env_files=True,
        )
        run.config.pexpect_timeout = CANCEL_SECONDS  # `settings` are dropped where there is no file env/settings
        run.config.command = [*leash.command, *run.config.command]
        leash.started = True
        LOG.info("in %s: %s", folder, shlex.join(run.config.command))
        run.run()
        interrupted = leash.cut or run.rc in (130, 254)
    for path in (folder / "artifacts").glob("*/std*") if own else ():
        text = path.read_text(encoding="utf-8", errors="surrogateescape")
        hidden = functools.reduce(lambda found, target: target.hidden(found), own.values(), text)
        path.write_text(hidden, encoding="utf-8", errors="surrogateescape")
    make_private(folder / "artifacts")  # its stderr is 0644
    if interrupted:
        raise PlayInterrupted(hosts)
    if run.rc and not any(h.exit for h in hosts.values()):
        raise GpunodeError(
            f"ansible-playbook ended with status {run.rc}: {_tail(run)}", fix=f"its output is in {folder}"
        )
    return hosts


class _Leash:
    """A pipe whose writing end this process holds: when it closes, edge/supervise.py ends ansible-playbook.

    It closes when this process dies, however that happens, and when it lets go: at an interrupt, or at the end.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder.resolve() / f".leash-{secrets.token_hex(8)}"
        self.cut = self.started = False

    @property
    def command(self) -> list[str]:
        """What goes before the command that is to live as long as this process."""
        return [sys.executable, "-I", "-S", str(Path(supervise.__file__).resolve()), str(self.path)]

    def let_go(self) -> None:
        """Have the command ended; whoever waits for it goes on waiting, until all of it is gone."""
        if not self.cut:
            self.cut = True
            os.close(self._writer)

    def __enter__(self) -> _Leash:
        os.mkfifo(self.path, 0o600)
        self._reader = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)  # without a reader there is no opening to write
        self._writer = os.open(self.path, os.O_WRONLY)
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self.let_go()
        os.close(self._reader)
        until = time.monotonic() + (ENDS if kind and self.started else 0)  # an interrupt, say
        while self.path.exists() and time.monotonic() < until:
            time.sleep(0.05)
        self.path.unlink(missing_ok=True)


@contextlib.contextmanager
def _allowed_environment(folder: Path) -> Iterator[None]:
    """os.environ cut to the allow-list while ansible-runner copies it for its child; also for several at once."""
    with _environment.lock:
        if not _environment.users:
            _environment.before = dict(os.environ)
            allowed = _allowed(folder)
            os.environ.clear()
            os.environ.update(allowed)
        _environment.users += 1
    try:
        yield
    finally:
        with _environment.lock:
            _environment.users -= 1
            if not _environment.users:
                os.environ.clear()
                os.environ.update(_environment.before)


@dataclass(kw_only=True)
class _Environment:
    """os.environ belongs to the whole process: the first run cuts it, the last one that is left gives it back."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    users: int = 0
    before: dict[str, str] = field(default_factory=dict)


_environment = _Environment()


def _allowed(folder: Path) -> dict[str, str]:
    from ansible import constants

    allowed = {k: v for k, v in os.environ.items() if k in ENVIRONMENT or k.startswith(ANSIBLE_PREFIX)}
    scripts = str(program_of("ansible-playbook").parent)
    if not shutil.which("ansible-playbook", path=allowed.get("PATH", "")) or scripts not in allowed.get("PATH", ""):
        allowed["PATH"] = f"{scripts}:{allowed.get('PATH', os.defpath)}"
    allowed.setdefault("ANSIBLE_PIPELINING", "True")
    allowed.setdefault("ANSIBLE_RETRY_FILES_ENABLED", "False")
    allowed.setdefault("ANSIBLE_TASK_TIMEOUT", f"{CHANGING:.0f}")
    # ansible-runner changes to its folder and turns the check of host keys off; what Ansible would do here holds
    allowed.setdefault("ANSIBLE_CONFIG", constants.CONFIG_FILE or str(folder / "ansible.cfg"))
    allowed.setdefault("ANSIBLE_HOST_KEY_CHECKING", str(constants.HOST_KEY_CHECKING))
    return allowed


_KINDS = {
    "runner_on_start": "started",
    "runner_on_ok": "ok",
    "runner_on_failed": "failed",
    "runner_on_unreachable": "unreachable",
    "runner_on_skipped": "skipped",
}


def _waiting(data: dict[str, Any], hosts: Mapping[str, HostRun]) -> Event | None:
    """What an action shows while it waits (for a locked package manager): a line of output, `HOST: TEXT`."""
    text = printable(str(data.get("stdout", "")).strip()) if data.get("event") == "verbose" else ""
    host, _, why = text.partition(": ")
    return Event(host=host, kind="waiting", task=why) if why and host in hosts else None


def _read(data: dict[str, Any], hosts: dict[str, HostRun]) -> Event | None:
    """The event, noted at its host; one that cannot be read is a failure of its host alone."""

    def read() -> Event | None:
        event = _event(data)
        if event:
            _note(hosts.setdefault(event.host, HostRun()), event)
        return event

    inner = data.get("event_data")
    name = inner.get("host") if isinstance(inner, dict) else ""
    host = name if isinstance(name, str) else ""
    found = isolated(host, read)
    if not isinstance(found, GpunodeError):
        return found
    if not host:
        return None
    run = hosts.setdefault(host, HostRun())
    if not run.exit:
        run.exit, run.message, run.fix = Exit.FAILED, found.what, found.fix
    return Event(host=host, kind="failed", task="", message=found.what)


def _event(data: dict[str, Any]) -> Event | None:
    """ansible-runner's event → ours; None for those of no host."""
    kind, inner = _KINDS.get(data.get("event", ""), ""), data.get("event_data", {})
    if not kind or not isinstance(inner.get("host"), str):
        return None
    result = inner.get("res") or {}
    if kind == "ok" and result.get("changed"):
        kind = "changed"
    return Event(
        host=inner["host"],
        kind=kind,
        task=printable(str(inner.get("task", ""))),
        seconds=float(inner.get("duration") or 0.0),
        message=_message_of(result.get("msg", "")),
        result=result,
    )


_SUDO_RS = (
    "where sudo is the one in Rust (Ubuntu 26.04), Ansible does not know its question for a password: "
    "ansible_become_exe: sudo.ws in the inventory, or NOPASSWD in sudoers"
)


def run_of(event: Event) -> HostRun:
    """What an event alone says of its host."""
    run = HostRun()
    _note(run, event)
    return run


def _note(host: HostRun, event: Event) -> None:
    if event.kind == "failed" and not host.exit:
        host.exit = Exit(event.result.get("gpunode_exit", Exit.FAILED))
        host.message = f"{event.task}: {event.message}" if event.task else event.message
        host.fix = _message_of(event.result.get("fix", ""))
    if event.kind == "unreachable":
        host.exit, host.message = Exit.UNREACHABLE, event.message
        host.fix = _SUDO_RS if "waiting for privilege escalation prompt" in event.message else ""
    if event.kind == "changed":
        host.changing.add(event.task)
        host.changed += [_change(one) for one in event.result.get("changes", [])] or [Changed(text=event.task)]
    diffs = event.result.get("diff")
    for diff in diffs if isinstance(diffs, list) else [diffs]:
        if isinstance(diff, dict) and diff.get("prepared"):
            host.diffs.append(_message_of(diff["prepared"]))
    host.notes += [_message_of(note) for note in event.result.get("notes", [])]
    host.checks += [_check(c) for c in event.result.get("checks", []) if isinstance(c, dict)]


def _message_of(value: object) -> str:
    """What a host or Ansible said of it, without secrets and control characters."""
    return printable(mask(str(value)))


def _change(data: Mapping[str, Any]) -> Changed:
    """One of what `changes` of a result has (plugin_utils/node.py)."""
    return Changed(**{key.name: _message_of(data.get(key.name, "")) for key in fields(Changed)})


def _check(data: Mapping[str, Any]) -> dict[str, str]:
    return {str(key): printable(str(value)) for key, value in data.items()}


def _tail(run: Any) -> str:
    try:
        text = run.stdout.read()
    except (OSError, ValueError, AttributeError):
        return "no output"
    return _message_of(" ".join(line.strip() for line in text.splitlines()[-5:] if line.strip()))
