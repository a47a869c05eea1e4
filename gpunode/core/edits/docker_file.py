"""daemon.json as dockerd reads it: its encoding, its keys and their types, what of it is in force.

dockerd decodes with Go's encoding/json.  So of a key written twice the last counts, but objects are merged and null
changes nothing; keys of a runtime are found in any case (`Path`), those of the file itself only as they are spelled.
Source: moby daemon/config/config.go and runtime_unix.go; tried with `dockerd --validate` of 26.1, 28.5 and 29.7.
"""

from __future__ import annotations

import codecs
import ipaddress
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpunode.core.edits import jsontext
from gpunode.core.edits.docker_settings import FLAT, SETTINGS, arguments, is_known
from gpunode.core.edits.request import Refusal, RuntimeRequest, check_size, decode, release
from gpunode.core.errors import InputError

CGROUP_KEY = "native.cgroupdriver"
_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
# what Go's bytes.TrimSpace takes off, while JSON's own white space is only the first four
_SPACE = " \t\r\n\v\f\x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
_SIZE = re.compile(r"\d+(\.\d+)? ?([kmgtp]i?b?|b)?\Z", re.IGNORECASE)


class Pairs(list[tuple[str, Any]]):
    """A JSON object as it is written, keys that stand twice included."""


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """An entry of `runtimes` as dockerd understands it; `keys` says how its keys are spelled: {"path": "Path"}."""

    path: str = ""
    kind: str = ""  # runtimeType
    args: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class DaemonFile:
    """daemon.json, read.  `lead` and `trail` are what dockerd trims and JSON does not know as white space."""

    path: str
    text: str = ""
    mark: bytes = b""
    encoding: str = "utf-8"
    lead: str = ""
    trail: str = ""
    blank: bool = True
    plain: Mapping[str, Any] = field(default_factory=dict)  # of a key written twice only the last
    runtimes: Mapping[str, Runtime] = field(default_factory=dict)
    default: str = ""
    features: Mapping[str, bool] = field(default_factory=dict)
    exec_opts: tuple[str, ...] = ()
    cdi_dirs: tuple[str, ...] | None = None
    live_restore: bool = False

    def bytes_of(self, text: str) -> bytes:
        """The file's bytes with another text: mark, encoding and what stands around the JSON are kept."""
        return self.mark + f"{self.lead}{text}{self.trail}".encode(self.encoding)


def read(files: Mapping[str, bytes], path: str, request: RuntimeRequest) -> DaemonFile:
    """The file, checked as dockerd checks it.  A missing one counts as empty.

    Raises InputError for what no dockerd takes, and Refusal for what this one does not.
    """
    data = files.get(path, b"")
    text, mark, encoding = _decoded(path, data, request)
    body = text.strip(_SPACE)
    at = text.find(body) if body else 0
    lead, trail = text[:at], text[at + len(body) :]
    if not (lead + trail).strip(" \t\r\n"):  # then it is JSON's own, and the editor's
        body, lead, trail = text, "", ""
    if body.strip() in ("", "null"):
        return DaemonFile(path=path, text=body, mark=mark, encoding=encoding)
    plain = jsontext.parse(path, body)
    if not isinstance(plain, dict):
        raise InputError(f"{path} is {_shown(plain)}", expected="a JSON object", fix="write {} or remove the file")
    pairs = json.loads(body, object_pairs_hook=Pairs)
    _check_keys(path, pairs, request.version)
    for key, value in pairs:
        if key in SETTINGS:
            _check(path, key, value, SETTINGS[key].type)
        elif key == "proxies":
            _check(path, key, value, "texts")
    found = DaemonFile(
        path=path,
        text=body,
        mark=mark,
        encoding=encoding,
        lead=lead,
        trail=trail,
        blank=False,
        plain=plain,
        runtimes={name: _runtime(value) for name, value in _merged(pairs, "runtimes")},
        default=_last(pairs, "default-runtime") or "",
        features={name: bool(value) for name, value in _merged(pairs, "features")},
        exec_opts=tuple(item or "" for item in _last(pairs, "exec-opts") or ()),
        cdi_dirs=None if (folders := _last(pairs, "cdi-spec-dirs")) is None else tuple(folders),
        live_restore=bool(_last(pairs, "live-restore")),
    )
    _check_values(found, pairs, request)
    return found


def _decoded(path: str, data: bytes, request: RuntimeRequest) -> tuple[str, bytes, str]:
    """Text, byte order mark and encoding: dockerd takes UTF-8 and UTF-16 with a mark from 23.0 on."""
    check_size(path, data)
    for mark, encoding in _MARKS:
        if not data.startswith(mark):
            continue
        if (0, 0) < release(request.version) < (23, 0):
            raise Refusal(
                f"{path} begins with a byte order mark: Docker {request.version} refuses it", "save it as plain UTF-8"
            )
        try:
            return data[len(mark) :].decode(encoding), mark, encoding
        except UnicodeDecodeError as error:
            raise InputError(f"{path}: byte {error.start + len(mark)} is not {encoding}", expected="text") from None
    return decode(path, data), b"", "utf-8"


# ---------------------------------------------------------------- how Go decodes


def _last(pairs: Pairs, key: str) -> Any:
    """The value in force of a key: the last one that is not null, as null leaves a field alone."""
    return next((value for name, value in reversed(pairs) if name == key and value is not None), None)


def _merged(pairs: Pairs, key: str) -> Iterator[tuple[str, Any]]:
    """The members in force of an object: those of the same key written twice count together, null empties it."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name == key:
            found = {**found, **dict(value)} if value is not None else {}
    yield from found.items()


def _runtime(value: Pairs | None) -> Runtime:
    names = {"path": "path", "runtimetype": "kind", "runtimeargs": "args", "options": "options"}
    said: dict[str, Any] = {}
    keys: dict[str, str] = {}
    for key, item in value or ():
        name = names.get(key.casefold())
        if name:
            keys[name] = key
            if item is not None:
                said[name] = tuple(item) if name == "args" else dict(item) if name == "options" else item
    return Runtime(**said, keys=keys)


# ---------------------------------------------------------------- what dockerd refuses


def _check_keys(path: str, pairs: Pairs, version: str) -> None:
    """Keys must be settings: those of the file, and those of its objects but some (moby's configValuesSet)."""
    for key in flattened(pairs):
        if not is_known(key, version):
            near = next((name for name in SETTINGS if name.casefold() == key.casefold()), "")
            raise InputError(
                f"{path}: {key!r} is no setting of Docker {version}".rstrip(),
                expected=f"{near!r}: case matters"
                if near
                else "keys that dockerd knows: it does not start with others",
                fix=f"remove {key!r} from the file, or mend its spelling",
            )


def flattened(pairs: Pairs) -> list[str]:
    """The keys that dockerd compares with its settings and arguments."""
    found: list[str] = []
    for key, value in dict(pairs).items():
        found += [name for name, _ in value] if isinstance(value, Pairs) and key not in FLAT else [key]
    return found


def _is_ip(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    try:
        return not value or ipaddress.ip_address(value) is not None
    except ValueError:
        return False


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63


def _is_string(value: Any) -> bool:
    return isinstance(value, str)


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_size(value: Any) -> bool:
    return isinstance(value, str) and _SIZE.match(value) is not None


def _list(item: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: type(value) is list and all(one is None or item(one) for one in value)


def _object(item: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, Pairs) and all(one is None or item(one) for _, one in value)


def _is_runtime(value: Any) -> bool:
    if not isinstance(value, Pairs):
        return False
    types = {"path": _is_string, "runtimetype": _is_string, "runtimeargs": _list(_is_string), "options": _any_object}
    return all(item is None or types.get(key.casefold(), _anything)(item) for key, item in value)


def _anything(_: Any) -> bool:
    return True


_any_object = _object(_anything)
# type of a setting → its check, and what it should be; a third word says what its members should be
_TYPES: Mapping[str, tuple[Callable[[Any], bool], str, str]] = {
    "any": (_anything, "", ""),
    "bool": (_is_bool, "true or false", ""),
    "integer": (_is_integer, "a whole number", ""),
    "ip": (_is_ip, "an IP address", ""),
    "ips": (_list(_is_ip), "a list of IP addresses", ""),
    "object": (_any_object, "an object", ""),
    "objects": (_list(_any_object), "a list of objects", ""),
    "runtimes": (_object(_is_runtime), "an object", 'an object such as {"path": "/usr/bin/…", "runtimeArgs": []}'),
    "size": (_is_size, 'a size in quotes, such as "64M"', ""),
    "string": (_is_string, "a string", ""),
    "strings": (_list(_is_string), "a list of strings", ""),
    "switches": (_object(_is_bool), "an object", "true or false"),
    "tables": (_object(_any_object), "an object", "an object"),
    "texts": (_object(_is_string), "an object", "a string"),
}


def _check(path: str, key: str, value: Any, kind: str) -> None:
    right, words, of_members = _TYPES[kind]
    if value is None or right(value):
        return
    if of_members and isinstance(value, Pairs):
        name, value = next((name, one) for name, one in value if not right(Pairs([(name, one)])))
        key, words = f"{key}.{name}", of_members
    raise InputError(f"{path}: {key} is {_shown(value)}", expected=words, fix="mend the file: dockerd refuses it too")


def _shown(value: Any) -> str:
    if isinstance(value, dict | list):
        return "a list" if type(value) is list else "an object"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:59]}…"


def _check_values(file: DaemonFile, pairs: Pairs, request: RuntimeRequest) -> None:
    number = release(request.version)
    for name, runtime in file.runtimes.items():
        _check_runtime(file.path, name, runtime, number)
        if not runtime.path and not runtime.kind and name != request.name and not (0, 0) < number < (24, 0):
            raise Refusal(
                f"{file.path}: runtimes.{name} has neither path nor runtimeType: dockerd does not start so",
                f"remove runtimes.{name}, or give it a path",
            )
    given = arguments(request.flags)
    for key in flattened(pairs):
        if key in given and key != "runtimes":  # those alone are merged
            raise Refusal(
                f"{key} is set in daemon.json and as an argument of dockerd: dockerd does not start so",
                "remove the argument from docker's unit (systemctl cat docker), or the key from daemon.json",
            )
    for item in file.exec_opts if number >= (28, 0) else ():
        key, _, value = (part.strip() for part in item.partition("="))
        if key.lower() != CGROUP_KEY or not value:
            raise InputError(
                f"{file.path}: exec-opts holds {item!r}", expected=f"{CGROUP_KEY}=systemd or {CGROUP_KEY}=cgroupfs"
            )
    if "graph" in file.plain and "data-root" in file.plain:
        raise InputError(f"{file.path} has graph and data-root", expected="one of them", fix="remove graph")
    if {"host-gateway-ip", "host-gateway-ips"} <= set(file.plain):
        raise InputError(f"{file.path} has host-gateway-ip and host-gateway-ips", expected="one of them")
    for key in ("mtu", "max-concurrent-downloads", "max-concurrent-uploads", "max-download-attempts"):
        if (_last(pairs, key) or 0) < 0:
            raise InputError(f"{file.path}: {key} is {_last(pairs, key)}", expected="a number from 0 on")
    for label in _last(pairs, "labels") or ():
        if "=" not in (label or ""):
            raise InputError(f"{file.path}: labels holds {label!r}", expected="key=value")


def _check_runtime(path: str, name: str, runtime: Runtime, number: tuple[int, int]) -> None:
    """What setupRuntimes of moby's runtime_unix.go says from 24.0 on, `--validate` does not and a start does."""
    if name == "runc":
        raise Refusal(f"{path}: a runtime is named runc, a name that dockerd reserves", "name it otherwise")
    if (0, 0) < number < (24, 0):
        return
    if runtime.path and runtime.kind:
        raise Refusal(
            f"{path}: runtimes.{name} has both path and runtimeType: dockerd does not start so",
            "remove one of them",
        )
    if runtime.path and runtime.options:
        raise Refusal(
            f"{path}: runtimes.{name} has options beside a path: dockerd does not start so",
            "remove the options, or say runtimeType instead of path",
        )
    if runtime.kind and runtime.args:
        raise Refusal(
            f"{path}: runtimes.{name} has runtimeArgs beside a runtimeType: dockerd does not start so",
            "remove the runtimeArgs",
        )
