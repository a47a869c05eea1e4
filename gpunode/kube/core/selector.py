"""Label selectors as kubectl reads them: `a=b`, `a!=b`, `a in (b, c)`, `a notin (b)`, `a`, `!a`, with commas between.

https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#label-selectors
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from gpunode.core import words
from gpunode.core.errors import InputError
from gpunode.core.late import dataclass, regex
from gpunode.core.printable import printable

_COMMA = regex(r",(?![^()]*\))")  # none within parentheses
_SET = regex(r"(\S+)\s+(in|notin)\s*\(([^()]*)\)")
_EQUAL = regex(r"([^\s=!]+)\s*(==|=|!=)\s*([^\s=!]*)")
_PRESENT = regex(r"(!?)\s*([^\s=!()]+)")


How = Literal["in", "notin", "present", "absent"]


@dataclass(frozen=True, kw_only=True)
class Requirement:
    """One part of a selector: a label that has one of these values, or has none of them, or is (not) there."""

    key: str
    how: How
    values: tuple[str, ...] = ()

    def fits(self, labels: Mapping[str, str]) -> bool:
        """As Kubernetes: a node without the label fits `notin`."""
        if self.how in ("present", "absent"):
            return (self.key in labels) == (self.how == "present")
        return (self.key in labels and labels[self.key] in self.values) == (self.how == "in")


Selector = tuple[Requirement, ...]


def parse_selector(text: str, where: str = "") -> Selector:
    """The parts, all of which a node must fit.  Raises InputError for what is no selector, and for an empty one.

    >>> parse_selector("team in (a, b)")
    (Requirement(key='team', how='in', values=('a', 'b')),)
    """
    return tuple(_requirement(part.strip(), text, where) for part in _COMMA.split(text))


def _wrong(requirement: Requirement) -> str:
    """What no label can be; "" for nothing."""
    reports = (words.label_key(requirement.key), *map(words.label_value, requirement.values))
    return next(filter(None, reports), "")


def _requirement(part: str, text: str, where: str) -> Requirement:
    requirement: Requirement | None = None
    if match := _SET.fullmatch(part):
        values = tuple(value.strip() for value in match[3].split(","))
        requirement = Requirement(key=match[1], how="in" if match[2] == "in" else "notin", values=values)
    elif match := _EQUAL.fullmatch(part):
        requirement = Requirement(key=match[1], how="notin" if match[2] == "!=" else "in", values=(match[3],))
    elif match := _PRESENT.fullmatch(part):
        requirement = Requirement(key=match[2], how="absent" if match[1] else "present")
    wrong = _wrong(requirement) if requirement else ""
    if requirement is None or wrong:
        raise InputError(
            f"{where}{': ' if where else ''}{printable(repr(text))} is no label selector"
            + (f": {wrong}" if wrong else ""),
            expected="such as gpu=yes, pool!=web or 'pool in (a, b)', with commas between",
            fix="kubectl get nodes --show-labels shows the labels",
        )
    return requirement


def fits(selector: Iterable[Requirement], labels: Mapping[str, str] | None) -> bool:
    """Whether a node with these labels is chosen."""
    return all(requirement.fits(labels or {}) for requirement in selector)
