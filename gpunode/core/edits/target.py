"""Editing the files of a program on a host: the one interface, for container engines and Kubernetes' components.

An `EditTarget` is what somebody asks of a program, as functions of its files, and all that a commit loop needs
(edge/host/target.py on this machine, the actions component and edit_file on a node).  `RuntimeRequest` is what is asked
of a container engine, `Engine` what an engine's module offers.
"""

from __future__ import annotations

import fnmatch
import posixpath
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, Protocol, TypeVar

from gpunode.core.edits.refusal import Refusal as Refusal  # noqa: PLC0414  # editors have it from here
from gpunode.core.edits.undo import former, put, record, remnant, revert
from gpunode.core.edits.values import Lost
from gpunode.core.engines import DISTRIBUTIONS, NVIDIA_RUNTIME
from gpunode.core.errors import GpunodeError, InputError, RefusedError
from gpunode.core.late import dataclass, field, regex, replace
from gpunode.core.mask import mask_quoted, masked_errors
from gpunode.core.model import ConfigFile, Distribution, Edit, NodeFacts, Problem, Reason, Runtime, RuntimeName, Undo
from gpunode.core.numbers import release

Files = Mapping[str, bytes]
Records = Sequence[Mapping[str, Undo]]


@dataclass(frozen=True, kw_only=True)
class Activation:
    """What follows an edit: the unit and how it is notified, what checks the files before, what proves health after."""

    unit: str
    verb: str  # restart, reload, await, "" where the engine takes the files up by itself
    config: str
    validate: tuple[str, ...] = ()  # a command's words, in which @FILE@ stands for the root config
    socket: str = ""
    plugin: str = ""  # what `ctr plugins ls` must call ok
    health: tuple[tuple[str, ...], ...] = ()  # that prove that it answers: the first whose tool is there counts
    disrupts: str = ""  # a sentence, "" when nothing is disturbed
    process: str = ""  # await: the unit restarts it by itself, and it has to answer and stay up
    reread: bool = False  # systemd has to read its units again
    settle: int = 3  # seconds that the unit has to stay up
    handlers: tuple[str, ...] = ()  # the runtimes that the engine has to know once it is configured


@dataclass(frozen=True, kw_only=True)
class EditTarget:
    """What is asked of a program, as functions of its files (absolute path → bytes; a path not there has no file).

    `usable` says whether the program can work with what the records leave of files that have changed since as with
    those before them, and without gpunode; `kept` what has to be in these so that what is of others stays in force.
    """

    name: str
    root: str  # the file that names the others: it is written last
    label: str  # whose an undo record is
    patterns: Callable[[Files], Iterable[str]]  # paths and globs, asked again until it names nothing new
    edit: Callable[[Files], Edit]
    remove: Callable[[Files, Records], Edit]  # so that nothing of it is left; with the records that did not suffice
    activation: Callable[[Files, Edit], Activation]
    usable: Callable[[Files, Files], bool] = lambda _left, _before: True
    kept: Callable[[Files, Files, Collection[str]], Edit] = lambda _files, _left, _theirs: Edit()
    needy: Callable[[Files], Mapping[str, str]] = lambda _files: {}  # entry that needs a program that goes → file
    noticed: Callable[[Files, Edit], Edit] = lambda _, edit: edit  # adds what makes the program take the edit up

    def files(self, files: Files) -> tuple[str, ...]:
        """Paths and globs of the files that an edit has to be given; RefusedError where that cannot be said."""
        with refused(files):
            return tuple(dict.fromkeys(self.patterns(files)))

    def configure(self, files: Files) -> Edit:
        """What changes so that the files say what is asked; what cannot be done is the Edit's Problem.

        An Edit without changes and problems: they say so already.  Raises InputError for files that are broken.
        """
        return _recorded(files, lambda: self.noticed(files, self.edit(files)))

    def unconfigure(self, files: Files, undo: Records = ()) -> Edit:
        """What undoes it: to the byte by configure's records, newest first, else only gpunode's own entries go."""
        return _recorded(files, lambda: self.noticed(files, self._reverted(files, undo)))

    def _reverted(self, files: Files, undo: Records) -> Edit:
        """What takes the edits of the records back, newest first; without a record only our own entries go."""
        if not undo:
            return self.remove(files, undo)
        after, was, lost = dict(files), dict(files), dict[str, tuple[Lost, ...]]()
        for path, how in (item for one in undo for item in one.items()):
            data, missing = revert(after.get(path), how, path)
            lost[path] = (*lost.get(path, ()), *missing)
            after = put(after, {path: data})
            was = put(was, {path: former(how, files.get(path))})
        edit = self.settled(files, after, was, undo, lost)
        named = self.stranded(put(files, edit.changes), {path: was[path] for path in lost if path in was})
        return replace(edit, reasons=(*edit.reasons, *named))

    def stranded(self, files: Files, before: Files) -> Iterator[Reason]:
        """The entries of others, not there `before`, that need a program which goes."""
        known = self.needy(before)
        for entry, path in self.needy(files).items():
            if entry not in known:
                why = f"not gpunode's, and stays: {entry}: remove it, or keep the toolkit"
                yield Reason(what=path, why=why, level="stays")

    def settled(
        self, files: Files, after: Files, was: Files, undo: Records, lost: Mapping[str, Sequence[Lost]] = {}
    ) -> Edit:
        """What changes in all of a program's files: the records leave `after`, and do not undo what is `lost`.

        What others have in files that are left stays in force.  Where the records do not fit any more, or the program
        cannot work with what is left as with what `was` before gpunode, our own entries go out of that, but for our
        files that are as they were; where that does not help, out of `files`.
        """
        own = {path for one in undo for path in one}

        def kept(left: Files) -> Edit:
            theirs = {path for path, data in left.items() if path not in own or data != was.get(path)}
            return self.kept(files, left, theirs)

        def done(left: Files, more: Edit) -> Edit:
            needed = kept(left)
            changes = changed(files, {**dict.fromkeys(sorted(files)), **put(left, needed.changes)})
            reasons = [Reason(what=path, why="undoes what configure wrote") for path in changes if path in own]
            stays = [(path, "what named a runtime that goes is out of it") for path in changes if path not in own]
            stays += [(path, one.text) for path in lost for one in lost[path] if one.theirs]
            reasons += [Reason(what=path, why=f"changed since: {text}", level="stays") for path, text in stays]
            return replace(more, changes=changes, reasons=(*reasons, *needed.reasons, *more.reasons))

        read = put(after, kept(after).changes)
        whole, broken = all(one.theirs for path in lost for one in lost[path]), not self.usable(read, was)
        if whole and not broken:
            return done(after, Edit())
        try:
            rest = self.remove(read, undo)
        except GpunodeError:
            if not broken:
                raise
            return self.remove(files, undo)
        if rest.problems:
            return self.remove(files, undo) if broken else rest
        changes = {
            path: data for path, data in rest.changes.items() if path not in own or read.get(path) != was.get(path)
        }
        if whole and not changes:
            return done(after, Edit())
        left = put(after, changes)
        if broken and not self.usable(put(left, kept(left).changes), was):
            return self.remove(files, undo)
        made = {path: how for one in undo for path, how in one.items() if how.created}
        return done({p: data for p, data in left.items() if p not in made or not remnant(data, made[p])}, rest)


def _recorded(files: Files, make: Callable[[], Edit]) -> Edit:
    """What `make` gives, with the record of how to undo it; a Refusal becomes its Problem."""
    try:
        with masked(files):
            edit = make()
    except Refusal as refusal:
        return Edit(problems=(refusal.problem,))
    return replace(
        edit,
        reasons=quoting_no_secret(edit.reasons),
        undo={path: record(files.get(path), data) for path, data in edit.changes.items()},
    )


def quoting_no_secret(reasons: Sequence[Reason]) -> tuple[Reason, ...]:
    """The reasons without the secrets of what they quote."""
    return tuple(replace(one, what=mask_quoted(one.what), why=mask_quoted(one.why)) for one in reasons)


@contextmanager
def masked(files: Files) -> Iterator[None]:
    """No secret of a person's file in an error, whatever of the file it quotes; any other exception is a Refusal."""
    try:
        with masked_errors():
            yield
    except Refusal as refusal:
        problem = refusal.problem
        raise Refusal(mask_quoted(problem.what), mask_quoted(problem.fix)) from None
    except GpunodeError:
        raise
    except Exception as error:  # what a library says of a text that it was not made for says nothing to a user
        what = f"{' or '.join(sorted(files)) or 'a file'} is written in a way that gpunode cannot edit"
        raise Refusal(f"{what} ({type(error).__name__})", "simplify the file, or edit it by hand") from error


@contextmanager
def refused(files: Files) -> Iterator[None]:
    """A Refusal as RefusedError, without secrets."""
    try:
        with masked(files):
            yield
    except Refusal as refusal:
        raise RefusedError(refusal.problem.what, fix=refusal.problem.fix) from None


def problem_of(error: GpunodeError) -> Problem:
    """An error as what stands against an edit."""
    return Problem(what=f"{error.what}{f' (expected: {error.expected})' if error.expected else ''}", fix=error.fix)


# ---------------------------------------------------------------- the files of a host


class FileSnapshot(Protocol):
    """A file as it was read."""

    @property
    def data(self) -> bytes | None: ...
    @property
    def sha256(self) -> str: ...
    @property
    def mode(self) -> int: ...


S = TypeVar("S", bound=FileSnapshot)


def gathered(
    wanted: Callable[[Files], Iterable[str]], matching: Callable[[str], Iterable[str]], read: Callable[[str], S | None]
) -> dict[str, S | None]:
    """All files that an edit needs, None for one that is not there: asked for again until nothing new is named.

    `matching` gives the paths of a path or glob, `read` the file of a path.
    """
    seen = dict[str, S | None]()
    while fresh := {path for pattern in wanted(texts(seen)) for path in matching(pattern)} - set(seen):
        seen |= {path: read(path) for path in sorted(fresh)}
    return seen


def texts(snapshots: Mapping[str, FileSnapshot | None]) -> dict[str, bytes]:
    """The files that are there."""
    return {path: found.data or b"" for path, found in snapshots.items() if found}


def probed_files(
    files: Mapping[str, ConfigFile], wanted: Callable[[Files], Iterable[str]]
) -> dict[str, ConfigFile | None]:
    """`gathered` from what the probe read.  Raises RefusedError for a file that it could not read."""

    def matching(pattern: str) -> Iterable[str]:
        named = [] if set(pattern) & set("*?[") else [pattern]
        return [*named, *(path for path in files if fnmatch.fnmatchcase(path, pattern))]

    def read(path: str) -> ConfigFile | None:
        found = files.get(path)
        if found is None or found.data is not None:
            return found
        if not found.regular:
            raise RefusedError(
                f"{path} is no regular file", expected="a file of text", fix=f"ls -ld {path} on the node: who made it?"
            )
        if found.target and not found.owner:
            raise RefusedError(f"{path} leads to {found.target}, which is not there", fix="remove the link, or make it")
        if found.size > 1 << 20:
            raise RefusedError(f"{path} has {found.size} bytes", fix="no configuration is that large: look into it")
        raise RefusedError(f"{path} could not be read", fix="probe again as root")

    return gathered(wanted, matching, read)


# ---------------------------------------------------------------- helpers of several editors


KUBEADM = "https://kubernetes.io/docs/tasks/administer-cluster/kubeadm/"


def changed(before: Files, after: Mapping[str, bytes | None]) -> dict[str, bytes | None]:
    """Those files of `after` that differ from `before`."""
    return {path: data for path, data in after.items() if before.get(path) != data}


# For bash, which has connections of its own: $1 scheme, $2 host, $3 port.  Without openssl an answer of a TLS port to
# plain HTTP tells that the program serves (Go's servers answer that they want HTTPS), and no more: `served`.
_BY_BASH = (
    r"""get() { printf 'GET /healthz HTTP/1.0\r\nHost: %s\r\n\r\n' "$1"; }; """
    r"""if [[ $1 == https ]] && type -P openssl >/dev/null; then """
    r"""get "$2" | openssl s_client -quiet -connect "$2:$3" 2>/dev/null | """
    r"""{ read -r -t 5 line; echo "$line"; [[ $line == HTTP/*" 200"* ]]; }; exit; fi; """
    r"""host=${2#[}; exec 3<>"/dev/tcp/${host%]}/$3" || exit; get "$2" >&3; read -r -t 5 line <&3; echo "$line"; """
    r"""if [[ $1 == https ]]; then [[ $line == HTTP/* ]] && echo served; else [[ $line == HTTP/*" 200"* ]]; fi"""
)


def asks(scheme: str, address: str, port: str) -> tuple[tuple[str, ...], ...]:
    """Health commands that ask where a program answers, with the tools that a node may have; () where port is 0.

    Its certificate is its own.  What listens everywhere is asked at 127.0.0.1.
    """
    if port == "0":
        return ()
    address = "127.0.0.1" if address in ("0.0.0.0", "::") else address  # noqa: S104
    host = f"[{address}]" if ":" in address else address
    url = f"{scheme}://{host}:{port}/healthz"
    return (
        ("curl", "-fsSk", "--noproxy", "*", "--max-time", "5", url),
        ("wget", "-q", "--no-proxy", "--no-check-certificate", "-T", "5", "-O", "-", url),
        ("bash", "-c", _BY_BASH, "healthz", scheme, host, port),
    )


def units_changed(edit: Edit) -> bool:
    """Whether systemd has to read its units again."""
    return any(path.endswith((".service", ".conf")) and "/systemd/system/" in path for path in edit.changes)


# ---------------------------------------------------------------- container engines

OPERATOR = ("/usr/local/nvidia/toolkit/", "/opt/nvidia/toolkit/")  # where the GPU Operator's toolkit container installs
_NAME = regex(r"[A-Za-z0-9][A-Za-z0-9_.-]*\Z")


@dataclass(frozen=True, kw_only=True)
class RuntimeRequest:
    """What the configuration of one engine should say, and what is known of the engine.

    `default_runtime` keep, `cdi` None and `cgroup_driver` "" leave what is there.
    """

    runtime: RuntimeName
    distribution: Distribution = ""  # the Kubernetes that brings the engine
    config: str = ""  # absolute, as `drop_in`; "": the engine's own
    drop_in: str = ""
    in_place: bool = False  # no drop-in
    version: str = ""  # as the daemon says it, 1.6.20~ds1; "": only what every version reads is written
    default_runtime: Literal["nvidia", "runc", "keep"] = "nvidia"
    name: str = "nvidia"
    path: str = NVIDIA_RUNTIME
    cdi: bool | None = None
    cgroup_driver: Literal["systemd", "cgroupfs", ""] = ""
    flags: tuple[str, ...] = ()  # the daemon's arguments: what they set cannot be set in a file as well
    enable_cri: bool = False  # take containerd's CRI plugin out of disabled_plugins
    refused: str = ""  # what dockerd or containerd says against its files as they are
    judged: bool = True  # a daemon of this machine reads the file, and can judge it before it is there
    rendered: bool = False  # k3s or RKE2 has made containerd's files since the runtime and all settings came

    @property
    def release(self) -> tuple[int, int]:
        """Major and minor of the version, (0, 0) where it is unknown."""
        return release(self.version)

    def containerd_of(self, distribution: str) -> str:
        """The version of its containerd, also where that of its Kubernetes is given."""
        before, since = DISTRIBUTIONS[distribution].containerd
        brought = since if self.release >= (1, 36) else before
        return brought if (1, 20) <= self.release < (2, 0) else self.version


def check_request(request: RuntimeRequest) -> None:
    """Raise InputError for names and paths that no engine takes."""
    if not _NAME.match(request.name) or request.name == "runc":
        raise InputError(
            f"runtime name {request.name!r}",
            expected="letters, digits, '.', '_', '-', and not runc, which the engines reserve",
        )
    for what, path in (("runtime path", request.path), ("config", request.config), ("drop-in", request.drop_in)):
        if path and (not path.startswith("/") or posixpath.normpath(path) != path or not path.isprintable()):
            raise InputError(f"{what} {path!r}", expected="an absolute, normalised path")
    if not request.path:
        raise InputError("the runtime path is empty", expected="an absolute path")
    if request.drop_in and request.drop_in == request.config:
        raise InputError(f"the drop-in {request.drop_in} is the config file itself", expected="another path")


def switches_cdi(request: RuntimeRequest, engine: str, since: tuple[int, int]) -> bool:
    """Whether CDI is to be on or off, in an engine that has it from a release on; to turn it on before is refused."""
    if request.cdi and (0, 0) < request.release < since:
        fix = f"install {engine} {since[0]}.{since[1]} or later, or leave cdi out"
        raise Refusal(f"{engine} {request.version} has no CDI", fix)
    return request.cdi is not None and not (0, 0) < request.release < since


@dataclass(frozen=True, kw_only=True)
class RuntimeState:
    """What an engine has in force: its runtimes, the default one, and what belongs to the nvidia runtime."""

    runtimes: Mapping[str, str] = field(default_factory=dict)  # by name, the binary; "" for the engine's own
    default: str = ""  # one of them: undo repairs files that name another; "" for the engine's own
    path: str = ""  # the binary of the nvidia runtime, "" when the engine does not know that runtime
    cdi: bool | None = None  # None: this engine has no such setting
    cgroup_driver: str = ""  # systemd, cgroupfs, "" when the files do not say
    files: tuple[str, ...] = ()  # in force, root first
    notes: tuple[Reason, ...] = ()


def restarted(runtime: Runtime, edit: Edit, keeps: str = "running containers keep running", **more: Any) -> Activation:
    """That the engine's unit is restarted, and what that means."""
    return Activation(
        unit=runtime.unit,
        verb="restart",
        config=runtime.config,
        socket=runtime.socket,
        disrupts=f"restarts {runtime.unit}: {keeps}" if edit.changes or edit.restart else "",
        **more,
    )


@dataclass(frozen=True)
class Engine:
    """What an engine's module offers as ENGINE, as functions of its files (absolute path → bytes) and a request.

    `patterns` and `kept` are its `EditTarget`'s.  `configure` and `unconfigure` raise Refusal or InputError, the latter
    takes only nvidia's entries out, and says what stays.  `activation` gets the engine as the probe found it.
    """

    patterns: Callable[[Files, RuntimeRequest], tuple[str, ...]]
    configure: Callable[[Files, RuntimeRequest], Edit]
    unconfigure: Callable[[Files, RuntimeRequest], Edit]
    state: Callable[[Files, RuntimeRequest], RuntimeState]
    activation: Callable[[NodeFacts, Runtime, Edit], Activation]
    kept: Callable[[Files, Files, Collection[str], RuntimeRequest], Edit] = lambda _files, _left, _theirs, _asked: (
        Edit()
    )
