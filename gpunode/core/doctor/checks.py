"""From a symptom to its cause: which checks decide it, in which order (knowledge/faults/checks.toml)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from gpunode.core.errors import InputError
from gpunode.core.late import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Cause:
    """A possible cause, and what decides it: a fact of a node, or the command that asks for it."""

    fault: str
    ask: str
    means: str
    fact: str = ""
    words: Sequence[str] = ()  # of the program that wrote a text, where nothing else of it is known


@dataclass(frozen=True, kw_only=True)
class Checks:
    """The table."""

    signs: Mapping[str, str] = field(default_factory=dict)  # check of verify that failed → fault
    warnings: Mapping[str, str] = field(default_factory=dict)  # the same of checks that warn
    units: Mapping[str, str] = field(default_factory=dict)  # unit that has failed → fault
    symptoms: Mapping[str, tuple[Cause, ...]] = field(default_factory=dict)  # "": nothing known was found


def parse_checks(data: Mapping[str, Any]) -> Checks:
    """Raises InputError for a row that cannot be used."""
    try:
        tables = {name: dict(data[name]) for name in ("signs", "warnings", "units")}
        symptoms = {of: tuple(Cause(**cause) for cause in row["cause"]) for row in data["symptom"] for of in row["of"]}
    except (KeyError, TypeError) as error:
        raise InputError(f"faults/checks.toml: {error}", expected="fault, ask and means") from error
    return Checks(symptoms=symptoms, **tables)


def ruled_out(checks: Checks, facts: Mapping[str, str]) -> set[str]:
    """The causes that the facts exclude, whatever a log says of them."""
    causes = [cause for causes in checks.symptoms.values() for cause in causes if cause.fact]
    holding = {cause.fault for cause in causes if facts.get(cause.fact)}
    return {cause.fault for cause in causes if cause.fact in facts} - holding


def decided(causes: Iterable[Cause], facts: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The first cause whose fact holds, in the fact's words and with those that were ruled out before it."""
    ruled_out: list[str] = []
    for cause in causes:
        if words := facts.get(cause.fact, ""):
            yield cause.fault, words + (f"; not: {', '.join(ruled_out)}" if ruled_out else "")
            return
        ruled_out += [cause.fault] if cause.fact in facts else []


def next_commands(checks: Checks, symptoms: Collection[str], words: Collection[str]) -> tuple[Cause, ...]:
    """The first two commands that decide the causes of a symptom, of a text with these words."""
    causes = next((causes for of, causes in checks.symptoms.items() if of in symptoms), ())
    return tuple(cause for cause in causes if not cause.words or set(cause.words) & set(words))[:2]
