"""What preflight compares: the node as the plan expects it, and the node as it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpunode.core.model import NodeFacts
from gpunode.core.validation import mapping, text, texts

SHAPE = mapping(
    "The node as the plan found it; empty keys are not compared.",
    distro=text("Distribution and release, such as debian:12."),
    arch=text("Architecture, such as x86_64."),
    kernel=text("Release of the running kernel."),
    gpus=texts("GPUs, as SLOT=ID."),
)


def mismatches(expect: Mapping[str, Any], facts: NodeFacts) -> list[str]:
    """{distro, arch, kernel, gpus: [SLOT=ID]} against the facts: one sentence for each that differs.

    Keys that are missing or empty are not compared.  A node with malformed facts never matches.
    """
    found: dict[str, Any] = {
        "distro": facts.distro.key,
        "arch": facts.arch,
        "kernel": facts.kernel,
        "gpus": sorted(f"{gpu.slot}={gpu.id}" for gpu in facts.gpus),
    }
    return [*facts.malformed] + [
        f"{key} is {_words(found[key])}, the plan expects {_words(wanted)}"
        for key, wanted in ((key, expect.get(key)) for key in found)
        if wanted and (sorted(wanted) if key == "gpus" else wanted) != found[key]
    ]


def _words(value: Any) -> str:
    text = ", ".join(map(str, value)) or "none" if isinstance(value, list) else str(value) or "unknown"
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
