"""Sections about PCIe links, RDMA ports and the host's settings → values."""

from __future__ import annotations

from gpunode.core.facts.text import Probe, digits
from gpunode.core.late import regex
from gpunode.core.model import PciLink, RdmaPort, Tuning
from gpunode.core.numbers import whole

_ACS = regex(r"none|0x[0-9a-f]{4}")


def read_pcie(probe: Probe) -> tuple[PciLink, ...]:
    """`pcie SLOT PARENT SPEED MOST WIDTH MOST ACS FATAL NONFATAL CORRECTABLE IOMMU`, "-" for what was not read."""
    found = []
    for text in probe.values("links", "pcie"):
        words = ["" if word == "-" else word for word in text.split()]
        if len(words) != 11:
            probe.unreadable("links", text)
            continue
        slot, parent, speed, most, width, widest, acs, *errors, iommu = words
        fatal, nonfatal, correctable = map(digits, errors)
        found.append(
            PciLink(
                slot=slot,
                parent=parent,
                speed=_speed(speed),
                max_speed=_speed(most),
                width=digits(width) or None,  # 0: no link
                max_width=digits(widest) or None,
                acs=acs if _ACS.fullmatch(acs) else "",
                fatal=fatal,
                nonfatal=nonfatal,
                correctable=correctable,
                iommu=iommu,
            )
        )
    return tuple(found)


def _speed(text: str) -> str:
    """ "32.0" of «32.0 GT/s PCIe»; "" of «Unknown»."""
    return text if text[:1].isdigit() else ""


def read_rdma(probe: Probe) -> tuple[RdmaPort, ...]:
    """`rdma DEVICE PORT SLOT STATE PHYSICAL RATE LAYER`."""
    found = []
    for text in probe.values("links", "rdma"):
        words = ["" if word == "-" else word for word in text.split()]
        if len(words) != 7 or digits(words[1]) is None:
            probe.unreadable("links", text)
            continue
        device, port, slot, state, physical, rate, layer = words
        # what is bound to no PCI device (rxe, siw) has a folder of another name
        found.append(
            RdmaPort(
                device=device,
                port=whole(port),
                slot=slot if slot.count(":") == 2 else "",
                state=state,
                physical=physical,
                rate=rate,
                layer=layer,
            )
        )
    return tuple(found)


def read_tuning(probe: Probe) -> Tuning:
    """Governors, options of the running kernel, and whether the DRA driver has IMEX."""
    options = (text.partition(" ") for text in probe.values("tuning", "option"))
    needs = probe.value("tuning", "peermem")
    return Tuning(
        governors=tuple(probe.values("tuning", "governor")),
        lockdown=probe.value("tuning", "lockdown"),
        kernel_options={name: value for name, _, value in options},
        arguments=tuple(probe.values("tuning", "argument")),
        next_arguments=tuple(probe.values("tuning", "next")),
        loader=probe.value("tuning", "loader"),
        ofed=probe.value("tuning", "ofed").rstrip(":"),
        peer_memory=probe.value("tuning", "peer_memory"),
        # the modules that nvidia-peermem needs (`-`: it is not there): one of the RDMA stack, or it is a stub
        peermem={"": "", "-": "absent"}.get(needs, "built" if "ib_" in needs else "stub"),
        gdrdrv=bool(probe.values("tuning", "gdrdrv")),
        imex_dra="dra" in probe.values("tuning", "imex"),
    )
