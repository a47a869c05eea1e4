"""The section about sharing → value: MIG instances as nvidia-smi lists them, MPS, and what gpunode keeps of both."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from gpunode.core.facts.text import Probe
from gpunode.core.model import MigInstance, Service, Sharing

# Rows of `nvidia-smi mig -lgi` (drivers 450 to 580 print them alike) and -lci (450 without the placement):
# |   0  MIG 1g.10gb         19        9          2:1     |
# |   0      9       MIG 1g.10gb          0         0          0:1     |
_GPU_INSTANCE = re.compile(r"\|\s*(\d{1,4})\s+MIG\s+(\S+)\s+\d{1,4}\s+(\d{1,4})\s+(\d{1,4}):(\d{1,4})\s*\|")
_COMPUTE_INSTANCE = re.compile(r"\|\s*(\d{1,4})\s+(\d{1,4})\s+MIG\s+\S+\s+\d{1,4}\s+\d{1,4}\s")


def read_sharing_units(probe: Probe) -> Iterator[tuple[str, Service]]:
    """gpunode's own units, as they are on the disk."""
    for words in map(str.split, probe.values("sharing", "unit")):
        if len(words) == 3:
            name = words[0].removesuffix(".service")
            yield name, Service(name=name, active=words[1], enabled=words[2])


def read_sharing(probe: Probe) -> Sharing:
    """MIG instances in nvidia-smi's order, each with the number of its compute instances, and the rest."""
    name = "sharing"
    lines = probe.lines(name)
    computes = Counter((int(m[1]), int(m[2])) for line in lines if (m := _COMPUTE_INSTANCE.match(line.strip())))
    found = [m for line in lines if (m := _GPU_INSTANCE.match(line.strip()))]
    return Sharing(
        instances=tuple(
            MigInstance(
                gpu=int(m[1]),
                profile=m[2],
                id=int(m[3]),
                start=int(m[4]),
                size=int(m[5]),
                computes=computes[int(m[1]), int(m[3])],
            )
            for m in found
        ),
        mig_program=probe.value(name, "program"),
        mig_status=probe.value(name, "status"),
        mig_message=probe.value(name, "message"),
        mps_daemons=tuple(probe.values(name, "mps")),
        mps_threads=probe.value(name, "threads").removesuffix(".0"),
    )
