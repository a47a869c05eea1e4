"""The request of node/activate/activate.sh, from the value of a role's `_activate` option; what it says of a reboot.

Request files: `load`, `unload`, `services` (to enable and start), `enable` (to start at boot, not now), `restart`
(where they run) one name a line, `initramfs` and `links` (1; of GPU devices in /dev/char), `version`, `alternatives`
lines `NAME PATH` (the link /usr/local/NAME), `sysctl` lines `KEY VALUE` (in force now), `parameters` lines `NAME
VALUE` (of the loaded nvidia module, as /proc/driver/nvidia/params shows them), `flavour` the one to be installed where
another one is loaded, `check` (1) in check mode, and there `foretold`: what steps before would have done.
Besides the usual lines the script prints
`gpunode<TAB>boot_id<TAB>ID` and, where nothing else helps, `gpunode<TAB>reboot<TAB>REASON`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from gpunode.core.errors import InputError
from gpunode.core.grammar import WORD
from gpunode.core.remote import node_lines
from gpunode.core.validation import as_lines, check_keys, checked

REBOOT = ("never", "if-needed", "always")
_LISTS = ("load", "unload", "services", "enable", "restart")
_FLAGS = ("initramfs", "links")
_PAIRS = ("alternatives", "sysctl", "parameters")
_KEYS = (*_LISTS, *_FLAGS, *_PAIRS, "version", "flavour", "reboot", "reboot_controller")
_WORD = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9+._:@-]*\Z")
_SETTING = re.compile(r"[^\s'\"$`\\]+\Z")
_PATH = re.compile(r"/[^\s]*\Z")
_FILE = re.compile(r"(?:creates|rewrites|removes) (/\S+)")
_PACKAGE = re.compile(r"change \S+ from (\S+) to ")
_checked = partial(checked, "activate")


@dataclass(frozen=True, kw_only=True)
class Activation:
    """What activate.sh said besides its outcome: why a reboot is needed ("" when it is not), and this boot's id."""

    reboot: str = ""
    boot_id: str = ""


def activate_request(value: Mapping[str, Any], *, check: bool = False, after: Iterable[str] = ()) -> dict[str, bytes]:
    """{load, unload, version, flavour, parameters, initramfs, links, services, enable, restart, alternatives, sysctl}.

    `after`: what the steps before say that they would change, in check mode.  Raises InputError.
    """
    check_keys("activate", value, _KEYS)
    if value.get("reboot", "never") not in REBOOT:
        raise InputError(f"activate: reboot is {value['reboot']!r}", expected=f"one of {', '.join(REBOOT)}")
    lines = {key: [_checked(_WORD, name, key) for name in value.get(key) or ()] for key in _LISTS}
    lines |= {key: [_checked(_WORD, value[key], key)] if value.get(key) else [] for key in ("version", "flavour")}
    lines |= {key: ["1"] if value.get(key) else [] for key in _FLAGS}
    lines["alternatives"] = [
        f"{_checked(_WORD, name, 'alternative')} {_checked(_PATH, path, 'path')}"
        for name, path in (value.get("alternatives") or {}).items()
    ]
    lines["sysctl"] = [
        f"{_checked(_WORD, name, 'sysctl')} {_checked(_WORD, setting, 'sysctl value')}"
        for name, setting in (value.get("sysctl") or {}).items()
    ]
    lines["parameters"] = [
        f"{_checked(_WORD, name, 'parameter')} {_checked(_SETTING, setting, 'value of a parameter')}"
        for name, setting in (value.get("parameters") or {}).items()
    ]
    request = {name: as_lines(found) for name, found in lines.items() if found}
    if not check:
        return request
    told = foretold(after)
    return request | {"check": b"1\n"} | ({"foretold": told} if told else {})


def foretold(changes: Iterable[str]) -> bytes:
    """Sentences of check mode → lines `file PATH` of files that would change, `version OLD` of packages that would."""
    found = []
    for line in changes:
        if match := _FILE.match(line):
            found.append(f"file {match[1]}\n")
        elif match := _PACKAGE.match(line):
            found.append(f"version {match[1]}\n")
    return "".join(found).encode()


def activate_nothing(value: Mapping[str, Any]) -> bool:
    """Whether the value asks for nothing: then the node need not be asked."""
    return not any(value.get(key) for key in (*_LISTS, *_FLAGS, "alternatives", "sysctl"))


def parse_activation(stdout: str) -> Activation:
    """What the script printed → Activation."""
    found = dict(node_lines(stdout))
    boot_id = found.get("boot_id", "")
    return Activation(reboot=found.get("reboot", ""), boot_id=boot_id if WORD.fits(boot_id) else "")


def may_reboot(value: Mapping[str, Any], said: Activation, *, changed: bool, here: bool) -> tuple[str, str]:
    """(why the node is to be rebooted, "" when it is not; what hinders that, "" for nothing).

    `value` has the policy, one of REBOOT; `here` says that the node is the machine this runs on.
    """
    policy = value.get("reboot", "never")
    why = said.reboot or ("a reboot is wanted after every change" if policy == "always" and changed else "")
    if policy == "never":
        return why, "the policy is never"
    if here and not value.get("reboot_controller"):
        return why, "gpunode does not reboot the machine it runs on, unless reboot_controller is true"
    return why, ""
