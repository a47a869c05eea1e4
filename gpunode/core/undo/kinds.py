"""The kinds of things other than files and packages that gpunode changes: what is particular to each of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

ABSENT = "absent"
UNITS = "/etc/systemd/system/"  # links there enable units
ENABLED = ("enabled", "enabled-runtime")
_ON = (*ENABLED, "static", "alias", "indirect", "generated")
_NONE = ("", "-", ABSENT)


@dataclass(frozen=True, kw_only=True)
class StateKind:
    """A kind as most are: values are the same where they are equal.

    `by_people`: the value before a change says whether somebody else has set it; modules and units a boot or a
    package's script sets, too.  `theirs`: so does the present value.  `by_packages`: scripts of packages make it.
    `setting`: node/undo/restore.sh takes it as lines NAME VALUE.  `called` stands before its name.
    """

    by_people: bool = False
    theirs: bool = False
    by_packages: bool = False
    setting: bool = False
    called: str = ""

    def meaning(self, value: str) -> str:
        """What a value means: two with one meaning are the same."""
        return value

    def same(self, one: str, other: str) -> bool:
        return self.meaning(one) == self.meaning(other)

    def again(self, now: str, value: str) -> bool:
        """Whether a thing is as it is to be again."""
        return self.same(now, value)

    def judged(self, now: str) -> bool:
        """Whether the present value shows that somebody else has set it."""
        return self.theirs

    def made(self, name: str) -> bool:
        """Whether scripts of packages make a thing of this name."""
        return self.by_packages


class _Enabled(StateKind):
    def meaning(self, value: str) -> str:
        return ENABLED[0] if value in _ON else ""


class _Words(StateKind):
    def meaning(self, value: str) -> str:
        return " ".join(value.split())  # an older journal has the kernel's tabs


class _Initramfs(StateKind):
    def again(self, now: str, value: str) -> bool:
        return now == value or value != ABSENT


class _Link(StateKind):
    def made(self, name: str) -> bool:
        return name.startswith(UNITS)  # those in /dev are made by others


class _Alternative(StateKind):
    """`auto`, `manual PATH`, `link PATH`; gpunode writes PATH."""

    def meaning(self, value: str) -> str:
        return value.rpartition(" ")[2]

    def again(self, now: str, value: str) -> bool:
        return now == value

    def judged(self, now: str) -> bool:
        return now.startswith(("manual ", "link "))


class _Stream(StateKind):
    def meaning(self, value: str) -> str:
        return ABSENT if value in _NONE else value


KINDS: Mapping[str, StateKind] = {
    "enabled": _Enabled(by_people=True),
    "active": StateKind(),
    "mask": StateKind(by_people=True, theirs=True, setting=True, called="the mask of "),
    "module": StateKind(called="the module "),
    "alternative": _Alternative(by_people=True, setting=True, called="/usr/local/"),
    "sysctl": _Words(by_people=True, theirs=True, setting=True),
    "link": _Link(by_people=True, theirs=True, setting=True),
    "ecc": StateKind(by_people=True, theirs=True, setting=True, called="ECC of "),
    "argument": StateKind(by_people=True, theirs=True, setting=True, called="the kernel argument "),
    "cdi": StateKind(by_packages=True, setting=True),
    "initramfs": _Initramfs(by_packages=True, setting=True),
    "user": StateKind(by_packages=True, setting=True),
    "group": StateKind(by_packages=True, setting=True),
    "kernel": StateKind(by_packages=True, setting=True),
    "stream": _Stream(by_people=True, theirs=True, called="the stream of "),
    "runfile": StateKind(),
}
OTHER = StateKind()  # what an older or newer journal names
