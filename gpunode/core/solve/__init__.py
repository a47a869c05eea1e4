"""Which driver, CUDA and container toolkit fit a node: `solve(request, knowledge) -> Solution`, always with reasons.

Nothing is asked of any host or clock: support that has ended is judged on the day the knowledge was checked.  What
cannot work comes back as a Problem that says what would.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, Literal

from gpunode.core.errors import InputError
from gpunode.core.knowledge import DistroRow, Knowledge
from gpunode.core.late import regex
from gpunode.core.meant import meant
from gpunode.core.model import CudaChoice, DriverChoice, FabricChoice, PackageWant, Solution, ToolkitChoice
from gpunode.core.model.node import CONTAINERS
from gpunode.core.printable import few
from gpunode.core.solve.archive import as_asked
from gpunode.core.solve.case import MANAGER, Notes, SolveCase, SolveRequest, request_of
from gpunode.core.solve.cuda import solve_cuda
from gpunode.core.solve.driver import solve_driver
from gpunode.core.solve.fabric import solve_fabric
from gpunode.core.solve.gpus import known_gpus, virtual_gpus
from gpunode.core.solve.software import solve_repositories, solve_toolkit
from gpunode.core.spec import DriverSpec

__all__ = ["SolveRequest", "find_gpu", "parse_driver", "request_of", "solution_data", "solve"]

_BARE = ("", "none", *CONTAINERS)  # no virtual machine, as far as is known
_PI = "Raspberry Pi"  # as its device tree calls it
_SBSA = "github geerlingguy/raspberry-pi-pcie-devices issue 549"
_PCI_ID = regex(r"[0-9a-f]{4}:[0-9a-f]{4}\Z")
_SLOT = regex(r"([0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def solve(request: SolveRequest, knowledge: Knowledge) -> Solution:
    """Driver, CUDA, toolkit and their repositories for the request, with every reason and every problem."""
    notes = Notes()
    row = knowledge.distro(request.distro, request.made_from)
    _check_machine(request, row, knowledge, notes)
    if row is None or row.family not in knowledge.packages or request.arch not in row.archs:
        return notes.solution()
    if row.eol and row.eol < knowledge.as_of[:7]:
        notes.warn(
            "distribution",
            f"support of {request.distro} ended {row.eol}: package repositories get no updates for it any more",
            row.source,
        )
    if not row.verified:
        notes.warn(
            "knowledge",
            f"what is known of {request.distro} is unverified: no source of it was read ({row.source})",
            row.source,
        )
    gpus = known_gpus(request.gpus, knowledge, notes, by_hand=request.driver.branch.isdigit())
    if not gpus and not request.driver.branch.isdigit():
        if not notes.problems:
            notes.because("driver", "no GPU that a driver would serve", "")
        return notes.solution()
    distro = as_asked(row.on(request.arch), request.archive, knowledge)
    case = SolveCase(request=request, distro=distro, gpus=gpus, knowledge=knowledge, **vars(notes))
    driver = solve_driver(case)
    fabric = solve_fabric(case, driver)
    cuda = solve_cuda(case, driver)
    toolkit = solve_toolkit(case)
    used = tuple(dict.fromkeys(part.repository for part in (driver, fabric, cuda, toolkit) if part and part.repository))
    repositories = solve_repositories(case, used)
    _explain_pins(case, [want for part in (driver, fabric, cuda, toolkit) if part for want in part.packages])
    return replace(
        notes.solution(),
        driver=driver,
        fabric=fabric,
        cuda=cuda,
        toolkit=toolkit,
        repositories=repositories,
        revoked_keys=knowledge.revoked_keys(),
    )


def _explain_pins(case: SolveCase, wants: Sequence[PackageWant]) -> None:
    """The rules of others for which apt exchanges packages of the plan again, which are not held."""
    for pin in case.request.pins:
        loose = " ".join(want.name for want in wants if not want.hold and pin.covers(want.name, want.version))
        if loose:
            case.warn(
                "pins",
                f"{pin.path} pins {' '.join(pin.packages)} to {pin.to} at {pin.priority}: above 1000 apt also "
                f"downgrades, so the next upgrade exchanges {loose} for what is there; to keep them: apt-mark hold "
                f"{loose}, or leave them out of that file",
                "apt_preferences(5)",
            )


def parse_driver(text: str) -> DriverSpec:
    """BRANCH|VERSION[-open|-proprietary], open, proprietary, distro, lts, none or auto → DriverSpec.

    Raises InputError.
    """
    if text in ("open", "proprietary"):
        return DriverSpec(flavour=_flavour(text))
    if text in ("distro", "lts", "none", "auto"):
        return DriverSpec(branch=text)
    match = re.fullmatch(r"(?P<branch>\d{3})(?P<rest>\.\d+(\.\d+)?)?(-(?P<flavour>open|proprietary))?", text)
    if not match:
        words = ("open", "proprietary", "distro", "lts", "none", "auto")
        raise InputError(
            f"driver {text!r}",
            expected="BRANCH or VERSION (580, 580.178.04) with or without -open or -proprietary; or open, proprietary, "
            "distro, lts, none, auto",
            fix=meant(text, words, "gpunode solve --gpu … without --driver shows what fits"),
        )
    version = match["branch"] + match["rest"] if match["rest"] else ""
    return DriverSpec(branch=match["branch"], version=version, flavour=_flavour(match["flavour"]))


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", " ", name.lower())


def _unbranded(name: str) -> list[str]:
    """The words of a product's name without those that every product of its line has: RTX 3090, H100 PCIe."""
    return [word for word in _plain(name).split() if word not in ("nvidia", "geforce", "tesla", "quadro")]


def _flavour(word: str | None) -> Literal["auto", "open", "proprietary"]:
    return "open" if word == "open" else "proprietary" if word else "auto"


def find_gpu(text: str, knowledge: Knowledge) -> str:
    """A PCI id (10de:2330, or 2330) or an unambiguous product name (H100 PCIe) → the PCI id.  Raises InputError."""
    word = text.strip().lower()
    if _PCI_ID.match(word):
        return word
    if f"10de:{word}" in knowledge.gpus:
        return f"10de:{word}"
    names = {m.id: m.name for m in knowledge.gpus.values() if m.kind != "not-a-gpu"}
    whole = [i for i, name in names.items() if word in (name.lower(), name.lower().removeprefix("nvidia "))]
    exact = whole or [i for i, name in names.items() if word and _unbranded(word) == _unbranded(name)]
    exact = exact or [i for i, name in names.items() if word and word == "".join(_unbranded(name))]
    part = [i for i, name in names.items() if word and f" {_plain(word)} " in f" {_plain(name)} "]
    part = part or [i for i in names if word and word == knowledge.gpus[i].arch.lower()]
    ids = exact or part
    if len(ids) == 1:
        return ids[0]
    if not ids and re.fullmatch(r"\d{4}", word):
        return f"10de:{word}"
    if ids:
        listed = few([f"{i} {names[i]}" for i in ids], 12)
        raise InputError(
            f"GPU {text!r} is a name of {len(ids)} models", expected="one model", fix=f"name one: {listed}"
        )
    near = _nearest(word, {name.lower().removeprefix("nvidia ") for name in names.values()})
    where = f"-s {word}" if (slot := _SLOT.fullmatch(word)) else "-d 10de:"
    raise InputError(
        f"no GPU of the name {text!r} is known",
        expected="a product name such as 'H100 PCIe', or a PCI id such as 10de:2330" + ", not a slot" * bool(slot),
        fix=f"did you mean {' or '.join(map(repr, near))}? " * bool(near and not slot)
        + f"lspci -nn {where} shows the ids of a machine in brackets, [10de:2330]; an id is taken as it is",
    )


def _nearest(text: str, names: Collection[str]) -> list[str]:
    """Up to three names, each word of the text near to a word of theirs; the shorter ones of equally near ones."""

    @functools.cache
    def near(one: str, other: str) -> float:
        if sorted(one) == sorted(other):  # the same digits in another order
            return 1.0 + 0.2 * (one == other)
        ratio = difflib.SequenceMatcher(None, one, other).ratio()
        return ratio if ratio >= 0.75 else 0.0

    scores = []
    for name in names:
        words = _plain(name).split()
        best = [max((near(token, word) for word in words), default=0.0) for token in _plain(text).split()]
        if best and all(best):
            scores.append((-sum(best), len(name), name))
    return [name for *_, name in sorted(scores)[:3]]


def namesakes(text: str, taken: str, knowledge: Knowledge) -> tuple[str, ...]:
    """The ids of other models that a product name is part of: what the name could have meant as well."""
    word = _plain(text.strip())
    if _PCI_ID.match(text.strip().lower()) or not word:
        return ()
    models = (m for m in knowledge.gpus.values() if m.kind != "not-a-gpu" and m.id != taken)
    return tuple(m.id for m in models if f" {word} " in f" {_plain(m.name)} ")


def solution_data(solution: Solution) -> dict[str, Any]:
    """The solution as plain data, the shape of `gpunode solve --format json` (docs/driver.md)."""
    driver, fabric, cuda, toolkit = solution.driver, solution.fabric, solution.cuda, solution.toolkit
    return {
        "driver": driver
        and {
            "branch": driver.branch,
            "flavour": driver.flavour,
            **_part_data(driver, *driver.repository_packages, *driver.kernel_packages),
            "version": driver.version or driver.newest,
        },
        "cuda": cuda and _part_data(cuda),
        "toolkit": toolkit and _part_data(toolkit),
        **({"fabric": _fabric_data(fabric)} if fabric else {}),
        "reasons": [r.data for r in solution.reasons],
        "problems": [{"what": p.what, "fix": p.fix} for p in solution.problems],
    }


def _part_data(part: DriverChoice | CudaChoice | ToolkitChoice, *before: PackageWant) -> dict[str, Any]:
    packages = [want.name for want in (*before, *part.packages)]
    return {"version": part.version, "method": part.method, "packages": packages, "repository": part.repository or None}


def _fabric_data(fabric: FabricChoice) -> dict[str, Any]:
    return {
        "packages": [p.name for p in fabric.packages],
        "services": list(fabric.services),
        "repository": fabric.repository or None,
    }


def _check_machine(request: SolveRequest, row: DistroRow | None, knowledge: Knowledge, notes: Notes) -> None:
    solved = ", ".join(dict.fromkeys(key.partition(":")[0] for key in knowledge.solved_distros()))
    names = (request.distro, request.distro.partition(".")[0], request.distro.partition(":")[0])
    unread = next(filter(None, map(knowledge.unread.get, names)), None)
    if row is None and unread:
        notes.refuse(f"{request.distro} is known, and cannot be set up: {unread.why}", unread.fix)
    elif row is None:
        notes.refuse(
            f"distribution {request.distro or '(none)'!r} is not known",
            _known_releases(request, knowledge, solved),
        )
    elif row.key not in (request.distro, request.distro.partition(".")[0]):
        why = f"{request.distro} is taken as {row.key}, which its os-release says that it is made from, untested"
        notes.warn("distribution", why, "os-release(5)")
    if row and row.family not in knowledge.packages:
        notes.refuse(f"{request.distro} is known, but its package names are not yet", f"gpunode solves {solved}")
    elif row and request.arch not in row.archs:
        notes.refuse(
            f"NVIDIA has no packages for {request.distro} on {request.arch or 'an unknown architecture'}",
            f"architectures of {request.distro}: {', '.join(row.archs)}",
        )
    if request.virtualization == "wsl" and request.driver.branch != "none":
        notes.refuse(
            "this is WSL: the Windows host's driver serves the GPU, a Linux driver inside would break it",
            "install or update the NVIDIA driver on Windows; inside, set driver.branch to none",
        )
    if request.tegra:
        notes.refuse(
            f"this is a Tegra board ({request.tegra}): its driver is part of JetPack",
            "use NVIDIA's JetPack (apt install nvidia-jetpack); gpunode serves PCI GPUs",
        )
    if request.driver.method != "preinstalled" and request.driver.branch != "none":
        _check_board(request, notes)
        _check_virtual(request, knowledge, notes)


def _check_board(request: SolveRequest, notes: Notes) -> None:
    """Refuse a Raspberry Pi, and warn of any machine that is no server: NVIDIA's driver for arm64 is made for those."""
    what = f"this is a {request.board}, which a device tree describes: NVIDIA's driver for arm64 is made for servers "
    what += "(SBSA), which have ACPI"
    if _PI in request.board or "raspberrypi" in request.board:
        notes.refuse(
            f"{what}; on a {_PI} it does not start (RmInitAdapter failed)",
            "set driver.method to preinstalled for a driver that was patched for it, or driver.branch to none",
        )
    elif request.board:
        notes.warn("GPU", f"{what}: whether it starts here is not known", _SBSA)


def _check_virtual(request: SolveRequest, knowledge: Knowledge, notes: Notes) -> None:
    """Refuse what is a virtual GPU, and ask where it may be one: the ordinary driver can keep a guest from booting."""
    guest = "install the guest driver of your vGPU release (NVIDIA Licensing Portal), then set driver.method to "
    guest += "preinstalled"
    virtual = virtual_gpus(request, knowledge)
    if request.licensed and not virtual:
        host = request.licensed.startswith(MANAGER)
        what = "this is a vGPU guest with a licensed driver, or to be one, and an ordinary driver cannot drive a vGPU"
        what = "it gives vGPUs to this host's guests, and an ordinary driver would take them away" if host else what
        end = "no guest has one" if host else "no licence is used"
        notes.refuse(
            f"{request.licensed} is there: {what}",
            f"keep that driver: driver.method: preinstalled; where the GPU is whole and {end}, remove what it left",
        )
    for pci_id, why in virtual:
        notes.refuse(
            f"{pci_id} is a virtual function (vGPU or SR-IOV{why}): it needs the vGPU guest driver, which is licensed",
            guest,
        )
    for both in dict.fromkeys(request.subsystems if request.virtualization not in _BARE else ()):
        pci_id, _, subsystem = both.partition(" ")
        known = knowledge.subsystems.get(pci_id)
        theirs = known is None or not subsystem.startswith("10de:") or not known.boards
        if known and not theirs and subsystem not in known.boards | known.virtual:
            notes.warn(
                "GPU",
                f"{pci_id} has the subsystem {subsystem}, which is none of the boards that NVIDIA lists: ask who runs "
                f"this virtual machine whether it is a vGPU, which an ordinary driver cannot drive; if so, {guest}",
                known.source,
            )


def _known_releases(request: SolveRequest, knowledge: Knowledge, solved: str) -> str:
    """The releases that are known of a distribution; where none is, the one that a person may have meant, and all."""
    name, _, release = request.distro.lower().partition(":")
    known = [key for key in knowledge.distros if key.partition(":")[0] == name]
    if known:
        return f"known are {', '.join(known)}"
    same = [key for key in knowledge.distros if key.partition(":")[2] in (release, release.partition(".")[0])]
    return f"{meant(request.distro, [] if request.package_manager else same)} gpunode solves {solved}".lstrip()
