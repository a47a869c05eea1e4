"""What a node says of itself, as values; each text with its grammar, by which core/facts/vet.py lets it in."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Literal

from gpunode.core.engines import RuntimeName
from gpunode.core.grammar import (
    ARCH,
    ARGUMENT,
    ARGUMENT_WORD,
    CDI_DEVICE,
    CDI_KIND,
    CODENAME,
    CONTAINER,
    CUDA,
    DEVICE,
    DISTRO,
    GPU,
    HOST,
    KERNEL,
    LINE,
    MIG,
    MODULE,
    NUMBER,
    OWNER,
    PACKAGE,
    PACKAGE_ARCH,
    PATH,
    PCI_CLASS,
    PCI_ID,
    RECORD,
    RELEASE,
    SETTING,
    SHA256,
    SLOT,
    SOCKET,
    STATE,
    SYSCTL,
    TIME,
    UNIT,
    USER,
    UUID,
    VERSION,
    WORD,
)
from gpunode.core.late import dataclass, field, fields

Distribution = Literal["", "k3s", "rke2", "k0s", "microk8s"]
GpuState = Literal["kept", "keepable", "exposed", "lost"]

# of a fact that changes by itself, or by which no decision of a plan is taken
VOLATILE = MappingProxyType({"volatile": True})


def volatile_fields(of: type[NodeFacts | DriverState]) -> frozenset[str]:
    """The names of those facts."""
    return frozenset(one.name for one in fields(of) if one.metadata == VOLATILE)


DEB_ARCHS = {"x86_64": "amd64", "aarch64": "arm64"}  # what Debian calls an architecture of uname -m
# systemd-detect-virt's words for containers
CONTAINERS = ("docker", "podman", "lxc", "lxc-libvirt", "systemd-nspawn", "rkt", "openvz", "container-other", "oci")


@dataclass(frozen=True, kw_only=True)
class Distro:
    """os-release of the node.  `key` is ID:VERSION_ID, or ID alone on rolling distributions."""

    id: Annotated[str, DISTRO] = ""
    version_id: Annotated[str, RELEASE] = ""
    codename: Annotated[str, CODENAME] = ""
    like: tuple[Annotated[str, DISTRO], ...] = ()
    name: Annotated[str, LINE] = ""
    base: Annotated[str, CODENAME] = ""  # codename of the Ubuntu or Debian that it is made from, where it is neither

    @property
    def key(self) -> str:
        return f"{self.id}:{self.version_id}" if self.version_id else self.id

    @property
    def made_from(self) -> str:
        """What else may say what it is like: the codename of that release, or rhel:MAJOR; "" where nothing does."""
        return self.base or (f"rhel:{self.version_id.partition('.')[0]}" if "rhel" in self.like else "")


def own_key(distro: str) -> str:
    """The certificate of the key that DKMS signs with on a distribution, for mokutil."""
    return "/var/lib/shim-signed/mok/MOK.der" if distro.startswith("ubuntu") else "/var/lib/dkms/mok.pub"


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """One kernel that is installed (or running), and what stands ready for it."""

    release: Annotated[str, KERNEL]
    running: bool = False
    image: bool = False  # /boot or /lib/modules/R has a kernel image: it can boot next
    headers: bool = False  # /lib/modules/R/build resolves
    package: Annotated[str, PACKAGE] = ""  # that it is of, where rpm or pacman knows it: kernel-64k-core, linux-lts
    module: Annotated[str, VERSION] = ""  # version of the nvidia module on disk for it, "" when there is none
    flavour: Annotated[str, WORD] = ""  # "open" | "proprietary" | "" of that module
    # state that `dkms status` gives the nvidia module for it: installed, built, added, ""
    dkms: Annotated[str, WORD] = ""


@dataclass(frozen=True, kw_only=True)
class PciDevice:
    """A PCI function: slot 0000:17:00.0, id 10de:2330, class 0302 (3D) or 0300 (VGA) or 0680 (NVSwitch bridge)."""

    slot: Annotated[str, SLOT]
    id: Annotated[str, PCI_ID]
    class_code: Annotated[str, PCI_CLASS]
    subsystem: Annotated[str, PCI_ID] = ""
    driver: Annotated[str, MODULE] = ""  # kernel driver bound to it: nvidia, nouveau, vfio-pci, ""
    virtual_function: bool = False  # an SR-IOV VF (it has a physfn link), or a vGPU by its name
    label: Annotated[str, LINE] = ""  # what lspci calls it, "" without lspci


@dataclass(frozen=True, kw_only=True)
class PciLink:
    """A PCIe function on the way from the root to a GPU or an RDMA device, and its link (of a downstream port: below).

    Numbers are None where they were not read, or the function has no such thing.
    """

    slot: Annotated[str, SLOT]
    parent: Annotated[str, SLOT] = ""  # the bridge above, "" at the root
    speed: Annotated[str, NUMBER] = ""  # GT/s now
    max_speed: Annotated[str, NUMBER] = ""
    width: int | None = None
    max_width: int | None = None
    # ACS control word (PCI Express Base Specification, 7.7.11): 0x001d; none: it has no ACS
    acs: Annotated[str, WORD] = ""
    fatal: int | None = None  # AER counters since boot
    nonfatal: int | None = None
    correctable: int | None = None
    iommu: Annotated[str, WORD] = ""  # type of its IOMMU domain: identity, DMA, DMA-FQ; none without an IOMMU

    @property
    def silent(self) -> bool:
        """Whether all that it answers is ones: it has fallen off the bus."""
        return self.width == self.max_width == 0x3F


@dataclass(frozen=True, kw_only=True)
class RdmaPort:
    """A port of /sys/class/infiniband."""

    device: Annotated[str, WORD]  # mlx5_0
    port: int
    slot: Annotated[str, SLOT] = ""
    state: Annotated[str, WORD] = ""  # ACTIVE, INIT, DOWN …
    physical: Annotated[str, WORD] = ""  # LinkUp, Polling, Disabled …
    rate: Annotated[str, NUMBER] = ""  # Gb/s
    layer: Annotated[str, WORD] = ""  # InfiniBand, Ethernet


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """Settings of the host that decide how fast GPUs are."""

    governors: tuple[Annotated[str, WORD], ...] = ()  # of all CPUs, each once
    lockdown: Annotated[str, WORD] = ""  # of the kernel: none, integrity (under Secure Boot), confidentiality
    # PCI_P2PDMA: y, n; not there: not read
    kernel_options: Mapping[Annotated[str, MODULE], Annotated[str, WORD]] = field(default_factory=dict)
    # of the running kernel's command line, those that concern us
    arguments: tuple[Annotated[str, ARGUMENT_WORD], ...] = ()
    next_arguments: tuple[Annotated[str, ARGUMENT_WORD], ...] = ()  # the same of the entry that boots next
    loader: Annotated[str, WORD] = ""  # what writes the boot entries: update-grub, grubby
    # what ofed_info calls NVIDIA's own RDMA stack: OFED-internal-25.01-0.6.0, MLNX_OFED_LINUX-…
    ofed: Annotated[str, LINE] = ""
    # yes, no: whether the kernel's RDMA stack has peer memory; "" without an RDMA device
    peer_memory: Annotated[str, WORD] = ""
    # the driver's nvidia-peermem: built, stub (it cannot be loaded), absent; "" not read
    peermem: Annotated[str, WORD] = ""
    gdrdrv: bool = False  # GDRCopy's module is there for the running kernel
    imex_dra: bool = False  # NVIDIA's DRA driver for ComputeDomains, which has IMEX of its own, is on the node


@dataclass(frozen=True, kw_only=True)
class NvmlGpu:
    """A GPU as the driver sees it (nvidia-smi --query-gpu, or NVML locally).

    A text is "" where it was not read, and N/A where the driver says that this GPU has no such thing.
    """

    index: int
    uuid: Annotated[str, GPU] = ""
    name: Annotated[str, LINE] = ""
    slot: Annotated[str, SLOT] = ""
    memory_mib: int | None = None
    mig_current: Annotated[str, STATE] = ""  # Enabled, Disabled
    mig_pending: Annotated[str, STATE] = ""
    persistence: Annotated[str, STATE] = ""
    ecc_current: Annotated[str, STATE] = ""
    ecc_pending: Annotated[str, STATE] = ""  # after the next reset
    ecc_uncorrected: int | None = None  # None: not read; with ecc_current Disabled or N/A there is no counter
    retired_pending: Annotated[str, STATE] = ""  # Yes, No
    remap_pending: Annotated[str, STATE] = ""
    remap_failure: Annotated[str, STATE] = ""
    fabric_state: Annotated[str, STATE] = ""  # Not Started, In Progress, Completed
    # Success, or nvidia-smi's word for what went wrong; the state counts only with Success
    fabric_status: Annotated[str, STATE] = ""
    # what the driver itself recommends (gpu_recovery_action): None, Reset, Reboot, Drain P2P …
    recovery: Annotated[str, STATE] = ""
    compute_mode: Annotated[str, STATE] = ""  # Default, Exclusive_Process, Prohibited
    power_limit: Annotated[str, STATE] = ""  # watts: now, and the range that can be set
    power_min: Annotated[str, STATE] = ""
    power_max: Annotated[str, STATE] = ""
    power_default: Annotated[str, STATE] = ""
    clock: Annotated[str, STATE] = ""  # MHz of its graphics clock now
    clock_max: Annotated[str, STATE] = ""
    pstate: Annotated[str, STATE] = ""  # P0 works, P8 and more sleeps
    vbios: Annotated[str, STATE] = ""
    pcie_generation: Annotated[str, STATE] = ""  # of its link now, lower while it sleeps
    pcie_generation_max: Annotated[str, STATE] = ""  # that GPU and slot can both do
    pcie_width: Annotated[str, STATE] = ""  # lanes now
    pcie_width_max: Annotated[str, STATE] = ""  # of the GPU; its slot may have fewer
    sram_uncorrected: Annotated[str, STATE] = ""  # uncorrected errors of its SRAM in its life
    sram_exceeded: Annotated[str, STATE] = ""  # Yes: more of them than NVIDIA's limit for an RMA
    nvlinks_up: int | None = None
    nvlink_speed: Annotated[str, NUMBER] = ""  # GB/s of its slowest link that is up
    # why its clocks are not higher, by nvml.h's nvmlClocksEventReason: 0x0000000000000001
    event_reasons: Annotated[str, STATE] = ""
    # the driver's word where it cannot speak for the GPU: «GPU is lost», «GPU requires reset» …
    fault: Annotated[str, STATE] = ""


@dataclass(frozen=True, kw_only=True)
class Topology:
    """How GPUs (and network cards) are joined: `nvidia-smi topo -m`.  `links[i][j]` joins names[i] with names[j]."""

    names: tuple[Annotated[str, LINE], ...] = ()  # GPU0, GPU1, NIC0 …
    # X itself, NV18 NVLinks, PIX PXB PHB NODE SYS ever farther over PCIe
    links: tuple[tuple[Annotated[str, LINE], ...], ...] = ()
    cpus: tuple[Annotated[str, LINE], ...] = ()  # CPU affinity of each row, "" unknown
    numa: tuple[Annotated[str, LINE], ...] = ()  # NUMA node of each row, "" unknown


@dataclass(frozen=True, kw_only=True)
class DriverState:
    """The NVIDIA driver as it is now."""

    loaded: Annotated[str, VERSION] = ""  # version of the loaded kernel module, "" when none is loaded
    loaded_flavour: Annotated[str, WORD] = ""
    userspace: Annotated[str, VERSION] = ""  # version in the file name of libnvidia-ml.so.X
    # the folder of that library, where the linker finds it in one that no package fills
    elsewhere: Annotated[str, PATH] = ""
    # versions of GSP firmware on disk, which open modules cannot do without
    firmware: tuple[Annotated[str, VERSION], ...] = ()
    nouveau: bool = False
    nova: bool = False
    runfile: Annotated[str, VERSION] = ""  # version that nvidia-installer left, "" when it never ran
    # of the loaded module, as it shows them itself
    parameters: Mapping[Annotated[str, MODULE], Annotated[str, ARGUMENT]] = field(default_factory=dict)
    # first line of trouble that nvidia-smi prints; "" when it works or is absent
    smi: Annotated[str, LINE] = field(default="", metadata=VOLATILE)


@dataclass(frozen=True, kw_only=True)
class ConfigFile:
    """A file the probe looked at.  `data` is None when it could not be read or is larger than the probe sends."""

    path: Annotated[str, PATH]
    sha256: Annotated[str, SHA256] = ""
    mode: int = 0o644
    owner: Annotated[str, OWNER] = "root:root"
    size: int = 0
    data: bytes | None = None
    target: Annotated[str, PATH] = ""  # where a symbolic link leads, "" for a plain file
    regular: bool = True  # else a folder, a device, a pipe, which nobody reads


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """One container engine."""

    name: Annotated[RuntimeName, WORD]
    # the Kubernetes distribution that brings it, "" for an engine of its own
    distribution: Annotated[Distribution, WORD] = ""
    version: Annotated[str, VERSION] = ""
    binary: Annotated[str, PATH] = ""
    unit: Annotated[str, UNIT] = ""
    active: bool = False
    enabled: bool = False
    flags: tuple[Annotated[str, ARGUMENT], ...] = ()  # arguments of the running daemon, or of the unit's ExecStart
    socket: Annotated[str, SOCKET] = ""  # a socket that exists
    config: Annotated[str, PATH] = ""  # path of the root config file, whether or not it exists
    # what the engine itself says against its configuration: containerd, dockerd; empty where it says nothing
    effective_error: Annotated[str, ARGUMENT] = ""
    rendered: bool = False  # k3s, RKE2: their files for containerd are newer than the nvidia runtime and all settings


@dataclass(frozen=True, kw_only=True)
class Running:
    """What runs in one engine while the probe looks."""

    count: int | None = None  # containers (pods, where crictl could be asked); None: nobody could be asked
    names: tuple[Annotated[str, LINE], ...] = ()  # of the first ones
    live_restore: bool | None = None  # Docker's, as the running daemon says; None: not said
    runtimes: tuple[Annotated[str, WORD], ...] = ()  # Docker's, as the running daemon says
    knows_hook: bool = False  # dockerd started after nvidia-container-runtime-hook came onto the node
    reloads: bool = False  # the engine's unit can be reloaded


@dataclass(frozen=True, kw_only=True)
class Kubernetes:
    """What of Kubernetes is on the node.  kind "" means none."""

    kind: Annotated[str, WORD] = ""  # kubeadm, k3s, rke2, k0s, microk8s
    role: Annotated[str, WORD] = ""  # control-plane, worker, ""
    kubelet: Annotated[str, VERSION] = ""  # version
    cri_socket: Annotated[str, SOCKET] = ""
    cgroup_driver: Annotated[str, WORD] = ""  # that the kubelet was given, "" when nothing says it
    cgroup_source: Annotated[str, LINE] = ""  # what says it: a flag or a file
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

    name: Annotated[str, PACKAGE]
    version: Annotated[str, VERSION]
    held: bool = False
    arch: Annotated[str, PACKAGE_ARCH] = ""


@dataclass(frozen=True, kw_only=True)
class Service:
    """A systemd unit the probe asked for."""

    name: Annotated[str, UNIT]
    active: Annotated[str, WORD] = ""  # active, inactive, failed, ""
    enabled: Annotated[str, WORD] = ""  # enabled, disabled, masked, static, ""
    memlock: Annotated[str, WORD] = ""  # bytes that its processes may lock from its next start on, or infinity
    locked: Annotated[str, WORD] = ""  # the same of the process that runs, by the kernel

    @property
    def runs(self) -> bool:
        return self.active in ("active", "reloading", "activating")

    @property
    def at_boot(self) -> bool:
        return self.enabled in ("enabled", "enabled-runtime", "alias")


@dataclass(frozen=True, kw_only=True)
class DeviceNode:
    """One of NVIDIA's device files: `number` is MAJOR:MINOR, `linked` whether /dev/char has it."""

    path: Annotated[str, PATH]
    number: Annotated[str, DEVICE]
    linked: bool = False


@dataclass(frozen=True, kw_only=True)
class GpuContainer:
    """A running container that has GPUs, and what systemd's next daemon-reload does to it.

    `state`: kept; keepable (loses `devices`, unless systemd is notified before, which gpunode does); exposed (loses
    them, and whether it has a right to them cannot be seen); lost (has lost them).  `devices` are those concerned.
    """

    name: Annotated[str, LINE]
    id: Annotated[str, CONTAINER]  # 64 hex digits
    unit: Annotated[str, UNIT] = ""  # the scope in which systemd keeps its devices, "" where it does not (cgroupfs)
    hook: bool = False  # given its devices behind the runtime's back (legacy), not by its specification (CDI, --device)
    state: Annotated[GpuState, WORD] = "kept"
    devices: tuple[Annotated[str, PATH], ...] = ()
    reloaded: bool = (
        False  # systemd has reloaded since it started, and whether it took `devices` is not seen (cgroups 2)
    )


@dataclass(frozen=True, kw_only=True)
class CdiSpec:
    """One CDI specification.  `error` says why it cannot be read; then nothing else is known of it."""

    path: Annotated[str, PATH]
    kind: Annotated[str, CDI_KIND] = ""  # nvidia.com/gpu
    # names: "0", "GPU-UUID", "0:1" and "MIG-UUID" (MIG devices), "all"
    devices: tuple[Annotated[str, CDI_DEVICE], ...] = ()
    minors: tuple[int, ...] = ()  # N of every /dev/nvidiaN it brings
    driver: Annotated[str, VERSION] = ""  # version in the names of the libraries it brings, "" where they have none
    needs: tuple[Annotated[str, PATH], ...] = ()  # files of the host that it brings or runs
    version: Annotated[str, VERSION] = ""  # of the CDI specification that it follows
    error: Annotated[str, LINE] = ""


@dataclass(frozen=True, kw_only=True)
class CdiGpu:
    """A GPU of the loaded driver: the N of its /dev/nvidiaN, and how many MIG devices it is cut into."""

    minor: int
    uuid: Annotated[str, GPU] = ""
    mig_devices: int = 0


@dataclass(frozen=True, kw_only=True)
class Cdi:
    """The CDI specifications of the node, and what they have to fit."""

    specs: tuple[CdiSpec, ...] = ()
    gpus: tuple[CdiGpu, ...] = ()  # () when no driver is loaded
    missing: tuple[Annotated[str, PATH], ...] = ()  # paths in specifications that are not on the node


@dataclass(frozen=True, kw_only=True)
class MigInstance:
    """One GPU instance: GPU by nvidia-smi's index, places in memory slices."""

    gpu: int
    id: int
    profile: Annotated[str, MIG]
    start: int
    size: int
    computes: int = 0  # compute instances in it: without one no program can use it


@dataclass(frozen=True, kw_only=True)
class Sharing:
    """How the GPUs are shared now, and what gpunode keeps of it on the node."""

    instances: tuple[MigInstance, ...] = ()
    mig_program: Annotated[str, WORD] = ""  # sha256 of what restores MIG at boot, "" where gpunode does not
    mig_status: Annotated[str, WORD] = ""  # of the last time it ran: success, pending, failed
    mig_message: Annotated[str, LINE] = ""
    mps_daemons: tuple[Annotated[str, NUMBER], ...] = ()  # PIDs of MPS control daemons
    mps_threads: Annotated[str, NUMBER] = ""  # percentage of a GPU's threads that a client gets, as the daemon says


@dataclass(frozen=True, kw_only=True)
class FirstBoot:
    """What a machine that was prepared without its GPU does at the first boot with one, and what came of it."""

    program: Annotated[str, WORD] = ""  # sha256 of what is to run, "" on machines that were not prepared so
    armed: bool = False  # it runs at the next boot
    status: Annotated[str, WORD] = ""  # of the last time it ran: waiting, passed, failed; "" before
    at: Annotated[str, TIME] = ""  # when that was
    message: Annotated[str, LINE] = ""
    failed: tuple[Annotated[str, LINE], ...] = ()  # "ID: message" of checks


@dataclass(frozen=True, kw_only=True)
class Xid:
    """NVRM's Xid lines of one code and GPU since boot: the first of them, and how many there are."""

    code: int
    slot: Annotated[str, LINE] = ""
    line: Annotated[str, LINE] = ""
    count: int = 1


@dataclass(frozen=True, kw_only=True)
class NotStarted:
    """What the driver wrote into the kernel log of a GPU that it could not start; older ones do not say of which."""

    slot: Annotated[str, SLOT] = ""
    words: Annotated[str, LINE] = ""


@dataclass(frozen=True, kw_only=True)
class KernelFault:
    """What else the kernel log says against the driver: `kind` is gsp, reset or hung, `line` the first of `count`."""

    kind: Annotated[str, WORD] = ""
    line: Annotated[str, LINE] = ""
    count: int = 1


@dataclass(frozen=True, kw_only=True)
class Invalid:
    """What was left out of one thing among others, since it is no such value: a GPU's, a file's, an engine's."""

    section: Annotated[str, WORD]  # of the probe
    thing: Annotated[str, LINE] = ""  # what it is called: a PCI slot, a path, docker
    what: Annotated[str, LINE] = ""

    def __str__(self) -> str:
        return ": ".join(filter(None, (self.section, self.thing, self.what)))


@dataclass(frozen=True, kw_only=True)
class NodeFacts:
    """All that one probe found.  Absent things are empty; what could not be asked stands in `notes`."""

    hostname: Annotated[str, HOST] = field(default="", metadata=VOLATILE)
    arch: Annotated[str, ARCH] = ""  # uname -m
    distro: Distro = Distro()
    boot_id: Annotated[str, UUID] = field(default="", metadata=VOLATILE)
    init: Annotated[str, WORD] = ""  # systemd, other
    cgroups2: bool = False  # control groups are of version 2 alone
    virtualization: Annotated[str, WORD] = ""  # none, kvm, wsl, docker, podman, lxc, …: systemd-detect-virt's words
    container: bool = False  # the target is a container without an init of its own
    tegra: Annotated[str, LINE] = ""  # device-tree model of a Jetson/Tegra board
    board: Annotated[str, LINE] = ""  # that of another machine which a device tree describes: no server of arm64
    secure_boot: bool | None = None  # None: no EFI variables
    user: Annotated[str, USER] = ""
    root: bool = False
    kernels: tuple[Kernel, ...] = ()
    gpus: tuple[PciDevice, ...] = ()
    nvswitches: tuple[PciDevice, ...] = ()
    nvlink5_fabric: bool = False  # SW_MNG in the VPD of an InfiniBand function: HGX B200 and later
    nvml: tuple[NvmlGpu, ...] = field(default=(), metadata=VOLATILE)
    driver: DriverState = DriverState()
    cuda: tuple[Annotated[str, CUDA], ...] = ()  # versions under /usr/local/cuda-* or /opt/cuda
    cuda_default: Annotated[str, CUDA] = ""  # what /usr/local/cuda leads to
    toolkit: Annotated[str, VERSION] = ""  # version of nvidia-container-toolkit, by its binary
    runtimes: tuple[Runtime, ...] = ()
    containers: Mapping[Annotated[str, WORD], Running] = field(default_factory=dict, metadata=VOLATILE)  # by engine
    # ids of users with a Docker of their own, which does not run as root
    rootless_docker: tuple[Annotated[str, USER], ...] = field(default=(), metadata=VOLATILE)
    kubernetes: Kubernetes = Kubernetes()
    package_manager: Annotated[str, WORD] = ""  # apt, dnf, zypper, pacman
    # only names that concern us
    packages: Mapping[Annotated[str, PACKAGE], InstalledPackage] = field(default_factory=dict)
    broken_packages: tuple[Annotated[str, PACKAGE], ...] = ()  # dpkg --audit and the like
    # programs that somebody has deleted, by path: the package that brought each
    lost_programs: Mapping[Annotated[str, PATH], Annotated[str, PACKAGE]] = field(default_factory=dict)
    # who holds the package manager's lock, "" when free
    package_lock: Annotated[str, LINE] = field(default="", metadata=VOLATILE)
    # the controller that is at work there, and its run
    lease: Annotated[str, LINE] = field(default="", metadata=VOLATILE)
    services: Mapping[Annotated[str, UNIT], Service] = field(default_factory=dict)
    # loaded kernel modules that concern us: nvidia, nouveau, overlay, br_netfilter …
    modules: tuple[Annotated[str, MODULE], ...] = ()
    # values in force that concern us; no br_netfilter: no key
    sysctl: Mapping[Annotated[str, SYSCTL], Annotated[str, SETTING]] = field(default_factory=dict)
    files: Mapping[Annotated[str, PATH], ConfigFile] = field(
        default_factory=dict
    )  # by path: repositories, keyrings, modprobe.d, configurations of engines
    device_nodes: tuple[DeviceNode, ...] = ()
    gpu_containers: tuple[GpuContainer, ...] = field(default=(), metadata=VOLATILE)
    cdi: Cdi = Cdi()
    xids: tuple[Xid, ...] = field(default=(), metadata=VOLATILE)
    not_started: tuple[NotStarted, ...] = field(default=(), metadata=VOLATILE)
    kernel_faults: tuple[KernelFault, ...] = field(default=(), metadata=VOLATILE)
    # "GPU 0 link 3"; "GPU 0: all links" where its like has some up
    nvlink_inactive: tuple[Annotated[str, LINE], ...] = field(default=(), metadata=VOLATILE)
    topology: Topology = field(default=Topology(), metadata=VOLATILE)  # with two GPUs or more
    pcie: tuple[PciLink, ...] = field(default=(), metadata=VOLATILE)
    rdma: tuple[RdmaPort, ...] = field(default=(), metadata=VOLATILE)
    # device files that this session's device cgroup keeps it from opening
    hidden: tuple[Annotated[str, PATH], ...] = field(default=(), metadata=VOLATILE)
    tuning: Tuning = Tuning()
    first_boot: FirstBoot = FirstBoot()
    sharing: Sharing = Sharing()
    # sections that did not say all: what is empty there is not «none», but not known
    unread: tuple[Annotated[str, WORD], ...] = field(default=(), metadata=VOLATILE)
    # ids of transactions in the node's journal with an intent and no outcome
    unfinished: tuple[Annotated[str, RECORD], ...] = ()
    state_blocked: bool = False  # /var/lib/gpunode is something else than a folder: nothing can be recorded
    # sections, and "file PATH", of which the probe's user may not read all
    denied: tuple[Annotated[str, LINE], ...] = field(default=(), metadata=VOLATILE)
    # "section: what was missing or not permitted"
    notes: tuple[Annotated[str, LINE], ...] = field(default=(), metadata=VOLATILE)
    # what was left out of one thing, the rest of the node goes on (core/facts/vet.py)
    invalid: tuple[Invalid, ...] = ()
    # "section: 'text' is not a valid kernel release": what was left out, and the whole node rests on it
    malformed: tuple[Annotated[str, LINE], ...] = ()

    def runtime(self, name: str) -> Runtime | None:
        """The engine of that name, or None."""
        return next((r for r in self.runtimes if r.name == name), None)

    def service(self, unit: str) -> Service | None:
        """The unit of that name, with or without .service; None where the probe did not see it."""
        return self.services.get(unit.removesuffix(".service"))

    @property
    def kernel(self) -> str:
        """Release of the running kernel, "" when unknown."""
        return next((k.release for k in self.kernels if k.running), "")

    @property
    def by_dkms(self) -> bool:
        """Whether DKMS builds the driver's modules here: it says so, or a package (no nvidia-headless-no-dkms)."""
        packages = any("nvidia" in name and "dkms" in name.replace("no-dkms", "") for name in self.packages)
        return packages or any(kernel.dkms for kernel in self.kernels)

    @property
    def has_own_key(self) -> bool:
        """Whether the firmware knows the key that DKMS signs with: under Secure Boot a module of it is loaded."""
        built = (k.module for k in self.kernels if k.running and k.dkms == "installed")
        return bool(self.secure_boot and self.driver.loaded) and self.driver.loaded in built

    @property
    def has_gpu(self) -> bool:
        """Whether it has an NVIDIA GPU: not all are on PCI."""
        return bool(self.gpus or self.tegra) or self.virtualization == "wsl"
