"""gpunode accept."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpunode.cli.common import format_option, spec_option, target_options, worst_exit
from gpunode.cli.lazy import Verb
from gpunode.cli.output import echo

if TYPE_CHECKING:
    from gpunode.core.accept import Level
    from gpunode.edge.detect import Targets


@click.command(
    cls=Verb,
    epilog="Examples:\n\n\b\n"
    "  gpunode accept -i inventory/hosts.yml\n"
    "  gpunode accept -i inventory/hosts.yml --level standard --sign ~/.ssh/id_ed25519 -o rack7/\n"
    "  gpunode accept -i inventory/hosts.yml --level standard --resume last\n\n"
    "Exit codes: 0 accepted, also with warnings; 1 a check failed, 3 something is not proven, 4 unreachable, 5 a node\n"
    "is in use.",
)
@target_options
@spec_option
@click.option(
    "--level",
    type=click.Choice(("quick", "standard", "long")),
    default="quick",
    show_default=True,
    help="quick: under 10 minutes; standard: about an hour; long: a day.",
)
@click.option("--resume", default="", metavar="NAME", help="Go on with an acceptance (last): finished stages stay.")
@click.option(
    "--sign",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="KEY",
    help="Sign the record of each host with this SSH key.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Write everything here, too.",
)
@format_option("text", "json")
def accept(
    targets: Targets,
    spec_data: dict[str, Any],
    level: Level,
    resume: str,
    sign: Path | None,
    output: Path | None,
    output_format: str,
) -> int:
    """Measure whether nodes are as fast and sound as they should be, by the vendor's tools.

    A node in use is left alone. What no tool or no floor speaks for is not proven.
    """
    from gpunode.cli.output import print_json
    from gpunode.cli.progress import probing
    from gpunode.cli.provision import show_results
    from gpunode.cli.terminal import say
    from gpunode.core.report.schema import report_data
    from gpunode.edge.accept.files import write_reports
    from gpunode.edge.accept.run import accept as run
    from gpunode.edge.desired import DesiredState

    desired = DesiredState(spec_data, to_run=False)
    with probing(output_format) as on_done:
        came = run(targets, desired, level, resume=resume, sign=sign, say=say, on_done=on_done)
    folders = write_reports(came.folder, came.report, output)
    if output_format == "json":
        print_json(report_data(came.report))
    else:
        show_results(list(came.results), output_format, brief=True)
        echo(f"written: {', '.join(str(folder) for folder in folders)} (report.html, report.json, junit.xml, records/)")
    return worst_exit(result.outcome for result in came.results)
