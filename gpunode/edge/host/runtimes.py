"""The configuration of one engine, on this machine or in an image's tree: looked at, edited, and edited back."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from gpunode.core.edits import (
    SECTIONS,
    Activation,
    RuntimeRequest,
    RuntimeState,
    activation,
    configure_runtime,
    request_of,
    runtime_files,
    runtime_state,
    unconfigure_runtime,
)
from gpunode.core.edits.commit import undo_label
from gpunode.core.edits.engine import PATH
from gpunode.core.engines import ROWS
from gpunode.core.errors import InputError
from gpunode.core.facts.kubelet import wanted_driver
from gpunode.core.model import Distribution, Edit, NodeFacts, Outcome, Reason, Runtime, RuntimeName, RuntimeWish, Undo
from gpunode.core.numbers import release
from gpunode.core.remote import program
from gpunode.core.validation import as_lines
from gpunode.edge.host import transaction
from gpunode.edge.host.tree import Found, Tree
from gpunode.edge.ssh.shell import local_run
from gpunode.node import script


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the user asks of one engine.  None and "" leave the choice to what is found."""

    runtime: RuntimeName
    distribution: Distribution | None = None
    config: str = ""
    drop_in: str | None = None  # "": no drop-in, edit the config itself
    name: str = "nvidia"
    path: str = "/usr/bin/nvidia-container-runtime"
    default_runtime: Literal["nvidia", "runc", "keep"] = "keep"
    cdi: bool | None = None
    cgroup_driver: Literal["auto", "systemd", "cgroupfs"] = "auto"
    version: str = ""
    enable_cri: bool = False
    root: Path = Path("/")
    restart: bool = True
    facts: NodeFacts | None = field(default=None, repr=False)  # of this machine, where it was probed just now

    @property
    def here(self) -> bool:
        return self.root == Path("/")


@dataclass(frozen=True, kw_only=True)
class Subject:
    """An engine as it was found: what will be asked of the edit, and the files that matter."""

    options: Options
    request: RuntimeRequest
    facts: NodeFacts = field(default_factory=NodeFacts)
    runtime: Runtime | None = None  # None: not asked, or not installed here
    seen: Mapping[str, Found | None] = field(default_factory=dict)  # the files by path, None for one that is not there

    @property
    def texts(self) -> dict[str, bytes]:
        """The files that are there."""
        return transaction.texts(self.seen)

    @property
    def state(self) -> RuntimeState:
        return runtime_state(self.texts, self.request)


def probed(root: Path = Path("/")) -> NodeFacts:
    """What the probe says of this machine's engines; of another tree nothing is known."""
    if root != Path("/"):
        return NodeFacts()
    from gpunode.core.facts import parse_probe

    _, stdout, _ = local_run(program(script("probe.sh"), {"sections": as_lines(SECTIONS)}))
    return parse_probe(stdout)


def look(options: Options) -> Subject:
    """Read all that an edit needs.  Raises InputError for files that are there and cannot be read."""
    facts = options.facts or probed(options.root)
    mine = (r for r in facts.runtimes if r.name == options.runtime and options.distribution in (None, r.distribution))
    runtime = next(mine, None)  # the kubelet's stands first of two
    request = _request(options, facts, runtime)
    seen = transaction.gathered(options.root, lambda texts: runtime_files(texts, request))
    return Subject(options=options, request=request, facts=facts, runtime=runtime, seen=seen)


def _request(options: Options, facts: NodeFacts, runtime: Runtime | None) -> RuntimeRequest:
    driver = wanted_driver(facts, runtime) if options.cgroup_driver == "auto" else options.cgroup_driver
    wish = RuntimeWish(
        runtime=options.runtime,
        default_runtime=options.default_runtime,
        cdi=options.cdi,
        cgroup_driver=driver if driver in ("systemd", "cgroupfs") else "",  # type: ignore[arg-type]
        nvidia_runtime_path=_binary(options),
    )
    request = request_of(runtime or Runtime(name=options.runtime), wish)
    changes: dict[str, object] = {"name": options.name, "enable_cri": options.enable_cri}
    if options.distribution is not None:
        changes["distribution"] = options.distribution
    if options.drop_in is not None:
        changes |= {"drop_in": options.drop_in, "in_place": not options.drop_in}
    if options.config and options.config != request.config:
        changes |= {"config": options.config, "flags": ()}  # not the file that the daemon's arguments are about
    if options.version and release(options.version) == (0, 0):
        raise InputError(
            f"engine version {options.version!r}", expected="numbers, such as 1.7.24, 28.5 or v1.35.1+k3s1"
        )
    version = options.version or request.version or _packaged(options)
    return replace(request, version=version, **changes)  # type: ignore[arg-type]


def _binary(options: Options) -> str:
    """The runtime's path; a name alone is looked for where daemons look, here or in the tree."""
    if "/" in options.path or not options.path:
        return options.path
    places = [f"{folder}/{options.path}" for folder in PATH]
    return next((place for place in places if Tree(options.root).place(place).is_file()), f"/usr/bin/{options.path}")


def _packaged(options: Options) -> str:
    """The engine's version by dpkg's database in another tree, "" when it is not there."""
    database = Tree(options.root).place("/var/lib/dpkg/status")
    if options.here or not database.is_file():
        return ""
    for stanza in database.read_text(encoding="utf-8", errors="replace").split("\n\n"):
        fields = dict(re.findall(r"^(Package|Version|Status): *(.*)$", stanza, re.MULTILINE))
        if fields.get("Package") in ROWS[options.runtime].packages and "installed" in fields.get("Status", ""):
            return str(fields.get("Version", "")).rpartition(":")[2]
    return ""


# ---------------------------------------------------------------- editing


def edit(subject: Subject) -> Edit:
    """What configure changes; in another tree nothing runs that could have to start again."""
    made = configure_runtime(subject.texts, subject.request)
    return replace(made, restart=made.restart and subject.options.here, reasons=(*made.reasons, *unread(subject)))


def unread(subject: Subject) -> tuple[Reason, ...]:
    """What to know of a config that the engine of this machine does not read: an edit of it has no effect there."""
    config, runtime = subject.options.config, subject.runtime
    if not config or not subject.options.here or runtime is None:
        return ()
    found = _activation(subject, Edit())
    if found.config == config:
        return ()
    reader = found.unit or f"the {runtime.name} of this machine"
    return (Reason(what=config, why=f"{reader} reads {found.config}, not this file: nothing is restarted", source=""),)


def after(subject: Subject, edit: Edit) -> Activation:
    """How the engine takes the edit up: not at all where it is not here, or reads other files."""
    options, request = subject.options, subject.request
    found = _activation(subject, edit)
    config = request.config or found.config
    known = options.here and subject.runtime is not None and found.config == config
    if known and options.restart:
        return found
    validate = found.validate if known and _is_asked(subject) else ()
    return Activation(unit="", verb="", config=str(Tree(options.root).place(config)), validate=validate)


def _activation(subject: Subject, edit: Edit) -> Activation:
    request = subject.request
    runtime = subject.runtime or Runtime(name=request.runtime, distribution=request.distribution)
    return activation(replace(subject.facts, runtimes=(runtime,)), RuntimeWish(runtime=request.runtime), edit)


def _is_asked(subject: Subject) -> bool:
    """Whether the daemon that is here may judge the files: not where they are meant for another release."""
    here = subject.runtime.version if subject.runtime else ""
    return not subject.options.version or release(subject.options.version) == release(here)


def configure(options: Options, *, check: bool = False) -> tuple[Subject, Edit, Outcome | None]:
    """Let the engine know the nvidia runtime; no outcome where the edit has problems.  `check` changes nothing."""
    return _commit(options, lambda subject: (edit(subject), ()), keep=True, check=check)


def unconfigure(options: Options, *, check: bool = False) -> tuple[Subject, Edit, Outcome | None]:
    """Take back what configure did, by the records it left in the journal, newest first."""
    return _commit(options, _unconfigured, keep=False, check=check)


def _unconfigured(subject: Subject) -> tuple[Edit, tuple[str, ...]]:
    kept = records(subject)
    made = unconfigure_runtime(subject.texts, subject.request, tuple(kept.values()))
    return replace(made, reasons=(*made.reasons, *unread(subject))), tuple(kept)


def _commit(
    options: Options, make: Callable[[Subject], tuple[Edit, tuple[str, ...]]], *, keep: bool, check: bool
) -> tuple[Subject, Edit, Outcome | None]:
    def send(subject: Subject, edit: Edit, used: Sequence[str]) -> Outcome:
        found = after(subject, edit)
        if found.unit and edit.restart and not edit.changes:  # the engine was started before its files were right
            from gpunode.core.items.activation import activate_request

            return transaction.run("activate.sh", activate_request({"restart": [found.unit]}, check=check))
        request = transaction.request_of(
            subject.options.root,
            subject.seen,
            edit,
            found,
            label=undo_label(subject.request) if keep else "",
            used=used,
            handlers=(subject.request.name,) if keep and found.unit else (),
            check=check,
        )
        return transaction.run("commit.sh", request)

    return transaction.committed(lambda first: look(options if first else replace(options, facts=None)), make, send)


def records(subject: Subject) -> dict[str, Mapping[str, Undo]]:
    """What configure left in the journal for this engine's config, newest first: id → record."""
    return transaction.records(subject.options.root, undo_label(subject.request))
