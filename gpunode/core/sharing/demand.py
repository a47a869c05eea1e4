"""A table of demands: who wants how many instances, of which size; and the smallest profile that serves one."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpunode.core.errors import InputError
from gpunode.core.sharing.mig import Product, Profile

COLUMNS = ("name", "count", "memory", "compute", "profile")
MOST = 100_000  # instances of one row: above it a number is a slip
_MEMORY = re.compile(r"(\d+(?:\.\d+)?)\s*(gib|gi|mib|mi|gb|g|mb|m)?\Z", re.I)


@dataclass(frozen=True, kw_only=True)
class Demand:
    """`count` instances for `name`: of a profile, or with at least so much memory and so many compute slices.

    `gb` is compared with the GB in a profile's name, `gib` with what is usable of it.
    """

    name: str
    count: int = 1
    profile: str = ""
    gb: float = 0
    gib: float = 0
    compute: int = 0

    @property
    def words(self) -> str:
        """What is asked for, for a reader: `10 GB, 2 compute slices`."""
        parts = [self.profile] if self.profile else []
        parts += [f"{self.gb:g} GB"] if self.gb else []
        parts += [f"{self.gib:g} GiB"] if self.gib else []
        parts += [f"{self.compute} compute slice{'s' * (self.compute > 1)}"] if self.compute else []
        return ", ".join(parts)


def parse_demands(rows: Any, *, where: str) -> tuple[Demand, ...]:
    """Plain data (a list of mappings, of YAML, JSON or CSV) → demands.  Raises InputError that names the row."""
    if isinstance(rows, Mapping) and set(rows) == {"demands"}:
        rows = rows["demands"]
    if not isinstance(rows, Sequence) or isinstance(rows, str | bytes) or not rows:
        raise InputError(
            f"{where} is no table of demands",
            expected=f"a list of rows with {', '.join(COLUMNS)}",
            fix="see docs/sharing.md for an example",
        )
    demands = tuple(_demand(row, f"{where}: row {i}") for i, row in enumerate(rows, 1))
    names = [d.name for d in demands]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"{where}: {name!r} is in two rows", expected="a name of its own for each row")
    return demands


def choose(demand: Demand, product: Product) -> Profile | None:
    """The smallest profile that serves the demand, None where the product has none.

    Profiles without a suffix are nested: wherever a larger one lies, a smaller one would fit.  So the smallest is never
    the wrong one.
    """
    if demand.profile:
        return product.profile(demand.profile)
    enough = [
        p
        for p in product.profiles
        if p.plain and p.gb >= demand.gb and p.usable_gib >= demand.gib and p.compute >= demand.compute
    ]
    return min(enough, key=lambda p: (p.memory, p.compute), default=None)


def _demand(row: Any, where: str) -> Demand:
    if not isinstance(row, Mapping):
        raise InputError(f"{where} is {row!r}", expected=f"a mapping with {', '.join(COLUMNS)}")
    for key in row:
        if key not in COLUMNS:
            near = difflib.get_close_matches(str(key), COLUMNS, n=1)
            raise InputError(
                f"{where}: unknown column {key!r}",
                expected=f"one of {', '.join(COLUMNS)}",
                fix=f"did you mean {near[0]!r}?" if near else "remove it",
            )
    cells = {key: value for key, value in row.items() if value not in (None, "")}
    name = str(cells.get("name", "")).strip()
    if not name:
        raise InputError(f"{where} has no name", expected="a name, such as notebooks")
    gb, gib = _memory(cells.get("memory", 0), f"{where} ({name})")
    demand = Demand(
        name=name,
        count=_whole(cells.get("count", 1), "count", MOST, f"{where} ({name})"),
        profile=str(cells.get("profile", "")).strip().lower().removeprefix("mig").strip(" -"),
        gb=gb,
        gib=gib,
        compute=_whole(cells["compute"], "compute", 8, f"{where} ({name})") if "compute" in cells else 0,
    )
    if demand.profile and (demand.gb or demand.gib or demand.compute):
        raise InputError(
            f"{where} ({name}) has a profile, and memory or compute", expected="the one or the other, not both"
        )
    if not demand.words:
        raise InputError(f"{where} ({name}) asks for nothing", expected="memory, compute or profile")
    return demand


def _whole(value: Any, what: str, most: int, where: str) -> int:
    text = str(value).strip()
    if isinstance(value, bool) or not re.fullmatch(r"\d{1,9}", text) or not 1 <= int(text) <= most:
        raise InputError(f"{where}: {what} is {value!r}", expected=f"a whole number from 1 to {most}")
    return int(text)


def _memory(value: Any, where: str) -> tuple[float, float]:
    """`10`, `10GB` → GB as in profile names; `9.5GiB`, `9728Mi` → GiB that must be usable."""
    match = None if isinstance(value, bool) else _MEMORY.match(str(value).strip())
    if not match or (float(match[1]) == 0 and value != 0):
        raise InputError(
            f"{where}: memory is {value!r}",
            expected="GB as in the names of profiles (10, 10GB), or what must be usable (9.5GiB, 9728MiB)",
        )
    number, unit = float(match[1]), (match[2] or "gb").lower()
    if unit in ("gib", "gi"):
        return 0, number
    if unit in ("mib", "mi"):
        return 0, number / 1024
    return (number / 1000 if unit in ("mb", "m") else number), 0
