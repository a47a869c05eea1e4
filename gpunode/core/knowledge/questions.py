"""What gpunode asks of NVIDIA's programs (knowledge/questions.toml), as values and as the node scripts know it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gpunode.core.late import dataclass

_MEMORY = "set_default_device_pinned_mem_limit"


@dataclass(frozen=True, kw_only=True)
class Field:
    """A field of a query of nvidia-smi.  `answers`: the branch from which on it says one of these patterns."""

    name: str
    answers: Mapping[int, tuple[str, ...]]
    sources: tuple[str, ...]

    @property
    def since(self) -> int:
        """The first driver branch that is asked for it."""
        return min(self.answers)

    def patterns(self, branch: int) -> tuple[str, ...]:
        """What a driver of that branch may say, besides the words for «none» and for errors."""
        return self.answers[max(one for one in self.answers if one <= branch)]


@dataclass(frozen=True, kw_only=True)
class Command:
    """Words for one of the programs.  `since`: of nvidia-smi a driver branch, of the others a version of their own."""

    program: str
    words: tuple[str, ...]
    since: str
    ill: str
    source: str


@dataclass(frozen=True, kw_only=True)
class Questions:
    """The whole table: fields of --query-gpu and of --query-remapped-rows by name, and all other words."""

    gpu: Mapping[str, Field]
    remapped: Mapping[str, Field]
    probe: tuple[str, ...]  # what the probe asks of --query-gpu, in this order
    probe_remapped: tuple[str, ...]
    commands: tuple[Command, ...]
    none: tuple[str, ...]
    unread: tuple[str, ...]
    fault: tuple[str, ...]

    def asked(self, branch: int) -> tuple[str, ...]:
        """The fields that the probe asks a driver of that branch for."""
        return tuple(name for name in self.probe if self.gpu[name].since <= branch)


def parse_questions(table: Mapping[str, Any]) -> Questions:
    """The parsed questions.toml as values."""
    return Questions(
        gpu=_fields(table["fields"]["rows"]),
        remapped=_fields(table["remapped"]["rows"]),
        probe=tuple(table["fields"]["probe"]),
        probe_remapped=tuple(table["remapped"]["probe"]),
        commands=tuple(_commands(table["commands"]["rows"])),
        none=tuple(table["words"]["none"]),
        unread=tuple(table["words"]["unread"]),
        fault=tuple(table["words"]["fault"]),
    )


def _fields(rows: str) -> dict[str, Field]:
    answers: dict[str, dict[int, tuple[str, ...]]] = {}
    sources: dict[str, list[str]] = {}
    for name, since, patterns, source in _cells(rows):
        answers.setdefault(name, {})[int(since)] = tuple(patterns.split(", "))
        sources.setdefault(name, []).append(source)
    return {name: Field(name=name, answers=one, sources=tuple(sources[name])) for name, one in answers.items()}


def _commands(rows: str) -> Iterator[Command]:
    for program, words, since, ill, source in _cells(rows):
        yield Command(program=program, words=tuple(words.split()), since=since, ill=ill, source=source)


def _cells(rows: str) -> Iterator[list[str]]:
    for line in filter(None, rows.splitlines()):
        yield [cell.strip() for cell in line.split(" | ")]


def question_variables(questions: Questions) -> dict[str, str]:
    """The probe's questions as node scripts know them: `mig.mode.current=450` is asked from that branch on."""
    oldest = min(field.since for field in questions.gpu.values())
    return {
        "SMI_FIELDS": " ".join(
            name if questions.gpu[name].since == oldest else f"{name}={questions.gpu[name].since}"
            for name in questions.probe
        ),
        "SMI_REMAPPED": ",".join(questions.probe_remapped),
        "SMI_REMAPPED_SINCE": str(max(questions.remapped[name].since for name in questions.probe_remapped)),
        "SMI_MPS_MEMORY_SINCE": next(one.since for one in questions.commands if one.words[:1] == (_MEMORY,)),
    }
