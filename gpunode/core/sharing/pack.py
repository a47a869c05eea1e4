"""Does a request for MIG instances fit on a GPU, and where: an exact search of a few thousand cases at most."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from gpunode.core.late import dataclass
from gpunode.core.sharing.mig import Product, Profile


@dataclass(frozen=True, kw_only=True, order=True)
class Placement:
    """One instance: `start` and `size` in memory slices; start -1 where the driver chooses it."""

    start: int
    size: int
    profile: str
    id: int


def place(product: Product, request: Mapping[str, int]) -> tuple[Placement, ...] | None:
    """Where each instance of the request (profile → count) lies, by start; None when it does not fit.

    Every name is a profile of the product.  Exact: None means that no order and no placement makes it fit.
    """
    counts = tuple(request.get(p.name, 0) for p in product.profiles)
    if _reason(product, counts):
        return None
    found = _search(product, counts)
    if found is None:
        return None
    return tuple(
        sorted(
            Placement(start=start if product.placed else -1, size=p.memory, profile=p.name, id=p.id)
            for p, start in found
        )
    )


def why_not(product: Product, request: Mapping[str, int]) -> str:
    """The reason that a request does not fit, "" when it does."""
    counts = tuple(request.get(p.name, 0) for p in product.profiles)
    if reason := _reason(product, counts):
        return reason
    if _search(product, counts) is not None:
        return ""
    parts = [f"{p.name} at {' '.join(map(str, p.starts))}" for p, n in zip(product.profiles, counts, strict=True) if n]
    return f"the places overlap: of {product.memory} memory slices an instance may start only so: {'; '.join(parts)}"


def _reason(product: Product, counts: tuple[int, ...]) -> str:
    """What is used up, by sums alone."""
    wanted = [(p, n) for p, n in zip(product.profiles, counts, strict=True) if n]
    for p, n in wanted:
        if n > p.most:
            return f"{n} × {p.name}, and a GPU takes at most {p.most}"
    for what, total in (("compute", product.compute), ("memory", product.memory)):
        used = sum(n * getattr(p, what) for p, n in wanted)
        if used > total:
            return f"{used} {what} slices, and a GPU has {total}"
    for what, total, words in (("ofa", product.ofa, "optical flow engine"), ("media", product.media, "media engines")):
        used = sum(n * getattr(p, what) for p, n in wanted)
        if used > total and used:
            names = " and ".join(p.name for p, _ in wanted if getattr(p, what))
            return f"{names} want {used} of the {words}, and a GPU has {total}"
    return ""


@cache
def _search(product: Product, counts: tuple[int, ...]) -> tuple[tuple[Profile, int], ...] | None:
    """Profile and start of every instance, the largest first; None when no way of placing them exists."""
    items = [p for p, n in zip(product.profiles, counts, strict=True) for _ in range(n)]
    items.sort(key=lambda p: (-p.memory, len(p.starts)))
    return _lay(tuple(items), 0)


def _lay(items: tuple[Profile, ...], taken: int) -> tuple[tuple[Profile, int], ...] | None:
    """`taken` is a bit mask of memory slices."""
    if not items:
        return ()
    first = items[0]
    for start in first.starts:
        bits = ((1 << first.memory) - 1) << start
        if bits & taken:
            continue
        rest = _lay(items[1:], taken | bits)
        if rest is not None:
            return ((first, start), *rest)
    return None
