"""Plans that the nodes' own package managers can carry out: each node is asked before its plan is shown.

One more read-only round trip for hosts whose plan installs packages, hosts next to each other; a converged host is not
asked.  Where the answer changes the plan, the new one is asked about in its turn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from gpunode.core.errors import GpunodeError
from gpunode.core.knowledge import Knowledge
from gpunode.core.late import dataclass, replace
from gpunode.core.model import Archive, Plan, Problem
from gpunode.core.plan.question import (
    Request,
    Transaction,
    cannot,
    not_resolved,
    question,
    read_answer,
    refused,
    transaction,
    with_versions,
    without_way,
)
from gpunode.core.solve.archive import names_to_ask
from gpunode.core.solve.case import request_of
from gpunode.edge.desired import Planned
from gpunode.edge.share import in_its_share

ROUNDS = 5  # the first plan, without repositories that could not be read, what the archive made of it, next candidates
FETCHES = ("apt", "dnf", "zypper")  # read a repository that is not set up into a folder of the question's own


@dataclass(kw_only=True)
class Talk:
    """The questions to one node, until its plan stands."""

    planned: Planned
    knowledge: Knowledge
    replan: Callable[[Archive], Planned]
    lacking: Callable[[Planned, str], Sequence[Problem]] = lambda *_: ()  # by the indexes, of what a refusal names
    _names: tuple[str, ...] = ()
    _archive: Archive = Archive()
    _asked: Transaction | None = None
    _first: tuple[Planned, str] | None = None  # the first candidate that cannot be had, and why
    _unread: str = ""  # why the node cannot read a repository that the plan sets up
    _rounds: int = 0

    def request(self) -> Request | None:
        """The next question; None where there is none: the plan stands."""
        self._names = names_to_ask(request_of(self.planned.facts, self.planned.spec), self.knowledge)
        self._asked = self._transaction(self.planned)
        if self._asked is None and self.planned.plan.problems and self._names and not self._rounds:
            # a plan is refused by what is known of the archive from elsewhere: what does it have?
            self._asked = Transaction(value={"install": []})
        if self._asked is None:
            return None
        self._rounds += 1
        opened = self.planned.secrets.open_data
        asked = replace(self._asked, value=opened(self._asked.value), coming=opened(self._asked.coming))
        return question(asked, self._names)

    def _transaction(self, planned: Planned) -> Transaction | None:
        fetch = not self._unread and planned.facts.package_manager in FETCHES
        return transaction(planned.plan, planned.solution, fetch=fetch)

    def heard(self, answer: tuple[str, int] | str) -> bool:
        """Whether the plan stands by an answer, or by a text that says why there is none that can be used."""
        if not isinstance(answer, str):
            done = in_its_share("", partial(self.hear, *answer))
            if not isinstance(done, GpunodeError):
                return done
            answer = f"the answer of the package manager cannot be used: {done.what}"
        return self.end(not_resolved(self.planned.plan, (answer,)))

    def hear(self, stdout: str, rc: int) -> bool:
        """Take an answer; whether the plan stands."""
        assert self._asked
        answer, plan = read_answer(stdout, rc, self._names), self.planned.plan
        self._archive = replace(answer.archive, unresolved=self._archive.unresolved)
        if answer.verdict == "unknown" and self._asked.coming:
            self._unread = answer.why
            return False
        if answer.problem:
            return self.end(refused(plan, answer.problem))
        fails = answer.verdict == "fails"
        self._first = self._first or ((self.planned, answer.why) if fails else None)
        again = self.replan(self._archive)
        refuses = fails and self._same(again)  # else: no module or headers of what was asked for, there is another plan
        if refuses:  # by what the archive has it could be had, and yet it cannot
            self._archive = without_way(self._archive, self.planned.solution, answer.why)
            again = self.replan(self._archive)
            refuses = bool(again.plan.problems) or self._same(again)
        left = bool(self._transaction(again)) and not self._same(again)
        if refuses or (left and self._rounds == ROUNDS):
            self.planned, why = self._first or (self.planned, "")
            return self.end(refused(self.planned.plan, *(self.lacking(self.planned, why) or [cannot(why)])))
        self.planned = again
        if answer.versions and self._same(again):
            plan, solution = with_versions(again.plan, again.solution, answer.versions)
            self.planned = again = replace(again, plan=plan, solution=solution)
        unknown = self._unknown(answer.why) if answer.verdict == "unknown" else ()
        why = "; ".join((*self._left(self._asked.unasked), *unknown))
        return not left and self.end(not_resolved(again.plan, (why,) if why else ()))

    def _same(self, again: Planned) -> bool:
        """Whether it has the transaction that was asked about."""
        return self._transaction(again) == self._asked

    def _unknown(self, why: str) -> tuple[str, ...]:
        """What to say where the package manager could not tell; of headers alone only where some are to come."""
        assert self._asked
        if not self._asked.unasked:
            return (why,)
        new = [one["name"] for one in self._asked.value["install"] if one["name"] not in self.planned.facts.packages]
        return (f"{', '.join(new)}: {why}",) if new else ()

    def _left(self, repositories: Sequence[str]) -> tuple[str, ...]:
        """What to say of repositories that the plan sets up, and what comes from them; nothing of those looked up."""
        left = [name for name in repositories if name not in self.planned.looked_up]
        steps, solution = self.planned.plan.steps, self.planned.solution
        roles = [
            s
            for s in steps
            if s.option == "packages" and getattr(getattr(solution, s.role, None), "repository", "") in left
        ]
        packages = ", ".join(one["name"] for step in roles for one in step.value["install"])
        why = self._unread or "no index was read"
        one = "repository" if len(left) == 1 else "repositories"
        text = f"{one} {', '.join(left)}: set up by this plan, and {why} (--check-repositories)"
        return (f"{text}; from there: {packages}" if packages else text,) if left else ()

    def end(self, plan: Plan) -> bool:
        """The plan as it stands."""
        self.planned = replace(self.planned, plan=plan)
        return True


def settle(talks: Sequence[Talk], ask: Callable[[Mapping[int, Request]], Mapping[int, tuple[str, int] | str]]) -> None:
    """Ask until all plans stand: each round those together that have a question; a text says why nobody answered."""
    left = dict(enumerate(talks))
    while requests := {n: request for n, talk in left.items() if (request := talk.request()) is not None}:
        answers = ask(requests)
        heard = {number: left[number].heard(answer) for number, answer in answers.items()}
        left = {number: left[number] for number, done in heard.items() if not done}
