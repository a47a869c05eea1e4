"""gpunode solve."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from gpunode.cli.common import format_option, print_json
from gpunode.core.errors import Exit, InputError

if TYPE_CHECKING:
    from gpunode.core.knowledge import Knowledge
    from gpunode.core.model import Solution


@click.command(
    epilog="Examples:\n\n\b\n"
    "  gpunode solve --gpu 10de:2330 --distro debian:12\n"
    "  gpunode solve --gpu 'H100 PCIe' --distro ubuntu:24.04 --cuda 12.8 --format json\n"
    "  gpunode solve --gpu 10de:1b06 --distro ubuntu:22.04 --driver 580-proprietary\n\n"
    "Exit codes: 0 solved, 2 usage, 5 a problem stands against it (told in the answer)."
)
@click.option(
    "--gpu", "gpus", multiple=True, required=True, metavar="ID|NAME", help="PCI id or product name. Repeatable."
)
@click.option("--distro", required=True, metavar="ID:VERSION", help="As in os-release: debian:12, ubuntu:24.04.")
@click.option("--arch", type=click.Choice(["x86_64", "aarch64"]), default="x86_64", show_default=True)
@click.option(
    "--kernel", "kernels", multiple=True, metavar="RELEASE", help="An installed kernel (uname -r). Repeatable."
)
@click.option("--secure-boot", is_flag=True, help="Secure Boot is on.")
@click.option(
    "--driver",
    default="auto",
    show_default=True,
    metavar="WHICH",
    help="BRANCH or VERSION, each with -open or -proprietary; or open, proprietary, distro, none, auto.",
)
@click.option("--cuda", "cudas", multiple=True, metavar="X.Y", help="A CUDA toolkit to have. Repeatable.")
@click.option(
    "--toolkit", default="auto", show_default=True, metavar="VERSION", help="NVIDIA Container Toolkit; or none."
)
@format_option("text", "json")
def solve(
    gpus: tuple[str, ...],
    distro: str,
    arch: str,
    kernels: tuple[str, ...],
    secure_boot: bool,
    driver: str,
    cudas: tuple[str, ...],
    toolkit: str,
    output_format: str,
) -> int:
    """Choose driver, CUDA and container toolkit for GPUs and a distribution, with reasons.  Asks no host."""
    from gpunode.core.report import solution_data, solution_text
    from gpunode.core.solve import SolveRequest
    from gpunode.core.solve import solve as answer
    from gpunode.core.spec import parse_spec
    from gpunode.edge.load import load_knowledge

    knowledge = load_knowledge()
    data: dict[str, Any] = {
        "driver": driver_words(driver),
        "cuda": {"versions": list(cudas)},
        "toolkit": {"version": toolkit},
    }
    spec = parse_spec(data, where="command line")
    request = SolveRequest(
        gpus=tuple(gpu_id(text, knowledge) for text in gpus),
        distro=distro,
        arch=arch,
        kernels=kernels,
        secure_boot=secure_boot,
        driver=spec.driver,
        cuda=spec.cuda,
        toolkit=spec.toolkit,
    )
    solution: Solution = answer(request, knowledge)
    if output_format == "json":
        print_json(solution_data(solution))
    else:
        click.echo(solution_text(solution))
    return Exit.REFUSED if solution.problems else Exit.OK


def driver_words(text: str) -> dict[str, str]:
    """580, 580.95.05-open, proprietary, distro, none … → the spec's driver section.  Raises InputError."""
    match = re.fullmatch(r"(auto|distro|none|\d{3}(?:\.\d+){0,2})?(?:^|-|\b)(open|proprietary)?", text)
    if not match or not text:
        raise InputError(
            f"--driver {text!r}",
            expected="BRANCH or VERSION with an optional -open or -proprietary, or open, proprietary, distro, none, auto",
            fix="for example --driver 580, --driver 580.178.04-open, --driver proprietary",
        )
    which, flavour = match.groups()
    words = {"flavour": flavour} if flavour else {}
    if which and "." in which:
        return words | {"version": which}
    return words | ({"branch": which} if which else {})


def gpu_id(text: str, knowledge: Knowledge) -> str:
    """A PCI id as it is, or the one id of the products whose name holds the text.  Raises InputError."""
    text = text.strip()
    if re.fullmatch(r"(0x)?[0-9a-fA-F]{4}:(0x)?[0-9a-fA-F]{4}", text):
        pci_id = text.lower().replace("0x", "")
        if not pci_id.startswith("10de:"):
            raise InputError(
                f"--gpu {text}: vendor {pci_id[:4]} is not NVIDIA", expected="10de:XXXX", fix="lspci -nn -d 10de:"
            )
        return pci_id
    found = {i: m.name for i, m in knowledge.gpus.items() if text.lower() in m.name.lower() and m.kind != "not-a-gpu"}
    exact = [i for i, name in found.items() if name.lower() == text.lower()]
    if len(exact) == 1 or len(found) == 1:
        return (exact or list(found))[0]
    if not found:
        raise InputError(
            f"--gpu {text!r}: no such PCI id or product",
            expected="10de:XXXX or a product's name",
            fix="lspci -nn -d 10de:",
        )
    some = ", ".join(f"{i} {name}" for i, name in list(found.items())[:8])
    raise InputError(f"--gpu {text!r} names {len(found)} products", expected="one of them", fix=f"take the id: {some}")
