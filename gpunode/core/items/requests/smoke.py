"""The request of node/smoke/smoke.sh, and the checks in what it prints.

Request files: `gpus` (how many there are on PCI, or `found`: as many as there are then; 0 leaves the driver out),
`cuda` versions and `runtimes` one a line, `default_containerd` and `default_docker` (nvidia or runc), `toolkit` (1),
`image` (empty: one made on the node from its own shell), `socket` (of containerd, where it is not the usual one),
`log_containerd` and `log_docker` (what shows the engine's log, where that is not its own unit's).
Each check is a line `gpunode<TAB>check<TAB>ID|STATUS|MESSAGE|FIX`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any, cast, get_args, get_type_hints

from gpunode.core.errors import InputError
from gpunode.core.grammar import WORD
from gpunode.core.model import Check
from gpunode.core.printable import shortened
from gpunode.core.remote import parse_outcome, values_of
from gpunode.core.validation import as_lines, check_keys, checked

ENGINES = ("containerd", "docker")
_KEYS = ("runtimes", "default_runtime", "image", "gpus", "cuda", "toolkit", "socket", "logs")
_SOCKET = re.compile(r"/[^\s|]*\Z")
_LOG = re.compile(r"[^\n|]+\Z")
_IMAGE = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._:/@-]*\Z")
_VERSION = re.compile(r"(\d+\.\d+|newest)\Z")
_STATUSES = get_args(get_type_hints(Check)["status"])
_checked = partial(checked, "smoke")


def smoke_files(value: Mapping[str, Any]) -> dict[str, bytes]:
    """{runtimes, default_runtime: {engine: nvidia|runc}, image, gpus, cuda, toolkit, socket, logs: by engine} → files.

    Raises InputError.
    """
    check_keys("smoke", value, _KEYS)
    engines = [_one_of(ENGINES, name, "runtime") for name in value.get("runtimes") or ()]
    lines = {
        "runtimes": engines,
        "cuda": [_checked(_VERSION, version, "CUDA version") for version in value.get("cuda") or ()],
        "image": [_checked(_IMAGE, value["image"], "image")] if value.get("image") else [],
        "socket": [_checked(_SOCKET, value["socket"], "socket")] if value.get("socket") else [],
        "gpus": [str(value.get("gpus") if value.get("gpus") == "found" else int(value.get("gpus") or 0))],
        "toolkit": ["1"] if value.get("toolkit", bool(engines)) else [],
    }
    for engine, runtime in (value.get("default_runtime") or {}).items():
        lines[f"default_{_one_of(ENGINES, engine, 'runtime')}"] = [
            _one_of(("nvidia", "runc"), runtime, "default runtime")
        ]
    for engine, log in (value.get("logs") or {}).items():
        lines[f"log_{_one_of(ENGINES, engine, 'runtime')}"] = [_checked(_LOG, log, "log")]
    return {name: as_lines(found) for name, found in lines.items() if found}


def parse_checks(stdout: str, rc: int) -> tuple[Check, ...]:
    """The checks that smoke.sh printed; a script that did not end by itself adds the failed check `smoke.ran`."""
    checks = [_check(text) for text in values_of(stdout, "check")]
    outcome = parse_outcome(stdout, rc)
    if outcome.status != "unchanged":
        checks.append(Check(id="smoke.ran", status="failed", message=outcome.message, fix=outcome.fix))
    return tuple(checks)


def _check(text: str) -> Check:
    name, status, message, fix = (text.split("|") + [""] * 3)[:4]
    if not (name and WORD.fits(name)):
        text = f"smoke.sh names a check {shortened(name)}: {message}"
        return Check(id="smoke.ran", status="failed", message=text, fix=fix)
    if status not in _STATUSES:
        status, message = "failed", f"smoke.sh gave the status {status!r}: {message}"
    return Check(id=name, status=cast(Any, status), message=message, fix=fix)


def _one_of(choices: tuple[str, ...], text: Any, what: str) -> str:
    if text not in choices:
        raise InputError(f"smoke: {what} {text!r}", expected=f"one of {', '.join(choices)}")
    return str(text)
