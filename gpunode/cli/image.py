"""Options about GPUs: those that are still to come, and those that have to be there."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import click

from gpunode.cli.common import Command, options

_OPTIONS = (
    click.option(
        "--for-gpu",
        "for_gpus",
        multiple=True,
        metavar="ID|NAME",
        help="Prepare for this GPU (or NVSwitch) that is still to come: 10de:2330, H100 PCIe. Repeatable.",
    ),
    click.option("--no-load", is_flag=True, help="Load nothing now: the first boot with a GPU loads and tests it."),
)


def image_options(command: Command) -> Command:
    """`--for-gpu` and `--no-load`, merged into the command's `spec_data` as gpunode.yml has them (`image`)."""

    @functools.wraps(command)
    def with_image(*args: Any, spec_data: Mapping[str, Any], **given: Any) -> Any:
        for_gpus, no_load = given.pop("for_gpus"), given.pop("no_load")
        if for_gpus or no_load:
            spec_data = _with_image(spec_data, for_gpus, no_load=no_load)
        return command(*args, spec_data=spec_data, **given)

    return options(*_OPTIONS, section="GPUs")(with_image)  # type: ignore[return-value]


_EXPECTED = (
    click.option("--expect-gpus", type=click.IntRange(0), metavar="N", help="Fail where a node has not just N GPUs."),
    click.option("--allow-no-gpu", is_flag=True, help="Accept machines without a GPU (else exit code 3)."),
)


def expected_options(command: Command, *, known: Sequence[Any] = _EXPECTED) -> Command:
    """`--expect-gpus` and `--allow-no-gpu`; the command gets `expected`, a part of gpunode.yml."""

    @functools.wraps(command)
    def with_expected(*args: Any, expect_gpus: int | None = None, allow_no_gpu: bool, **given: Any) -> Any:
        verify = {} if expect_gpus is None else {"expect_gpus": expect_gpus}
        verify |= {"allow_no_gpu": True} if allow_no_gpu else {}
        return command(*args, expected={"verify": verify} if verify else {}, **given)

    return options(*known, section="GPUs")(with_expected)  # type: ignore[return-value]


allow_option = functools.partial(expected_options, known=_EXPECTED[1:])  # of plan, which counts no GPUs


def _with_image(spec_data: Mapping[str, Any], names: tuple[str, ...], *, no_load: bool) -> Any:
    from gpunode.core.solve import find_gpu
    from gpunode.core.spec import merge_spec
    from gpunode.edge.load import load_knowledge

    knowledge = load_knowledge()
    ids = [find_gpu(name, knowledge) for name in names]
    image: dict[str, Any] = {"load": False} if no_load else {}
    if ids:
        switches = [pci_id for pci_id in ids if pci_id in knowledge.nvswitches]
        image |= {"gpus": [pci_id for pci_id in ids if pci_id not in switches], "nvswitches": switches}
    return merge_spec(spec_data, {"image": image})
