"""The fewest driver stacks that serve a mixed fleet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from gpunode.core.knowledge import Knowledge
from gpunode.core.model import Problem
from gpunode.core.solve import SolveRequest, solve


@dataclass(frozen=True, kw_only=True)
class Stack:
    """One driver branch and flavour, and the hosts that are to have it."""

    branch: int
    flavour: str
    hosts: tuple[str, ...]
    distros: tuple[str, ...]
    gpus: tuple[str, ...]  # product names
    ended: bool = False  # the branch gets no more updates


@dataclass(frozen=True, kw_only=True)
class Stacks:
    """The stacks, that with the most hosts first, and what stands against the hosts that none serves."""

    stacks: tuple[Stack, ...]
    problems: Mapping[str, tuple[Problem, ...]]


def fleet_stacks(requests: Mapping[str, SolveRequest], knowledge: Knowledge) -> Stacks:
    """Host → request, in a greedy cover: each time the branch and flavour that serve most of the hosts left.

    Only long-term and production branches that still get updates are candidates, and for a host that none of them
    serves what solve() would choose for it alone.  Of equals the newest branch wins.
    """
    answers: dict[str, frozenset[tuple[int, str]]] = {}
    options: dict[str, frozenset[tuple[int, str]]] = {}
    problems: dict[str, tuple[Problem, ...]] = {}
    for host, request in requests.items():
        alike = replace(request, installed=(), loaded_driver="")  # what is there now does not bind the fleet
        if repr(alike) not in answers:
            answers[repr(alike)] = _options(alike, knowledge)
        options[host] = answers[repr(alike)]
        if not options[host]:
            problems[host] = solve(request, knowledge).problems
    left, stacks = {host for host, found in options.items() if found}, []
    while left:
        every = {option for host in left for option in options[host]}
        best = max(every, key=lambda option: (sum(option in options[host] for host in left), option))
        served = sorted(host for host in left if best in options[host])
        stacks.append(_stack(best, served, requests, knowledge))
        left -= set(served)
    return Stacks(stacks=tuple(sorted(stacks, key=lambda s: (-len(s.hosts), -s.branch))), problems=problems)


def _options(request: SolveRequest, knowledge: Knowledge) -> frozenset[tuple[int, str]]:
    alone = _choice(request, knowledge)
    if not alone:
        return frozenset()
    branches = [b for b in knowledge.branches.values() if b.kind in ("LTSB", "PB") and not b.ended(knowledge.as_of)]
    asked = request.driver.branch.isdigit() or request.driver.version or request.driver.method == "preinstalled"
    tries = [] if asked else [replace(request.driver, branch=str(b.branch)) for b in branches]
    found = {choice for spec in tries if (choice := _choice(replace(request, driver=spec), knowledge))}
    return frozenset(found or {alone})


def _choice(request: SolveRequest, knowledge: Knowledge) -> tuple[int, str] | None:
    solution = solve(request, knowledge)
    driver = solution.driver
    return (driver.branch, driver.flavour) if driver and not solution.problems else None


def _stack(
    option: tuple[int, str], hosts: list[str], requests: Mapping[str, SolveRequest], knowledge: Knowledge
) -> Stack:
    ids = sorted({gpu for host in hosts for gpu in requests[host].gpus})
    return Stack(
        branch=option[0],
        flavour=option[1],
        hosts=tuple(hosts),
        distros=tuple(sorted({requests[host].distro for host in hosts})),
        gpus=tuple(dict.fromkeys(_name(pci_id, knowledge) for pci_id in ids)),
        ended=knowledge.branches[option[0]].ended(knowledge.as_of),
    )


def _name(pci_id: str, knowledge: Knowledge) -> str:
    model = knowledge.gpu(pci_id)
    return model.name.removeprefix("NVIDIA ") if model else pci_id


def stacks_text(answer: Stacks, *, without_gpu: Iterable[str] = ()) -> Iterator[str]:
    """The lines that `solve --probe` prints: a row for each stack, then the hosts that have none, and why."""
    served = sum(len(stack.hosts) for stack in answer.stacks)
    if answer.stacks:
        yield f"{'driver':<17} {'hosts':>5}  distributions, GPUs, names"
    for stack in answer.stacks:
        ended = ["support of this branch has ended"] if stack.ended else []
        first, *others = [*(_shortened(w) for w in (stack.distros, stack.gpus, stack.hosts)), *ended]
        yield f"{f'{stack.branch} {stack.flavour}':<17} {len(stack.hosts):>5}  {first}"
        yield from (f"{'':<25}{text}" for text in others)
    alike: dict[tuple[Problem, ...], list[str]] = {}
    for host, problems in answer.problems.items():
        alike.setdefault(problems, []).append(host)
    for listed, hosts in alike.items():
        yield f"no stack  {'':<7} {len(hosts):>5}  {_shortened(hosts)}"
        for problem in listed:
            yield f"{'':<25}problem: {problem.what}"
            yield f"{'':<27}do next: {problem.fix}"
    if idle := list(without_gpu):
        yield f"no GPU    {'':<7} {len(idle):>5}  {_shortened(idle)}"
    number = f"{len(answer.stacks)} stack{'s' * (len(answer.stacks) != 1)}"
    yield f"{number} for {served} of {served + len(answer.problems)} hosts with an NVIDIA GPU"


def _shortened(words: Iterable[str], most: int = 4) -> str:
    """The first few of many words, and how many more there are."""
    every = list(words)
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(every[:most]) + more
