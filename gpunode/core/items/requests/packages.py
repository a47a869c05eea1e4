"""The request of node/packages/packages.sh, from the value of a role's `_packages` option.

Request files: `install` lines `NAME VERSION|- hold|-`, `remove` and `refresh` one name or path a line, `proxy` a URL,
`may_go` names that the package manager may remove along with them, one a line,
`alone` (1) when no other repositories than those of `refresh` are to be asked,
`after` packages of an earlier step that set up repositories, one a line: without them nothing is foretold,
`keep` files that stay where a removed package would take them along, one a line,
`streams` lines `MODULE STREAM` of dnf's modules (`-`: none), `wait` seconds to wait for the package manager's lock,
`check` (1) in check mode.  Files without content are left out.
For taking packages back: `unhold` and `purge` (of removed packages, what they left: configuration, folders) one name a
line, `automatic` names that nobody asked for any more, `keys` of rpm's keyring that go.
Besides the usual lines the script prints `gpunode<TAB>locked<TAB>WHO` when it gave up waiting.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from gpunode.core.remote import values_of
from gpunode.core.validation import as_lines, check_keys, checked

_BACK = ("unhold", "purge", "automatic", "keys")
_KEYS = ("install", "remove", "may_go", "keep", "after", "refresh", "alone", "streams", "proxy", *_BACK)
_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9+._:-]*\Z")
_VERSION = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9+.:~_^-]*\*?\Z")
_PATH = re.compile(r"/[^\s]*\Z")
_STREAM = re.compile(r"[a-zA-Z0-9._+-]+:[a-zA-Z0-9._+-]+\Z")
_PROXY = re.compile(r"https?://[^\s\"]+\Z")
_checked = partial(checked, "packages")


def packages_request(value: Mapping[str, Any], *, wait: int = 300, check: bool = False) -> dict[str, bytes]:
    """{install: [{name, version, hold}], remove: [name], refresh: [path], streams: [name:stream], proxy, …} → files.

    `wait` is in seconds.  A version may end in `*`; empty or missing means any.  Raises InputError on names that a
    shell or a package manager could read as something else.
    """
    check_keys("packages", value, _KEYS)
    install = [_install_line(item) for item in value.get("install") or ()]
    remove = [_checked(_NAME, name, "package name") for name in value.get("remove") or ()]
    refresh = [_checked(_PATH, path, "absolute path of a sources file") for path in value.get("refresh") or ()]
    keep = [_checked(_PATH, path, "absolute path of a file to keep") for path in value.get("keep") or ()]
    proxy = [_checked(_PROXY, value["proxy"], "proxy URL")] if value.get("proxy") else []
    named = [_checked(_STREAM, name, "module stream") for name in value.get("streams") or ()]
    streams = [name.replace(":", " ") for name in named]
    files = {"install": install, "remove": remove, "keep": keep, "refresh": refresh, "streams": streams, "proxy": proxy}
    files |= {
        key: [_checked(_NAME, n, "package name") for n in value.get(key) or ()] for key in ("may_go", "after", *_BACK)
    }
    request = {name: as_lines(lines) for name, lines in files.items() if lines}
    flags = {"alone": bool(value.get("alone")), "check": check}
    return request | {"wait": f"{wait}\n".encode()} | {name: b"1\n" for name, set_ in flags.items() if set_}


def nothing_to_do(value: Mapping[str, Any]) -> bool:
    """Whether the value asks for no package at all: then the node need not be asked."""
    return not value.get("install") and not value.get("remove")


def _install_line(item: Any) -> str:
    item = {"name": item} if isinstance(item, str) else item
    name = _checked(_NAME, item.get("name", ""), "package name")
    version = _checked(_VERSION, item["version"], f"version of {name}") if item.get("version") else "-"
    return f"{name} {version} {'hold' if item.get('hold') else '-'}"


def locked_by(stdout: str) -> str:
    """Who held the package manager's lock when the script gave up waiting, "" when it did not."""
    return next(reversed(values_of(stdout, "locked")), "")
