"""The fewest GPUs that hold a table of demands: bin packing where each bin is a GPU that MIG cuts.

A bin's content is exact (pack.py).  The number of bins is searched depth first below a greedy answer and above a lower
bound; where the two meet, or the search ends, the answer is proved to be the least.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from gpunode.core.sharing.demand import Demand, choose
from gpunode.core.sharing.mig import Product
from gpunode.core.sharing.pack import Placement, fits, place

EFFORT = 20_000  # steps of the search: a second or two
DEEPEST = 200  # GPUs that the search goes through; more of them are left to the greedy answer

Counts = tuple[int, ...]  # how many of each kind of demand


@dataclass(frozen=True, kw_only=True)
class Supply:
    """GPUs of one product.  `names` None: as many as it takes."""

    product: Product
    names: tuple[str, ...] | None = None

    @property
    def count(self) -> int:
        return DEEPEST * 1000 if self.names is None else len(self.names)


@dataclass(frozen=True, kw_only=True)
class Cut:
    """One GPU and what lies on it, each instance with the name of the demand it is for."""

    gpu: str
    product: Product
    instances: tuple[tuple[Placement, str], ...]

    @property
    def compute(self) -> int:
        """Compute slices in use."""
        profiles = {p.name: p for p in self.product.profiles}
        return sum(profiles[placement.profile].compute for placement, _ in self.instances)

    @property
    def memory(self) -> int:
        """Memory slices in use."""
        return sum(placement.size for placement, _ in self.instances)


@dataclass(frozen=True, kw_only=True)
class Packing:
    """The answer.  `impossible` are demands that no GPU at hand can hold; `missing` GPUs are lacking for the others."""

    cuts: tuple[Cut, ...] = ()
    impossible: tuple[Demand, ...] = ()
    needed: int = 0  # GPUs that it takes, where enough of the same kinds were at hand
    missing: int = 0
    proved: bool = True  # fewer GPUs are known not to do


def pack(demands: Sequence[Demand], supplies: Sequence[Supply]) -> Packing:
    """The demands on the fewest GPUs of the supplies, each of which is another product."""
    impossible = tuple(d for d in demands if all(choose(d, s.product) is None for s in supplies))
    if impossible:
        return Packing(impossible=impossible)
    task = _Task(supplies=tuple(supplies), demands=tuple(demands))
    found = task.solve()
    if found is None:
        endless = _Task(supplies=tuple(Supply(product=s.product) for s in supplies), demands=tuple(demands))
        needed = len(endless.solve() or ())
        at_hand = sum(s.count for s in supplies)
        return Packing(needed=needed, missing=max(1, needed - at_hand), proved=task.proved and endless.proved)
    return Packing(cuts=_cuts(task, found), needed=len(found), proved=task.proved)


@dataclass
class _Task:
    """One search.  A bin is (index of the supply, counts of each kind)."""

    supplies: tuple[Supply, ...]
    demands: tuple[Demand, ...]
    kinds: list[tuple[str, ...]] = field(default_factory=list)  # profile by supply, "" where it has none
    proved: bool = True
    steps: int = 0
    dead: dict[tuple[Counts, Counts], int] = field(default_factory=dict)
    filled: dict[tuple[int, Counts], list[Counts]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        wanted: dict[tuple[str, ...], int] = {}
        for demand in self.demands:
            kind = self.kind(demand)
            wanted[kind] = wanted.get(kind, 0) + demand.count
        self.kinds = sorted(wanted, key=self._size, reverse=True)
        self.counts = tuple(wanted[kind] for kind in self.kinds)

    def kind(self, demand: Demand) -> tuple[str, ...]:
        found = (choose(demand, s.product) for s in self.supplies)
        return tuple(p.name if p else "" for p in found)

    def _size(self, kind: tuple[str, ...]) -> tuple[float, float, tuple[str, ...]]:
        """How hard a kind is to place: the share of a GPU that it takes, of memory first."""
        profiles = [(s.product, s.product.profile(name)) for s, name in zip(self.supplies, kind, strict=True) if name]
        memory = max(p.memory / product.memory for product, p in profiles if p)
        return memory, max(p.compute / product.compute for product, p in profiles if p), kind

    def solve(self) -> list[tuple[int, Counts]] | None:
        """The bins of the best answer, None where the GPUs at hand do not do."""
        available = tuple(s.count for s in self.supplies)
        best = self._greedy(available)
        least = self._least(self.counts)
        if best is not None and len(best) == least:
            return best
        most = min(len(best) - 1 if best is not None else sum(available), DEEPEST)
        for bins in range(least, most + 1):
            found = self._search(self.counts, available, bins)
            if self.steps > EFFORT:
                break
            if found is not None:
                return found
        self.proved = self.steps <= EFFORT and (best is None or len(best) <= DEEPEST + 1)
        return best

    def _least(self, counts: Counts) -> int:
        """A number of bins that every answer has at least: by compute, by memory, and kind by kind."""
        bounds = [0.0]
        for what in ("compute", "memory"):
            shares = (n * self._share(kind, what) for kind, n in zip(self.kinds, counts, strict=True))
            bounds.append(sum(shares))
        bounds += [n / self._alone(i) for i, n in enumerate(counts) if n]
        return max(-int(-(bound - 1e-9) // 1) for bound in bounds)

    def _share(self, kind: tuple[str, ...], what: str) -> float:
        """The least share of a GPU's slices that the kind takes on any product."""
        found = ((s.product, s.product.profile(name)) for s, name in zip(self.supplies, kind, strict=True) if name)
        return min(int(getattr(p, what)) / int(getattr(product, what)) for product, p in found if p)

    def _alone(self, index: int) -> int:
        """How many of one kind a GPU holds at most."""
        found = (s.product.profile(name) for s, name in zip(self.supplies, self.kinds[index], strict=True) if name)
        return max(p.most for p in found if p)

    def _greedy(self, available: Counts) -> list[tuple[int, Counts]] | None:
        """Bin by bin, each the fullest that holds the hardest kind left; the same one as often as it can be."""
        left, stock, bins = list(self.counts), list(available), list[tuple[int, Counts]]()
        while any(left):
            options = [
                (self._weight(s, pattern), -s, pattern)
                for s in range(len(self.supplies))
                if stock[s]
                for pattern in self._patterns(s, tuple(left))
            ]
            if not options:
                return None
            _, negative, pattern = max(options)
            s = -negative
            times = min([stock[s], *(have // n for have, n in zip(left, pattern, strict=True) if n)])
            bins += [(s, pattern)] * times
            stock[s] -= times
            left = [have - times * n for have, n in zip(left, pattern, strict=True)]
        return bins

    def _weight(self, supply: int, pattern: Counts) -> float:
        product = self.supplies[supply].product
        names = (kind[supply] for kind in self.kinds)
        profiles = ((product.profile(name), n) for name, n in zip(names, pattern, strict=True) if n)
        return sum((n * (p.memory / product.memory + p.compute / product.compute) for p, n in profiles if p), 0.0)

    def _search(self, left: Counts, available: Counts, bins: int) -> list[tuple[int, Counts]] | None:
        """At most `bins` more bins for what is left; None when that cannot be, or the effort is spent."""
        if not any(left):
            return []
        self.steps += 1
        if self.steps > EFFORT or self._least(left) > bins or self.dead.get((left, available), -1) >= bins:
            return None
        for s in range(len(self.supplies)):
            if not available[s]:
                continue
            stock = (*available[:s], available[s] - 1, *available[s + 1 :])
            for pattern in sorted(self._patterns(s, left), key=lambda p: -self._weight(s, p)):
                rest = tuple(have - n for have, n in zip(left, pattern, strict=True))
                found = self._search(rest, stock, bins - 1)
                if found is not None:
                    return [(s, pattern), *found]
        if self.steps <= EFFORT:
            self.dead[left, available] = bins
        return None

    def _patterns(self, supply: int, left: Counts) -> list[Counts]:
        """The fillings of one GPU that hold the hardest kind left and could take nothing more of what is left."""
        product = self.supplies[supply].product
        hardest = next(i for i, n in enumerate(left) if n)
        capped = tuple(min(n, product.compute) for n in left)
        key = (supply, capped)
        if key not in self.filled:
            options = [counts for counts in self._fillings(supply, capped) if counts[hardest]]
            self.filled[key] = [c for c in options if not any(_covers(o, c) for o in options if o != c)]
        return self.filled[key]

    def _fillings(self, supply: int, capped: Counts, head: Counts = ()) -> Iterator[Counts]:
        if len(head) == len(capped):
            yield head
            return
        name = self.kinds[len(head)][supply]
        for n in range(capped[len(head)] + 1 if name else 1):
            counts = (*head, n)
            if not self._fits(supply, counts):
                return
            yield from self._fillings(supply, capped, counts)

    def _fits(self, supply: int, counts: Counts) -> bool:
        product = self.supplies[supply].product
        request = self.profile_counts(supply, counts)
        return fits(product, tuple(request.get(p.name, 0) for p in product.profiles))

    def profile_counts(self, supply: int, counts: Counts) -> dict[str, int]:
        """Counts of kinds as counts of profiles; two kinds may be the same profile of one product."""
        request: dict[str, int] = {}
        for kind, n in zip(self.kinds, counts, strict=False):
            if n:
                request[kind[supply]] = request.get(kind[supply], 0) + n
        return request


def _covers(more: Counts, less: Counts) -> bool:
    return all(a >= b for a, b in zip(more, less, strict=True))


def _cuts(task: _Task, bins: Sequence[tuple[int, Counts]]) -> tuple[Cut, ...]:
    """The bins as GPUs by name, each instance given to a demand, in the table's order."""
    names = [iter(s.names) if s.names is not None else _numbered(s.product) for s in task.supplies]
    queues = {
        kind: iter([d.name for d in task.demands if task.kind(d) == kind for _ in range(d.count)])
        for kind in task.kinds
    }
    cuts = []
    for supply, counts in bins:
        product = task.supplies[supply].product
        waiting = [
            (kind[supply], next(queues[kind])) for kind, n in zip(task.kinds, counts, strict=True) for _ in range(n)
        ]
        placements = place(product, task.profile_counts(supply, counts)) or ()
        instances = []
        for placement in placements:
            index = next(i for i, (profile, _) in enumerate(waiting) if profile == placement.profile)
            instances.append((placement, waiting.pop(index)[1]))
        cuts.append(Cut(gpu=next(names[supply]), product=product, instances=tuple(instances)))
    return tuple(cuts)


def _numbered(product: Product) -> Iterator[str]:
    return (f"{product.name} #{n}" for n in itertools.count(1))
