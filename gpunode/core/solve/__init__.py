"""Which driver, CUDA and container toolkit fit a node: `solve(request, knowledge) -> Solution`, always with reasons.

Nothing is asked of any host or clock: support that has ended is judged on the day the knowledge was checked.  What
cannot work comes back as a Problem that says what would.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from gpunode.core.errors import InputError
from gpunode.core.knowledge import DistroRow, Knowledge
from gpunode.core.model import FabricChoice, Kernel, NodeFacts, Solution
from gpunode.core.solve.cuda import solve_cuda
from gpunode.core.solve.driver import solve_driver
from gpunode.core.solve.fabric import solve_fabric
from gpunode.core.solve.gpus import known_gpus
from gpunode.core.solve.notes import Notes
from gpunode.core.solve.software import solve_repositories, solve_toolkit
from gpunode.core.spec import CudaSpec, DriverSpec, Spec
from gpunode.core.spec.source import SourceSpec
from gpunode.core.spec.toolkit import FabricSpec, ToolkitSpec

_PCI_ID = re.compile(r"[0-9a-f]{4}:[0-9a-f]{4}\Z")


@dataclass(frozen=True, kw_only=True)
class SolveRequest:
    """All that the choice depends on: the hardware, the system, and what is asked for."""

    gpus: tuple[str, ...]  # PCI ids, 10de:2330; one per GPU or one per kind
    distro: str  # ID:VERSION_ID of os-release
    arch: str = "x86_64"
    nvswitches: tuple[str, ...] = ()  # PCI ids
    nvlink5_fabric: bool = False
    virtual_functions: tuple[str, ...] = ()  # PCI ids of GPUs that are SR-IOV functions or vGPUs
    kernels: tuple[Kernel, ...] = ()  # those that can boot next; empty: not known
    secure_boot: bool | None = None
    virtualization: str = ""
    tegra: str = ""
    installed: tuple[str, ...] = ()  # names of installed packages that concern us
    components: tuple[str, ...] | None = None  # of the node's Debian sources; None: not known
    loaded_driver: str = ""  # version of a driver that is there
    runfile: str = ""  # version that nvidia-installer left
    driver: DriverSpec = DriverSpec()
    cuda: CudaSpec = CudaSpec()
    toolkit: ToolkitSpec = ToolkitSpec()
    fabric: FabricSpec = FabricSpec()
    sources: Mapping[str, SourceSpec] = field(default_factory=dict)


def request_of(facts: NodeFacts, spec: Spec) -> SolveRequest:
    """The request of a probed node.  Its kernels are those that can boot next and the running one."""
    return SolveRequest(
        gpus=(*(g.id for g in facts.gpus), *spec.image.gpus),
        nvswitches=(*(s.id for s in facts.nvswitches), *spec.image.nvswitches),
        nvlink5_fabric=facts.nvlink5_fabric or spec.image.nvlink5_fabric,
        virtual_functions=tuple(g.id for g in facts.gpus if g.virtual_function),
        distro=facts.distro.key,
        arch=facts.arch,
        kernels=tuple(
            Kernel(release=k.release, running=k.running, image=k.image, headers=k.headers)
            for k in facts.kernels
            if k.image or k.running
        ),
        secure_boot=facts.secure_boot,
        virtualization=facts.virtualization,
        tegra=facts.tegra,
        installed=tuple(sorted(facts.packages)),
        components=_components(facts) if facts.distro.id == "debian" else None,
        loaded_driver=facts.driver.loaded or facts.driver.userspace,
        runfile=facts.driver.runfile,
        driver=spec.driver,
        cuda=spec.cuda,
        toolkit=spec.toolkit,
        fabric=spec.fabric,
        sources=spec.sources,
    )


def solve(request: SolveRequest, knowledge: Knowledge) -> Solution:
    """Driver, CUDA, toolkit and their repositories for the request, with every reason and every problem."""
    notes = Notes()
    row = knowledge.distro(request.distro)
    _check_machine(request, row, knowledge, notes)
    if row is None or row.family not in knowledge.packages or request.arch not in row.archs:
        return notes.solution()
    if row.eol and row.eol < knowledge.as_of[:7]:
        notes.because(
            "warning: distribution",
            f"support of {request.distro} ended {row.eol}: package repositories get no updates for it any more",
            row.source,
        )
    gpus = known_gpus(request.gpus, knowledge, notes, by_hand=request.driver.branch.isdigit())
    if not gpus and not request.driver.branch.isdigit():
        if not notes.problems:
            notes.because("driver", "no GPU that a driver would serve", "")
        return notes.solution()
    driver = solve_driver(request, row, gpus, knowledge, notes)
    fabric = solve_fabric(request, row, gpus, driver, knowledge, notes)
    cuda = solve_cuda(request, row, gpus, driver, knowledge, notes)
    toolkit = solve_toolkit(request, row, knowledge, notes)
    used = tuple(dict.fromkeys(part.repository for part in (driver, fabric, cuda, toolkit) if part and part.repository))
    repositories = solve_repositories(request, row, used, knowledge, notes)
    solution = notes.solution(driver=driver, fabric=fabric, cuda=cuda, toolkit=toolkit, repositories=repositories)
    return replace(solution, revoked_keys=knowledge.revoked_keys())


def parse_driver(text: str) -> DriverSpec:
    """BRANCH|VERSION[-open|-proprietary], open, proprietary, distro, none or auto → DriverSpec.  Raises InputError."""
    if text in ("open", "proprietary"):
        return DriverSpec(flavour=_flavour(text))
    if text in ("distro", "none", "auto"):
        return DriverSpec(branch=text)
    match = re.fullmatch(r"(?P<branch>\d{3})(?P<rest>\.\d+(\.\d+)?)?(-(?P<flavour>open|proprietary))?", text)
    if not match:
        near = difflib.get_close_matches(text, ("open", "proprietary", "distro", "none", "auto"), n=1)
        raise InputError(
            f"driver {text!r}",
            expected="BRANCH or VERSION (580, 580.178.04) with or without -open or -proprietary; or open, proprietary, "
            "distro, none, auto",
            fix=f"did you mean {near[0]!r}?" if near else "gpunode solve --gpu … without --driver shows what fits",
        )
    version = match["branch"] + match["rest"] if match["rest"] else ""
    return DriverSpec(branch=match["branch"], version=version, flavour=_flavour(match["flavour"]))


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", " ", name.lower())


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
    exact = [i for i, name in names.items() if word in (name.lower(), name.lower().removeprefix("nvidia "))]
    part = [i for i, name in names.items() if word and f" {_plain(word)} " in f" {_plain(name)} "]
    found = exact or part
    if len(found) == 1:
        return found[0]
    if not found and re.fullmatch(r"\d{4}", word):
        return f"10de:{word}"
    if found:
        listed = ", ".join(f"{i} {names[i]}" for i in found[:12]) + (f" and {len(found) - 12} more" * (len(found) > 12))
        raise InputError(
            f"GPU {text!r} is the name of {len(found)} models", expected="one model", fix=f"name one: {listed}"
        )
    near = difflib.get_close_matches(word, [n.lower().removeprefix("nvidia ") for n in names.values()], n=3, cutoff=0.5)
    raise InputError(
        f"GPU {text!r}",
        expected="a PCI id such as 10de:2330, or a product name such as 'H100 PCIe'",
        fix=f"did you mean {' or '.join(map(repr, near))}?"
        if near
        else "lspci -nn -d 10de: shows the ids of a machine",
    )


def solution_data(solution: Solution) -> dict[str, Any]:
    """The solution as plain data, the shape of `gpunode solve --format json` (docs/solve.md)."""
    driver, fabric, cuda, toolkit = solution.driver, solution.fabric, solution.cuda, solution.toolkit
    return {
        "driver": driver
        and {
            "branch": driver.branch,
            "flavour": driver.flavour,
            "version": driver.version or driver.newest,
            "method": driver.method,
            "packages": [p.name for p in (*driver.kernel_packages, *driver.packages)],
            "repository": driver.repository or None,
        },
        "cuda": cuda
        and {
            "version": cuda.version,
            "packages": [p.name for p in cuda.packages],
            "method": cuda.method,
            "repository": cuda.repository or None,
        },
        "toolkit": toolkit
        and {
            "version": toolkit.version,
            "packages": [p.name for p in toolkit.packages],
            "method": toolkit.method,
            "repository": toolkit.repository or None,
        },
        **({"fabric": _fabric_data(fabric)} if fabric else {}),
        "reasons": [{"what": r.what, "why": r.why, "source": r.source} for r in solution.reasons],
        "problems": [{"what": p.what, "fix": p.fix} for p in solution.problems],
    }


def _fabric_data(fabric: FabricChoice) -> dict[str, Any]:
    return {
        "packages": [p.name for p in fabric.packages],
        "services": list(fabric.services),
        "repository": fabric.repository or None,
    }


def _check_machine(request: SolveRequest, row: DistroRow | None, knowledge: Knowledge, notes: Notes) -> None:
    solved = ", ".join(knowledge.solved_distros())
    if row is None:
        notes.refuse(
            f"distribution {request.distro or '(none)'!r} is not known",
            _known_releases(request.distro, knowledge, solved),
        )
    elif row.family not in knowledge.packages:
        notes.refuse(f"{request.distro} is known, but its package names are not yet", f"gpunode solves {solved}")
    elif request.arch not in row.archs:
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
    licensed = request.driver.method != "preinstalled"
    for pci_id in dict.fromkeys(request.virtual_functions if licensed else ()):
        notes.refuse(
            f"{pci_id} is a virtual function (vGPU or SR-IOV): it needs the vGPU guest driver, which is licensed",
            "install the guest driver of your vGPU release (NVIDIA Licensing Portal), then set driver.method to "
            "preinstalled",
        )


def _known_releases(distro: str, knowledge: Knowledge, solved: str) -> str:
    """The releases that are known of a distribution; where none is, the one that may be meant, and all."""
    name = distro.partition(":")[0]
    known = [key for key in knowledge.distros if key.partition(":")[0] == name]
    if known:
        return f"known are {', '.join(known)}"
    near = difflib.get_close_matches(distro, knowledge.distros, n=1)
    return f"did you mean {near[0]}? gpunode solves {solved}" if near else f"gpunode solves {solved}"


def _components(facts: NodeFacts) -> tuple[str, ...] | None:
    """Components of the apt sources that the probe read; None when it read none."""
    found: set[str] = set()
    seen = False
    for path, file in facts.files.items():
        if not path.startswith("/etc/apt/sources.list") or file.data is None:
            continue
        seen = True
        text = file.data.decode("utf-8", "replace")
        for line in re.findall(r"^deb\s+(?:\[[^]]*\]\s*)?\S+\s+\S+\s+(.+)$|^Components:\s*(.+)$", text, re.M):
            found.update(" ".join(line).split())
    return tuple(sorted(found)) if seen else None
