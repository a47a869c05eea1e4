"""Kernel settings that Kubernetes needs: wanted values, and files that overrule them at boot.

Sources: kubernetes.io/docs/setup/production-environment/container-runtimes; sysctl.d(5): files of all folders are read
in the order of their names, one in /etc hides those of the same name below /run and /usr, the last value counts.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from typing import Any

from gpunode.core.edits.text.unitfile import in_order
from gpunode.core.items.file import file_if
from gpunode.core.items.item import ABSENT, Found, HostCase, Item, Question, StateKind
from gpunode.core.late import dataclass
from gpunode.core.model import Check, ConfigFile, NodeFacts

CONF = "/etc/sysctl.d/99-gpunode.conf"
TUNING_CONF = "/etc/sysctl.d/99-gpunode-tuning.conf"
WANTED: Mapping[str, str] = {
    "net.bridge.bridge-nf-call-iptables": "1",
    "net.bridge.bridge-nf-call-ip6tables": "1",
    "net.ipv4.ip_forward": "1",
}
# of one name the last one counts
_FOLDERS = ("/lib/sysctl.d", "/usr/lib/sysctl.d", "/usr/local/lib/sysctl.d", "/run/sysctl.d", "/etc/sysctl.d")


class _Words(StateKind):
    def meaning(self, value: str) -> str:
        return " ".join(value.split())  # an older journal has the kernel's tabs


SYSCTL = _Words(name="sysctl", by_people=True, theirs=True)


@dataclass(frozen=True, kw_only=True)
class Sysctl(Item):
    """A kernel setting in force."""

    NAME = "sysctl {setting}"
    BACK = (SYSCTL,)
    WANTED = "{value}"
    ASKED_BY = "tuning.sysctl"
    role: str = "runtime"
    option: str = "activate"
    setting: str
    value: str

    def actual(self, facts: NodeFacts) -> str:
        return facts.sysctl.get(self.setting, ABSENT)

    def request(self, case: HostCase) -> Mapping[str, Any]:
        return {"sysctl": {self.setting: self.wanted}}


def tuned(question: Question) -> Found:
    """The settings of `tuning`, now and at every boot; without any a file that is there goes."""
    settings = question.solution.tuning.sysctl
    lines = "".join(f"{key} = {value}\n" for key, value in settings.items())
    text = f"# written by gpunode\n{lines}" if lines else ""
    yield from file_if(question.facts, text, role="runtime", path=TUNING_CONF)
    yield from (Sysctl(setting=key, value=value) for key, value in settings.items())


def overrules(files: Mapping[str, ConfigFile]) -> list[tuple[str, str, str]]:
    """(key, value, path) of the lines of later files that win against ours at the next boot."""
    stated: dict[str, tuple[str, str, str]] = {}
    for path in _later(files):
        for key, value in _settings(files[path].data or b""):
            stated[key] = key, value, path
    return [one for key, one in stated.items() if key in WANTED and one[1] != WANTED[key]]


def _later(files: Mapping[str, ConfigFile]) -> list[str]:
    """The paths of those that are read after ours."""
    return [path for path in in_order(files, _FOLDERS) if posixpath.basename(path) > posixpath.basename(CONF)]


def _settings(data: bytes) -> Iterator[tuple[str, str]]:
    """KEY = VALUE lines; a `-` in front ignores errors."""
    for line in data.decode("utf-8", "replace").splitlines():
        key, equals, value = line.strip().partition("=")
        if equals and not line.strip().startswith(("#", ";")):
            yield dotted(key.strip().removeprefix("-")), value.strip()


def dotted(key: str) -> str:
    """The form of a key with dots between its parts; one that has a slash first has its own dots as they are.

    >>> dotted("net/ipv4/conf/eth0.100/rp_filter"), dotted("net.ipv4.conf.eth0/100.rp_filter")
    ('net.ipv4.conf.eth0/100.rp_filter', 'net.ipv4.conf.eth0/100.rp_filter')
    """
    return key if "." in key.partition("/")[0] else key.translate(str.maketrans("./", "/."))


def boot_warnings(facts: NodeFacts) -> Iterator[str]:
    """One sentence for each setting that will be lost at the next boot."""
    for key, value, path in overrules(facts.files):
        yield f"{path} sets {key} = {value} and is read after {CONF}: Kubernetes needs {WANTED[key]}"


def sysctl_checks(facts: NodeFacts) -> Iterator[Check]:
    """The checks of verify on a node of Kubernetes: values in force, and what the next boot brings."""
    if not facts.kubernetes.present:
        return
    wrong = [f"{key} is {facts.sysctl.get(key, 'not there')}" for key in WANTED if facts.sysctl.get(key) != WANTED[key]]
    later = list(boot_warnings(facts))
    unread = [path for path in _later(facts.files) if facts.files[path].data is None]
    if wrong:
        fix = f"gpunode provision; by hand: sysctl -p {CONF}"
        yield Check(id="kubernetes.sysctl", status="failed", message=f"{', '.join(wrong)}: Kubernetes needs 1", fix=fix)
    elif later:
        fix = "remove the setting from that file"
        yield Check(id="kubernetes.sysctl", status="warning", message="; ".join(later), fix=fix)
    elif "files" in facts.unread or unread:
        what = ", ".join(unread) if "files" not in facts.unread else "what is set at boot"
        yield Check(id="kubernetes.sysctl", status="not-proven", message=f"{what} was not read", fix="probe as root")
    else:
        yield Check(id="kubernetes.sysctl", status="passed", message="forwarding and bridged packets are as needed")
