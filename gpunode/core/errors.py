"""What can go wrong, by class: each class is one exit code of the command line."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from gpunode.core.late import regex
from gpunode.core.printable import printable

if TYPE_CHECKING:
    from gpunode.core.model import HostOutcome, HostResult, Problem


UNEXPECTED = "unexpected"  # before the type of an exception that is a bug
_USERINFO = regex(r"(?<=://)(?<!ssh://)[^/\s\"'<>]+(?=@)")  # where a URL has a user and a password


class Exit(IntEnum):
    """The exit codes of every command (docs/cli.md)."""

    OK = 0
    FAILED = 1
    INPUT = 2
    PENDING = 3
    UNREACHABLE = 4
    REFUSED = 5
    INTERRUPTED = 130

    @classmethod
    def of(cls, outcome: HostOutcome) -> Exit:
        """The exit code for an outcome."""
        return _EXITS[outcome]

    @property
    def outcome(self) -> HostOutcome:
        """The outcome that has this exit code."""
        return next(outcome for outcome, code in _EXITS.items() if code is self)


_EXITS: dict[HostOutcome, Exit] = {
    "ok": Exit.OK,
    "failed": Exit.FAILED,
    "invalid": Exit.INPUT,
    "pending": Exit.PENDING,
    "unreachable": Exit.UNREACHABLE,
    "refused": Exit.REFUSED,
    "interrupted": Exit.INTERRUPTED,
}


def _shown(text: str) -> str:
    return printable(_USERINFO.sub("********", text))


class GpunodeError(Exception):
    """A failure that a person can act on: the thing and its value, what was expected, and what to do next.

    `what` names the thing and its value in one sentence, `expected` what would have been right ("" where that is
    plain), `fix` the next step; control characters in them are visible escapes, and user and password of a URL are in
    none of them.  The command line prints exactly these three and exits with the exit code of `outcome`.
    """

    outcome: HostOutcome = "failed"
    excerpt: str = ""  # the line of a file that it is about, with a caret below

    def __init__(self, what: str, *, expected: str = "", fix: str = "") -> None:
        self.what, self.expected, self.fix = (_shown(text) for text in (what, expected, fix))
        super().__init__(self.what)

    @property
    def exit(self) -> Exit:
        return Exit.of(self.outcome)

    @property
    def stated(self) -> str:
        """All but what to do next."""
        lines = [self.what, *_shown(self.excerpt).splitlines()]
        return "\n".join([*lines, f"  expected: {self.expected}"] if self.expected else lines)

    def of_host(self, host: str) -> HostResult:
        """The error as what came of a host."""
        from gpunode.core.model import HostResult

        return HostResult(host=host, outcome=self.outcome, message=self.stated, fix=self.fix)

    def __str__(self) -> str:
        return f"{self.stated}\n  do next:  {self.fix}" if self.fix else self.stated


class InputError(GpunodeError):
    """Usage, or input that cannot be read or is not valid; nothing was touched.

    `others` are further mistakes of the same input: a person can fix all of them at once.
    """

    outcome: HostOutcome = "invalid"
    others: tuple[InputError, ...] = ()

    def __init__(self, what: str, *, key: str = "", expected: str = "", fix: str = "") -> None:
        super().__init__(what, expected=expected, fix=fix)
        self.key = key  # of gpunode.yml, which it is about

    @classmethod
    def of(cls, key: str, problem: str, *, expected: str = "", fix: str = "") -> InputError:
        """A mistake in the value of that key."""
        return cls(f"{key} {problem}", key=key, expected=expected, fix=fix)

    def place(self, where: str) -> None:
        """Put where the mistake stands in front of it."""
        self.what = f"{_shown(where)}: {self.what}"

    @classmethod
    def all_of(cls, errors: Sequence[InputError]) -> InputError:
        """Several mistakes as one error, the first of which gives it its name."""
        first, *others = errors
        first.others = tuple(others)
        return first

    def __str__(self) -> str:
        if not self.others:
            return super().__str__()
        texts = [super().__str__(), *map(str, self.others)]
        return "\n".join([f"{len(texts)} mistakes", *texts])


class StaleError(GpunodeError):
    """The node is no longer what the plan rests on."""

    outcome: HostOutcome = "pending"


class UnreachableError(GpunodeError):
    """No connection to the host, or it was refused (host key, authentication, sudo)."""

    outcome: HostOutcome = "unreachable"


class RefusedError(GpunodeError):
    """Understood, and refused: doing it would not work or would break the node."""

    outcome: HostOutcome = "refused"

    @classmethod
    def of(cls, problems: Sequence[Problem]) -> RefusedError:
        """The problems of a plan or an edit as one error."""
        fixes = dict.fromkeys(problem.fix for problem in problems)
        return cls("; ".join(problem.what for problem in problems), fix="; ".join(fixes))


class InterruptedByUser(GpunodeError):
    """Ctrl-C, or the question was answered with no."""

    outcome: HostOutcome = "interrupted"


def error_data(error: GpunodeError) -> dict[str, Any]:
    """The error as plain data, as `--format json` shows it."""
    data = {"what": error.what, "expected": error.expected, "fix": error.fix, "exit": int(error.exit)}
    others = error.others if isinstance(error, InputError) else ()
    return data | ({"others": [error_data(other) for other in others]} if others else {})
