"""A managed thing: what a node should have and what it has, in the same words; plan and verify are the difference.

A step's value is what its items ask of it, put together by `merged`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

from gpunode.core.late import dataclass
from gpunode.core.model import NodeFacts, Problem, Reason, Repository, Solution
from gpunode.core.model.journal import JournalSnapshot, Scope
from gpunode.core.spec import Spec
from gpunode.core.validation import Shape

ABSENT = "absent"
PRESENT = "present"
_GONE = {ABSENT: "not there", PRESENT: "there", "": "not set"}
KeyOf = Callable[[Repository], bytes]


class ItemKey(NamedTuple):
    """Which item: the role and option say which step brings it about, the name is for a reader."""

    role: str
    option: str
    name: str


@dataclass(frozen=True, kw_only=True)
class Back:
    """A kind of record in a node's journal, and how its things go back; `name` is its op, or the kind of a state.

    Values are the same where they mean the same.  `called` stands before the name of a thing.
    """

    name: str
    called: str = ""

    def undo(self, journal: JournalSnapshot, scope: Scope) -> Any:
        """How the things that its records in `scope` name go back."""
        raise NotImplementedError(f"{type(self).__name__} ({self.name}) has no undo(journal, scope), its way back")

    def meaning(self, value: str) -> str:
        """What a value means: two with one meaning are the same."""
        return value

    def again(self, now: str, value: str) -> bool:
        """Whether a thing is as it is to be again."""
        return self.meaning(now) == self.meaning(value)

    def words(self, name: str, now: str, was: str) -> str:
        """What is not as it was."""
        return f"{self.called}{name} is {_GONE.get(now, now)}, and was {_GONE.get(was, was)}"


K_co = TypeVar("K_co", bound=Back, covariant=True)


@dataclass(frozen=True, kw_only=True)
class Thing(Generic[K_co]):
    """Something that the journal names: how it was, how it is (None: the node does not say), and whose that is."""

    kind: K_co
    name: str
    was: str
    now: str | None
    theirs: bool = False  # somebody else has set it to something else than gpunode had
    at: int = 0  # its first record, among all

    @property
    def differs(self) -> bool:
        """Whether it is to go back."""
        return self.now is not None and not self.theirs and not self.kind.again(self.now, self.was)

    @property
    def difference(self) -> str:
        return self.kind.words(self.name, self.now or "", self.was)


@dataclass(frozen=True, kw_only=True)
class StateKind(Back):
    """A thing other than files and packages, as most are.

    `by_people`: the value before a change says whether somebody else has set it; modules and units a boot or a
    package's script sets, too.  `theirs`: so does the present value.  `by_packages`: scripts of packages make it.
    `field` of core/undo/plan.py's UndoPlan is what a value goes back by, `fields` where that depends on the value; of
    `settings` node/undo/restore.sh takes lines NAME VALUE.
    """

    by_people: bool = False
    theirs: bool = False
    by_packages: bool = False
    field: str = "settings"
    fields: Mapping[str, str] | None = None

    def undo(self, journal: JournalSnapshot, scope: Scope) -> Iterator[Thing[StateKind]]:
        """What somebody else set between two records comes back, where such a thing is set `by_people`."""
        for name, ones in scope.states.get(self.name, {}).items():
            was, begun = "", False
            ours: set[str] = set()
            for one in ones:
                if not begun:
                    begun, was = one.mine, one.before
                elif not one.mine:
                    was = one.after
                elif self.by_people and self.meaning(one.before) not in ours:
                    was = one.before
                ours.add(self.meaning(one.after))
            now = journal.states.get((self.name, name))
            theirs = now is not None and not self.again(now, was) and self.is_theirs(now, ours)
            yield Thing(kind=self, name=name, was=was, now=now, theirs=theirs, at=ones[0].at)

    def goes_by(self, value: str) -> str:
        """The field of an UndoPlan."""
        return self.field if self.fields is None else self.fields.get(value, "")

    def stuck(self, now: str) -> str:
        """Why a thing that is so cannot be changed by any script, "" where one can."""
        return ""

    def lacks(self, was: str) -> str:
        """What it will not have again of what it had."""
        return ""

    def judged(self, now: str) -> bool:
        """Whether the present value shows that somebody else has set it."""
        return self.theirs

    def is_theirs(self, now: str, ours: Collection[str]) -> bool:
        """Whether it is none of what gpunode's values of it mean."""
        return self.judged(now) and self.meaning(now) not in ours

    def made(self, name: str) -> bool:
        """Whether scripts of packages make a thing of this name."""
        return self.by_packages


@dataclass(frozen=True, kw_only=True)
class Item:
    """One thing that a node should have; a kind says what is wanted, what a node has, and how a change goes back."""

    NAME: ClassVar[str]  # with the item's own fields in braces
    WANTED: ClassVar[str]
    ASKED_BY: ClassVar[str] = ""  # the key of gpunode.yml that has it, for a reader
    BACK: ClassVar[tuple[Back, ...]] = ()  # the records that a change of it leaves in the journal
    STAYS: ClassVar[str] = ""  # without any: «cannot go back, because …»
    ENDS: ClassVar[Literal["", "driver", "GPU", "boot"]] = ""  # what has to end before its change is in force
    FIRST_BOOT: ClassVar[str] = ""
    IN_WORDS: ClassVar[bool] = False  # what a node has says itself how that differs

    role: str
    option: str
    reasons: tuple[Reason, ...] = ()
    always: bool = False  # its share is in the request also where the node has it: the step does all of them as one
    within: str = ""  # the name of the item of the same step whose share has this one, too

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
        if self.IN_WORDS:
            return have
        return f"{have}, to be removed" if self.wanted == ABSENT else f"{have or 'nothing'}; wanted {self.wanted}"

    def request(self, case: HostCase) -> Mapping[str, Any]:
        """Its share of the value of its step: keys of the step's shape, or one row where that is a list of rows."""
        raise NotImplementedError(
            f"{type(self).__name__} has no request(case), its share of the step {self.role}.{self.option}"
        )

    @property
    def first_boot(self) -> str:
        """On a machine that waits for its GPU, the part of the first boot that brings it about or proves it."""
        return self.FIRST_BOOT

    def follows(self, pending: Mapping[ItemKey, Item]) -> bool:
        """Whether it is to be done again because of these."""
        return False

    def disrupts(self, case: HostCase) -> str:
        """What its change disturbs, as a sentence."""
        return ""

    def alone(self, facts: NodeFacts) -> tuple[str, str]:
        """What a step of such items alone is called: words, and what this one adds; as its row where they are ""."""
        return "", ""

    def changes(self, key_of: KeyOf) -> Iterator[tuple[str, bytes | None]]:
        """The files that it changes, to be shown to a reader."""
        yield from ()

    @cached_property
    def key(self) -> ItemKey:
        return ItemKey(self.role, self.option, self.name)


@dataclass(frozen=True, kw_only=True)
class WholeStep(Item):
    """What a step does as one: `value` is that of the step."""

    value: Mapping[str, Any]

    def request(self, case: HostCase) -> Mapping[str, Any]:
        return self.value


@dataclass(frozen=True, kw_only=True)
class Program(WholeStep):
    """A program that the step writes, known by its hash."""

    WANTED = "{sha256}"
    sha256: str

    def difference(self, have: str) -> str:
        return "differs" if re.fullmatch(r"[0-9a-f]{64}", have) else have  # a hash is not for reading


@dataclass(frozen=True, kw_only=True)
class Question:
    """What items are made from: the node, what is asked of it, what the solver chose, and templates and scripts."""

    facts: NodeFacts
    spec: Spec
    solution: Solution
    templates: Mapping[str, str]


Found = Iterator[Item | Problem | str]  # what a part of the spec wants, what stands against it, or a warning


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The whole wanted state of a node."""

    items: Mapping[ItemKey, Item]
    problems: tuple[Problem, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class HostCase(Question):
    """One host's case: what its steps are made from.  `have` is the actual value of every wanted item."""

    items: Mapping[ItemKey, Item]
    have: Mapping[ItemKey, str]
    key_of: KeyOf

    def of(self, role: str, option: str) -> list[Item]:
        """All items of a step, also those that are as wanted."""
        return [item for key, item in self.items.items() if (key.role, key.option) == (role, option)]

    def pending(self, item: Item) -> bool:
        """Whether the node has something else."""
        return item.differs(self.have[item.key])

    def ending(self, mine: Sequence[Item], what: str) -> list[Item]:
        """Those that differ, and for which this has to end: whoever uses the driver or a GPU, or the boot."""
        return [item for item in mine if what == item.ENDS and self.pending(item)]


def alone_title(facts: NodeFacts, mine: Sequence[Item]) -> str:
    """What a step of these items is called, "" where its row says it."""
    found = [item.alone(facts) for item in mine]
    [words, *others] = {words for words, _ in found} or {""}
    return "" if others or not words else f"{words} {' and '.join(name for _, name in found)}".rstrip()


@dataclass(frozen=True, kw_only=True)
class StepKind:
    """How a step brings its items about: the action of the collection, and the argument that takes the step's value.

    `base` is what the value has beside the shares of the items; `disrupts` says what the step disturbs: by default what
    the items do, one after the other.
    """

    shape: Shape
    action: str
    argument: str
    base: Callable[[HostCase, str], Any] = lambda case, role: {}
    disrupts: Callable[[HostCase, Sequence[Item]], str] = lambda case, mine: "; ".join(
        filter(None, (item.disrupts(case) for item in mine))
    )


def merged(shape: Shape, base: Any, shares: Iterable[Mapping[str, Any]]) -> Any:
    """The value of a step: keys in the order of its shape, lists one after the other, each entry once.

    Raises ValueError for a share that the step does not take, or that contradicts another one: an error in the program.

    >>> merged(Shape(type="list", doc="", keys={"path": Shape(type="str", doc="")}), {}, [{"path": "/a"}])
    [{'path': '/a'}]
    """
    if not shape.keys:
        return base
    if shape.type == "list":
        return [_ordered(shape, share) for share in shares if share]
    found = dict(base)
    for share in shares:
        for key, value in share.items():
            found[key] = _joined(key, found[key], value) if found.get(key) else value
    return _ordered(shape, found)


def _ordered(shape: Shape, value: Mapping[str, Any]) -> dict[str, Any]:
    if unknown := value.keys() - shape.keys.keys():
        raise ValueError(f"no key of the step ({', '.join(shape.keys)}) takes {', '.join(sorted(unknown))}")
    return {key: value[key] for key in shape.keys if key in value}


def _joined(key: str, old: Any, new: Any) -> Any:
    if isinstance(old, list):
        return [*old, *(one for one in new if one not in old)]
    if isinstance(old, Mapping) and all(new.get(name, value) == value for name, value in old.items()):
        return {**old, **new}
    if old != new:
        raise ValueError(f"two items of a step ask for another {key}: {old!r} and {new!r}")
    return old


def step_value(case: HostCase, kind: StepKind, role: str, option: str, mine: Sequence[Item]) -> Any:
    """The value of a step in which these items differ."""
    due = {item.key for item in mine}
    asked = (item for item in case.of(role, option) if (item.always or item.key in due) and not item.within)
    return merged(kind.shape, kind.base(case, role), (item.request(case) for item in asked))


def reboots(spec: Spec) -> dict[str, Any]:
    """What the spec says of reboots, as a role's value has it."""
    timeout = {"reboot_timeout": spec.reboot_timeout} if spec.reboot_timeout != type(spec)().reboot_timeout else {}
    return {"reboot": spec.reboot, **({"reboot_controller": True} if spec.reboot_controller else {}), **timeout}
