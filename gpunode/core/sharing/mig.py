"""What MIG can do with a GPU: knowledge/mig.toml as values, and the product that a PCI id or a name means."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from gpunode.core.errors import InputError, RefusedError
from gpunode.core.knowledge import Knowledge, source_of
from gpunode.core.late import dataclass
from gpunode.core.meant import meant

GIB_OF_GB = 0.88  # what at least is usable of a profile's GB, where nobody published it: H200's 1g.18gb has 16.0 GiB
SAME_MEMORY = 0.1  # a GPU whose memory differs by more from its product's is another product under the same id


@dataclass(frozen=True, kw_only=True)
class Profile:
    """A kind of GPU instance: 1g.10gb, 1g.10gb+me.  Slices are in the units of `nvidia-smi mig -lgipp`."""

    name: str
    id: int  # of nvidia-smi's -cgi; -1 where it is not published
    compute: int
    memory: int
    starts: tuple[int, ...]
    media: int = 0
    ofa: int = 0
    most: int
    gb: int
    gib: float | None = None  # usable memory, None where it was not published
    since: int = 0  # driver branch that brought it, 0: the product's first driver has it

    @property
    def plain(self) -> bool:
        """Whether it is one without media or graphics of its own kind (+me, +gfx, -me …)."""
        return bool(re.fullmatch(r"\d+g\.\d+gb", self.name))

    @property
    def usable_gib(self) -> float:
        """Memory that a program can count on, in GiB."""
        return self.gib if self.gib is not None else round(self.gb * GIB_OF_GB, 2)


@dataclass(frozen=True, kw_only=True)
class Product:
    """GPUs that MIG cuts alike.  `mode`: whether the MIG mode outlives a reboot (instances never do)."""

    name: str
    names: tuple[str, ...]  # others of nvidia-smi's, where the table of GPUs has one for the id
    ids: tuple[str, ...]
    memory_gb: int
    driver: str  # the first that cuts it
    profiles: tuple[Profile, ...]
    compute: int
    memory: int
    media: int
    ofa: int
    placed: bool  # whether the start of an instance can be given
    mode: Literal["kept", "lost"]
    note: str
    display: tuple[str, ...]  # ids of those that say nothing of MIG before their display mode is compute
    source: str

    def profile(self, name: str) -> Profile | None:
        return next((p for p in self.profiles if p.name == name), None)


def parse_mig(table: Mapping[str, Any]) -> tuple[Product, ...]:
    """The parsed mig.toml → products, in the file's order."""
    return tuple(_product(row, table["geometries"][row["geometry"]], table) for row in table["products"])


def _product(row: Mapping[str, Any], geometry: Mapping[str, Any], table: Mapping[str, Any]) -> Product:
    lines = [line for line in geometry["profiles"].splitlines() if line.strip()]
    names = row["profiles"].split()
    gib, since = row.get("gib", {}), row.get("since", {})
    sources = dict.fromkeys(f"{row['source']}; {geometry['source']}".split("; "))
    return Product(
        name=row["name"],
        names=tuple(row.get("names", ())),
        ids=tuple(f"10de:{one}" for one in row["ids"]),
        memory_gb=row["memory_gb"],
        driver=row["driver"],
        profiles=tuple(
            _profile(name, line, gib.get(name), since.get(name, 0)) for name, line in zip(names, lines, strict=True)
        ),
        compute=geometry["compute"],
        memory=geometry["memory"],
        media=geometry["media"],
        ofa=geometry["ofa"],
        placed=geometry.get("placed", True),
        mode=row["mode"],
        note=row.get("note", ""),
        display=tuple(f"10de:{one}" for one in row.get("display", ())),
        source=source_of({"source": "; ".join(sources)}, table),
    )


def _profile(name: str, line: str, gib: float | None, since: int) -> Profile:
    profile_id, compute, memory, starts, media, ofa, most = (cell.strip() for cell in line.split("|"))
    match = re.match(r"\d+g\.(\d+)gb", name)
    assert match, name
    return Profile(
        name=name,
        id=int(profile_id),
        compute=int(compute),
        memory=int(memory),
        starts=tuple(int(start) for start in starts.split()),
        media=int(media),
        ofa=int(ofa),
        most=int(most),
        gb=int(match[1]),
        gib=gib,
        since=since,
    )


# ---------------------------------------------------------------- which product


def product_of(
    pci_id: str, products: Sequence[Product], knowledge: Knowledge, *, memory_mib: int | None = None
) -> Product:
    """The product with a PCI id (10de:20b2).  `memory_mib` is what the driver says of the very GPU, where it runs.

    Raises RefusedError for a GPU that MIG cannot cut, or whose profiles are not known.
    """
    model = knowledge.gpu(pci_id)
    name = f"{model.name} ({pci_id})" if model else pci_id
    same = [p for p in products if pci_id.lower() in p.ids]  # several where one id is sold with several sizes
    found = min(same, key=lambda p: abs(_gb(memory_mib) - p.memory_gb) if memory_mib else 0, default=None)
    if found and memory_mib and abs(_gb(memory_mib) / found.memory_gb - 1) > SAME_MEMORY:
        raise RefusedError(
            f"{name} has {memory_mib} MiB, not the {found.memory_gb} GB of {found.name}",
            expected=f"a product whose MIG profiles are known: {_names(products)}",
            fix="nvidia-smi mig -lgip on the node lists its profiles",
        )
    if found:
        return found
    if model is None or model.mig:
        raise RefusedError(
            f"the MIG profiles of {name} are not known",
            expected=_names(products),
            fix="nvidia-smi mig -lgip on the node lists them, if it has any",
        )
    raise RefusedError(
        f"{name} has no MIG", expected=f"one of {_names(products)}", fix="share it by time-slicing or mps"
    )


def _gb(memory_mib: int) -> float:
    return memory_mib * 1.048576 / 1000


def find_product(text: str, products: Sequence[Product], knowledge: Knowledge) -> Product:
    """A PCI id (10de:20b2, 20b2) or a name (A100 80GB, 'H200 NVL') → the product.

    A whole name, as nvidia-smi says it, is decisive: `NVIDIA H100` is one with 94 GB, and `H100` may be another, too.

    Raises InputError for a name that means nothing or several products, RefusedError for a GPU without MIG.
    """
    word = _plain(text)
    pci_id = re.fullmatch(r"(?:10de:)?([0-9a-f]{4})", text.strip().lower())
    if pci_id and (f"10de:{pci_id[1]}" in knowledge.gpus or text.strip().lower().startswith("10de:")):
        return product_of(f"10de:{pci_id[1]}", products, knowledge)
    bare = word.removeprefix("nvidia ")
    whole = [p for p in products if bare in (_plain(name).removeprefix("nvidia ") for name in (p.name, *p.names))]
    named = [p for p in products if word and _within(word, p.name)]
    models = [m for m in knowledge.gpus.values() if m.kind != "not-a-gpu" and word and _within(word, m.name)]
    exact = [m for m in models if bare == _plain(m.name).removeprefix("nvidia ")]
    by_id = {one: p for p in reversed(products) for one in p.ids}  # the first, where several have one id
    named = [p for p in named if any(by_id[one] == p for one in p.ids)]
    found = whole or list(dict.fromkeys([*(by_id[m.id] for m in models if m.id in by_id), *named]))
    if exact and exact[0].id in by_id and word == _plain(exact[0].name):
        found = [by_id[exact[0].id]]
    if len(found) == 1:
        return found[0]
    if found:
        raise InputError(
            f"GPU {text!r} is the name of {len(found)} products",
            expected="one of them",
            fix=f"name one: {_names(found)}",
        )
    if models:
        return product_of((exact or models)[0].id, products, knowledge)
    names = [_plain(product.name) for product in products]
    raise InputError(
        f"GPU {text!r}",
        expected=f"a PCI id such as 10de:20b2, or a product with MIG: {_names(products)}",
        fix=meant(word, names, "lspci -nn -d 10de: shows the ids of a machine", cutoff=0.4),
    )


def find_profile(name: str, product: Product) -> Profile:
    """The profile by its name (1g.10gb, `MIG 1g.10gb`, 1G.10GB).  Raises InputError that names the nearest."""
    wanted = name.strip().lower().removeprefix("mig").strip(" -")
    if found := product.profile(wanted):
        return found
    raise InputError(
        f"{product.name} has no MIG profile {name!r}",
        expected=f"one of {', '.join(p.name for p in product.profiles)}",
        fix=f"did you mean {nearest(wanted, product)!r}?",
    )


def nearest(name: str, product: Product) -> str:
    """The profile that a mistaken name most likely means: the same number of slices, then the nearest memory."""
    match = re.match(r"(\d+)g(?:\.(\d+)(?:gb)?)?(.*)", name)
    if not match:
        return product.profiles[0].name
    compute, gb, suffix = int(match[1]), int(match[2] or 0), match[3]
    return min(
        product.profiles,
        key=lambda p: (abs(p.compute - compute), not p.name.endswith(suffix), abs(p.gb - gb), len(p.name)),
    ).name


def _names(products: Iterable[Product]) -> str:
    return ", ".join(p.name for p in products)


def _plain(text: str) -> str:
    """Lower case, with one space between words: A100-SXM4-80GB and A100 SXM4 80GB are the same name."""
    return " ".join(re.findall(r"[a-z0-9.+]+", re.sub(r"(\d) +gb\b", r"\1gb", text.lower())))


def _within(word: str, name: str) -> bool:
    """Whether all words stand in the name, in any order: `A100 80GB` in `NVIDIA A100-SXM4-80GB`."""
    have = _plain(name).split()
    return all(one in have for one in word.split())


# ---------------------------------------------------------------- mig-parted's file

ALL_DISABLED = "all-disabled"


@dataclass(frozen=True, kw_only=True)
class Group:
    """GPUs of a node that are cut alike.  `devices` None: all of them; `layout` None: MIG off."""

    layout: Mapping[str, int] | None
    devices: tuple[int, ...] | None = None


def mig_parted(configs: Mapping[str, Sequence[Group]]) -> dict[str, Any]:
    """Named layouts → the file as plain data; `all-disabled` is always among them, so that there is a way back."""
    named = {ALL_DISABLED: (Group(layout=None),), **configs}
    return {"version": "v1", "mig-configs": {name: [_entry(g) for g in groups] for name, groups in named.items()}}


def _entry(group: Group) -> dict[str, Any]:
    return {
        "devices": "all" if group.devices is None else list(group.devices),
        "mig-enabled": group.layout is not None,
        **({"mig-devices": dict(group.layout)} if group.layout is not None else {}),
    }


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
