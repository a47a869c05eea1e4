"""The part of gpunode.yml about acceptance: where the tools are that measure."""

from __future__ import annotations

from collections.abc import Mapping

from gpunode.core.errors import InputError
from gpunode.core.grammar import IMAGE
from gpunode.core.late import dataclass
from gpunode.core.spec.option import check_grammar, check_text, option

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


def check_accept(accept: AcceptSpec) -> None:
    """Raises InputError."""
    for name, path in accept.tools.items():
        if name not in TOOLS:
            raise InputError.of("accept.tools", f"has {name!r}", expected=f"one of {', '.join(TOOLS)}")
        check_text(f"accept.tools.{name}", path, r"/[\w./+-]+", "a path such as /opt/tests/bin/tool")
    for number, name in enumerate(accept.packages):
        check_text(f"accept.packages[{number}]", name, r"[a-zA-Z0-9][\w.+-]*(=[\w.+~:^-]+)?", "NAME or NAME=VERSION")
    check_grammar("accept.image", accept.image, IMAGE)
