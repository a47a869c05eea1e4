"""The configuration of one engine, on this machine or in an image's tree: what is asked, of which engine."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

from gpunode.core.edits import SECTIONS, RuntimeRequest, RuntimeState, completed, runtime_state, runtime_target
from gpunode.core.edits.target import Activation, EditTarget, Files, Refusal, gathered, texts
from gpunode.core.edits.text.unitfile import FOLDERS, program_of, unit_patterns
from gpunode.core.engines import DISTRIBUTIONS, NVIDIA_RUNTIME, PATH, ROWS
from gpunode.core.errors import InputError
from gpunode.core.items.kubelet import default_runtime, wanted_driver
from gpunode.core.late import dataclass, field, replace
from gpunode.core.model import Distribution, Edit, NodeFacts, Reason, Runtime, RuntimeName
from gpunode.core.numbers import release
from gpunode.core.remote import as_lines, program
from gpunode.edge.host import target as host_target
from gpunode.edge.host.target import Host, Result, Subject
from gpunode.edge.host.tree import Tree
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
    path: str = NVIDIA_RUNTIME
    default_runtime: Literal["auto", "nvidia", "runc", "keep"] = "auto"
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
class Engine(Host):
    """An engine as it was found, and what will be asked of the edit."""

    options: Options
    request: RuntimeRequest


def probed(root: Path = Path("/"), sections: Sequence[str] = SECTIONS) -> NodeFacts:
    """What the probe says of this machine, by default of its engines; of another tree nothing is known."""
    if root != Path("/"):
        return NodeFacts()
    from gpunode.core.facts import parse_probe

    _, stdout, _ = local_run(program(script("probe.sh"), {"sections": as_lines(sections)}))
    return parse_probe(stdout)


def _started(options: Options) -> tuple[Runtime | None, tuple[Reason, ...]]:
    """The engine of another tree as its units start it, None where none does so by plain words; and what is unclear."""
    engine = {"": (ROWS[options.runtime].daemon, (ROWS[options.runtime].unit,))}
    brought = {kind: (kind, DISTRIBUTIONS[kind].units) for kind in ("k3s", "rke2") if options.runtime == "containerd"}
    tree, unclear = Tree(options.root), list[Reason]()
    for distribution, (name, units) in {} if options.here else (engine | brought).items():
        for unit in (f"{folder}/{one}.service" for one in units for folder in FOLDERS):
            if options.distribution not in (None, distribution) or not (name and tree.place(unit).is_file()):
                continue
            try:
                files = texts(gathered(partial(unit_patterns, unit=unit), tree.matching, tree.read))
                flags = tuple(program_of(files, unit, name).words[1:])
            except (Refusal, InputError) as error:  # a shell or a container, or a file that cannot be read
                what = error.problem.what if isinstance(error, Refusal) else error.what
                unclear.append(Reason(what=unit, why=f"does not say which flags {name} has: {what}"))
                continue
            found = Runtime(name=options.runtime, distribution=distribution, unit=posixpath.basename(unit), flags=flags)  # type: ignore[arg-type]
            return found, tuple(unclear)
    return None, tuple(unclear)


def find(options: Options) -> Engine:
    """The engine of this machine, or of the tree, that the options are about."""
    facts = options.facts or probed(options.root)
    mine = (r for r in facts.runtimes if r.name == options.runtime and options.distribution in (None, r.distribution))
    there = next(mine, None)  # the kubelet's stands first of two
    runtime, unclear = (there, ()) if there else _started(options)
    request = _request(options, facts, runtime)
    known = runtime or Runtime(name=request.runtime, distribution=request.distribution)
    target = runtime_target(request, replace(facts, runtimes=(known,)))

    def activation(files: Files, edit: Edit) -> Activation:
        """Nothing where the engine is not here, or reads other files; without restart only the check of the files."""
        found = target.activation(files, edit)
        if runtime is None or found.config != target.root:
            return Activation(unit="", verb="", config=target.root)
        if options.restart:
            return found
        # a daemon may not judge files that are meant for another release
        judges = not options.version or release(options.version) == release(runtime.version)
        return Activation(unit="", verb="", config=target.root, validate=found.validate if judges else ())

    return Engine(
        target=replace(target, activation=activation),
        root=options.root,
        notes=(*unclear, *_unread(options, runtime, target)),
        options=options,
        request=request,
    )


def _unread(options: Options, runtime: Runtime | None, target: EditTarget) -> tuple[Reason, ...]:
    """What to know of a config that the engine of this machine does not read: an edit of it has no effect there.

    And of a specification that is made where the GPUs are.
    """
    if options.cdi and not options.here:
        why = "it is not made for another tree: gpunode runtime configure --cdi makes it on the machine itself"
        return (Reason(what="the CDI specification", why=why),)
    if options.here and not runtime and not options.config:
        return (Reason(what=options.runtime, why="it was not found on this machine: nothing is restarted"),)
    if not options.config or runtime is None:
        return ()
    found = target.activation({}, Edit())
    if found.config == options.config:
        return ()
    reader = found.unit or f"the {runtime.name} of this machine"
    why = f"{reader} reads {found.config}, not this file: nothing is restarted"
    return (Reason(what=options.config, why=why, source=""),)


def look(options: Options) -> Subject[Engine]:
    """Read all that an edit needs.  Raises InputError for files that are there and cannot be read."""
    return host_target.look(find(options))


def state(subject: Subject[Engine]) -> RuntimeState:
    """What the files have in force."""
    return runtime_state(subject.texts, subject.host.request)


def configure(options: Options, *, check: bool = False) -> Result[Engine]:
    """Register the nvidia runtime with the engine; no outcome where the edit has problems."""
    options = replace(options, facts=options.facts or probed(options.root))
    _refuse_old(options)
    return host_target.configure(_finder(options), check=check)


def unconfigure(options: Options, *, check: bool = False) -> Result[Engine]:
    """Undo what configure did, by the records it left in the journal, newest first."""
    return host_target.unconfigure(_finder(options), check=check)


def _refuse_old(options: Options) -> None:
    """An engine below the support window is not configured; it can be looked at, and what is ours taken out."""
    from gpunode.core.knowledge.support import programs_of, refuse_old
    from gpunode.edge.load import load_support

    there = programs_of(options.facts, [options.runtime]) if options.facts else ()
    for name, version in (*there, (options.runtime, options.version)):
        refuse_old(name, version, load_support())


def _finder(options: Options) -> Callable[[bool], Engine]:
    """The facts that the options came with count the first time."""
    return lambda first: find(options if first else replace(options, facts=None))


def _request(options: Options, facts: NodeFacts, runtime: Runtime | None) -> RuntimeRequest:
    driver = wanted_driver(facts, runtime) if options.cgroup_driver == "auto" else options.cgroup_driver
    asked = RuntimeRequest(
        runtime=options.runtime,
        default_runtime=default_runtime(facts, options.runtime, options.default_runtime),
        cdi=options.cdi,
        cgroup_driver=driver if driver in ("systemd", "cgroupfs") else "",  # type: ignore[arg-type]
        name=options.name,
        path=_binary(options),
        enable_cri=options.enable_cri,
        judged=options.here and runtime is not None,
    )
    request = completed(asked, runtime or Runtime(name=options.runtime))
    changes: dict[str, object] = {}
    if options.distribution is not None:
        changes["distribution"] = options.distribution
    if options.drop_in is not None:
        changes |= {"drop_in": options.drop_in, "in_place": not options.drop_in}
    if options.config and options.config != request.config:
        # not the file that the daemon's arguments and its own check are about
        changes |= {"config": options.config, "flags": (), "refused": ""}
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
