"""Section about CDI, and the specifications among the files → Cdi."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping

from gpunode.core.cdi import FOLDERS, read_spec
from gpunode.core.errors import InputError
from gpunode.core.facts.text import Probe
from gpunode.core.model import Cdi, CdiGpu, CdiSpec, ConfigFile


def read_cdi(probe: Probe, files: Mapping[str, ConfigFile]) -> Cdi:
    """`gpu MINOR UUID` and `mig MINOR COUNT` lines, `missing PATH` lines, and the files in the folders of CDI."""
    migs = dict(line.split()[:2] for line in probe.values("cdi", "mig") if len(line.split()) == 2)
    gpus = []
    for line in probe.values("cdi", "gpu"):
        minor, _, uuid = line.partition(" ")
        if not minor.isdecimal() or not migs.get(minor, "0").isdecimal():
            probe.unreadable("cdi", line)
            continue
        gpus.append(CdiGpu(minor=int(minor), uuid=uuid, mig_devices=int(migs.get(minor, "0"))))
    specs = [_spec(file) for path, file in sorted(files.items()) if _is_spec(path)]
    return Cdi(specs=tuple(specs), gpus=tuple(gpus), missing=tuple(probe.values("cdi", "missing")))


def _is_spec(path: str) -> bool:
    return posixpath.dirname(path) in FOLDERS and path.endswith((".yaml", ".json"))


def _spec(file: ConfigFile) -> CdiSpec:
    if file.data is None:
        return CdiSpec(path=file.path, error=f"{file.path}: not readable, or too large")
    try:
        return read_spec(file.path, file.data)
    except InputError as error:
        return CdiSpec(path=file.path, error=error.what)
