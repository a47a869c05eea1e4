"""Which types and values dockerd takes for the keys of daemon.json.

Source: the structs of moby daemon/config/{config,config_linux,builder}.go, the UnmarshalJSON of their types, Validate;
tried with `dockerd --validate` of 26.1, 28.5 and 29.7 on the documents of tests/cases/dockerd.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping
from typing import Any

from gpunode.core.edits.engines.docker_settings import SETTINGS
from gpunode.core.errors import InputError
from gpunode.core.mask import shown

CGROUP_KEY = "native.cgroupdriver"
MEND = "fix the file: dockerd does not start with it"
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
_runtime = _struct(path=_is_string, runtimetype=_is_string, runtimeargs=_list(_is_string), options=_any_object)
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
    "runtimes": (_object(_runtime), "an object", 'entries such as {"path": "/usr/bin/…", "runtimeArgs": ["--a"]}'),
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
            raise InputError(f"{path}: {key}.{name} is {shown(one, key, name)}", expected=of_members, fix=MEND)
        raise InputError(f"{path}: {key} is {shown(value, key)}", expected=words, fix=MEND)


def _wrong_field(name: str, runtime: Any) -> tuple[str, Any]:
    """Of a runtime's entry the field that is wrong, or the entry itself."""
    fields = runtime if isinstance(runtime, Pairs) else ()
    return next(((f"{name}.{key}", one) for key, one in fields if not _runtime(Pairs([(key, one)]))), (name, runtime))


# ---------------------------------------------------------------- values


def check_values(path: str, pairs: Pairs, number: tuple[int, int]) -> None:
    """Raise InputError for values in force that this dockerd does not start with; (0, 0) is an unknown version."""
    for key, least, right, words in _VALUES:
        value = last(pairs, key)
        if value is None or number < least:
            continue
        for one in value if isinstance(value, list) else (value,):
            if not right("" if one is None else one):
                raise InputError(f"{path}: {key} {_holds(value)} {shown(one, key)}", expected=words, fix=MEND)
    for rule, least, words in _TOGETHER:
        if number >= least and rule(pairs):
            raise InputError(f"{path}: {words}", expected="one that dockerd starts with", fix=MEND)


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
