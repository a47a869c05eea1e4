"""gpunode sharing: what MIG can do with a GPU, without any host."""

from __future__ import annotations

import click

from gpunode.cli.common import format_option
from gpunode.cli.output import echo, print_json
from gpunode.core.errors import Exit


@click.group(
    epilog="Examples:\n\n\b\n"
    "  gpunode sharing profiles --gpu 'H100 80GB'\n"
    "  gpunode sharing profiles --gpu 10de:2335 --format json\n\n"
    "Exit codes: 0 done, 2 usage or input, 5 the GPU has no MIG."
)
def sharing() -> None:
    """The MIG profiles of a product: what `sharing` in gpunode.yml can ask for."""


@sharing.command(
    epilog="Examples:\n\n\b\n"
    "  gpunode sharing profiles\n"
    "  gpunode sharing profiles --gpu 10de:2335\n"
    "  gpunode sharing profiles --gpu 'RTX PRO 6000' --format json\n\n"
    "Exit codes: 0 done, 2 usage or input, 5 the GPU has no MIG, or its profiles are not known."
)
@click.option("--gpu", default="", metavar="ID|NAME", help="PCI id (10de:20b2) or product; without it all products.")
@format_option("text", "json")
def profiles(gpu: str, output_format: str) -> int:
    """The MIG profiles of a product: size, how many, where they may start, and the source."""
    from dataclasses import asdict

    from gpunode.core.sharing.mig import find_product, products_table
    from gpunode.edge.load import load_knowledge, load_mig

    found = (find_product(gpu, load_mig(), load_knowledge()),) if gpu else load_mig()
    if output_format == "json":
        print_json({"products": [asdict(product) for product in found]})
    else:
        echo(products_table(found), nl=False)
    return Exit.OK
