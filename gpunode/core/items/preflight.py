"""What precedes a plan's own steps: the node is the one that it was made for, and nothing is half done on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gpunode.core.items import runfile
from gpunode.core.items.item import StepKind
from gpunode.core.model import NodeFacts
from gpunode.core.validation import check_value, flag, mapping, text, texts

SHAPE = mapping(
    "The node as the plan found it; empty keys are not compared.",
    distro=text("Distribution and release, such as debian:12."),
    arch=text("Architecture, such as x86_64."),
    kernel=text("Release of the running kernel."),
    gpus=texts("GPUs, as SLOT=ID."),
    files=mapping("By engine, the SHA-256 of its files, by path; M(gpunode.node.edit_file) compares them."),
)


def _seen(facts: NodeFacts) -> dict[str, Any]:
    gpus = [f"{gpu.slot}={gpu.id}" for gpu in facts.gpus]
    return {"distro": facts.distro.key, "arch": facts.arch, "kernel": facts.kernel, "gpus": gpus}


RECOVER = StepKind(
    shape=flag("Finishes or undoes what an interrupted run left."),
    action="edit_file",
    argument="recover",
    base=lambda case, role: bool(case.facts.unfinished),
)
EXPECT = StepKind(shape=SHAPE, action="preflight", argument="expect", base=lambda case, role: _seen(case.facts))
FETCH = replace(runfile.STEP, argument="fetch")


def mismatches(expect: Mapping[str, Any], facts: NodeFacts) -> list[str]:
    """{distro, arch, kernel, gpus: [SLOT=ID]} against the facts: one sentence for each that differs.

    Keys that are missing or empty are not compared.  A node with malformed facts never matches.  Raises InputError.
    """
    check_value("preflight", expect, SHAPE)
    found = _seen(facts)
    found["gpus"].sort()
    return [*facts.malformed] + [
        f"{key} is {_words(found[key])}, the plan expects {_words(wanted)}"
        for key, wanted in ((key, expect.get(key)) for key in found)
        if wanted and (sorted(wanted) if key == "gpus" else wanted) != found[key]
    ]


def _words(value: Any) -> str:
    text = ", ".join(map(str, value)) or "none" if isinstance(value, list) else str(value) or "unknown"
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
