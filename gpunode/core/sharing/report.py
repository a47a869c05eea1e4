"""A packing as plain data, as a drawing, and as the configuration that makes it so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpunode.core.model import Problem
from gpunode.core.sharing.demand import Demand
from gpunode.core.sharing.fleet import Cut, Packing, Supply
from gpunode.core.sharing.mig import Group, Product, mig_parted

CELL = 9  # characters of one memory slice in the drawing


def packing_data(packing: Packing, problems: Sequence[Problem]) -> dict[str, Any]:
    """The shape of `gpunode sharing plan --format json` (docs/sharing.md)."""
    return {
        "gpus": [
            {
                "gpu": cut.gpu,
                "product": cut.product.name,
                "instances": [
                    {
                        "demand": demand,
                        "profile": p.profile,
                        "id": p.id if p.id >= 0 else None,
                        "start": p.start if p.start >= 0 else None,
                        "size": p.size,
                    }
                    for p, demand in cut.instances
                ],
                "compute": {"used": cut.compute, "of": cut.product.compute},
                "memory": {"used": cut.memory, "of": cut.product.memory},
            }
            for cut in packing.cuts
        ],
        "needed": packing.needed,
        "missing": packing.missing,
        "proved": packing.proved,
        "problems": [{"what": p.what, "fix": p.fix} for p in problems],
    }


def packing_problems(packing: Packing, supplies: Sequence[Supply]) -> tuple[Problem, ...]:
    """Why a packing is not one: demands too large for any GPU, or too few GPUs."""
    products = [s.product for s in supplies]
    found = [_impossible(demand, products) for demand in packing.impossible]
    if packing.missing and packing.proved:
        at_hand = sum(s.count for s in supplies)
        what = f"the demands need {packing.needed} GPUs, and {at_hand} {'is' if at_hand == 1 else 'are'} at hand"
        if packing.needed <= at_hand:
            what = f"the demands do not fit on the {at_hand} GPUs at hand: they are of different kinds"
        found.append(
            Problem(what=what, fix="ask for less, or add GPUs (--gpu NAME without =N counts how many it takes)")
        )
    elif packing.missing:
        found.append(
            Problem(
                what="no way was found to fit the demands on the GPUs at hand; that there is none is not proved",
                fix="ask for less, or add GPUs",
            )
        )
    return tuple(found)


def _impossible(demand: Demand, products: Sequence[Product]) -> Problem:
    what = f"{demand.name} asks for {demand.words}, which no MIG instance of {', '.join(p.name for p in products)} has"
    if demand.profile:
        listed = "; ".join(f"{p.name}: {', '.join(one.name for one in p.profiles)}" for p in products)
        return Problem(what=what, fix=f"name one of its profiles: {listed}")
    largest = max((p for product in products for p in product.profiles), key=lambda p: (p.gb, p.compute))
    return Problem(what=what, fix=f"the largest is {largest.name} ({largest.usable_gib:g} GiB usable): ask for less")


def drawing(packing: Packing) -> str:
    """Each GPU as a row of memory slices, with what lies where, for whom, and how much of it is in use."""
    blocks = [_block(cut) for cut in packing.cuts]
    return "\n\n".join([*blocks, _totals(packing)]) + "\n"


def _block(cut: Cut) -> str:
    product = cut.product
    width = CELL * 8 // product.memory  # every GPU is drawn equally wide
    head = f"{cut.gpu}  ({product.name})" if not cut.gpu.startswith(product.name) else cut.gpu
    usage = f"compute {cut.compute}/{product.compute}, memory {cut.memory}/{product.memory}"
    names, demands, at = [], [], 0
    for placement, demand in cut.instances:
        start = placement.start if placement.start >= 0 else at
        if start > at:
            names.append(_cell("", start - at, width, "·"))
            demands.append(_cell("", start - at, width))
        names.append(_cell(placement.profile, placement.size, width))
        demands.append(_cell(demand, placement.size, width))
        at = start + placement.size
    if at < product.memory:
        names.append(_cell("", product.memory - at, width, "·"))
        demands.append(_cell("", product.memory - at, width))
    return f"{head}: {usage}\n  |{'|'.join(names)}|\n  |{'|'.join(demands)}|"


def _cell(text: str, slices: int, width: int, fill: str = " ") -> str:
    room = slices * width - 1
    return text[:room].center(room, fill) if text or fill != " " else " " * room


def _totals(packing: Packing) -> str:
    cuts = packing.cuts
    instances = sum(len(cut.instances) for cut in cuts)
    compute = 100 * sum(c.compute / c.product.compute for c in cuts) / max(1, len(cuts))
    memory = 100 * sum(c.memory / c.product.memory for c in cuts) / max(1, len(cuts))
    least = "the fewest that do" if packing.proved else "fewer are not ruled out"
    return (
        f"{instances} instances on {len(cuts)} GPU{'s' * (len(cuts) != 1)} ({least}): "
        f"{compute:.0f} % of compute and {memory:.0f} % of memory slices in use"
    )


def parted_of(packing: Packing) -> dict[str, Any]:
    """The packing as mig-parted's file: one configuration a host, `gpunode` where the GPUs have no host."""
    hosts: dict[str, list[tuple[int, Cut]]] = {}
    for number, cut in enumerate(packing.cuts):
        host, colon, index = cut.gpu.rpartition(":")
        known = bool(colon) and index.isdecimal()
        hosts.setdefault(host if known else "gpunode", []).append((int(index) if known else number, cut))
    return mig_parted({host: _groups(cuts) for host, cuts in hosts.items()})


def _groups(cuts: Sequence[tuple[int, Cut]]) -> tuple[Group, ...]:
    """GPUs with the same instances together."""
    alike: dict[tuple[tuple[str, int], ...], list[int]] = {}
    for index, cut in cuts:
        request: dict[str, int] = {}
        for placement, _ in cut.instances:
            request[placement.profile] = request.get(placement.profile, 0) + 1
        alike.setdefault(tuple(sorted(request.items())), []).append(index)
    return tuple(Group(layout=dict(request), devices=tuple(sorted(indices))) for request, indices in alike.items())


def products_table(products: Sequence[Product]) -> str:
    """The profiles of each product, a line each."""
    return "\n".join(_product_lines(product) for product in products)


def _product_lines(product: Product) -> str:
    mode = "kept over a reboot" if product.mode == "kept" else "lost at a reboot"
    lines = [
        f"{product.name}: {', '.join(product.ids)}; driver {product.driver} or later; MIG mode {mode}",
        f"  {'profile':<16}{'id':>3}{'at most':>9}{'compute':>9}{'memory':>8}{'usable':>11}  starts at",
    ]
    for p in product.profiles:
        usable = f"{p.usable_gib:.2f} GiB" if p.gib is not None else f"~{p.usable_gib:.0f} GiB"
        starts = " ".join(map(str, p.starts)) if product.placed else "the driver's choice"
        since = f" (driver {p.since} or later)" if p.since else ""
        lines.append(
            f"  {p.name:<16}{p.id if p.id >= 0 else '-':>3}{p.most:>9}{p.compute:>7}/{product.compute}"
            f"{f'{p.memory}/{product.memory}':>8}{usable:>11}  {starts}{since}"
        )
    lines += [f"  note: {product.note}"] if product.note else []
    return "\n".join([*lines, f"  source: {product.source}"]) + "\n"
