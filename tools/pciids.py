"""The GPU table of the knowledge against lists that others keep: pci.ids, and supported-gpus.json of a driver."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from gpunode.core.errors import InputError
from gpunode.core.knowledge import GpuModel, Knowledge

_DATE = re.compile(r"^#\s+Version: (\d{4})\.(\d\d)\.(\d\d)\s*$", re.MULTILINE)
_DEVICE = re.compile(r"\t([0-9a-f]{4})  (.+)")
# GH100 [H100 SXM5 80GB], GK107GLM [Quadro K500M]: chip, its letters for the kind of board, product
_GPU = re.compile(
    r"(?P<chip>(?:G[KMPVAHBR]|TU|AD)\d\w\w?\w?)(?:(?<=\d)|(?<=[A-F]))(?P<board>GLM|GL|M|S)?(?: \[(?P<name>.+)\])?\Z"
)
_FAMILY = re.compile(r"\b(GH\d{3}|GB\d{3}|[ABHLV]\d{2,3})\b(?:.*?(SXM))?")  # and whether it is an SXM board
_NOT_A_GPU = re.compile(r"audio|usb|bridge|smbus|controller|nvswitch|i2c|ucsi|peatrans", re.IGNORECASE)
_GENERATION = {
    "GK": "Kepler", "GM": "Maxwell", "GP": "Pascal", "GV": "Volta", "TU": "Turing", "GA": "Ampere",
    "AD": "Ada Lovelace", "GH": "Hopper", "GB": "Blackwell", "GR": "Rubin",
}  # fmt: skip
_KINDS = (
    ("unnamed", re.compile(r"-(ES|ESP|INT\d*|88K)\b")),
    ("grace-soc", re.compile(r"RTX Spark|^GB10$")),
    ("geforce", re.compile(r"GeForce|TITAN", re.IGNORECASE)),
    ("mining", re.compile(r"CMP |P10[246]-|Mining")),
    ("tegra", re.compile(r"Tegra|Jetson|DRIVE|JMJWOA")),
    ("datacenter", re.compile(r"Tesla|GRID|DGX|Server Edition")),
    ("workstation", re.compile(r"Quadro|NVS|RTX (A|PRO|[2456]000)|T\d{3,4}\b|Ada Generation")),
    ("datacenter", re.compile(r"\b(A|L|H|B|GH|GB|T|P|V|K|M)\d{1,3}[A-Z]?\b")),
)


@dataclass(frozen=True, kw_only=True)
class PciGpu:
    """A GPU as a public list names it.  Chip "" where the list has none, name "" where it has no product."""

    id: str  # 10de:2330
    chip: str
    name: str
    source: str  # letters of gpus.toml's [sources]
    mobile: bool = False


def parse_pci_ids(text: str) -> dict[str, PciGpu]:
    """NVIDIA's GPUs from Kepler on in a pci.ids file; InputError where it has no vendor 10de."""
    found: dict[str, PciGpu] = {}
    _, vendor, rest = text.partition("\n10de  ")
    if not vendor:
        raise InputError("no vendor 10de in this file", expected="a pci.ids", fix="/usr/share/misc/pci.ids is one")
    for line in rest.splitlines()[1:]:
        if line and line[0] not in "\t#":
            break
        device = _DEVICE.match(line)
        gpu = device and _GPU.match(device[2])
        if not device or not gpu or _NOT_A_GPU.search(device[2]):
            continue
        name = gpu["name"] or ""
        mobile = "M" in (gpu["board"] or "") or "Mobile" in name
        pci_id = f"10de:{device[1]}"
        found[pci_id] = PciGpu(id=pci_id, chip=gpu["chip"], name=name, source="p", mobile=mobile)
    return found


def parse_supported_gpus(text: str) -> dict[str, PciGpu]:
    """The GPUs of the supported-gpus.json that NVIDIA's driver packages carry; InputError for any other JSON."""
    try:
        # a board of one maker has a row of its own, with its subdevid: the row without one names the GPU
        chips = sorted(json.loads(text)["chips"], key=lambda chip: "subdevid" not in chip)
        names = {f"10de:{int(chip['devid'], 16):04x}": str(chip["name"]) for chip in chips}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(
            f"this is no supported-gpus.json: {type(error).__name__} {error}",
            expected='{"chips": [{"devid": "0x2330", "name": …}]}',
            fix="a runfile has it (sh FILE -x), and /usr/share/doc/nvidia-driver-*, /usr/share/nvidia-driver-assistant",
        ) from None
    return {
        pci_id: PciGpu(id=pci_id, chip="", name=name.removeprefix("NVIDIA "), source="s")
        for pci_id, name in names.items()
    }


def version_of(pci_ids: str) -> str:
    """The day of a pci.ids, YYYY-MM-DD, as its head says it; "" where it says none."""
    found = _DATE.search(pci_ids)
    return "-".join(found.groups()) if found else ""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What a list has that the knowledge has not, or names otherwise."""

    missing: tuple[PciGpu, ...] = ()
    other_chip: tuple[tuple[PciGpu, str], ...] = ()  # with the chip that the knowledge names


def compare(found: Mapping[str, PciGpu], knowledge: Knowledge) -> Comparison:
    """A list against the knowledge."""
    known = {*knowledge.gpus, *knowledge.legacy, *knowledge.nvswitches}
    chips = {model.chip for model in knowledge.gpus.values()}
    return Comparison(
        missing=tuple(gpu for pci_id, gpu in sorted(found.items()) if pci_id not in known),
        other_chip=tuple(
            (gpu, knowledge.gpus[pci_id].chip)
            for pci_id, gpu in sorted(found.items())
            if pci_id in knowledge.gpus and gpu.chip and _base(gpu.chip, chips) != knowledge.gpus[pci_id].chip
        ),
    )


def _base(chip: str, chips: Collection[str]) -> str:
    """GK110B is a later stepping of GK110."""
    return chip[:-1] if chip not in chips and chip[:-1] in chips else chip


def add_gpus(
    table: str, gpus: Iterable[PciGpu], knowledge: Knowledge, *, sources: Mapping[str, str], checked: str = ""
) -> tuple[str, list[PciGpu], list[PciGpu]]:
    """gpus.toml with a row for each of the GPUs, in the order of ids; those added, and those whose chip is not known.

    Their class is read off the name, and a chip that no list names off the neighbours, so the rows say confidence low.
    `sources` says what the letters of the lists mean; `checked`, YYYY-MM-DD, counts where it is newer than the table.
    """
    known = {model.chip for model in knowledge.gpus.values()}
    added, unknown, rows, chips = [], [], {}, {}
    for gpu in gpus:
        chip = _base(gpu.chip, known) or between(gpu.id, knowledge.gpus)
        if chip not in known and chip[:2] not in _GENERATION:
            unknown.append(gpu)
            continue
        added.append(replace(gpu, chip=chip))
        rows[gpu.id.removeprefix("10de:")] = _row(gpu, chip, knowledge)
        if chip not in known:
            chips[chip] = f"{chip:<7} | {_GENERATION[chip[:2]]:<12} |"
    text = re.sub(
        r'^checked = "([^"]*)"', lambda m: f'checked = "{max(m[1], checked)}"', table, count=1, flags=re.MULTILINE
    )
    for letter, meaning in sources.items():
        text = re.sub(rf"^{letter} = .*\n", "", text, flags=re.MULTILINE)
        text = text.replace("\n[sources]\n", f"\n[sources]\n{letter} = {json.dumps(meaning)}\n", 1)
    return _merged(_merged(text, "gpus", rows), "chips", chips), added, unknown


def between(pci_id: str, known: Mapping[str, GpuModel]) -> str:
    """The chip of the known GPUs next to this id on both sides, where it is one: chips have ranges of ids; else "".

    Of the 725 GPUs of our own table with two such neighbours 721 have their chip, and all have their generation.
    """
    below = max((other for other in known if other < pci_id), default="")
    above = min((other for other in known if other > pci_id), default="")
    chips = {known[other].chip if other else "" for other in (below, above)}
    return chips.pop() if len(chips) == 1 else ""


def kind_of(name: str) -> str:
    """The class of a product by its name: geforce, workstation, datacenter …, unnamed for what says nothing."""
    return next((kind for kind, pattern in _KINDS if pattern.search(name)), "unnamed")


def _marks(name: str, chip: str, knowledge: Knowledge) -> tuple[str, str, str]:
    """MIG, fabric and open modules of a data centre product: what most known ones of its chip and family have.

    A family is what the product begins with: a GB300 belongs to an NVLink domain, an H100 SXM5 to NVSwitches.
    """
    family = _FAMILY.search(name)
    relatives = [
        model
        for model in knowledge.gpus.values()
        if model.chip == chip and model.kind == "datacenter" and (m := _FAMILY.search(model.name))
        if family and (m[1], bool(m[2])) == (family[1], bool(family[2]))
    ]
    fabric, number = Counter(model.fabric for model in relatives).most_common(1)[0] if relatives else ("", 0)
    only = bool(relatives) and all(model.open == "only" for model in relatives)
    needs = only and knowledge.architectures[relatives[0].arch].open != "only"
    return (
        "chip" if any(model.mig for model in relatives) else "",
        fabric if number * 3 >= len(relatives) * 2 else "",
        "required" if needs else "",
    )


def _row(gpu: PciGpu, chip: str, knowledge: Knowledge) -> str:
    mig, fabric, open_ = _marks(gpu.name, chip, knowledge)
    cells = (
        f"{gpu.id.removeprefix('10de:')}",
        f"{gpu.name or gpu.chip:<56}",
        f"{chip:<7}",
        f"{kind_of(gpu.name):<11}",
        f"{'mobile' if gpu.mobile else '':<6}",
        f"{mig:<10}",
        f"{fabric:<8}",
        f"{open_:<8}",
        f"{'':<10}",
        f"{gpu.source:<4}",
        "low",
    )
    return " | ".join(cells)


def _merged(text: str, table: str, rows: Mapping[str, str]) -> str:
    """The text with rows put into one of its ''' tables: before the first row whose key is greater."""
    head, start, rest = text.partition(f"\n{table} = '''\n")
    body, end, tail = rest.partition("\n'''")
    lines = body.split("\n")
    for key, row in sorted(rows.items()):
        keys = [line.split("|")[0].strip() for line in lines]
        at = next((n for n, other in enumerate(keys) if other > key), len(lines)) if table == "gpus" else len(lines)
        lines.insert(at, row)
    return f"{head}{start}{chr(10).join(lines)}{end}{tail}"
