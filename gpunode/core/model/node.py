"""What a node says of itself, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Literal

from gpunode.core.engines import RuntimeName

Distribution = Literal["", "k3s", "rke2", "k0s", "microk8s"]
GpuState = Literal["kept", "keepable", "exposed", "lost"]

# of a fact that changes by itself, or by which no decision of a plan is taken
VOLATILE = MappingProxyType({"volatile": True})


def volatile_fields(of: type[NodeFacts | DriverState]) -> frozenset[str]:
    """The names of those facts."""
    return frozenset(one.name for one in fields(of) if one.metadata == VOLATILE)


@dataclass(frozen=True, kw_only=True)
class Distro:
    """os-release of the node.  `key` is ID:VERSION_ID, or ID alone on rolling distributions."""

    id: str = ""
    version_id: str = ""
    codename: str = ""
    like: tuple[str, ...] = ()
    name: str = ""

    @property
    def key(self) -> str:
        return f"{self.id}:{self.version_id}" if self.version_id else self.id


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """One kernel that is installed (or running), and what stands ready for it."""

    release: str
    running: bool = False
    image: bool = False  # /boot or /lib/modules/R has a kernel image: it can boot next
    headers: bool = False  # /lib/modules/R/build resolves
    module: str = ""  # version of the nvidia module on disk for it, "" when there is none
    flavour: str = ""  # "open" | "proprietary" | "" of that module
    dkms: str = ""  # state that `dkms status` gives the nvidia module for it: installed, built, added, ""


@dataclass(frozen=True, kw_only=True)
class PciDevice:
    """A PCI function: slot 0000:17:00.0, id 10de:2330, class 0302 (3D) or 0300 (VGA) or 0680 (NVSwitch bridge)."""

    slot: str
    id: str
    class_code: str
    subsystem: str = ""
    driver: str = ""  # kernel driver bound to it: nvidia, nouveau, vfio-pci, ""
    virtual_function: bool = False  # an SR-IOV VF (it has a physfn link), or a vGPU by its name
    label: str = ""  # what lspci calls it, "" without lspci


@dataclass(frozen=True, kw_only=True)
class PciLink:
    """A PCIe function on the way from the root to a GPU or an RDMA device, and its link (of a downstream port: below).

    Numbers are None where they were not read, or the function has no such thing.
    """

    slot: str
    parent: str = ""  # the bridge above, "" at the root
    speed: str = ""  # GT/s now
    max_speed: str = ""
    width: int | None = None
    max_width: int | None = None
    acs: str = ""  # ACS control word (PCI Express Base Specification, 7.7.11): 0x001d; none: it has no ACS
    fatal: int | None = None  # AER counters since boot
    nonfatal: int | None = None
    correctable: int | None = None
    iommu: str = ""  # type of its IOMMU domain: identity, DMA, DMA-FQ; none without an IOMMU


@dataclass(frozen=True, kw_only=True)
class RdmaPort:
    """A port of /sys/class/infiniband."""

    device: str  # mlx5_0
    port: int
    slot: str = ""
    state: str = ""  # ACTIVE, INIT, DOWN …
    physical: str = ""  # LinkUp, Polling, Disabled …
    rate: str = ""  # Gb/s
    layer: str = ""  # InfiniBand, Ethernet


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """Settings of the host that decide how fast GPUs are."""

    governors: tuple[str, ...] = ()  # of all CPUs, each once
    kernel_options: Mapping[str, str] = field(default_factory=dict)  # PCI_P2PDMA: y, n; not there: not read
    arguments: tuple[str, ...] = ()  # of the running kernel's command line, those that concern us
    next_arguments: tuple[str, ...] = ()  # the same of the entry that boots next
    loader: str = ""  # what writes the boot entries: update-grub, grubby
    ofed: str = ""  # what ofed_info calls NVIDIA's own RDMA stack: OFED-internal-25.01-0.6.0, MLNX_OFED_LINUX-…
    peer_memory: str = ""  # yes, no: whether the kernel's RDMA stack has peer memory; "" without an RDMA device
    peermem: str = ""  # the driver's nvidia-peermem: built, stub (it cannot be loaded), absent; "" not read
    gdrdrv: bool = False  # GDRCopy's module is there for the running kernel
    imex_dra: bool = False  # NVIDIA's DRA driver for ComputeDomains, which has IMEX of its own, is on the node


@dataclass(frozen=True, kw_only=True)
class NvmlGpu:
    """A GPU as the driver sees it (nvidia-smi --query-gpu, or NVML locally).

    A text is "" where it was not read, and N/A where the driver says that this GPU has no such thing.
    """

    index: int
    uuid: str = ""
    name: str = ""
    slot: str = ""
    memory_mib: int | None = None
    mig_current: str = ""  # Enabled, Disabled
    mig_pending: str = ""
    persistence: str = ""
    ecc_current: str = ""
    ecc_pending: str = ""  # after the next reset
    ecc_uncorrected: int | None = None  # None: not read; with ecc_current Disabled or N/A there is no counter
    retired_pending: str = ""  # Yes, No
    remap_pending: str = ""
    remap_failure: str = ""
    fabric_state: str = ""  # Not Started, In Progress, Completed
    fabric_status: str = ""  # Success, or nvidia-smi's word for what went wrong; the state counts only with Success
    recovery: str = ""  # what the driver itself recommends (gpu_recovery_action): None, Reset, Reboot, Drain P2P …
    compute_mode: str = ""  # Default, Exclusive_Process, Prohibited
    power_limit: str = ""  # watts: now, and the range that can be set
    power_min: str = ""
    power_max: str = ""
    power_default: str = ""
    clock: str = ""  # MHz of its graphics clock now
    clock_max: str = ""
    pstate: str = ""  # P0 works, P8 and more sleeps
    vbios: str = ""
    pcie_generation: str = ""  # of its link now, lower while it sleeps
    pcie_generation_max: str = ""  # that GPU and slot can both do
    pcie_width: str = ""  # lanes now
    pcie_width_max: str = ""  # of the GPU; its slot may have fewer
    sram_uncorrected: str = ""  # uncorrected errors of its SRAM in its life
    sram_exceeded: str = ""  # Yes: more of them than NVIDIA's limit for an RMA
    nvlinks_up: int | None = None
    nvlink_speed: str = ""  # GB/s of its slowest link that is up
    event_reasons: str = ""  # why its clocks are not higher, by nvml.h's nvmlClocksEventReason: 0x0000000000000001
    fault: str = ""  # the driver's word where it cannot speak for the GPU: «GPU is lost», «GPU requires reset» …


@dataclass(frozen=True, kw_only=True)
class Topology:
    """How GPUs (and network cards) are joined: `nvidia-smi topo -m`.  `links[i][j]` joins names[i] with names[j]."""

    names: tuple[str, ...] = ()  # GPU0, GPU1, NIC0 …
    links: tuple[tuple[str, ...], ...] = ()  # X itself, NV18 NVLinks, PIX PXB PHB NODE SYS ever farther over PCIe
    cpus: tuple[str, ...] = ()  # CPU affinity of each row, "" unknown
    numa: tuple[str, ...] = ()  # NUMA node of each row, "" unknown


@dataclass(frozen=True, kw_only=True)
class DriverState:
    """The NVIDIA driver as it is now."""

    loaded: str = ""  # version of the loaded kernel module, "" when none is loaded
    loaded_flavour: str = ""
    userspace: str = ""  # version in the file name of libnvidia-ml.so.X
    firmware: tuple[str, ...] = ()  # versions of GSP firmware on disk, which open modules cannot do without
    nouveau: bool = False
    nova: bool = False
    runfile: str = ""  # version that nvidia-installer left, "" when it never ran
    parameters: Mapping[str, str] = field(default_factory=dict)  # of the loaded module, as it shows them itself
    # first line of trouble that nvidia-smi prints; "" when it works or is absent
    smi: str = field(default="", metadata=VOLATILE)


@dataclass(frozen=True, kw_only=True)
class ConfigFile:
    """A file the probe looked at.  `data` is None when it could not be read or is larger than the probe sends."""

    path: str
    sha256: str = ""
    mode: int = 0o644
    owner: str = "root:root"
    size: int = 0
    data: bytes | None = None
    target: str = ""  # where a symbolic link leads, "" for a plain file
    regular: bool = True  # else a folder, a device, a pipe, which nobody reads


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """One container engine."""

    name: RuntimeName
    distribution: Distribution = ""  # the Kubernetes distribution that brings it, "" for an engine of its own
    version: str = ""
    binary: str = ""
    unit: str = ""
    active: bool = False
    enabled: bool = False
    flags: tuple[str, ...] = ()  # arguments of the running daemon, or of the unit's ExecStart
    socket: str = ""  # a socket that exists
    config: str = ""  # path of the root config file, whether or not it exists
    files: tuple[str, ...] = ()  # config files in force, root first; their contents are in NodeFacts.files
    effective_error: str = ""  # what the engine itself says against its configuration: containerd, dockerd
    cgroup_driver: str = ""  # systemd | cgroupfs | ""


@dataclass(frozen=True, kw_only=True)
class Running:
    """What runs in one engine while the probe looks."""

    count: int | None = None  # containers (pods, where crictl could be asked); None: nobody could be asked
    names: tuple[str, ...] = ()  # of the first ones
    live_restore: bool | None = None  # Docker's, as the running daemon says; None: not said
    knows_hook: bool = False  # dockerd started after nvidia-container-runtime-hook came onto the node
    reloads: bool = False  # the engine's unit can be reloaded


@dataclass(frozen=True, kw_only=True)
class Kubernetes:
    """What of Kubernetes is on the node.  kind "" means none."""

    kind: str = ""  # kubeadm, k3s, rke2, k0s, microk8s
    role: str = ""  # control-plane, worker, ""
    kubelet: str = ""  # version
    cri_socket: str = ""
    cgroup_driver: str = ""  # that the kubelet was given, "" when nothing says it
    cgroup_source: str = ""  # what says it: a flag or a file
    cgroup_from_cri: bool | None = None  # feature gate KubeletCgroupDriverFromCRI, None when nobody sets it
    gpu_operator: bool = False
    driver_container: bool = False  # of the GPU Operator: the node's driver comes from it

    @property
    def present(self) -> bool:
        """Whether a kubelet is on the node."""
        return bool(self.kind or self.kubelet)


@dataclass(frozen=True, kw_only=True)
class InstalledPackage:
    """A package that the package manager's database has as installed."""

    name: str
    version: str
    held: bool = False
    arch: str = ""


@dataclass(frozen=True, kw_only=True)
class Service:
    """A systemd unit the probe asked for."""

    name: str
    active: str = ""  # active, inactive, failed, ""
    enabled: str = ""  # enabled, disabled, masked, static, ""
    memlock: str = ""  # bytes that its processes may lock from its next start on, or infinity
    locked: str = ""  # the same of the process that runs, by the kernel


@dataclass(frozen=True, kw_only=True)
class DeviceNode:
    """One of NVIDIA's device files: `number` is MAJOR:MINOR, `linked` whether /dev/char has it."""

    path: str
    number: str
    linked: bool = False


@dataclass(frozen=True, kw_only=True)
class GpuContainer:
    """A running container that has GPUs, and what systemd's next daemon-reload does to it.

    `state`: kept; keepable (loses `devices`, unless systemd is notified before, which gpunode does); exposed (loses
    them, and whether it has a right to them cannot be seen); lost (has lost them).  `devices` are those concerned.
    """

    name: str
    id: str  # 64 hex digits
    unit: str = ""  # the scope in which systemd keeps its devices, "" where it does not (cgroupfs)
    hook: bool = False  # given its devices behind the runtime's back (legacy), not by its specification (CDI, --device)
    state: GpuState = "kept"
    devices: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CdiSpec:
    """One CDI specification.  `error` says why it cannot be read; then nothing else is known of it."""

    path: str
    kind: str = ""  # nvidia.com/gpu
    devices: tuple[str, ...] = ()  # names: "0", "GPU-UUID", "0:1" and "MIG-UUID" (MIG devices), "all"
    minors: tuple[int, ...] = ()  # N of every /dev/nvidiaN it brings
    driver: str = ""  # version in the names of the libraries it brings, "" where they have none
    needs: tuple[str, ...] = ()  # files of the host that it brings or runs
    version: str = ""  # of the CDI specification that it follows
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class CdiGpu:
    """A GPU of the loaded driver: the N of its /dev/nvidiaN, and how many MIG devices it is cut into."""

    minor: int
    uuid: str = ""
    mig_devices: int = 0


@dataclass(frozen=True, kw_only=True)
class Cdi:
    """The CDI specifications of the node, and what they have to fit."""

    specs: tuple[CdiSpec, ...] = ()
    gpus: tuple[CdiGpu, ...] = ()  # () when no driver is loaded
    missing: tuple[str, ...] = ()  # paths in specifications that are not on the node


@dataclass(frozen=True, kw_only=True)
class MigInstance:
    """One GPU instance: GPU by nvidia-smi's index, places in memory slices."""

    gpu: int
    id: int
    profile: str
    start: int
    size: int
    computes: int = 0  # compute instances in it: without one no program can use it


@dataclass(frozen=True, kw_only=True)
class Sharing:
    """How the GPUs are shared now, and what gpunode keeps of it on the node."""

    instances: tuple[MigInstance, ...] = ()
    mig_program: str = ""  # sha256 of what restores MIG at boot, "" where gpunode does not
    mig_status: str = ""  # of the last time it ran: success, pending, failed
    mig_message: str = ""
    mps_daemons: tuple[str, ...] = ()  # PIDs of MPS control daemons
    mps_threads: str = ""  # percentage of a GPU's threads that a client gets, as the daemon says


@dataclass(frozen=True, kw_only=True)
class FirstBoot:
    """What a machine that was prepared without its GPU does at the first boot with one, and what came of it."""

    program: str = ""  # sha256 of what is to run, "" on machines that were not prepared so
    armed: bool = False  # it runs at the next boot
    status: str = ""  # of the last time it ran: waiting, passed, failed; "" before
    at: str = ""  # when that was
    message: str = ""
    failed: tuple[str, ...] = ()  # "ID: message" of checks


@dataclass(frozen=True, kw_only=True)
class Xid:
    """One NVRM Xid line since boot."""

    code: int
    slot: str = ""
    line: str = ""


@dataclass(frozen=True, kw_only=True)
class NodeFacts:
    """All that one probe found.  Absent things are empty; what could not be asked stands in `notes`."""

    hostname: str = field(default="", metadata=VOLATILE)
    arch: str = ""  # uname -m
    distro: Distro = Distro()
    boot_id: str = field(default="", metadata=VOLATILE)
    init: str = ""  # systemd, other
    virtualization: str = ""  # none, kvm, wsl, docker, podman, lxc, …: systemd-detect-virt's words
    container: bool = False  # the target is a container without an init of its own
    tegra: str = ""  # device-tree model of a Jetson/Tegra board
    secure_boot: bool | None = None  # None: no EFI variables
    user: str = ""
    root: bool = False
    kernels: tuple[Kernel, ...] = ()
    gpus: tuple[PciDevice, ...] = ()
    nvswitches: tuple[PciDevice, ...] = ()
    nvlink5_fabric: bool = False  # SW_MNG in the VPD of an InfiniBand function: HGX B200 and later
    nvml: tuple[NvmlGpu, ...] = field(default=(), metadata=VOLATILE)
    driver: DriverState = DriverState()
    cuda: tuple[str, ...] = ()  # versions under /usr/local/cuda-* or /opt/cuda
    cuda_default: str = ""  # what /usr/local/cuda leads to
    toolkit: str = ""  # version of nvidia-container-toolkit, by its binary
    runtimes: tuple[Runtime, ...] = ()
    containers: Mapping[str, Running] = field(default_factory=dict, metadata=VOLATILE)  # by engine
    kubernetes: Kubernetes = Kubernetes()
    package_manager: str = ""  # apt, dnf, zypper, pacman
    packages: Mapping[str, InstalledPackage] = field(default_factory=dict)  # only names that concern us
    broken_packages: tuple[str, ...] = ()  # dpkg --audit and the like
    package_lock: str = field(default="", metadata=VOLATILE)  # who holds the package manager's lock, "" when free
    lease: str = field(default="", metadata=VOLATILE)  # the controller that is at work there, and its run
    services: Mapping[str, Service] = field(default_factory=dict)
    modules: tuple[str, ...] = ()  # loaded kernel modules that concern us: nvidia, nouveau, overlay, br_netfilter …
    sysctl: Mapping[str, str] = field(default_factory=dict)  # values in force that concern us; no br_netfilter: no key
    files: Mapping[str, ConfigFile] = field(
        default_factory=dict
    )  # by path: repositories, keyrings, modprobe.d, configurations of engines
    device_nodes: tuple[DeviceNode, ...] = ()
    gpu_containers: tuple[GpuContainer, ...] = field(default=(), metadata=VOLATILE)
    cdi: Cdi = Cdi()
    xids: tuple[Xid, ...] = field(default=(), metadata=VOLATILE)
    # "GPU 0 link 3"; "GPU 0: all links" where its like has some up
    nvlink_inactive: tuple[str, ...] = field(default=(), metadata=VOLATILE)
    topology: Topology = field(default=Topology(), metadata=VOLATILE)  # with two GPUs or more
    pcie: tuple[PciLink, ...] = field(default=(), metadata=VOLATILE)
    rdma: tuple[RdmaPort, ...] = field(default=(), metadata=VOLATILE)
    # device files that this session's device cgroup keeps it from opening
    hidden: tuple[str, ...] = field(default=(), metadata=VOLATILE)
    tuning: Tuning = Tuning()
    first_boot: FirstBoot = FirstBoot()
    sharing: Sharing = Sharing()
    # sections that did not say all: what is empty there is not «none», but not known
    unread: tuple[str, ...] = field(default=(), metadata=VOLATILE)
    unfinished: tuple[str, ...] = ()  # ids of transactions in the node's journal with an intent and no outcome
    notes: tuple[str, ...] = field(default=(), metadata=VOLATILE)  # "section: what was missing or not permitted"
    malformed: tuple[
        str, ...
    ] = ()  # "section: 'text' is not a valid kernel release": what was left out (core/facts/vet.py)

    def runtime(self, name: str) -> Runtime | None:
        """The engine of that name, or None."""
        return next((r for r in self.runtimes if r.name == name), None)

    @property
    def kernel(self) -> str:
        """Release of the running kernel, "" when unknown."""
        return next((k.release for k in self.kernels if k.running), "")

    @property
    def has_gpu(self) -> bool:
        """Whether it has an NVIDIA GPU: not all are on PCI."""
        return bool(self.gpus or self.tegra) or self.virtualization == "wsl"
