"""The part of gpunode.yml about acceptance: where the tools are that measure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from gpunode.core.errors import InputError
from gpunode.core.grammar import IMAGE
from gpunode.core.spec.option import option

TOOLS = ("dcgmi", "nvbandwidth", "all_reduce_perf", "gpu-fryer", "gpu_burn", "ib_write_bw")


@dataclass(frozen=True, kw_only=True)
class AcceptSpec:
    """Tools of `gpunode accept`.  They are looked for on PATH and where their packages put them."""

    tools: Mapping[str, str] = option(
        {}, "paths on the node, by tool: dcgmi, nvbandwidth, all_reduce_perf, gpu-fryer, gpu_burn, ib_write_bw"
    )
    packages: tuple[str, ...] = option(
        (), "packages that `gpunode bundle create` takes along for them: datacenter-gpu-manager-4-cuda13, perftest"
    )
    image: str = option("", "image with the tools that the node lacks; it must be on the node already")


def check_accept(accept: AcceptSpec, where: str) -> None:
    """Raises InputError."""
    for name, path in accept.tools.items():
        if name not in TOOLS:
            raise InputError(f"{where}: accept.tools has {name!r}", expected=f"one of {', '.join(TOOLS)}")
        if not re.fullmatch(r"/[\w./+-]+", path):
            raise InputError(f"{where}: accept.tools.{name} is {path!r}", expected="a path such as /opt/tests/bin/tool")
    for name in accept.packages:
        if not re.fullmatch(r"[a-zA-Z0-9][\w.+-]*(=[\w.+~:^-]+)?", name):
            raise InputError(f"{where}: accept.packages has {name!r}", expected="NAME or NAME=VERSION")
    if not IMAGE.fits(accept.image):
        raise InputError(f"{where}: accept.image is {accept.image!r}", expected="the name of an image")
