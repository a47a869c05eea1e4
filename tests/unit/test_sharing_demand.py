"""Tables of demands, and the profile that serves one."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from gpunode.core.errors import InputError
from gpunode.core.sharing.demand import Demand, choose, parse_demands
from gpunode.edge.load import load_mig

PRODUCTS = {p.name: p for p in load_mig()}


@pytest.mark.parametrize(
    ("row", "demand"),
    [
        ({"name": "a", "memory": 10}, Demand(name="a", gb=10)),
        ({"name": "a", "memory": "10GB", "count": "3"}, Demand(name="a", gb=10, count=3)),
        ({"name": "a", "memory": "9.5 GiB"}, Demand(name="a", gib=9.5)),
        ({"name": "a", "memory": "9728Mi"}, Demand(name="a", gib=9.5)),
        ({"name": "a", "compute": 2, "memory": ""}, Demand(name="a", compute=2)),
        ({"name": "a", "profile": "MIG 1G.10GB"}, Demand(name="a", profile="1g.10gb")),
    ],
)
def test_a_row_becomes_a_demand(row: dict[str, Any], demand: Demand) -> None:
    assert parse_demands([row], where="f") == (demand,)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "f is no table of demands"),
        ("text", "f is no table of demands"),
        ([3], "row 1 is 3"),
        ([{"count": 1, "compute": 1}], "row 1 has no name"),
        ([{"name": "a"}], "row 1 (a) asks for nothing"),
        ([{"name": "a", "memroy": 1}], "unknown column 'memroy'"),
        ([{"name": "a", "memory": "ten"}], "memory is 'ten'"),
        ([{"name": "a", "memory": "-1"}], "memory is '-1'"),
        ([{"name": "a", "memory": "0GB"}], "memory is '0GB'"),
        ([{"name": "a", "compute": 9}], "compute is 9"),
        ([{"name": "a", "compute": 1, "count": 0}], "count is 0"),
        ([{"name": "a", "compute": 1, "count": True}], "count is True"),
        ([{"name": "a", "compute": 1, "count": 10**9}], "count is 1000000000"),
        ([{"name": "a", "compute": 1, "profile": "1g.5gb"}], "has a profile, and memory or compute"),
        ([{"name": "a", "compute": 1}, {"name": "a", "compute": 2}], "'a' is in two rows"),
    ],
)
def test_a_table_that_makes_no_sense_is_refused(rows: Any, message: str) -> None:
    with pytest.raises(InputError, match=None) as caught:
        parse_demands(rows, where="f")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("product", "demand", "profile"),
    [
        ("A100/A800 40GB", Demand(name="a", gb=5), "1g.5gb"),
        ("A100/A800 40GB", Demand(name="a", gb=6), "1g.10gb"),  # not 2g.10gb: one compute slice is enough
        ("A100/A800 40GB", Demand(name="a", gb=10, compute=2), "2g.10gb"),
        ("A100/A800 40GB", Demand(name="a", compute=5), "7g.40gb"),
        ("A100/A800 40GB", Demand(name="a", gib=5), "1g.10gb"),  # 1g.5gb has 4.75 GiB
        ("H100/H800 80GB", Demand(name="a", gb=10), "1g.10gb"),
        ("H100/H800 80GB", Demand(name="a", gib=10), "1g.20gb"),  # 1g.10gb has 9.75 GiB
        ("H200 141GB", Demand(name="a", gib=17), "1g.35gb"),  # 1g.18gb has 16 GiB
        ("A30 24GB", Demand(name="a", profile="2g.12gb+me"), "2g.12gb+me"),
        ("A30 24GB", Demand(name="a", profile="3g.20gb"), None),
        ("A30 24GB", Demand(name="a", gb=40), None),
    ],
)
def test_the_smallest_profile_that_serves_is_chosen(product: str, demand: Demand, profile: str | None) -> None:
    found = choose(demand, PRODUCTS[product])
    assert (found.name if found else None) == profile


def test_profiles_without_a_suffix_are_nested() -> None:
    """What `choose` rests on: in every place of a larger profile a smaller one may lie."""
    for product in PRODUCTS.values():
        chain = sorted((p for p in product.profiles if p.plain), key=lambda p: (p.memory, p.compute))
        for small, large in itertools.pairwise(chain):
            assert small.compute <= large.compute and small.media <= large.media and small.gb <= large.gb
            for start in large.starts:
                assert any(start <= s and s + small.memory <= start + large.memory for s in small.starts)
