"""How a fleet is gone through, as a pure function: pools and what came of their hosts → what to do next.

A host is waiting, running, done or failed.  A wave is over when none of its hosts waits or runs; its gate (a soak time,
after which its hosts are verified once more) has to be passed before the next one starts.  Hosts in work, failed ones
and those that were down before are unavailable: no host is taken that would make them more than the pool's budget.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal

from gpunode.core.grouped import grouped
from gpunode.core.late import dataclass, field, replace
from gpunode.core.spec.rollout import RolloutSpec, share

State = Literal["waiting", "running", "done", "pending", "failed"]  # pending: without a GPU


@dataclass(frozen=True, kw_only=True)
class RolloutPool:
    """Hosts with one budget, in the order in which they are done; `ends`: how many are done when each wave is over.

    `down`: hosts of the pool that are unavailable before it begins, also such that nothing is done on.
    """

    name: str
    hosts: tuple[str, ...]
    ends: tuple[int, ...]
    max_unavailable: int
    max_failures: int
    soak: int = 0  # seconds
    down: frozenset[str] = frozenset()

    def wave(self, number: int) -> tuple[str, ...]:
        """The hosts of a wave, counted from 0."""
        start = self.ends[number - 1] if number else 0
        return self.hosts[start : self.ends[number]]


@dataclass(frozen=True, kw_only=True)
class Progress:
    """What came of the hosts so far, and how many gates each pool has passed."""

    states: Mapping[str, State] = field(default_factory=dict)  # a host that is not in it waits
    gates: Mapping[str, int] = field(default_factory=dict)  # by pool
    stopped: str = ""  # why nothing more is started

    def with_states(self, hosts: Iterable[str], state: State) -> Progress:
        return replace(self, states={**self.states, **dict.fromkeys(hosts, state)})

    def past_gate(self, pool: str) -> Progress:
        return replace(self, gates={**self.gates, pool: self.gates.get(pool, 0) + 1})

    def state(self, host: str) -> State:
        return self.states.get(host, "waiting")


@dataclass(frozen=True, kw_only=True)
class Start:
    """Begin with these hosts."""

    pool: str
    wave: int
    hosts: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Gate:
    """Wait `soak` seconds, verify these hosts, then say `past_gate` (and which of them have failed)."""

    pool: str
    wave: int
    soak: int
    hosts: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Stop:
    """A budget is used up: start nothing more."""

    pool: str
    why: str


Action = Start | Gate | Stop


def make_pools(
    hosts: Sequence[tuple[str, RolloutSpec]],
    last: Collection[str] = (),
    down: Collection[str] = (),
    idle: Iterable[tuple[str, RolloutSpec]] = (),
) -> tuple[RolloutPool, ...]:
    """Hosts with their merged `rollout` sections, in the inventory's order → pools; those in `last` end their pool.

    `down` are those of `hosts` that are unavailable already, `idle` others that are, and that nothing is done on.
    Where they use up the budget they come first: nobody else could be started before they are back.
    """
    members = grouped((spec, host) for host, spec in hosts)
    beside: dict[RolloutSpec, set[str]] = {}
    for host, spec in idle:
        beside.setdefault(spec, set()).add(host)
    names = Counter(spec.pool or "all" for spec in members)
    pools = []
    for number, (spec, found) in enumerate(members.items(), 1):
        name = spec.pool or "all"
        away = frozenset({*beside.get(spec, ()), *(host for host in found if host in down)})
        most = share(spec.max_unavailable, len({*found, *away}))
        order = sorted(found) if spec.order == "name" else list(found)
        order.sort(key=lambda host: host in last)
        if len(away) >= most:
            order.sort(key=lambda host, away=away: host not in away)  # type: ignore[misc]
        pools.append(
            RolloutPool(
                name=f"{name}-{number}" if names[name] > 1 else name,
                hosts=tuple(order),
                ends=tuple(sorted({share(wave, len(found)) for wave in spec.waves} - {0})),
                max_unavailable=most,
                max_failures=share(spec.max_failures, len(found)),
                soak=spec.soak,
                down=away,
            )
        )
    return tuple(pools)


def next_actions(pools: Sequence[RolloutPool], progress: Progress) -> tuple[Action, ...]:
    """What to do now; () means: wait for what runs, or, when nothing runs, that it is over."""
    if progress.stopped:
        return ()
    found = [action for pool in pools if (action := _next(pool, progress))]
    stops = tuple(action for action in found if isinstance(action, Stop))
    return stops or tuple(found)


def _next(pool: RolloutPool, progress: Progress) -> Action | None:
    states = Counter(progress.state(host) for host in pool.hosts)
    if states["failed"] > pool.max_failures and states["waiting"]:
        return Stop(pool=pool.name, why=f"{states['failed']} failed, {pool.max_failures} may (rollout.max_failures)")
    number = progress.gates.get(pool.name, 0)
    wave = pool.wave(number)
    waiting = [host for host in wave if progress.state(host) == "waiting"]
    if waiting:
        down = sorted(host for host in pool.down if progress.state(host) == "waiting")
        room = pool.max_unavailable - states["running"] - states["failed"] - len(down)
        fresh = [host for host in waiting if host not in pool.down]
        if fresh and room > 0:
            return Start(pool=pool.name, wave=number, hosts=tuple(fresh[:room]))
        if fresh and states["running"]:
            return None
        if again := [host for host in waiting if host in pool.down]:  # they take no room: it is theirs already
            return Start(pool=pool.name, wave=number, hosts=tuple(again))
        before = f", {len(down)} unavailable from before ({', '.join(down[:5])})" if down else ""
        why = f"{states['failed']} failed{before}, {pool.max_unavailable} may be unavailable (rollout.max_unavailable)"
        return Stop(pool=pool.name, why=why)
    if any(progress.state(host) == "running" for host in wave) or number + 1 >= len(pool.ends):
        return None
    verified = tuple(host for host in wave if progress.state(host) == "done")
    return Gate(pool=pool.name, wave=number, soak=pool.soak, hosts=verified)
