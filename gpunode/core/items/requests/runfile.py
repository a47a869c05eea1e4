"""The request of node/packages/runfile.sh, from preflight_fetch, driver_runfile, driver_uninstall and cuda_runfile.

Request files: `mode` (fetch, install, uninstall, recover), `kind` (driver, cuda), `name` of the file, `version`, `urls`
one a line, `sha256` (without it the one that stands beside the file: URL.sha256sum), `modules` (open, proprietary),
`options` of the installer one a line, `proxy` a URL, `given` the path on the node of a file that was sent there,
`check` (1) in check mode.  Besides the usual lines the script prints `gpunode<TAB>need<TAB>NAME` where the file has to
come from the machine that runs gpunode.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from gpunode.core.errors import InputError
from gpunode.core.model import Flavour, Runfile
from gpunode.core.remote import values_of
from gpunode.core.validation import as_lines, check_keys, checked

MODES = ("fetch", "install", "uninstall", "recover")
_LINES = {
    "kind": re.compile(r"(driver|cuda)\Z"),
    "name": re.compile(r"[A-Za-z0-9][A-Za-z0-9+._-]*\Z"),
    "version": re.compile(r"(\d+(\.\d+)+|unknown)\Z"),
    "modules": re.compile(r"(open|proprietary)\Z"),
    "sha256": re.compile(r"[0-9a-f]{64}\Z"),
    "path": re.compile(r"[^\0\n]+\Z"),
    "proxy": re.compile(r"https?://[^\s\"]+\Z"),
}
_LISTS = {"urls": re.compile(r"https?://[^\s\"'`$\\]+\Z"), "options": re.compile(r"-[A-Za-z0-9=._/+-]+\Z")}
_checked = partial(checked, "runfile")


def runfile_value(kind: str, runfile: Runfile, *, proxy: str, modules: Flavour | None = None) -> dict[str, Any]:
    """What a step says of one installer, plain data: kind, name, version, where from, checksum, options."""
    value: dict[str, Any] = {
        "kind": kind,
        "name": runfile.name,
        "version": runfile.version,
        "urls": list(runfile.urls),
        "path": runfile.path,
        "sha256": runfile.sha256,
        "options": list(runfile.options),
        "modules": modules or "",
        "proxy": proxy,
    }
    return {key: text for key, text in value.items() if text}


def runfile_request(
    mode: str, value: Mapping[str, Any] = {}, *, given: str = "", check: bool = False
) -> dict[str, bytes]:
    """A value as above → request files; `given` is where on the node a file lies that was sent there.

    Raises InputError on what a shell or an installer could read as something else.
    """
    if mode not in MODES:
        raise InputError(f"runfile: {mode!r}", expected=f"one of {', '.join(MODES)}")
    check_keys("runfile", value, (*_LINES, *_LISTS))
    lines = {key: [_checked(pattern, value[key], key)] for key, pattern in _LINES.items() if value.get(key)}
    lines |= {key: [_checked(_LISTS[key], item, key) for item in value[key]] for key in _LISTS if value.get(key)}
    needed = () if mode == "recover" else ("kind", "version") if mode == "uninstall" else ("kind", "version", "name")
    for key in needed:
        if key not in lines:
            raise InputError(f"runfile: no {key}", expected=f"{', '.join(needed)}")
    lines.pop("path", None)  # it is the controller's
    request = {name: as_lines(found) for name, found in lines.items()}
    more = {"given": given} if given else {}
    return {
        **request,
        **{name: f"{text}\n".encode() for name, text in {"mode": mode, **more}.items()},
        **({"check": b"1\n"} if check else {}),
    }


def needs_file(stdout: str) -> bool:
    """Whether the node asks for the file to be sent."""
    return bool(values_of(stdout, "need"))
