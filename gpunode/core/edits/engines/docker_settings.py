"""What a dockerd takes in its file and as arguments, by version: names, types, and which argument is which key.

Source: moby daemon/config/config.go (types), {cmd/dockerd,daemon/command}/{config,config_unix,options}.go (arguments)
of 20.10.24, 23.0, 24.0, 25.0, 26.1, 27.5, 28.5 and 29.7; tried with `dockerd --validate` of 26.1, 28.5 and 29.7.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpunode.core.numbers import release

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
