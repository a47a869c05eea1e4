"""The packer against brute force, and against layouts that NVIDIA's guide shows."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpunode.core.sharing.mig import Product, Profile
from gpunode.core.sharing.pack import place, why_not
from gpunode.edge.load import load_mig

PRODUCTS = {p.name: p for p in load_mig()}
A100 = PRODUCTS["A100/A800 40GB"]
A30 = PRODUCTS["A30 24GB"]
RTX6000 = PRODUCTS["RTX PRO 6000 Blackwell 96GB"]


def every_placing(items: Sequence[Profile]) -> bool:
    """Brute force: whether some choice of starts, out of all there are, overlaps nowhere."""
    for starts in itertools.product(*(p.starts for p in items)):
        cells = [c for p, start in zip(items, starts, strict=True) for c in range(start, start + p.memory)]
        if len(cells) == len(set(cells)):
            return True
    return False


def brute_force(product: Product, items: Sequence[Profile]) -> bool:
    sums = {what: sum(getattr(p, what) for p in items) for what in ("compute", "memory", "media", "ofa")}
    if any(used > getattr(product, what) for what, used in sums.items()):
        return False
    return all(items.count(p) <= p.most for p in items) and every_placing(items)


@st.composite
def requests(draw: st.DrawFn) -> tuple[Product, list[Profile]]:
    product = draw(st.sampled_from(load_mig()))
    return product, draw(st.lists(st.sampled_from(product.profiles), min_size=1, max_size=5))


def counted(items: Sequence[Profile]) -> dict[str, int]:
    return {p.name: items.count(p) for p in items}


@given(requests())
def test_a_request_fits_exactly_when_brute_force_finds_a_placing(layout: tuple[Product, list[Profile]]) -> None:
    product, items = layout
    possible = brute_force(product, items)
    assert (place(product, counted(items)) is not None) == possible
    assert (why_not(product, counted(items)) == "") == possible


@given(requests())
def test_what_is_placed_overlaps_nowhere_and_is_what_was_requested(layout: tuple[Product, list[Profile]]) -> None:
    product, items = layout
    found = place(product, counted(items))
    if found is None:
        return
    assert sorted(p.profile for p in found) == sorted(p.name for p in items)
    if product.placed:
        cells = [cell for p in found for cell in range(p.start, p.start + p.size)]
        assert len(cells) == len(set(cells)) and max(cells) < product.memory
        for p in found:
            profile = product.profile(p.profile)
            assert profile and p.start in profile.starts and p.size == profile.memory and p.id == profile.id


GUIDE = [  # layouts of NVIDIA's MIG user guide on an A100 40GB, with the places that the driver gave them
    ({"3g.20gb": 2}, [(0, 4), (4, 4)]),
    ({"3g.20gb": 1, "2g.10gb": 1, "1g.5gb": 2}, None),
    ({"2g.10gb": 1, "1g.5gb": 5}, None),
    ({"4g.20gb": 1, "3g.20gb": 1}, [(0, 4), (4, 4)]),
    ({"1g.5gb": 7}, [(n, 1) for n in range(7)]),
    ({"1g.10gb": 4}, [(0, 2), (2, 2), (4, 2), (6, 2)]),
    ({"2g.10gb": 3, "1g.10gb": 1}, [(0, 2), (2, 2), (4, 2), (6, 2)]),
    ({"7g.40gb": 1}, [(0, 8)]),
]


@pytest.mark.parametrize(("layout", "places"), GUIDE)
def test_layouts_of_the_guide_fit(layout: Mapping[str, int], places: list[tuple[int, int]] | None) -> None:
    found = place(A100, layout)
    assert found is not None
    if places is not None:
        assert [(p.start, p.size) for p in found] == places


REFUSED = [
    (A100, {"1g.5gb": 8}, "8 × 1g.5gb, and a GPU takes at most 7"),
    (A100, {"4g.20gb": 1, "3g.20gb": 2}, "10 compute slices, and a GPU has 7"),
    (A100, {"3g.20gb": 2, "1g.5gb": 1}, "9 memory slices, and a GPU has 8"),
    (A100, {"1g.5gb": 7, "1g.5gb+me": 1}, "8 compute slices, and a GPU has 7"),
    (A30, {"1g.6gb+me": 1, "2g.12gb+me": 1}, "1g.6gb+me and 2g.12gb+me want 2 of the optical flow engine"),
    (RTX6000, {"1g.24gb+me.all": 1, "1g.24gb": 1}, "want 5 of the media engines, and a GPU has 4"),
]


@pytest.mark.parametrize(("product", "layout", "reason"), REFUSED)
def test_a_request_that_does_not_fit_says_why(product: Product, layout: Mapping[str, int], reason: str) -> None:
    assert place(product, layout) is None
    assert reason in why_not(product, layout)


def test_instances_that_only_overlap_are_reported() -> None:
    layout = {"3g.20gb": 1, "1g.10gb": 1, "2g.10gb": 0, "1g.5gb": 3}
    assert why_not(A100, {"4g.20gb": 1, "1g.5gb": 1, "1g.5gb+me": 1, "1g.10gb": 1}) == ""  # 4 + 1 + 1 + 2 of memory
    assert why_not(A100, layout) == "9 memory slices, and a GPU has 8"
