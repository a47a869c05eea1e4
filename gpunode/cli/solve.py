"""gpunode solve: choose driver, CUDA and toolkit for a GPU, without any host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import click

from gpunode.cli.common import format_option, spec_option
from gpunode.cli.completion import complete_distros
from gpunode.cli.output import echo, print_json
from gpunode.core.errors import Exit
from gpunode.core.printable import few

if TYPE_CHECKING:
    from gpunode.core.knowledge import DistroRow, Knowledge
    from gpunode.core.model import CudaChoice, DriverChoice, FabricChoice, Solution, ToolkitChoice


@click.command(
    epilog="Examples:\n\n\b\n"
    "  gpunode solve --gpu 10de:2330 --distro debian:12\n"
    "  gpunode solve --gpu 'H100 PCIe' --distro ubuntu:24.04 --cuda 12.8 --format json\n"
    "  gpunode solve --gpu 10de:1b06 --distro ubuntu:22.04 --driver 580-proprietary\n"
    "  gpunode solve --gpu 10de:102d --distro rocky:9.4 --method runfile\n\n"
    "Exit codes: 0 solved, 2 usage, 5 no valid combination (reasons in the output)."
)
@click.option(
    "--gpu",
    "gpus",
    multiple=True,
    metavar="ID|NAME",
    help="PCI id (10de:2330) or product name of a GPU or NVSwitch; again for each further kind.",
)
@click.option(
    "--distro",
    default="",
    metavar="ID:VERSION_ID",
    shell_complete=complete_distros,
    help="Distribution, as os-release names it.",
)
@click.option(
    "--arch", type=click.Choice(("x86_64", "aarch64")), default="x86_64", show_default=True, help="Architecture."
)
@click.option("--kernel", "kernels", multiple=True, metavar="RELEASE", help="An installed kernel; again for each.")
@click.option("--secure-boot", is_flag=True, help="Secure Boot is on.")
@click.option(
    "--driver",
    default="auto",
    show_default=True,
    metavar="CHOICE",
    help="BRANCH or VERSION, with or without -open or -proprietary; or open, proprietary, distro, lts, none, auto.",
)
@click.option(
    "--method",
    type=click.Choice(("auto", "packages", "runfile")),
    default="auto",
    show_default=True,
    help="Installation method of the driver.",
)
@click.option(
    "--cuda", multiple=True, metavar="MAJOR.MINOR|newest", help="A CUDA toolkit for the host; again for each."
)
@click.option(
    "--dcgm", default="none", show_default=True, metavar="VERSION", help="DCGM version on the host, auto or none."
)
@click.option(
    "--toolkit", default="auto", show_default=True, metavar="VERSION", help="Container toolkit version, auto or none."
)
@spec_option
@format_option("text", "json")
def solve(
    gpus: tuple[str, ...],
    distro: str,
    arch: str,
    kernels: tuple[str, ...],
    secure_boot: bool,
    driver: str,
    method: Literal["auto", "packages", "runfile"],
    cuda: tuple[str, ...],
    dcgm: str,
    toolkit: str,
    spec_data: dict[str, Any],
    output_format: str,
) -> int:
    """Choose driver, CUDA and toolkit for a GPU, without any host.

    Exits 5 when no combination is valid; the reason and alternatives are printed.
    """
    if not gpus or not distro:
        raise click.UsageError("name the GPU (--gpu) and the distribution (--distro)")
    from dataclasses import replace

    from gpunode.core.model import Kernel
    from gpunode.core.secrets import seal_spec
    from gpunode.core.solve import SolveRequest, find_gpu, parse_driver, solution_data
    from gpunode.core.solve import solve as decide
    from gpunode.core.spec import parse_spec
    from gpunode.core.spec.toolkit import ToolkitSpec
    from gpunode.edge.load import load_knowledge

    knowledge = load_knowledge()
    ids = [find_gpu(g, knowledge) for g in gpus]
    for text, taken in zip(gpus, ids, strict=True):
        _name_taken(text, taken, knowledge)
    spec = parse_spec(seal_spec(spec_data, where="gpunode.yml")[0], where="gpunode.yml")  # what no option says
    choice = parse_driver(driver) if _given("driver") else spec.driver
    request = SolveRequest(
        gpus=tuple(i for i in ids if i not in knowledge.nvswitches),
        nvswitches=tuple(i for i in ids if i in knowledge.nvswitches),
        distro=distro,
        arch=arch,
        kernels=tuple(Kernel(release=k, image=True) for k in kernels),
        secure_boot=secure_boot or None,
        driver=replace(choice, method=method) if _given("method") else choice,
        cuda=parse_spec({"cuda": {"versions": list(cuda)}}, where="--cuda").cuda if cuda else spec.cuda,
        fabric=parse_spec({"fabric": {"dcgm": dcgm}}, where="--dcgm").fabric if _given("dcgm") else spec.fabric,
        toolkit=ToolkitSpec(version=toolkit) if _given("toolkit") else spec.toolkit,
        sources=spec.sources,
    )
    solution = decide(request, knowledge)
    if output_format == "json":
        print_json(solution_data(solution))
    else:
        row = knowledge.distro(distro)
        _print(solution, row)
    if solution.problems:
        return Exit.REFUSED
    return Exit.OK


def _given(option: str) -> bool:
    return click.get_current_context().get_parameter_source(option) is click.core.ParameterSource.COMMANDLINE


def _name_taken(text: str, taken: str, knowledge: Knowledge) -> None:
    """Say which model a name was taken for, where it is part of other names as well."""
    from gpunode.core.solve import namesakes

    others = namesakes(text, taken, knowledge)
    if others:
        listed = few([f"{i} {knowledge.gpus[i].name}" for i in others], 6)
        echo(f"note: {text} is {taken} {knowledge.gpus[taken].name} here; not {listed}", err=True)


def _print(solution: Solution, row: DistroRow | None) -> None:
    parts: dict[str, DriverChoice | CudaChoice | ToolkitChoice | FabricChoice | None]
    parts = {"driver": solution.driver, "cuda": solution.cuda, "toolkit": solution.toolkit}
    if solution.fabric:
        parts["fabric"] = solution.fabric
    from gpunode.cli.terminal import verbosity

    for problem in solution.problems:
        echo(f"problem: {problem.what}\n  do next: {problem.fix}\n")
    if solution.problems and not any(parts.values()):
        return
    for name, part in parts.items():
        echo(f"{name:9}{_choice(part)}")
    if row and (driver := solution.driver):
        day = row.read if driver.repository or driver.runfile else row.own_read
        echo(f"\nas of {day or 'no day that is known'}, not asked: no repository was read for this")
    echo("\nwhy" if solution.reasons else "", nl=bool(solution.reasons))
    for reason in solution.reasons:
        warning = "warning: " if reason.level == "warning" else ""
        source = f"\n      {reason.source}" if reason.source and verbosity() > 1 else ""
        echo(f"  {warning}{reason.what}: {reason.why}{source}")


def _choice(part: DriverChoice | CudaChoice | ToolkitChoice | FabricChoice | None) -> str:
    """What was chosen, then its installers and packages, one a line."""
    from gpunode.core.model import CudaChoice, DriverChoice, FabricChoice, Runfile

    if part is None:
        return "none"
    packages = part.packages
    runfiles: tuple[Runfile, ...] = ()
    if isinstance(part, DriverChoice):
        own = not part.repository and not part.runfile
        newest = f"the newest, {part.newest} as far as known" if part.newest and not own else "the newest of it there"
        head = f"{part.branch} {part.flavour}, {part.version or newest}"
        packages = (*part.kernel_packages, *packages)
        runfiles = (part.runfile,) if part.runfile else ()
    elif isinstance(part, FabricChoice):
        head = " ".join(part.services)
    else:
        head = (", ".join(part.versions) if isinstance(part, CudaChoice) else part.version) or "the newest"
        runfiles = part.runfiles if isinstance(part, CudaChoice) else ()
    lines = [f"{head}, from {'a runfile' if runfiles else part.repository or 'the distribution'}"]
    lines += [f"           {runfile.path or runfile.urls[0]}" for runfile in runfiles]
    lines += [f"           {p.name}" + (f"={p.version}" if p.version else "") for p in packages]
    return "\n".join(lines)
