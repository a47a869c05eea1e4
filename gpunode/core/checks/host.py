"""Settings of the host that decide how fast its GPUs are, judged: warnings, as each of them is somebody's choice."""

from __future__ import annotations

from collections.abc import Iterator

from gpunode.core.engines import ROWS
from gpunode.core.items.gpudirect import dmabuf_lacks, dmabuf_unread
from gpunode.core.knowledge import Knowledge
from gpunode.core.model import Check, NodeFacts

_DATACENTER = "0302"  # a 3D controller: no display


def host_checks(facts: NodeFacts, knowledge: Knowledge) -> Iterator[Check]:
    """gpu.persistence, cpu.governor, gpudirect.rdma, engine.memlock, fabric.imex."""
    yield from _persistence(facts)
    yield from _governor(facts)
    if any(port.state == "ACTIVE" for port in facts.rdma):
        yield _gpudirect(facts)
        yield from _memlock(facts)
    yield from _imex(facts, knowledge)


def _persistence(facts: NodeFacts) -> Iterator[Check]:
    """What the driver says of each GPU: that nvidia-persistenced runs does not say that it keeps them awake."""
    modes = {gpu.index: gpu.persistence for gpu in facts.nvml if gpu.persistence != "N/A"}
    if not modes:
        return
    off = [str(index) for index, mode in modes.items() if mode == "Disabled"]
    unread = [str(index) for index, mode in modes.items() if not mode]
    if off:
        daemon = facts.services.get("nvidia-persistenced")
        runs = daemon is not None and daemon.active == "active"
        why = "; nvidia-persistenced runs without it (--no-persistence-mode)" if runs else ""
        text = f"persistence mode is off: the driver initializes GPU {', '.join(off)} for each first program{why}"
        yield Check(
            id="gpu.persistence", status="warning", message=text, fix="gpu.persistence: true; by hand: nvidia-smi -pm 1"
        )
    elif unread:
        text = f"the persistence mode of GPU {', '.join(unread)} was not read"
        yield Check(id="gpu.persistence", status="not-proven", message=text)
    else:
        yield Check(id="gpu.persistence", status="passed", message="persistence mode is on")


def _governor(facts: NodeFacts) -> Iterator[Check]:
    governors = facts.tuning.governors
    if not governors or not any(gpu.class_code == _DATACENTER for gpu in facts.gpus):
        return
    if slow := [one for one in governors if one != "performance"]:
        text = f"CPUs have the governor {', '.join(slow)}: their clock follows the load"
        fix = "tuning.governor: performance; by hand: cpupower frequency-set -g performance"
        yield Check(id="cpu.governor", status="warning", message=text, fix=fix)
    else:
        yield Check(id="cpu.governor", status="passed", message="all CPUs have the governor performance")


def _gpudirect(facts: NodeFacts) -> Check:
    """How network cards reach GPU memory: DMA-BUF, which needs no OFED, or nvidia-peermem, which does."""
    name, ofed = "gpudirect.rdma", facts.tuning.ofed
    beside = f"; {ofed} is installed, and stays as it is" if ofed else ""
    if "nvidia_peermem" in facts.modules:
        return Check(id=name, status="passed", message=f"nvidia_peermem is loaded{beside}")
    if lacks := dmabuf_lacks(facts):
        text = (
            f"network cards cannot reach GPU memory: nvidia_peermem is not loaded, and DMA-BUF needs {', '.join(lacks)}"
        )
        fix = "driver.flavour: open; nvidia_peermem (tuning.peermem: load) only with DOCA-OFED"
        return Check(id=name, status="warning", message=text + beside, fix=fix)
    if what := dmabuf_unread(facts):
        return Check(id=name, status="not-proven", message=f"whether DMA-BUF works: {what} were not read")
    text = f"DMA-BUF: open kernel modules, Linux {facts.kernel}, PCI_P2PDMA{beside}"
    return Check(id=name, status="passed", message=text)


def _memlock(facts: NodeFacts) -> Iterator[Check]:
    """RDMA locks the memory that it uses; what a container may lock is what its engine may."""
    running = {name: service for name, service in facts.services.items() if service.active == "active"}
    units = [row.unit.removesuffix(".service") for row in ROWS.values() if row.daemon]
    limits = {name: running[name].locked or running[name].memlock for name in (*units, "kubelet") if name in running}
    small = [f"{name} ({limit})" for name, limit in limits.items() if limit not in ("", "infinity")]
    unread = [name for name, limit in limits.items() if not limit]
    if small:
        text = f"containers may lock little memory, and RDMA fails by it: {', '.join(small)}"
        fix = "tuning.memlock: unlimited; by hand: LimitMEMLOCK=infinity in a drop-in of the unit, and its restart"
        yield Check(id="engine.memlock", status="warning", message=text, fix=fix)
    elif unread:
        yield Check(
            id="engine.memlock", status="not-proven", message=f"LimitMEMLOCK of {', '.join(unread)} was not read"
        )
    elif limits:
        yield Check(id="engine.memlock", status="passed", message=f"{', '.join(limits)} may lock any memory")


def _imex(facts: NodeFacts, knowledge: Knowledge) -> Iterator[Check]:
    """Who has IMEX: the host's unit, or the DRA driver for ComputeDomains, beside which the unit has to be masked.

    Source: NVIDIA/cloud-native-docs 453.
    """
    unit = facts.services.get("nvidia-imex")
    models = [knowledge.gpu(gpu.id) for gpu in facts.gpus]
    joined = any(model and model.fabric == "imex" for model in models)
    if facts.tuning.imex_dra and unit and unit.enabled != "masked":
        text = "NVIDIA's DRA driver has IMEX of its own, and nvidia-imex.service is not masked: its pods hang"
        fix = "fabric.imex: dra; by hand: systemctl mask --now nvidia-imex"
        yield Check(id="fabric.imex", status="failed", message=text, fix=fix)
    elif facts.tuning.imex_dra:
        text = f"IMEX is the DRA driver's, and the host's unit is {'masked' if unit else 'not there'}"
        yield Check(id="fabric.imex", status="passed" if unit else "skipped", message=text)
    elif joined and unit and unit.active == "failed":
        fix = "journalctl -u nvidia-imex on the node"
        yield Check(id="fabric.imex", status="failed", message="nvidia-imex.service has failed", fix=fix)
    elif joined and unit and unit.active == "active":
        yield Check(id="fabric.imex", status="passed", message="nvidia-imex.service runs")
    elif joined:
        text = "no IMEX runs: NVLink does not leave this node"
        yield Check(id="fabric.imex", status="skipped", message=text)
