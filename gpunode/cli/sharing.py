"""gpunode sharing: what MIG can do with a GPU, and how demands are packed onto GPUs, without any host."""

from __future__ import annotations

from pathlib import Path

import click

from gpunode.cli.common import format_option
from gpunode.cli.output import echo, print_json, print_yaml
from gpunode.core.errors import Exit


@click.group(
    epilog="Examples:\n\n\b\n"
    "  gpunode sharing profiles --gpu 'H100 80GB'\n"
    "  gpunode sharing plan --demand demand.csv --gpu 'A100 80GB'\n"
    "  gpunode sharing plan --demand demand.yml --probe saved/ --format mig-parted\n\n"
    "Exit codes: 0 done, 2 usage or input, 5 it does not fit, or the GPU has no MIG."
)
def sharing() -> None:
    """Share GPUs: the MIG profiles of a product, and a table of demands packed onto the fewest GPUs."""


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

    from gpunode.core.sharing.mig import find_product
    from gpunode.core.sharing.report import products_table
    from gpunode.edge.load import load_knowledge, load_mig

    found = (find_product(gpu, load_mig(), load_knowledge()),) if gpu else load_mig()
    if output_format == "json":
        print_json({"products": [asdict(product) for product in found]})
    else:
        echo(products_table(found), nl=False)
    return Exit.OK


@sharing.command(
    epilog="Examples:\n\n\b\n"
    "  gpunode sharing plan --demand demand.csv --gpu 'A100 80GB'\n"
    "  gpunode sharing plan --demand demand.csv --gpu 'A100 80GB=4' --gpu 'H100 80GB=2'\n"
    "  gpunode sharing plan --demand demand.yml --probe saved/ --format json\n\n"
    "Exit codes: 0 all demands fit, 2 usage or input, 5 they do not (reasons in the output)."
)
@click.option(
    "--demand",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FILE",
    help="CSV, YAML or JSON with name, count, and memory, compute or profile.",
)
@click.option(
    "--gpu",
    "gpus",
    multiple=True,
    metavar="ID|NAME[=N]",
    help="GPUs at hand; without =N as many as it takes. Again for each further product.",
)
@click.option(
    "--probe", "probes", multiple=True, type=click.Path(path_type=Path), help="Saved probes: the GPUs that they show."
)
@format_option("text", "json", "mig-parted")
def plan(demand: Path, gpus: tuple[str, ...], probes: tuple[Path, ...], output_format: str) -> int:
    """Pack a table of demands into MIG instances on the fewest GPUs, and show how much of them is in use."""
    if bool(gpus) == bool(probes):
        raise click.UsageError("name the GPUs at hand: by --gpu, or by --probe")
    from gpunode.core.sharing.fleet import pack
    from gpunode.core.sharing.report import drawing, packing_data, packing_problems, parted_of
    from gpunode.edge.sharing import load_demands, named_supplies, probed_supplies

    supplies, left_out = (named_supplies(gpus), ()) if gpus else probed_supplies(probes)
    packing = pack(load_demands(demand), supplies)
    problems = packing_problems(packing, supplies)
    if output_format == "json":
        print_json(packing_data(packing, problems))
    elif not problems and output_format == "mig-parted":
        print_yaml(parted_of(packing))
    elif not problems:
        echo(drawing(packing), nl=False)
    if output_format != "json":
        for line in left_out:
            echo(f"left out: {line}", err=True)
        for problem in problems:
            echo(f"problem: {problem.what}\n  do next: {problem.fix}", err=True)
    return Exit.REFUSED if problems else Exit.OK
