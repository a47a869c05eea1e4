"""daemon.json as dockerd reads it: its encoding, its keys and their types, what of it is in force.

dockerd decodes with Go's encoding/json.  So of a key written twice the last counts, but objects are merged and null
changes nothing; keys of a runtime are found in any case (`Path`), those of the file itself only as they are spelled.
Source: moby daemon/config/config.go and runtime_unix.go; tried with `dockerd --validate` of 26.1, 28.5 and 29.7.
"""

from __future__ import annotations

import codecs
import ipaddress
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpunode.core.content import check_size, decode
from gpunode.core.edits.target import Refusal, RuntimeRequest
from gpunode.core.edits.text import jsontext
from gpunode.core.errors import InputError
from gpunode.core.mask import shown
from gpunode.core.numbers import release

# ---------------------------------------------------------------- the settings of each release

# Source: moby daemon/config/config.go (types), {cmd/dockerd,daemon/command}/{config,config_unix,options}.go (arguments)
# of 20.10.24, 23.0, 24.0, 25.0, 26.1, 27.5, 28.5 and 29.7; tried with `dockerd --validate` of 26.1, 28.5 and 29.7.

NEWEST = (29, 7)  # of those the table was made from: a key that a later dockerd brings is not called unknown

# key, type, argument (--KEY where none stands here, "-" where there is none), first version with it, first one without
_TABLE = """
allow-direct-routing bool since=28.2
allow-nondistributable-artifacts strings
api-cors-header string until=29.0
authorization-plugins strings --authorization-plugin
bip string
bip6 string since=28.0
bridge string -b
bridge-accept-fwmark string since=29.0
builder builder -
cdi-spec-dirs strings --cdi-spec-dir since=25.0
cgroup-parent string
cluster-advertise string until=24.0
cluster-store string until=24.0
cluster-store-opts texts --cluster-store-opt until=24.0
config-file any
containerd string
containerd-namespace string
containerd-plugins-namespace any
cpu-rt-period integer
cpu-rt-runtime integer
cri-containerd bool
data-root string
debug bool -D
default-address-pools pools --default-address-pool
default-cgroupns-mode string
default-gateway ip
default-gateway-v6 ip
default-ipc-mode string
default-network-opts options --default-network-opt since=24.0
default-runtime string
default-shm-size size
default-stop-timeout integer since=29.7
default-ulimits ulimits --default-ulimit
deprecated-key-path string -
dns ips
dns-opts strings --dns-opt
dns-search strings
exec-opts strings --exec-opt
exec-root string
experimental bool
features switches --feature
firewall-backend string since=29.0
fixed-cidr string
fixed-cidr-v6 string
graph string until=24.0
group string -G
host-gateway-ip ip
host-gateway-ips ips --host-gateway-ip since=28.0
hosts strings --host -H
http-proxy any since=23.0
https-proxy any since=23.0
icc bool
init bool
init-path string
insecure-registries strings --insecure-registry
ip ip
ip-forward bool
ip-forward-no-drop bool since=28.0
ip-masq bool
ip6tables bool
iptables bool
ipv6 bool
labels strings --label
live-restore bool
log-driver string
log-format string since=25.0
log-level string -l
log-opts texts --log-opt
max-concurrent-downloads integer
max-concurrent-uploads integer
max-download-attempts integer
metrics-addr string
min-api-version string - since=29.0
mtu integer
network-control-plane-mtu integer
network-diagnostic-port integer
no-new-privileges bool
no-proxy any since=23.0
node-generic-resources strings --node-generic-resource
nri-opts nri since=29.2
oom-score-adjust integer until=26.0
pidfile string -p
raw-logs bool
registry-mirrors strings --registry-mirror
restart any -r
rootless bool
runtimes runtimes --add-runtime
seccomp-profile string
selinux-enabled bool
shutdown-timeout integer
storage-driver string -s
storage-opts strings --storage-opt
swarm-default-advertise-addr string
tls bool
tlscacert string
tlscert string
tlskey string
tlsverify bool
userland-proxy bool
userland-proxy-path string
userns-remap string
"""
_SWITCHES = frozenset(("help", "version", "validate", "v", "h", "r", "restart"))  # arguments that take no value
# objects of the file whose members count as keys of their own are all those but these (moby's flatOptions)
FLAT = frozenset(
    "builder cluster-store-opts default-network-opts default-ulimits features log-opts nri-opts runtimes".split()
)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A key of daemon.json.  `flags` are the arguments that set the same, without dashes."""

    key: str
    type: str
    flags: tuple[str, ...]
    since: tuple[int, int] = (0, 0)
    until: tuple[int, int] = (99, 0)


def _settings() -> Iterator[Setting]:
    for line in _TABLE.strip().splitlines():
        key, kind, *rest = line.split()
        limits = {word[:5]: release(word[6:]) for word in rest if "=" in word}
        flags = tuple(word.lstrip("-") for word in rest if "=" not in word)
        long = () if any(len(flag) != 1 for flag in flags) else (key,)
        yield Setting(
            key=key,
            type=kind,
            flags=tuple(flag for flag in (*long, *flags) if flag),
            since=limits.get("since", (0, 0)),
            until=limits.get("until", (99, 0)),
        )


SETTINGS = {setting.key: setting for setting in _settings()}
_BY_FLAG = {flag: setting for setting in SETTINGS.values() for flag in setting.flags if flag}


def is_known(key: str, version: str) -> bool:
    """Whether a dockerd of that version takes the key; the names of its arguments it passes over in silence.

    An unknown version takes what any did.
    """
    number = release(version)
    if number > NEWEST:
        return True
    setting = SETTINGS.get(key) or (_BY_FLAG.get(key) if len(key) > 1 else None)
    if setting is None:
        return key in ("help", "version")
    return number == (0, 0) or setting.since <= number < setting.until


def arguments(words: Sequence[str]) -> dict[str, list[str]]:
    """Key of daemon.json → values that dockerd's arguments give it: --flag=value, --flag value, -Xvalue, -X value."""
    found: dict[str, list[str]] = {}
    rest = iter(words)
    for word in rest:
        if not word.startswith("-") or word in ("-", "--"):
            continue
        name, equals, value = word.lstrip("-").partition("=")
        if not word.startswith("--"):
            name, value = name[:1], word[2:].removeprefix("=")
            equals = value
        setting = _BY_FLAG.get(name)
        switch = name in _SWITCHES or (setting is not None and setting.type == "bool")
        if not equals:
            value = "true" if switch else next(rest, "")
        if setting:
            found.setdefault(setting.key, []).append(value)
    return found


# ---------------------------------------------------------------- types and values

# Source: the structs of moby daemon/config/{config,config_linux,builder}.go, the UnmarshalJSON of their types,
# Validate; tried with `dockerd --validate` of 26.1, 28.5 and 29.7 on the documents of tests/cases/dockerd.

CGROUP_KEY = "native.cgroupdriver"
FIX = "fix the file: dockerd does not start with it"
_SIZE = re.compile(r"\d+(\.\d+)? ?([kmgtp]i?b?|b)?\Z", re.IGNORECASE)
_NAME = r"[a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?"
_DOMAIN = re.compile(rf"(?=.*[a-zA-Z]){_NAME}(\.{_NAME})*\.?\Z|\.\Z")
_HOST = re.compile(r"\s*((unix|npipe)://(?!.*://).*|fd://.*|(tcp://)?(?!.*://)\S*)\s*\Z")
_MIRROR = re.compile(r"https?://[^\s?#@]+\Z", re.IGNORECASE)
_RESERVED = ("com.docker.", "io.docker.", "org.dockerproject.")  # for labels
Check = Callable[[Any], bool]


class Pairs(list[tuple[str, Any]]):
    """A JSON object as it is written, keys that stand twice included."""


def last(pairs: Pairs, key: str) -> Any:
    """The value in force of a key: the last one that is not null, as null leaves a field alone."""
    return next((value for name, value in reversed(pairs) if name == key and value is not None), None)


# ---------------------------------------------------------------- types


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


def _anything(_: Any) -> bool:
    return True


def _list(item: Check) -> Check:
    return lambda value: type(value) is list and all(one is None or item(one) for one in value)


def _object(item: Check) -> Check:
    return lambda value: isinstance(value, Pairs) and all(one is None or item(one) for _, one in value)


def _struct(others: Check = _anything, **fields: Check) -> Check:
    """An object whose fields are found in any case, as Go finds them; `others` judges the names of further ones."""

    def right(key: str, item: Any) -> bool:
        check = fields.get(key.casefold().replace("-", "_"))
        return others(key) if check is None else item is None or check(item)

    return lambda value: isinstance(value, Pairs) and all(right(key, item) for key, item in value)


_any_object = _object(_anything)
_is_runtime = _struct(path=_is_string, runtimetype=_is_string, runtimeargs=_list(_is_string), options=_any_object)
_ulimit = _struct(name=_is_string, hard=_is_integer, soft=_is_integer)
_pool = _struct(base=_is_string, size=_is_integer)
_rule = _struct(all=_is_bool, keepstorage=_is_string, reservedspace=_is_string, maxusedspace=_is_string)
_collector = _struct(enabled=_is_bool, policy=_list(_rule), defaultkeepstorage=_is_string)
_rights = _struct(network_host=_is_bool, security_insecure=_is_bool, device=_is_bool)
_nri = _struct(
    lambda key: False, enable=_is_bool, plugin_path=_is_string, plugin_config_path=_is_string, socket_path=_is_string
)
# type of a setting → its check, and what it should be; a third word says what its members should be
_TYPES: Mapping[str, tuple[Check, str, str]] = {
    "any": (_anything, "", ""),
    "bool": (_is_bool, "true or false", ""),
    "builder": (_struct(gc=_collector, entitlements=_rights), "an object as in Docker's documentation", ""),
    "integer": (_is_integer, "a whole number", ""),
    "ip": (_is_ip, "an IP address", ""),
    "ips": (_list(_is_ip), "a list of IP addresses", ""),
    "nri": (_nri, "an object of enable, plugin-path, plugin-config-path, socket-path", ""),
    "options": (_object(_object(_is_string)), "an object", "an object of strings"),
    "pools": (_list(_pool), 'a list such as [{"base": "10.0.0.0/8", "size": 24}]', ""),
    "proxies": (
        _struct(http_proxy=_is_string, https_proxy=_is_string, no_proxy=_is_string),
        "an object of strings",
        "",
    ),
    "runtimes": (
        _object(_is_runtime),
        "an object",
        'entries such as {"path": "/usr/bin/…", "runtimeArgs": ["--a"]}',
    ),
    "size": (_is_size, 'a size in quotes, such as "64M"', ""),
    "string": (_is_string, "a string", ""),
    "strings": (_list(_is_string), "a list of strings", ""),
    "switches": (_object(_is_bool), "an object", "true or false"),
    "texts": (_object(_is_string), "an object", "a string"),
    "ulimits": (_object(_ulimit), "an object", 'an object such as {"Name": "nofile", "Hard": 1024, "Soft": 1024}'),
}


def check_types(path: str, pairs: Pairs) -> None:
    """Raise InputError for a key whose value is of a type that dockerd cannot read it as."""
    for key, value in pairs:
        kind = "proxies" if key == "proxies" else SETTINGS[key].type if key in SETTINGS else "any"
        right, words, of_members = _TYPES[kind]
        if value is None or right(value):
            continue
        if of_members and isinstance(value, Pairs):
            name, one = next((name, one) for name, one in value if not right(Pairs([(name, one)])))
            name, one = _wrong_field(name, one) if kind == "runtimes" else (name, one)
            raise InputError(f"{path}: {key}.{name} is {shown(one, key, name)}", expected=of_members, fix=FIX)
        raise InputError(f"{path}: {key} is {shown(value, key)}", expected=words, fix=FIX)


def _wrong_field(name: str, runtime: Any) -> tuple[str, Any]:
    """Of a runtime's entry the field that is wrong, or the entry itself."""
    fields = runtime if isinstance(runtime, Pairs) else ()
    return next(
        ((f"{name}.{key}", one) for key, one in fields if not _is_runtime(Pairs([(key, one)]))), (name, runtime)
    )


# ---------------------------------------------------------------- values


def check_values(path: str, pairs: Pairs, number: tuple[int, int]) -> None:
    """Raise InputError for values in force that this dockerd does not start with; (0, 0) is an unknown version."""
    for key, least, right, words in _VALUES:
        value = last(pairs, key)
        if value is None or number < least:
            continue
        for one in value if isinstance(value, list) else (value,):
            if not right("" if one is None else one):
                raise InputError(f"{path}: {key} {_holds(value)} {shown(one, key)}", expected=words, fix=FIX)
    for rule, least, words in _TOGETHER:
        if number >= least and rule(pairs):
            raise InputError(f"{path}: {words}", expected="one that dockerd starts with", fix=FIX)


def _holds(value: Any) -> str:
    return "holds" if isinstance(value, list) else "is"


def _one_of(*words: str) -> Check:
    return lambda value: value in ("", *words)


def _is_level(value: str) -> bool:
    return value.lower() in ("", "panic", "fatal", "error", "warn", "info", "debug", "trace")


def _is_label(value: str) -> bool:
    return "=" in value and not value.lower().startswith(_RESERVED)


def _is_exec_opt(value: str) -> bool:
    key, _, driver = (part.strip() for part in value.partition("="))
    return key.lower() == CGROUP_KEY and bool(driver)


def _is_ipv6_network(value: str) -> bool:
    try:
        return not value or ("/" in value and ipaddress.IPv6Network(value, strict=False) is not None)
    except ValueError:
        return False


def _is_mark(value: str) -> bool:
    return re.fullmatch(r"((0[xX][0-9a-fA-F]+|\d+)(/(0[xX][0-9a-fA-F]+|\d+))?)?", value) is not None


def _from_zero(value: int) -> bool:
    return value >= 0


# key, first version that checks it, check of the value or of each in a list, what it should be
_VALUES: tuple[tuple[str, tuple[int, int], Check, str], ...] = (
    ("exec-opts", (28, 0), _is_exec_opt, f"{CGROUP_KEY}=systemd or {CGROUP_KEY}=cgroupfs"),
    ("log-level", (23, 0), _is_level, "debug, info, warn, error, fatal"),
    ("log-format", (25, 0), _one_of("text", "json"), "text or json"),
    ("default-ipc-mode", (0, 0), _one_of("shareable", "private"), "shareable or private"),
    ("default-cgroupns-mode", (0, 0), _one_of("host", "private"), "host or private"),
    ("firewall-backend", (29, 0), _one_of("iptables", "nftables"), "iptables or nftables"),
    ("bridge-accept-fwmark", (29, 0), _is_mark, "a number, or two with / between them"),
    ("api-cors-header", (28, 0), _one_of(), "nothing: it was removed in 28.0"),
    ("labels", (0, 0), _is_label, f"key=value, the key not beginning with {', '.join(_RESERVED)}"),
    ("dns-search", (0, 0), lambda value: _DOMAIN.match(value.strip(" ")) is not None, "domains"),
    ("fixed-cidr-v6", (23, 0), _is_ipv6_network, "an IPv6 network"),
    ("hosts", (23, 0), lambda value: _HOST.match(value) is not None, "addresses of tcp://, unix:// or fd://"),
    ("registry-mirrors", (0, 0), lambda value: _MIRROR.match(value) is not None, "URLs without user and query"),
    ("node-generic-resources", (0, 0), lambda value: "=" in value, "name=value"),
    ("userland-proxy-path", (26, 0), lambda value: not value or value.startswith("/"), "an absolute path"),
    ("mtu", (23, 0), _from_zero, "a number from 0 on"),
    ("max-concurrent-downloads", (0, 0), _from_zero, "a number from 0 on"),
    ("max-concurrent-uploads", (0, 0), _from_zero, "a number from 0 on"),
    ("max-download-attempts", (0, 0), _from_zero, "a number from 0 on"),
    ("default-stop-timeout", (29, 7), _from_zero, "a number from 0 on"),
    ("network-diagnostic-port", (28, 0), lambda value: 0 <= value <= 65535, "a port"),
)


def _conflicting_labels(pairs: Pairs) -> bool:
    labels = [label.partition("=")[::2] for label in last(pairs, "labels") or () if label]
    return len({key for key, _ in labels}) < len(set(labels))


def _mixed_resources(pairs: Pairs) -> bool:
    """Of one name numbers or names, not both."""
    found: dict[str, set[bool]] = {}
    for resource in last(pairs, "node-generic-resources") or ():
        name, _, value = (resource or "").partition("=")
        found.setdefault(name, set()).add(value.isdecimal())
    return any(len(kinds) > 1 for kinds in found.values())


def _has(*keys: str) -> Callable[[Pairs], bool]:
    return lambda pairs: set(keys) <= {key for key, _ in pairs}


def _two_gateways(pairs: Pairs) -> bool:
    kinds = [":" in one for one in last(pairs, "host-gateway-ips") or () if one]
    return len(kinds) > len(set(kinds))


def _pools_without_prefix(pairs: Pairs) -> bool:
    bases = [dict(pool or ()).get("base") for pool in last(pairs, "default-address-pools") or ()]
    return any("/" not in base for base in bases if base)


_TOGETHER: tuple[tuple[Callable[[Pairs], bool], tuple[int, int], str], ...] = (
    (_has("graph", "data-root"), (0, 0), "graph and data-root are the same setting"),
    (_has("host-gateway-ip", "host-gateway-ips"), (28, 0), "host-gateway-ip and host-gateway-ips are the same setting"),
    (_two_gateways, (28, 0), "host-gateway-ips has two addresses of one kind"),
    (_conflicting_labels, (0, 0), "labels give one key two values"),
    (_mixed_resources, (0, 0), "node-generic-resources mix numbers and names"),
    (_pools_without_prefix, (28, 0), "a base of default-address-pools has no prefix length"),
    (
        lambda pairs: bool(
            dict(last(pairs, "features") or ()).get("embedded-containerd") and last(pairs, "cri-containerd")
        ),
        (29, 7),
        "cri-containerd and the feature embedded-containerd exclude each other",
    ),
)


# ---------------------------------------------------------------- the file

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
        raise InputError(f"daemon.json holds {text}", expected="a number that fits 64 bits", fix=FIX)
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
    stated: dict[str, Any] = {}
    keys: dict[str, str] = {}
    for key, item in value or ():
        name = names.get(key.casefold())
        if name:
            keys[name] = key
            if item is not None:
                stated[name] = tuple(item) if name == "args" else dict(item) if name == "options" else item
    return DaemonRuntime(**stated, keys=keys)


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
