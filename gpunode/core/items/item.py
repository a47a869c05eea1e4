"""A managed thing: what a node should have and what it has, in the same words; plan and verify are the difference."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from gpunode.core.model import NodeFacts, Problem, Reason, Repository, Solution
from gpunode.core.spec import Spec
from gpunode.core.validation import Shape

ABSENT = "absent"
PRESENT = "present"
KeyOf = Callable[[Repository], bytes]


class ItemKey(NamedTuple):
    """Which item: the role and option say which step brings it about, the name is for a reader."""

    role: str
    option: str
    name: str


@dataclass(frozen=True, kw_only=True)
class Item:
    """One thing that a node should have; a kind says what it is called, what is wanted, and what a node has."""

    NAME: ClassVar[str]  # with the item's own fields in braces
    WANTED: ClassVar[str]

    role: str
    option: str
    reasons: tuple[Reason, ...] = ()

    @property
    def name(self) -> str:
        """What it is, for a reader; unique in its step."""
        return self.NAME.format_map(vars(self))

    @property
    def wanted(self) -> str:
        """What the node should have, as a short text that a person can compare."""
        return self.WANTED.format_map(vars(self))

    def actual(self, facts: NodeFacts) -> str:
        """What the node has, in the same words."""
        raise NotImplementedError

    def differs(self, have: str) -> bool:
        """Whether what the node has is not what is wanted."""
        return have != self.wanted

    def difference(self, have: str) -> str:
        """What the node has instead, in words."""
        return f"{have}, to be removed" if self.wanted == ABSENT else f"{have or 'nothing'}; wanted {self.wanted}"

    def follows(self, pending: Mapping[ItemKey, Item]) -> bool:
        """Whether it is to be done again because of these."""
        return False

    def changes(self, key_of: KeyOf) -> Iterator[tuple[str, bytes | None]]:
        """The files that it changes, to be shown to a reader."""
        yield from ()

    @property
    def key(self) -> ItemKey:
        return ItemKey(self.role, self.option, self.name)


@dataclass(frozen=True, kw_only=True)
class Question:
    """What items are made from: the node, what is asked of it, what the solver chose, and templates and scripts."""

    facts: NodeFacts
    spec: Spec
    solution: Solution
    templates: Mapping[str, str]


Found = Iterator[Item | Problem]  # what a part of the spec wants, or what stands against it


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The whole wanted state of a node."""

    items: Mapping[ItemKey, Item]
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, kw_only=True)
class HostCase:
    """One host's case: what its steps are made from.  `have` is the actual value of every wanted item."""

    facts: NodeFacts
    spec: Spec
    solution: Solution
    items: Mapping[ItemKey, Item]
    have: Mapping[ItemKey, str]
    key_of: KeyOf

    def of(self, role: str, option: str) -> list[Item]:
        """All items of a step, also those that are as wanted."""
        return [item for key, item in self.items.items() if (key.role, key.option) == (role, option)]

    def pending(self, item: Item) -> bool:
        """Whether the node has something else."""
        return item.differs(self.have[item.key])


@dataclass(frozen=True, kw_only=True)
class StepKind:
    """How a step brings its items about: the action of the collection, and the argument that takes the step's value.

    `value` makes it from the role and the items that differ, `disrupts` says what the step disturbs, `title` what it is
    called where these items say it better than its row ("": they do not).
    """

    shape: Shape
    action: str
    argument: str
    value: Callable[[HostCase, str, Sequence[Item]], Any]
    disrupts: Callable[[HostCase, Sequence[Item]], str] | None = None
    title: Callable[[HostCase, Sequence[Item]], str] | None = None


def unlike(have: str) -> str:
    """What a node has instead, in words; a hash is not for reading."""
    return "differs" if re.fullmatch(r"[0-9a-f]{64}", have) else have


def reboots(spec: Spec) -> dict[str, Any]:
    """What the spec says of reboots, as a role's value has it."""
    timeout = {"reboot_timeout": spec.reboot_timeout} if spec.reboot_timeout != type(spec)().reboot_timeout else {}
    return {"reboot": spec.reboot, **({"reboot_controller": True} if spec.reboot_controller else {}), **timeout}
