"""detect: hosts → probe texts → facts.  Each host is asked once, by the quickest way that reaches it."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpunode.core.errors import GpunodeError, InputError, RefusedError, UnreachableError
from gpunode.core.grouped import grouped
from gpunode.core.late import dataclass, field, replace
from gpunode.edge.share import in_its_share
from gpunode.edge.ssh.many import Ran, Reach, run_many
from gpunode.edge.ssh.shell import Target, given_by, parse_host

if TYPE_CHECKING:
    from gpunode.core.model import NodeFacts
    from gpunode.edge.ansible.inventory import InventoryHost

_FILES = (".yml", ".yaml", ".ini", ".json", ".probe", ".log", ".txt", ".gz")  # no host name ends so
LOG = logging.getLogger("gpunode")
SETTLE = 90  # seconds, for those who are about to change nodes
KILLED = 128  # a shell's exit status for a program that a signal ended is that and the signal's number


@dataclass(frozen=True, kw_only=True)
class Targets:
    """Which hosts, and how to reach them: exactly one of `hosts`, `inventory`, `local` and `probes` is given."""

    hosts: tuple[str, ...] = ()  # [user@]host[:port]
    inventory: tuple[str, ...] = ()  # as for ansible -i
    local: bool = False  # this machine
    probes: tuple[Path, ...] = ()  # saved probe texts: no host is asked
    limit: str = ""  # an Ansible pattern, for inventories
    forks: int = 50  # hosts at the same time
    connect_timeout: float = 10.0  # seconds
    timeout: float = 120.0  # seconds for all that reading one host takes
    accept_new_host_keys: bool = False  # add keys that known_hosts does not know; a changed key is refused all the same
    become: bool = False  # become root by sudo
    become_password: str = field(default="", repr=False)  # for sudo
    vault_password_files: tuple[str, ...] = ()  # of Ansible vault
    break_lock: bool = False  # take nodes from another controller that is at work on them
    settle: int = 0  # seconds to wait, on each host, for a gpunode that is at work there
    # who reads the inventory already, of just these `inventory`, `limit` and `vault_password_files` (ansible/ahead.py)
    listing: Callable[[], tuple[InventoryHost, ...]] | None = field(
        default=None, repr=False, compare=False, metadata={"internal": True}
    )
    # when it is set, whatever asks these hosts ends
    stop: threading.Event = field(
        default_factory=threading.Event, repr=False, compare=False, metadata={"internal": True}
    )

    def reach(self, timeout: float = 0.0) -> Reach:
        """How these hosts are asked; `timeout` is for what takes another time than reading a host."""
        return Reach(
            forks=self.forks, connect_timeout=self.connect_timeout, timeout=timeout or self.timeout,
            accept_new=self.accept_new_host_keys, stop=self.stop, inventory=self.inventory, become=self.become,
            become_password=self.become_password, vault_password_files=self.vault_password_files,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Detected:
    """What was found out about one host: facts, or the error that stood in the way."""

    host: str
    target: Target | None = None  # how it was reached; None: from a saved probe
    groups: tuple[str, ...] = ()  # of the inventory
    spec: Mapping[str, Any] = field(default_factory=dict)  # gpunode_spec of the inventory
    probe: str = field(default="", repr=False)  # the text that the node sent
    facts: NodeFacts | None = None
    error: GpunodeError | None = None


def detect(
    targets: Targets, *, only: Collection[str] | None = None, on_done: Callable[[Detected], None] = lambda host: None
) -> list[Detected]:
    """Probe the hosts; with `only`, just those of these names.

    A host that cannot be reached or read, or a saved probe that is none, has an `error` instead of facts; the others go
    on.  `on_done` sees each host as soon as it is done.  Raises InputError when it is not clear which hosts are meant,
    and for a single saved probe that cannot be used.
    """
    if targets.probes:
        files = _probe_files(targets)
        names = Counter(_host_of(path) for path in files)
        named = {path: _host_of(path) if names[_host_of(path)] == 1 else str(path) for path in files}
        saved = [_saved(path, name) for path, name in named.items()]
        if len(saved) == 1 and isinstance(saved[0].error, InputError):
            raise saved[0].error
        for one in saved:
            on_done(one)
        return saved
    return probe([host for host in find_hosts(targets) if only is None or host.host in only], targets, on_done=on_done)


def probe(
    hosts: Sequence[Detected], targets: Targets, *, on_done: Callable[[Detected], None] = lambda host: None
) -> list[Detected]:
    """Probe hosts that are known already (find_hosts, or an earlier answer), as `detect` does."""
    from gpunode.core.remote import program
    from gpunode.node import script

    found = {host.host: replace(host, error=None) for host in hosts}

    def done(ran: Ran) -> None:
        host = found[ran.target.name]
        read = in_its_share(host.host, lambda: _read(host, ran))
        found[host.host] = replace(host, probe=ran.stdout, error=read) if isinstance(read, GpunodeError) else read
        LOG.debug("%s: probed, %d bytes, exit status %s", host.host, len(ran.stdout), ran.rc)
        on_done(found[host.host])

    LOG.info("probing %d hosts, %d at a time", len(hosts), targets.forks)
    text = f"GPUNODE_SETTLE={targets.settle:d}\n{program(script('probe.sh'), None)}"
    run_many([(host.target, text) for host in hosts if host.target], reach=targets.reach(), on_done=done)
    return [found[host.host] for host in hosts]


def one_name_each(hosts: Sequence[Detected]) -> list[Detected]:
    """The hosts, with an error where two names are one machine: the same boot of a kernel, under the same host name.

    Names and addresses do not tell; host keys and machine-ids are the same on machines that were cloned.
    """
    read = ((host.host, host.facts) for host in hosts if host.facts and host.facts.boot_id)
    names = grouped(((facts.boot_id, facts.hostname), host) for host, facts in read)
    found: dict[str, GpunodeError] = {}
    for (_, hostname), alike in names.items():
        error = RefusedError(
            f"{' and '.join(alike)} are one machine, which calls itself {hostname}",
            expected="each machine once",
            fix="leave all but one name out: in the inventory, or by --limit",
        )
        found |= dict.fromkeys(alike, error) if len(alike) > 1 else {}
    return [replace(host, error=host.error or found.get(host.host)) for host in hosts]


def find_hosts(targets: Targets) -> list[Detected]:
    """The hosts that are meant, nothing found out about them yet."""
    for text in targets.hosts:
        if Path(text).suffix in _FILES:
            what = f"{text} is a file, and no host" if Path(text).is_file() else f"there is no file {text}"
            raise InputError(what, fix=given_by(text))
    named = [_become(parse_host(text), targets) for text in targets.hosts]
    ways = [name for name in ("hosts", "inventory", "local") if getattr(targets, name)]
    if len(ways) != 1:
        by_limit = f"choose hosts of an inventory by --limit {','.join(targets.hosts)}".rstrip()
        here = "gpunode init writes hosts.yml, which is read in its folder; for this machine itself: --local"
        below = next((f"-i {path}" for path in sorted(Path().glob("*/hosts.y*ml"))), here)
        raise InputError(
            f"{' and '.join(ways)} given together" if ways else "no host given",
            expected="one of: HOST…, -i INVENTORY, --local",
            fix=by_limit if ways else below,
        )
    if targets.limit and not targets.inventory:
        raise InputError("--limit without an inventory", fix="name just the hosts you want")
    if targets.inventory:
        from gpunode.edge.ssh import connection as ssh  # noqa: F401  while the inventory is being read

        listed = targets.listing() if targets.listing else _list(targets)
        return [Detected(host=h.name, target=_become(h.target, targets), groups=h.groups, spec=h.spec) for h in listed]
    if targets.local:
        return [Detected(host="localhost", target=_become(Target(name="localhost", connection="local"), targets))]
    twice = [name for name, times in Counter((t.address, t.port or 22) for t in named).items() if times > 1]
    if twice:
        raise InputError(f"host {twice[0][0]} is named twice", fix="name each host once")
    names = Counter(target.name for target in named)
    # two nodes behind one address: the port tells them apart (not by a colon, which Ansible reads as a range)
    distinct = [replace(t, name=f"{t.name}-{t.port or 22}") if names[t.name] > 1 else t for t in named]
    return [Detected(host=target.name, target=target) for target in distinct]


def _list(targets: Targets) -> tuple[InventoryHost, ...]:
    from gpunode.edge.ansible.inventory import load_inventory

    return load_inventory(targets.inventory, limit=targets.limit, vault_password_files=targets.vault_password_files)


def save_probes(folder: Path, hosts: Sequence[Detected], *, redacted: bool = False) -> list[Path]:
    """Write each probe text to FOLDER/HOST.probe (0600, the folder 0700): for `--probe`, or for a bug report."""
    from gpunode.core.facts.redact import redact
    from gpunode.edge.state import write_private, writing_to

    with writing_to(folder, "choose another folder"):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        paths = []
        for number, one in enumerate((o for o in hosts if o.probe), 1):
            name = f"node{number}" if redacted else one.host.replace("/", "_")
            paths.append(folder / f"{name}.probe")
            write_private(paths[-1], redact(one.probe) if redacted else one.probe)
    return paths


# ---------------------------------------------------------------- one host


def _become(target: Target, targets: Targets) -> Target:
    if not targets.become:
        return target
    return replace(target, become=True, become_password=targets.become_password or target.become_password)


def _read(host: Detected, ran: Ran) -> Detected:
    """The host with its facts, or with what went wrong."""
    from gpunode.core.facts import parse_probe

    if ran.error:
        return replace(host, error=ran.error)
    try:
        facts = parse_probe(ran.stdout, of_node=True)
    except InputError as error:  # the user's input is fine: it is the node that did not answer as it should
        stated = " ".join(ran.stderr.split())[-300:]
        if ran.rc < 0 or ran.rc > KILLED:
            return replace(
                host,
                error=UnreachableError(
                    f"{host.host}: the probe was killed there" + (f" ({stated})" if stated else ""),
                    fix="if the host is shutting down or starting, run it again when it is up",
                ),
            )
        return replace(
            host,
            probe=ran.stdout,
            error=GpunodeError(
                f"{host.host}: the probe's answer cannot be used: {error.what}" + (f" ({stated})" if stated else ""),
                expected="a complete answer of probe.sh, which needs sh, mktemp and some space in /tmp",
                fix="log in and see whether `mktemp -d` works, and what a login script prints",
            ),
        )
    if host.target and host.target.connection == "local":
        from gpunode.edge.host.nvml import local_gpus, merge_gpus

        facts = replace(facts, nvml=merge_gpus(facts.nvml, local_gpus()))
    return replace(host, probe=ran.stdout, facts=facts)


def _probe_files(targets: Targets) -> list[Path]:
    if targets.hosts or targets.inventory or targets.local or targets.limit:
        raise InputError("saved probes and hosts given together", fix="leave out the hosts (also --limit), or --probe")
    files: list[Path] = []
    for path in targets.probes:
        files += sorted((*path.rglob("*.probe"), *path.rglob("probe.txt"))) if path.is_dir() else [path]
    if not files:
        expected = "files HOST.probe or HOST/probe.txt, at any depth"
        fix = "gpunode detect HOST… --save DIR writes them"
        raise InputError(f"no probe in {targets.probes[0]}", expected=expected, fix=fix)
    return files


def _host_of(path: Path) -> str:
    """HOST.probe, HOST/probe.txt → HOST."""
    return path.parent.name if path.name == "probe.txt" else path.stem


def _saved(path: Path, name: str) -> Detected:
    """The host of a saved probe, or the error of a file that cannot be used."""
    found = in_its_share(name, lambda: _from_file(path, name))
    return Detected(host=name, error=found) if isinstance(found, GpunodeError) else found


def _from_file(path: Path, name: str) -> Detected:
    from gpunode.core.facts import parse_probe

    try:
        text = path.read_text(encoding="utf-8", errors="replace")
        return Detected(host=name, probe=text, facts=parse_probe(text, of_node=True))
    except OSError as error:
        raise InputError(f"probe {path}: {error.strerror}", fix="check the path") from error
    except InputError as error:
        raise InputError(f"probe {path}: {error.what}", expected=error.expected, fix=error.fix) from error
