"""daemon.json as dockerd reads it: the keys that gpunode reads or writes, what of it is in force.

dockerd decodes with Go's encoding/json.  So of a key written twice the last counts, but objects are merged and null
changes nothing; keys of a runtime are found in any case (`Path`), those of the file itself only as they are spelled.
All else of a file is judged by dockerd itself (`dockerd --validate`, from 23.0 on), in the probe and before a commit.
Source: moby daemon/config/config.go and runtime_unix.go; tried with `dockerd --validate` of 26.1, 28.5 and 29.7.
"""

from __future__ import annotations

import json
import math
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from gpunode.core.content import decode
from gpunode.core.edits.engines.dropin import spelled_as_known
from gpunode.core.edits.target import Refusal, RuntimeRequest
from gpunode.core.edits.text import jsontext
from gpunode.core.errors import InputError
from gpunode.core.facts.flags import flag_values
from gpunode.core.late import dataclass, field
from gpunode.core.mask import shown

# ---------------------------------------------------------------- arguments

# arguments of dockerd that set what is read here, and the key of each in the file
_FLAGS = {
    "--add-runtime": "runtimes",
    "--cdi-spec-dir": "cdi-spec-dirs",
    "--default-runtime": "default-runtime",
    "--exec-opt": "exec-opts",
    "--feature": "features",
    "--live-restore": "live-restore",
}


def arguments(words: Sequence[str]) -> dict[str, list[str]]:
    """Key of daemon.json → values that dockerd's arguments give it, of the keys that are read here."""
    words = [f"{word}=true" if word == "--live-restore" else word for word in words]
    return {key: values for flag, key in _FLAGS.items() if (values := flag_values(words, flag))}


# ---------------------------------------------------------------- types

CGROUP_KEY = "native.cgroupdriver"
FIX = "fix the file: dockerd does not start with it"
Check = Callable[[Any], bool]


class JsonPairs(list[tuple[str, Any]]):
    """A JSON object as it is written, keys that stand twice included."""


def last(pairs: JsonPairs, key: str) -> Any:
    """The value in force of a key: the last one that is not null, as null leaves a field alone."""
    return next((value for name, value in reversed(pairs) if name == key and value is not None), None)


def _is_string(value: Any) -> bool:
    return isinstance(value, str)


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _strings(value: Any) -> bool:
    return type(value) is list and all(one is None or isinstance(one, str) for one in value)


def _object(item: Check) -> Check:
    return lambda value: isinstance(value, JsonPairs) and all(one is None or item(one) for _, one in value)


_FIELDS: Mapping[str, Check] = {  # of a runtime, found in any case, as Go finds them
    "path": _is_string,
    "runtimetype": _is_string,
    "runtimeargs": _strings,
    "options": _object(lambda _: True),
}


def _right_field(key: str, value: Any) -> bool:
    return value is None or _FIELDS.get(key.casefold(), lambda _: True)(value)


# key → its check, what it should be, what its members should be
_TYPES: Mapping[str, tuple[Check, str, str]] = {
    "cdi-spec-dirs": (_strings, "a list of strings", ""),
    "default-runtime": (_is_string, "a string", ""),
    "exec-opts": (_strings, "a list of strings", ""),
    "features": (_object(_is_bool), "an object", "true or false"),
    "live-restore": (_is_bool, "true or false", ""),
    "runtimes": (
        _object(lambda one: isinstance(one, JsonPairs) and all(_right_field(*field) for field in one)),
        "an object",
        'entries such as {"path": "/usr/bin/…", "runtimeArgs": ["--a"]}',
    ),
}


def _check_types(path: str, pairs: JsonPairs) -> None:
    """Raise InputError for a key that is read here and whose value is of a type that dockerd cannot read it as."""
    stated = (key for key, value in pairs if value or not isinstance(value, JsonPairs))  # an empty object it ignores
    spelled_as_known(stated, path, _TYPES)  # dockerd refuses another spelling, too
    for key, value in pairs:
        if key not in _TYPES or value is None or _TYPES[key][0](value):
            continue
        right, words, of_members = _TYPES[key]
        if of_members and isinstance(value, JsonPairs):
            name, one = next((name, one) for name, one in value if not right(JsonPairs([(name, one)])))
            name, one = _wrong_field(name, one) if key == "runtimes" else (name, one)
            raise InputError(f"{path}: {key}.{name} is {shown(one, key, name)}", expected=of_members, fix=FIX)
        raise InputError(f"{path}: {key} is {shown(value, key)}", expected=words, fix=FIX)


def _wrong_field(name: str, runtime: Any) -> tuple[str, Any]:
    """Of a runtime's entry the field that is wrong, or the entry itself."""
    fields = runtime if isinstance(runtime, JsonPairs) else ()
    return next(((f"{name}.{key}", one) for key, one in fields if not _right_field(key, one)), (name, runtime))


# ---------------------------------------------------------------- the file

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
        """The file's bytes with another text: mark and what stands around the JSON are kept."""
        return self.mark + f"{self.lead}{text}{self.trail}".encode()


def read(files: Mapping[str, bytes], path: str, request: RuntimeRequest) -> DaemonFile:
    """The file.  A missing one counts as empty.

    Raises InputError for what no dockerd takes, and Refusal for what this one does not.
    """
    data = files.get(path, b"")
    text, mark = _decoded(path, data, request)
    body = text.strip(_SPACE)
    at = text.find(body) if body else 0
    lead, trail = text[:at], text[at + len(body) :]
    if not (lead + trail).strip(" \t\r\n"):  # then it is JSON's own, and the editor's
        body, lead, trail = text, "", ""
    if body.strip() in ("", "null"):
        return DaemonFile(path=path, text=body, mark=mark)
    plain = jsontext.parse(path, body)
    if not isinstance(plain, dict):
        raise InputError(f"{path} is {shown(plain)}", expected="a JSON object", fix="write {} or remove the file")
    pairs = json.loads(body, object_pairs_hook=_pairs, parse_float=_float)
    _check_types(path, pairs)
    found = DaemonFile(
        path=path,
        text=body,
        mark=mark,
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
    _check_runtimes(found, request)
    return found


def _decoded(path: str, data: bytes, request: RuntimeRequest) -> tuple[str, bytes]:
    """Text and byte order mark, which dockerd takes from 23.0 on, as it takes UTF-16."""
    mark = next((one for one in (BOM_UTF8, BOM_UTF16_LE, BOM_UTF16_BE) if data.startswith(one)), b"")
    if mark and (0, 0) < request.release < (23, 0):
        raise Refusal(
            f"{path} begins with a byte order mark: Docker {request.version} refuses it", "save it as plain UTF-8"
        )
    if mark not in (b"", BOM_UTF8):
        raise Refusal(f"{path} is UTF-16, and gpunode edits UTF-8 alone", "save it as UTF-8, which dockerd reads, too")
    return decode(path, data.removeprefix(mark)), mark


# ---------------------------------------------------------------- how Go decodes


def _pairs(pairs: list[tuple[str, Any]]) -> JsonPairs:
    """An object whose names hold no half of a pair of surrogates (\\ud800): Go reads U+FFFD there."""
    return JsonPairs((name.encode("utf-16", "surrogatepass").decode("utf-16", "replace"), one) for name, one in pairs)


def _float(text: str) -> float:
    if math.isinf(value := float(text)):
        raise InputError(f"daemon.json holds {text}", expected="a number that fits 64 bits", fix=FIX)
    return value


def _merged(pairs: JsonPairs, key: str) -> Iterator[tuple[str, Any]]:
    """The members in force of an object: those of the same key written twice count together, null empties it."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name == key:
            found = {**found, **dict(value)} if value is not None else {}
    yield from found.items()


def _runtime(value: JsonPairs | None) -> DaemonRuntime:
    names = {"path": "path", "runtimetype": "kind", "runtimeargs": "args", "options": "options"}
    stated: dict[str, Any] = {}
    keys: dict[str, str] = {}
    for key, item in value or ():
        name = names.get(key.casefold())
        if name:
            keys[name] = key
            if item is not None:
                stated[name] = tuple(item) if name == "args" else dict(item) if name == "options" else item
    return DaemonRuntime(**stated, keys=keys)


# ---------------------------------------------------------------- what `--validate` passes over, and a start does not


def _check_runtimes(file: DaemonFile, request: RuntimeRequest) -> None:
    """What setupRuntimes of moby's runtime_unix.go says of an entry, from 24.0 on."""
    old = (0, 0) < request.release < (24, 0)
    for name, runtime in file.runtimes.items():
        if name == "runc":
            raise Refusal(f"{file.path}: a runtime is named runc, a name that dockerd reserves", "name it otherwise")
        wrong = {
            "neither path nor runtimeType": name != request.name and not runtime.path and not runtime.kind,
            "both path and runtimeType": runtime.path and runtime.kind,
            "options together with a path": runtime.path and runtime.options,
            "runtimeArgs together with a runtimeType": runtime.kind and runtime.args,
        }
        for words in (words for words, found in wrong.items() if found and not old):
            raise Refusal(
                f"{file.path}: runtimes.{name} has {words}: dockerd does not start so",
                f"remove runtimes.{name}, or say what it is in one way",
            )
