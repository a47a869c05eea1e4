"""What `gpunode sharing` reads: MIG's knowledge, tables of demands, and the GPUs that saved probes show."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from gpunode.core.errors import InputError, RefusedError
from gpunode.core.model import NodeFacts
from gpunode.core.sharing.demand import Demand, parse_demands
from gpunode.core.sharing.fleet import Supply
from gpunode.core.sharing.mig import Product, find_product, product_of
from gpunode.edge.detect import Targets, detect
from gpunode.edge.load import load_knowledge, load_mig, load_spec_data


def load_demands(path: Path) -> tuple[Demand, ...]:
    """A table of demands: .csv with a header line, else YAML or JSON.  Raises InputError."""
    rows: Any = _csv(path) if path.suffix.lower() == ".csv" else load_spec_data(path)
    return parse_demands(rows, where=str(path))


def _csv(path: Path) -> list[dict[str, str]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.DictReader(file, skipinitialspace=True, restkey="cells without a column"))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"cannot read {path}: {reason}", expected="a table in CSV, with a header line") from error
    return [{str(k).strip(): v for k, v in row.items()} for row in rows]


def named_supplies(texts: tuple[str, ...]) -> tuple[Supply, ...]:
    """`--gpu NAME` (as many as it takes) and `--gpu NAME=N` → supplies, one a product.  Raises InputError."""
    counts: dict[Product, int | None] = {}
    for text in texts:
        name, equals, number = text.partition("=")
        product = find_product(name, load_mig(), load_knowledge())
        if not equals:
            counts[product] = None
            continue
        if not number.strip().isdecimal() or not 1 <= int(number) <= 10_000:
            raise InputError(f"--gpu {text}", expected="NAME=N with N from 1 to 10000, such as 'A100 80GB=4'")
        before = counts.get(product, 0)
        counts[product] = None if before is None else before + int(number)
    return tuple(
        Supply(product=p, names=None if n is None else tuple(f"{p.name} #{i + 1}" for i in range(n)))
        for p, n in counts.items()
    )


def probed_supplies(probes: tuple[Path, ...]) -> tuple[tuple[Supply, ...], tuple[str, ...]]:
    """The GPUs of saved probes as supplies, each named HOST:INDEX; and why others are left out.

    Raises RefusedError when no GPU of them can be cut.
    """
    names: dict[Product, list[str]] = {}
    left_out: list[str] = []
    for one in detect(Targets(probes=probes)):
        if one.error or one.facts is None:
            raise one.error or InputError(f"{one.host}: no facts")
        for index, product in enumerate(products_of(one.facts)):
            if isinstance(product, RefusedError):
                left_out.append(f"{one.host}:{index}: {product.what}")
            else:
                names.setdefault(product, []).append(f"{one.host}:{index}")
    if not names:
        raise RefusedError(
            "no GPU of these probes can be cut by MIG", expected="; ".join(left_out), fix="name GPUs by --gpu"
        )
    return tuple(Supply(product=p, names=tuple(n)) for p, n in names.items()), tuple(left_out)


def products_of(facts: NodeFacts) -> list[Product | RefusedError]:
    """For each GPU, in the order of the PCI bus (nvidia-smi's), its product or why it has none."""
    found: list[Product | RefusedError] = []
    memory = {gpu.slot: gpu.memory_mib for gpu in facts.nvml}
    for gpu in sorted(facts.gpus, key=lambda g: g.slot):
        try:
            found.append(product_of(gpu.id, load_mig(), load_knowledge(), memory_mib=memory.get(gpu.slot)))
        except RefusedError as error:
            found.append(error)
    return found
