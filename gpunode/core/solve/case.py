"""What the solver is asked, and what its parts share while they answer: SolveRequest, Case, Notes."""

from __future__ import annotations

import re
from collections.abc import Mapping

from gpunode.core.knowledge import DistroRow, GpuModel, Knowledge
from gpunode.core.late import dataclass, field
from gpunode.core.model import Archive, Kernel, NodeFacts, Problem, Reason, Solution
from gpunode.core.numbers import upstream
from gpunode.core.solve.repo_files import Pin, enabled_repositories, strong_pins
from gpunode.core.spec import CudaSpec, DriverSpec, Spec
from gpunode.core.spec.source import SourceSpec
from gpunode.core.spec.toolkit import FabricSpec, ToolkitSpec

# what licensed drivers of vGPUs are known by: the module and packages of a host's, which gives them to guests; of a
# guest's the licence client's file, or the template beside it, and its package
MANAGER = ("nvidia_vgpu_vfio", "nvidia-vgpu-ubuntu", "NVIDIA-vGPU-")
_LICENSED = ("/etc/nvidia/gridd.conf", "nvidia-linux-grid", *MANAGER)


@dataclass(frozen=True, kw_only=True)
class SolveRequest:
    """All that the choice depends on: the hardware, the system, and what is asked for."""

    gpus: tuple[str, ...]  # PCI ids, 10de:2330; one per GPU or one per kind
    distro: str  # ID:VERSION_ID of os-release
    made_from: str = ""  # Distro.made_from
    arch: str = "x86_64"
    nvswitches: tuple[str, ...] = ()  # PCI ids
    nvlink5_fabric: bool = False
    virtual_functions: tuple[str, ...] = ()  # PCI ids of GPUs that are SR-IOV functions or vGPUs
    licensed: str = ""  # the file, package or module by which a licensed driver of vGPUs is known
    subsystems: tuple[str, ...] = ()  # of the GPUs: «10de:2236 10de:1482», PCI id and that of the subsystem
    kernels: tuple[Kernel, ...] = ()  # those that can boot next; empty: not known
    secure_boot: bool | None = None
    own_key: bool = False  # the firmware knows the one that DKMS signs with
    virtualization: str = ""
    tegra: str = ""
    board: str = ""
    installed: tuple[str, ...] = ()  # names of installed packages that concern us
    package_manager: str = ""  # of a node that was probed
    repositories: tuple[str, ...] = ()  # ids of dnf repositories that are enabled, of those that concern us
    pins: tuple[Pin, ...] = ()  # those of others that outweigh what is installed
    components: tuple[str, ...] | None = None  # of the node's Debian sources; None: not known
    loaded_driver: str = ""  # version of a driver that is there
    runfile: str = ""  # version that nvidia-installer left
    elsewhere: str = ""  # the folder of a driver that neither packages nor that installer brought
    installed_toolkit: str = ""  # version of the container toolkit that is there
    offered_toolkit: str = ""  # the newest that its repository has, where that is not the newest known
    driver: DriverSpec = DriverSpec()
    cuda: CudaSpec = CudaSpec()
    toolkit: ToolkitSpec = ToolkitSpec()
    fabric: FabricSpec = FabricSpec()
    sources: Mapping[str, SourceSpec] = field(default_factory=dict)
    archive: Archive = Archive()  # what the node's package manager said


def request_of(facts: NodeFacts, spec: Spec) -> SolveRequest:
    """The request of a probed node.  Its kernels are those that can boot next and the running one."""
    return SolveRequest(
        gpus=(*(g.id for g in facts.gpus), *spec.image.gpus),
        nvswitches=(*(s.id for s in facts.nvswitches), *spec.image.nvswitches),
        nvlink5_fabric=facts.nvlink5_fabric or spec.image.nvlink5_fabric,
        virtual_functions=tuple(g.id for g in facts.gpus if g.virtual_function),
        licensed=next(
            (one for one in (*facts.files, *facts.packages, *facts.modules) if one.startswith(_LICENSED)), ""
        ),
        subsystems=tuple(f"{g.id} {g.subsystem}" for g in facts.gpus if g.subsystem),
        distro=facts.distro.key,
        made_from=facts.distro.made_from,
        arch=facts.arch,
        kernels=tuple(
            Kernel(release=k.release, running=k.running, image=k.image, headers=k.headers, package=k.package)
            for k in facts.kernels
            if k.image or k.running
        ),
        secure_boot=facts.secure_boot,
        own_key=facts.has_own_key,
        virtualization=facts.virtualization,
        tegra=facts.tegra,
        board=facts.board,
        installed=tuple(sorted(facts.packages)),
        package_manager=facts.package_manager,
        repositories=enabled_repositories(facts.files),
        pins=strong_pins(facts.files),
        components=_components(facts) if facts.distro.id == "debian" else None,
        loaded_driver=facts.driver.loaded or facts.driver.userspace,
        runfile=facts.driver.runfile,
        elsewhere=facts.driver.elsewhere,
        installed_toolkit=upstream(facts.packages["nvidia-container-toolkit"].version)
        if "nvidia-container-toolkit" in facts.packages
        else "",
        driver=spec.driver,
        cuda=spec.cuda,
        toolkit=spec.toolkit,
        fabric=spec.fabric,
        sources=spec.sources,
    )


def _components(facts: NodeFacts) -> tuple[str, ...] | None:
    """Components of the apt sources that the probe read; None when it read none."""
    components: set[str] = set()
    read = False
    for path, file in facts.files.items():
        if not path.startswith("/etc/apt/sources.list") or file.data is None:
            continue
        read = True
        text = file.data.decode("utf-8", "replace")
        for line in re.findall(r"^deb\s+(?:\[[^]]*\]\s*)?\S+\s+\S+\s+(.+)$|^Components:\s*(.+)$", text, re.M):
            components.update(" ".join(line).split())
    return tuple(sorted(components)) if read else None


@dataclass(frozen=True, kw_only=True)
class Notes:
    """The only thing here that changes: what is found out grows during one solve()."""

    reasons: dict[Reason, None] = field(default_factory=dict)
    problems: dict[Problem, None] = field(default_factory=dict)

    def because(self, what: str, why: str, source: str) -> None:
        """Note the reason of a decision."""
        self.reasons[Reason(what=what, why=why, source=source)] = None

    def warn(self, what: str, why: str, source: str) -> None:
        """Note what a reader has to know of a decision."""
        self.reasons[Reason(what=what, why=why, source=source, level="warning")] = None

    def refuse(self, what: str, fix: str) -> None:
        """Note a problem: what cannot work, and what would."""
        self.problems[Problem(what=what, fix=fix)] = None

    def solution(self) -> Solution:
        """These notes as an answer without any part."""
        return Solution(reasons=tuple(self.reasons), problems=tuple(self.problems))


@dataclass(frozen=True, kw_only=True)
class SolveCase(Notes):
    """One question, all that its answer rests on, and its notes; the parts of the solver take it whole."""

    request: SolveRequest
    distro: DistroRow  # the release of the distribution
    gpus: tuple[GpuModel, ...]  # each model once; empty only where the branch is chosen by hand
    knowledge: Knowledge

    @property
    def fabric(self) -> bool:
        """Whether NVLink joins GPUs by more than bridges: a manager of the driver's version, or IMEX, belongs to it."""
        request = self.request
        return bool(request.nvswitches) or request.nvlink5_fabric or any(g.fabric == "imex" for g in self.gpus)

    def offered(self, *names: str) -> bool:
        """Whether NVIDIA's repository may have one after all: apt was asked, dnf and zypper will be, mirrors differ."""
        asked = self.request.package_manager in ("dnf", "zypper")
        return asked or "nvidia-cuda" in self.request.sources or any(map(self.request.archive.of, names))
