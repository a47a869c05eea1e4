"""daemon.json as dockerd reads it: its encoding, its keys and their types, what of it is in force.

dockerd decodes with Go's encoding/json.  So of a key written twice the last counts, but objects are merged and null
changes nothing; keys of a runtime are found in any case (`Path`), those of the file itself only as they are spelled.
Source: moby daemon/config/config.go and runtime_unix.go; tried with `dockerd --validate` of 26.1, 28.5 and 29.7.
"""

from __future__ import annotations

import codecs
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpunode.core.content import check_size, decode
from gpunode.core.edits.engines.docker_checks import MEND, Pairs, check_types, check_values, last
from gpunode.core.edits.engines.docker_settings import FLAT, SETTINGS, arguments, is_known
from gpunode.core.edits.request import Refusal, RuntimeRequest
from gpunode.core.edits.text import jsontext
from gpunode.core.errors import InputError
from gpunode.core.mask import shown
from gpunode.core.numbers import release

_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
# what Go's bytes.TrimSpace takes off, while JSON's own white space is only the first four
_SPACE = " \t\r\n\v\f\x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))


@dataclass(frozen=True, kw_only=True)
class DaemonRuntime:
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
    runtimes: Mapping[str, DaemonRuntime] = field(default_factory=dict)
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
        raise InputError(f"{path} is {shown(plain)}", expected="a JSON object", fix="write {} or remove the file")
    pairs = json.loads(body, object_pairs_hook=_pairs, parse_float=_float)
    _check_keys(path, pairs, request.version)
    check_types(path, pairs)
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
        default=last(pairs, "default-runtime") or "",
        features={name: bool(value) for name, value in _merged(pairs, "features")},
        exec_opts=tuple(item or "" for item in last(pairs, "exec-opts") or ()),
        cdi_dirs=None if (folders := last(pairs, "cdi-spec-dirs")) is None else tuple(folders),
        live_restore=bool(last(pairs, "live-restore")),
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


def _pairs(pairs: list[tuple[str, Any]]) -> Pairs:
    """An object whose names hold no half of a pair of surrogates (\\ud800): Go reads U+FFFD there."""
    return Pairs((name.encode("utf-16", "surrogatepass").decode("utf-16", "replace"), one) for name, one in pairs)


def _float(text: str) -> float:
    if math.isinf(value := float(text)):
        raise InputError(f"daemon.json holds {text}", expected="a number that fits 64 bits", fix=MEND)
    return value


def _merged(pairs: Pairs, key: str) -> Iterator[tuple[str, Any]]:
    """The members in force of an object: those of the same key written twice count together, null empties it."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name == key:
            found = {**found, **dict(value)} if value is not None else {}
    yield from found.items()


def _runtime(value: Pairs | None) -> DaemonRuntime:
    names = {"path": "path", "runtimetype": "kind", "runtimeargs": "args", "options": "options"}
    said: dict[str, Any] = {}
    keys: dict[str, str] = {}
    for key, item in value or ():
        name = names.get(key.casefold())
        if name:
            keys[name] = key
            if item is not None:
                said[name] = tuple(item) if name == "args" else dict(item) if name == "options" else item
    return DaemonRuntime(**said, keys=keys)


# ---------------------------------------------------------------- what dockerd refuses


def _check_keys(path: str, pairs: Pairs, version: str) -> None:
    """Keys must be settings: those of the file, and those of its objects but some (moby's configValuesSet)."""
    for key in flattened(pairs):
        if not is_known(key, version):
            raise InputError(
                f"{path}: {key!r} is no setting of Docker {version}".rstrip(),
                expected=_near(key),
                fix=f"remove {key!r} or fix its spelling: dockerd does not start with it",
            )


def _near(key: str) -> str:
    """What may have been meant, in a sentence about what was expected."""
    setting = next((one for name, one in SETTINGS.items() if name.casefold() == key.casefold()), None)
    if setting is None:
        return "a key that it knows"
    if setting.key != key:
        return f"{setting.key!r} (case matters)"
    since, until = (".".join(map(str, number)) for number in (setting.since, setting.until))
    return f"Docker {since} or later" if setting.since > (0, 0) else f"Docker before {until}"


def flattened(pairs: Pairs) -> list[str]:
    """The keys that dockerd compares with its settings and arguments."""
    found: list[str] = []
    for key, value in dict(pairs).items():
        found += [name for name, _ in value] if isinstance(value, Pairs) and key not in FLAT else [key]
    return found


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
    check_values(file.path, pairs, number)


def _check_runtime(path: str, name: str, runtime: DaemonRuntime, number: tuple[int, int]) -> None:
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
            f"{path}: runtimes.{name} has options together with a path: dockerd does not start so",
            "remove the options, or say runtimeType instead of path",
        )
    if runtime.kind and runtime.args:
        raise Refusal(
            f"{path}: runtimes.{name} has runtimeArgs together with a runtimeType: dockerd does not start so",
            "remove the runtimeArgs",
        )
