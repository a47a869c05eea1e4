"""The protocol between the controller and node/*.sh, both directions, as pure text.

To the node goes one self-contained POSIX shell program (`program`): the request's files as base64 here-documents,
then the script.  Back come lines `gpunode<TAB>KEY<TAB>VALUE` (`parse_outcome`); every other line is log.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import cast

from gpunode.core.errors import InputError
from gpunode.core.model import Outcome, Status

STATUSES = ("unchanged", "changed", "failed", "rolled_back", "refused")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*\Z")


def program(script: str, request: Mapping[str, bytes] | None = {}) -> str:
    """The text to feed to `sh -s`: `script` runs with $GPUNODE_IN naming a 0700 folder that holds `request`.

    The folder is removed at exit; None is for a script that needs none.  The script runs with standard input closed
    to it, because the shell reads the program itself from there.  File names are plain names (letters, digits, `.`,
    `_`, `-`).
    """
    ran = f"gpunode_script() (\n{script.rstrip()}\n)\ngpunode_script </dev/null\nexit $?\n"
    if request is None:
        return f"unset GPUNODE_IN\n{ran}"
    for name in request:
        if not _NAME.match(name):
            raise InputError(f"request file name {name!r}", expected="letters, digits, '.', '_' and '-'")
    unpack = "".join(
        f"base64 -d > \"$GPUNODE_IN/{name}\" <<'GPUNODE_EOF' || exit 2\n{_base64_lines(data)}GPUNODE_EOF\n"
        for name, data in sorted(request.items())
    )
    return (
        "umask 077\n"
        'GPUNODE_IN=$(mktemp -d "${TMPDIR:-/tmp}/gpunode.XXXXXX") || exit 2\n'
        "export GPUNODE_IN LC_ALL=C\n"
        "trap 'rm -rf \"$GPUNODE_IN\"' EXIT\n"
        "trap 'exit 130' HUP INT TERM\n"
        f"{unpack}{ran}"
    )


def _base64_lines(data: bytes) -> str:
    return base64.encodebytes(data).decode()


def parse_outcome(stdout: str, rc: int) -> Outcome:
    """Read what a node script printed; `rc` is its exit status.

    A script that ended without a status line failed, whatever its exit status (it was killed, or the line was cut).
    """
    found: dict[str, list[str]] = {}
    log: list[str] = []
    for line in stdout.splitlines():
        parts = line.split("\t", 2)
        if len(parts) == 3 and parts[0] == "gpunode":
            found.setdefault(parts[1], []).append(parts[2])
        else:
            log.append(line)
    status = found.get("status", [""])[-1]
    message = " ".join(found.get("message", []))
    if status not in STATUSES:
        status, message = "failed", message or f"the node's script ended early (exit status {rc})"
    return Outcome(
        status=cast(Status, status),
        message=message,
        fix=" ".join(found.get("fix", [])),
        changed=tuple(found.get("changed", [])),
        notes=tuple(found.get("note", [])),
        log="\n".join(log),
        stale=tuple(found.get("stale", [])),
    )
