"""What belongs to many GPUs in one node or rack: fabric manager and its kin, the IMEX domain, DCGM.

Fabric manager, NSCQ, NVSDM and IMEX must have the driver's exact version, so they stand in the driver's own transaction
and the fabric manager starts with its modules (`joined`).  What has a version or a configuration of its own is the
FabricChoice, which the role `fabric` does afterwards.
"""

from __future__ import annotations

import re

from gpunode.core.knowledge import Branch, Table
from gpunode.core.late import regex
from gpunode.core.model import DriverChoice, FabricChoice, PackageWant
from gpunode.core.numbers import version_tuple, whole
from gpunode.core.solve.case import SolveCase
from gpunode.core.solve.families import version_pattern

_COMPUTE = "github NVIDIA/cloud-native-docs 453: the IMEX service is disabled and masked next to ComputeDomains"
OF_FABRIC = regex(r"(nvidia|cuda-drivers)-(?P<part>fabric|imex)(-?manager)?(-\d+)?\Z")
IMEX_NODES = "/etc/nvidia-imex/nodes_config.cfg"


def joined(
    case: SolveCase, branch: Branch, names: Table, *, own: bool
) -> tuple[list[PackageWant], tuple[str, ...]] | None:
    """Packages and services that go with the driver, only where the hardware asks; None when it cannot be served."""
    rule = case.knowledge.rules["fabric_equals_driver"]
    switches = bool(case.request.nvswitches) or case.request.nvlink5_fabric
    imex = any(g.fabric == "imex" for g in case.gpus)
    for model in case.gpus if not switches else ():
        if model.fabric == "nvswitch":
            why = f"{model.name} is made for boards with NVSwitches: a node that has them also gets the fabric manager"
            case.because("fabric", f"{why}; none is known of here", rule["source"])
    seen = {"fabric": switches, "imex": imex}
    there = {m["part"]: m[0] for m in map(OF_FABRIC.match, case.request.installed) if m and not seen[m["part"]]}
    if not switches and not imex and not there:
        return [], ()
    if not {"fabric", "imex"} <= names.keys():
        has = f"{next(iter(there.values()))} installed" if there and not imex else "an NVSwitch fabric"
        case.refuse(
            f"this node has {has}, and the distribution has no fabric manager",
            "set driver.branch to auto, on a distribution that NVIDIA has a repository for",
        )
        return None
    if case.request.nvlink5_fabric and "fabric_nvlink5" not in names:
        needs = case.knowledge.packages["nvlink5"]
        case.refuse(
            f"this node has an NVLink 5 fabric (HGX B200 and later), whose fabric manager needs {needs['needs']}, and "
            f"{case.distro.key} itself has none",
            "set driver.modules to auto: NVIDIA's repository has it"
            if case.request.driver.modules == "precompiled"
            else "set driver.branch to auto or a number: NVIDIA's repository has it",
        )
        return None
    version = version_pattern(case, branch)
    of_branch = not own and branch.branch < names["fabric_unversioned_from"]

    def named(name: str) -> str:
        called = names.get("fabric_before", {}).get(name, f"{name}-{{branch}}") if of_branch else name
        return str(called.format(branch=branch.branch))

    equal = [named(name) for name in names["fabric"]] if switches else []
    for part, name in there.items():
        kept = named(names[part][0])
        equal.append(kept)
        what = f"{name} is installed, and no {'NVSwitch' if part == 'fabric' else 'GPU of an NVLink domain'} is seen"
        why = f"{what}: {kept} keeps it at the driver's version, and nothing starts it"
        case.warn("fabric", f"{why}; where this node needs none, remove {name} first", rule["source"])
    separate: list[str] = []
    if case.request.nvlink5_fabric:
        separate = list(names["fabric_nvlink5"])
        equal += [named(name) for name in names["fabric_nvlink5_x86_64"] if case.request.arch == "x86_64"]
    if switches:
        case.because(
            "fabric", "NVSwitches are present: the fabric manager must run, at the driver's version", rule["source"]
        )
    if case.request.nvlink5_fabric:
        needs = case.knowledge.packages["nvlink5"]
        modules = ", ".join(needs["modules"])
        why = f"NVLink 5: the subnet manager {needs['needs']}, and {modules} loaded before the fabric manager starts"
        case.because("fabric", why, needs["source"])
    if imex:
        equal += [named(name) for name in names["imex"]]
        nodes = "fabric.imex_nodes names" if case.request.fabric.imex_nodes else "you write, or fabric.imex_nodes names"
        case.because(
            "fabric",
            f"NVLink spans nodes: IMEX, at the driver's version, needs {IMEX_NODES}, which {nodes}",
            rule["source"],
        )
    wants = [*(PackageWant(name=n, version=version) for n in equal), *(PackageWant(name=n) for n in separate)]
    return wants, ("nvidia-fabricmanager.service",) if switches else ()


def fabric_modules(case: SolveCase) -> tuple[str, ...]:
    """Kernel modules that the fabric manager needs beside the driver's."""
    return tuple(case.knowledge.packages["nvlink5"]["modules"]) if case.request.nvlink5_fabric else ()


def extra_modules(case: SolveCase) -> list[PackageWant]:
    """The packages that hold these modules, for every kernel that can boot, where they are apart from the kernel's."""
    family = case.knowledge.packages[case.distro.family]
    if not fabric_modules(case) or "modules_extra" not in family:
        return []
    before = version_tuple(family["modules_extra_before"])
    old = [
        k.release
        for k in case.request.kernels
        if version_tuple(k.release)[:2] < before
        and (match := re.match(family["kernel"], k.release))
        and match["flavour"] not in case.distro.no_extra
    ]
    names = [family["modules_extra"].format(release=release) for release in old]
    return [PackageWant(name=name) for name in names if not case.request.archive.lacks(name)]


def solve_fabric(case: SolveCase, driver: DriverChoice | None) -> FabricChoice | None:
    """The IMEX domain and DCGM, where the spec asks for them."""
    nodes, imex = case.request.fabric.imex_nodes, case.request.fabric.imex
    in_domain = any(g.fabric == "imex" for g in case.gpus)
    if (nodes or imex in ("static", "dra")) and not in_domain:
        key = "fabric.imex_nodes" if nodes else "fabric.imex"
        case.refuse(
            f"{key} is set, and no GPU here belongs to an NVLink domain of several nodes",
            "take it out for this node, or set it for the nodes with GB200 and GB300 only (inventory group)",
        )
        return None
    dcgm = _dcgm(case, driver) if case.request.fabric.dcgm != "none" else ()
    masked = ("nvidia-imex.service",) if in_domain and imex in ("dra", "off") else ()
    if masked:
        why = "NVIDIA's DRA driver has IMEX of its own: a second one takes its channels, and pods hang"
        case.because("imex", why if imex == "dra" else "nothing runs IMEX: NVLink does not leave this node", _COMPUTE)
    if not nodes and not dcgm and not masked:
        return None
    services = {"nvidia-imex.service": nodes, "nvidia-dcgm.service": dcgm}
    old = tuple(n for n in case.knowledge.packages["dcgm"]["replaced"] if n in case.request.installed) if dcgm else ()
    return FabricChoice(
        packages=dcgm,
        repository="nvidia-cuda" if dcgm else "",
        services=tuple(unit for unit, wanted in services.items() if wanted),
        imex_nodes=nodes,
        masked=masked,
        remove=old,
    )


def _dcgm(case: SolveCase, driver: DriverChoice | None) -> tuple[PackageWant, ...]:
    names = case.knowledge.packages["dcgm"]
    if not case.distro.dir:
        case.refuse(
            f"fabric.dcgm: NVIDIA has no repository for {case.distro.key}, and {case.distro.key} itself has no DCGM",
            "set fabric.dcgm to none; a container (dcgm-exporter) brings its own",
        )
        return ()
    number = driver.branch if driver else whole((re.match(r"\d+", case.request.loaded_driver) or ["0"])[0])
    branch = case.knowledge.branches.get(number)
    major = branch.cuda_major if branch else 0
    if major < names["first_cuda"]:
        case.refuse(
            f"fabric.dcgm: DCGM 4 needs a driver for CUDA {names['first_cuda']} or later"
            + (f", and {number} is one for {major}" if major else ", and it is not known which one is here"),
            f"take a newer branch ({names['first_branch']} or later), or set fabric.dcgm to none",
        )
        return ()
    setting = case.request.fabric.dcgm
    epoch = names["deb_epoch"] if case.distro.family in ("ubuntu", "debian") else ""
    version = "" if setting == "auto" else f"{epoch}{setting}-*"
    if setting != "auto" and version_tuple(setting) > version_tuple(names["newest"]):
        case.warn("dcgm", f"{setting} is newer than {names['newest']}, the newest known", names["source"])
    case.because("dcgm", f"DCGM 4 for CUDA {major}, the driver's; its own version, not the driver's", names["source"])
    return tuple(
        PackageWant(name=name.format(cuda=major), version=version, hold=bool(version)) for name in names["names"]
    )
