"""The requests that carry out a UndoPlan: for node/undo/restore.sh, commit.sh, activate.sh and packages.sh, in order.

Request files of restore.sh: `stop`, `disable`, `enable`, `start` units and `load` modules, one name a line;
`alternative` lines NAME auto, NAME manual PATH, NAME link PATH or NAME absent; `sysctl` lines KEY VALUE; `ecc` lines
GPU Enabled or GPU Disabled; `argument` lines NAME NAME=VALUE or NAME absent; `mask` lines UNIT absent; `link`, `cdi`
and `initramfs` paths to remove; `rebuild` (1; the initramfs), `reload` (1; systemd, whose unit files changed), `close`
the verb that is done, with `to` the run after which the node is again, `keep` (1; copies of files that an uninstall
leaves), `check` (1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpunode.core.diff import unified
from gpunode.core.edits.commit import FileChange, commit_request
from gpunode.core.errors import InputError
from gpunode.core.items.activation import UNITS, activate_request
from gpunode.core.items.file_undo import FileRestore, FileTransaction
from gpunode.core.items.package import packages_request
from gpunode.core.items.runfile import runfile_request
from gpunode.core.items.sharing import MIG_PROGRAM, mig_undo_request
from gpunode.core.late import dataclass
from gpunode.core.model.journal import FOLDER, UNDOES
from gpunode.core.remote import as_flags, as_lines
from gpunode.core.undo.plan import UndoPlan
from gpunode.core.undo.scope import PARTS
from gpunode.core.validation import check_value, mapping, text, texts

_OF_THAT_TIME = (b"handlers", b"plugin_was", b"broken")  # lines of a transaction's `after` that do not hold again
SHAPE = mapping(
    "What is undone.",
    verb=text("By default C(uninstall).", choices=UNDOES),
    parts=texts("Parts of an uninstall; all without it.", choices=PARTS),
    to=text("Run or time that a rollback goes back to; the run before the last one without it."),
)


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One script to run on the node; `title` says what for."""

    title: str
    script: str
    request: Mapping[str, bytes]


@dataclass(frozen=True, kw_only=True)
class UndoRequest:
    """What the role option `gpunode_undo` asks for; `to` None is the run before the last one."""

    verb: str = "uninstall"
    parts: tuple[str, ...] = ()
    to: str | None = None


def parse_undo_request(value: Mapping[str, Any]) -> UndoRequest:
    """{verb: uninstall | rollback, parts: [part], to: run or time} → UndoRequest.  Raises InputError."""
    check_value("undo", value, SHAPE)
    request = UndoRequest(
        verb=str(value.get("verb") or "uninstall"), parts=tuple(value.get("parts") or ()), to=value.get("to") or None
    )
    if (request.to and request.verb != "rollback") or (request.parts and request.verb != "uninstall"):
        raise InputError("undo: parts are uninstall's, and to is rollback's", fix="leave one of them out")
    return request


def undo_requests(back: UndoPlan, *, check: bool = False) -> list[Ask]:
    """What has to be run on the node, in order; what is not needed is left out."""
    first = {"stop": back.stop, "disable": back.disable, **_words(back.early)}
    asks = [_restore("Stop and disable units", first, check)]  # and what takes the driver's own program
    if back.mig:
        gone = any(file.path == MIG_PROGRAM and not file.held and file.data is None for file in _all_files(back))
        request = mig_undo_request(back.mig, gone=gone, check=check)
        asks.append(Ask(title="Restore the MIG layout", script="mig.sh", request=request))
    asks += [_files("Take the engines' configuration back", files, check) for files in back.engines]
    asks.append(_activate("Unload modules", {"unload": list(back.unload)} if back.unload else {}, check))
    asks += [_installer(name, check) for name in back.installers]
    asks.append(_files("Put files back", back.files, check))
    if not back.packages.nothing:
        packages = packages_request(back.packages.value, check=check)
        asks.append(Ask(title="Put packages back", script="packages.sh", request=packages))
    asks.append(_files("Take repositories back", back.sources, check))
    exchange = {"load": list(back.exchange), "reboot": "never"} if back.exchange else {}
    asks.append(_activate("Load the driver that is installed now", exchange, check))
    asks.append(_restore("Put settings back", _last(back, check), check))
    return [ask for ask in asks if ask]


def compared(back: UndoPlan) -> list[str]:
    """The files of the node that `diffs` needs: those that are put back or go, and the copies from before."""
    return sorted({path for file in _all_files(back) for path in (file.path, _copy(file)) if path})


def diffs(back: UndoPlan, files: Mapping[str, bytes]) -> list[str]:
    """Masked unified diffs of what happens to files, from the bytes of those that are there and can be read."""
    found = []
    for file in _all_files(back):
        before, copy = files.get(file.path), _copy(file)
        if (before is None and file.expect) or (copy and copy not in files):
            continue  # too large, or not to be read: hashes alone say that they differ
        found.append(unified(before, files[copy] if copy else file.data, file.path))
    return [text for text in found if text]


def _all_files(back: UndoPlan) -> list[FileRestore]:
    return [file for files in (*back.engines, back.files, back.sources) if files for file in files.files]


def _copy(file: FileRestore) -> str:
    return f"{FOLDER}/{file.held}" if file.held else ""


def close_request(asked: UndoRequest, to: str, *, keep: bool = False) -> dict[str, bytes]:
    """restore.sh writes into the journal that the verb is done; `keep` leaves the copies of files where they are."""
    request = {"close": f"{asked.verb}\n".encode(), "to": f"{to}\n".encode()}
    return request | as_flags(keep=keep)


def _last(back: UndoPlan, check: bool) -> dict[str, Sequence[str]]:
    """Settings; and the units that package scripts have started or stopped, which a check does not let run."""
    units = [f for files in (back.files, *back.engines) if files for f in files.files if f.path.startswith(UNITS)]
    flags = {"rebuild": ("1",) if back.rebuild else (), "reload": ("1",) if units else ()}
    quiet = check or (back.packages.nothing and not back.exchange)
    idle, awake = ((), ()) if quiet else (back.idle, back.awake)
    start = tuple(dict.fromkeys((*back.start, *awake)))
    return {**_words(back.settings), **flags, "stop": idle, "load": back.load, "enable": back.enable, "start": start}


def _words(settings: Mapping[str, Mapping[str, str]]) -> dict[str, Sequence[str]]:
    return {kind: [f"{name} {value}" for name, value in values.items()] for kind, values in settings.items()}


def _restore(title: str, files: Mapping[str, Sequence[str]], check: bool) -> Ask | None:
    request = {name: as_lines(lines) for name, lines in files.items() if lines}
    return Ask(title=title, script="restore.sh", request=request | as_flags(check=check)) if request else None


def _activate(title: str, value: Mapping[str, Any], check: bool) -> Ask | None:
    return Ask(title=title, script="activate.sh", request=activate_request(value, check=check)) if value else None


def _installer(name: str, check: bool) -> Ask:
    kind, _, version = name.partition("-")
    value = {"kind": kind, "version": version or "unknown"}
    title = f"Take off what NVIDIA's installer of {name} put there"
    return Ask(title=title, script="runfile.sh", request=runfile_request("uninstall", value, check=check))


def _files(title: str, files: FileTransaction | None, check: bool) -> Ask | None:
    if files is None:
        return None
    changes = [FileChange(path=f.path, data=f.data, expect=f.expect, held=f.held) for f in files.files]
    request = commit_request(changes, check=check)
    if files.follow:
        still = (x for x in files.follow.after.splitlines() if x.split(b" ", 1)[0] not in _OF_THAT_TIME)
        request |= {
            "after": b"".join(b"%s\n" % line for line in still),
            "validate": files.follow.validate,
            # the others prove that the engine knows the nvidia runtime
            "health": b"".join(b"%s\n" % n for n in files.follow.health.splitlines() if n.endswith(b"\tversion")),
        }
    request |= {"used": as_lines(files.used)}
    return Ask(title=title, script="commit.sh", request=request)
