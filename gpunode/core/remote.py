"""The protocol between the controller and node/*.sh, both directions, as pure text.

To the node goes one self-contained POSIX shell program (`program`): the request's files as base64 here-documents,
then the script.  Back come lines `gpunode<TAB>KEY<TAB>VALUE` (`parse_outcome`); every other line is log.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from typing import cast

from gpunode.core.errors import InputError
from gpunode.core.late import regex
from gpunode.core.model import Changed, Outcome, Status
from gpunode.core.printable import printable, uncoloured

STATUSES = ("unchanged", "changed", "failed", "rolled_back", "refused")
_NAME = regex(r"[A-Za-z0-9][A-Za-z0-9_.-]*\Z")
_LABEL = regex(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,99}\Z")
_GENERATION = regex(r"[0-9]{1,10}\Z")

# Root runs no program out of a folder that others may write into, whatever PATH it was given (sudo without secure_path
# hands on that of the user).  `ls` is called by its full path: no program of PATH decides.
_PATH = """\
gpunode_roots() {
  # shellcheck disable=SC2012,SC2046 # mode, links, owner and group
  set -- $(/bin/ls -ldnL "$1" 2>/dev/null) - - - -
  case $1:$4 in d????[!w]??[!w]?*:* | d????w??[!w]?*:0) [ "$3" = 0 ] ;; *) false ;; esac
}
if gpunode_roots "/proc/$$"; then
  gpunode_path='' gpunode_rest=$PATH:
  while [ -n "$gpunode_rest" ]; do
    gpunode_folder=${gpunode_rest%%:*} gpunode_rest=${gpunode_rest#*:}
    case $gpunode_folder in
      /*) ! gpunode_roots "$gpunode_folder/." || gpunode_path=$gpunode_path${gpunode_path:+:}$gpunode_folder ;;
    esac
  done
  PATH=${gpunode_path:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}
fi
"""

# The folder of a script that was killed stays behind, and may hold a proxy's password: the next script removes it.  One
# that is at work is known by its processes in `.alive`, each with the time of its start and its PID namespace.  Others
# may write into the temporary folder: so nothing but a folder of this user's that nobody else can read or write into
# is looked at.  One without `.alive`, or of another namespace, counts as left behind after a day.
_SWEEP = """\
gpunode_process() {
  read -r gpunode_stat 2>/dev/null <"/proc/$1/stat" || return 1
  gpunode_pid=${gpunode_stat%% *}
  # shellcheck disable=SC2086 # numbers
  set -- ${gpunode_stat##*) }
  gpunode_process="$gpunode_pid ${20} $gpunode_namespace"
  case $1 in Z | X) return 1 ;; esac # it has ended, and nobody has asked for its status yet
}
gpunode_left_behind() {
  if [ -L "$1/.alive" ] || ! [ -s "$1/.alive" ]; then
    [ -n "$(find "$1" -prune -mmin +1440 2>/dev/null)" ]
    return
  fi
  while read -r gpunode_pid gpunode_line; do
    case $gpunode_line in
      *" $gpunode_namespace")
        gpunode_line="$gpunode_pid $gpunode_line"
        ! gpunode_process "$gpunode_pid" || [ "$gpunode_process" != "$gpunode_line" ] || return 1
        ;;
      *) [ -n "$(find "$1" -prune -mmin +1440 2>/dev/null)" ] || return 1 ;;
    esac
  done <"$1/.alive"
}
gpunode_sweep() {
  for gpunode_folder in "${TMPDIR:-/tmp}"/gpunode.??????; do
    [ -d "$gpunode_folder" ] && [ ! -L "$gpunode_folder" ] || continue
    # shellcheck disable=SC2012,SC2046 # mode, links and owner
    set -- $(ls -ldn "$gpunode_folder" 2>/dev/null | cut -d / -f 1) - - -
    case $1:$3 in drwx------*:"$(id -u)") ;; *) continue ;; esac
    ! gpunode_left_behind "$gpunode_folder" || rm -rf "$gpunode_folder"
  done
}
gpunode_namespace=$(readlink /proc/self/ns/pid 2>/dev/null)
gpunode_sweep
"""
STARTED = "gpunode-shell-started"  # a line on standard error: login and sudo went well, the shell runs
CALL = "call"  # request file: the name of this one script; what it prints is kept for `FOLLOWS`, should the way break
FOLLOWS = "follows"  # request file of follow.sh: that name
_ALIVE = """gpunode_process self && echo "$gpunode_process" >>"$GPUNODE_IN/.alive"\n"""


def program(script: str, request: Mapping[str, bytes] | None = {}) -> str:
    """The text to feed to `sh -s`: `script` runs with $GPUNODE_IN naming a 0700 folder that holds `request`.

    The folder is removed at exit, and with it those of earlier scripts that were killed; None is for a script that
    needs none.  The script runs with standard input closed to it, because the shell reads the program itself from
    there.  File names are plain names (letters, digits, `.`, `_`, `-`).
    """
    if request is None:
        return f"{_PATH}unset GPUNODE_IN\n{_ran(script)}"
    for name in request:
        if not _NAME.match(name):
            raise InputError(f"request file name {name!r}", expected="letters, digits, '.', '_' and '-'")
    files = [(name, base64.encodebytes(data).decode()) for name, data in sorted(request.items())]
    head = "base64 -d > \"$GPUNODE_IN/{}\" <<'GPUNODE_EOF' || exit 2\n"
    unpack = "".join(f"{head.format(name)}{text}GPUNODE_EOF\n" for name, text in files)
    return (
        f"{_PATH}umask 077\nexport LC_ALL=C\n"
        f"{_SWEEP}"
        'GPUNODE_IN=$(mktemp -d "${TMPDIR:-/tmp}/gpunode.XXXXXX") || exit 2\n'
        # it is removed at the end: whatever else mktemp may answer is none of ours
        'case ${GPUNODE_IN#"${TMPDIR:-/tmp}"/} in */*) exit 2 ;; gpunode.??????) ;; *) exit 2 ;; esac\n'
        "export GPUNODE_IN\n"
        "trap 'rm -rf \"$GPUNODE_IN\"' EXIT\n"
        "trap 'exit 130' HUP INT TERM\n"
        f"{_ALIVE}{unpack}{_ran(_ALIVE + script, kept=bool({CALL, FOLLOWS} & request.keys()))}"
    )


def _ran(script: str, *, kept: bool = False) -> str:
    """In a shell of its own, which a kill can leave at work without the one around it.

    What it prints can be `kept` in a file until its end: the script does not end with the connection then.
    """
    run = _KEPT if kept else "gpunode_script </dev/null\nexit $?\n"
    return f"gpunode_script() (\n{script.rstrip()}\n)\n{run}"


_KEPT = f"""\
echo {STARTED} >&2
gpunode_script </dev/null >"$GPUNODE_IN/.printed" 2>"$GPUNODE_IN/.errors"
gpunode_status=$?
cat "$GPUNODE_IN/.printed"
cat "$GPUNODE_IN/.errors" >&2
exit "$gpunode_status"
"""


def node_lines(stdout: str) -> Iterator[tuple[str, str]]:
    """(KEY, VALUE) of each line `gpunode<TAB>KEY<TAB>VALUE`, ("", line) of each other one; printable, without colours.

    A line ends where the script ended it, not at what Unicode also calls the end of a line: what a message holds
    cannot pass for a line of its own.
    """
    for line in printable(uncoloured(stdout.replace("\r\n", "\n").replace("\r", "\n"))).removesuffix("\n").split("\n"):
        parts = line.split("\t", 2)
        if len(parts) == 3 and parts[0] == "gpunode" and parts[1]:
            yield parts[1], parts[2]
        else:
            yield "", line


def fix_of(why: str) -> str:
    """What to do about a program that a node's shell could not even begin, by the shell's own words."""
    if "No space left on device" in why or "Disk quota exceeded" in why:
        return "make room on the node: df -h /tmp shows its bytes, df -i /tmp its files, of which there may be no more"
    if "Read-only file system" in why:
        return "the node's /tmp cannot be written to: mount it rw, or set TMPDIR for the user that gpunode becomes"
    return "check the connection and become settings of this host"


def values_of(stdout: str, key: str) -> list[str]:
    """The values of all lines of one key, in order."""
    return [value for name, value in node_lines(stdout) if name == key]


def parse_outcome(stdout: str, rc: int) -> Outcome:
    """Read what a node script printed; `rc` is its exit status.

    A script that ended without a status line failed, whatever its exit status (it was killed, or the line was cut).
    """
    found: dict[str, list[str]] = {}
    log: list[str] = []
    rollback: list[str] = []
    for key, text in node_lines(stdout):
        if key:
            found.setdefault(key, []).append(text)
        else:
            (rollback if "rollback" in found else log).append(text)
    status = found.get("status", [""])[-1]
    message = " ".join(found.get("message", []))
    if status not in STATUSES:
        status, message = "failed", message or f"the node's script ended early (exit status {rc})"
    return Outcome(
        status=cast(Status, status),
        message=message,
        fix=" ".join(found.get("fix", [])),
        code=found.get("code", [""])[-1],
        changed=tuple(map(_change, found.get("changed", []))),
        notes=tuple(found.get("note", [])),
        log="\n".join(log),
        rollback="\n".join(rollback),
        stale=tuple(found.get("stale", [])),
    )


def as_lines(found: Iterable[str]) -> bytes:
    """A request file, one of them a line."""
    return "".join(f"{line}\n" for line in found).encode()


def as_flags(**flags: object) -> dict[str, bytes]:
    """Request files of those that are set."""
    return {name: b"1\n" for name, given in flags.items() if given}


def signature(
    *,
    run: str = "",
    part: str = "",
    controller: str = "",
    generation: str = "",
    break_lock: bool = False,
    ended: str = "",
) -> dict[str, bytes]:
    """Request files: whose lines these are in the journal (`run`, `part`), and who may work on the node.

    `controller` takes or renews the node's lease (node/lib/lock.sh), which `break_lock` takes from another one.
    `generation` orders the runs of a controller: a script of an earlier one is refused once a later one was there.
    `ended` (done | failed) says what became of the run here, which is over.  Raises InputError.
    """
    labels = {"run": run, "part": part, "controller": controller, "generation": generation, "ended": ended}
    for name, text in labels.items():
        if text and not (_GENERATION if name == "generation" else _LABEL).match(text):
            expected = "letters, digits, '.', '_', ':' and '-', at most 100"
            raise InputError(f"{name} {text!r}", expected="a number" if name == "generation" else expected)
    files = {name: f"{text}\n".encode() for name, text in labels.items() if text}
    return files | as_flags(break_lock=break_lock)


def _change(line: str) -> Changed:
    """What `changed` of node/lib/common.sh printed: KIND, NAME, WAS, NOW and TEXT."""
    kind, name, was, now, text = (line.split("\t") + [""] * 4)[:5]
    return Changed(kind=kind, name=name, was=was, now=now, text=text)
