"""gpunode report."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from gpunode.cli.common import NEW_FILE, format_option, read_spec_option
from gpunode.cli.completion import complete_runs
from gpunode.cli.output import echo, print_json
from gpunode.core.printable import json_text

if TYPE_CHECKING:
    from gpunode.core.report.model import Report


@click.command(
    epilog="Examples:\n\n\b\n"
    "  gpunode report -o report.html                     (of the last run)\n"
    "  gpunode report 20261121 -o report.html\n"
    "  gpunode report review/ -o review.html             (of a plan: gpunode plan -o review/)\n"
    "  gpunode report --from probes/ --format junit -o junit.xml\n"
    "  gpunode report --schema\n\n"
    "Exit codes: 0 the report was made, whatever it says; 2 there is nothing to make it from."
)
@click.argument("source", default="last", metavar="[RUN|PLAN]", shell_complete=complete_runs)
@click.option(
    "--from",
    "folder",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Saved probes (HOST.probe) and results (*.json of verify, plan, detect); a folder in it is a pool.",
)
@read_spec_option
@click.option("--title", default="", help="The headline, in place of the name of what it is about.")
@click.option("-o", "--output", type=NEW_FILE, help="Write it there: *.json and *.xml in that format.")
@click.option("--schema", is_flag=True, help="Print the JSON Schema of --format json, and nothing else.")
@format_option("html", "json", "junit")
def report(
    source: str,
    folder: Path | None,
    read_spec: Callable[[], dict[str, Any]],
    title: str,
    output: Path | None,
    schema: bool,
    output_format: str,
) -> int:
    """The state of a fleet on one page: problems first, pools, versions, GPUs, drift, the timeline of a run.

    RUN is a run's name, the beginning of one, or `last` (as for `gpunode runs`); PLAN a file or folder that
    `gpunode plan` wrote. With --from, a gpunode.yml (-c, or that of the current folder) says what
    the probes are compared with.
    """
    from dataclasses import replace

    from gpunode.core.errors import InputError
    from gpunode.core.printable import counted
    from gpunode.edge import report as sources
    from gpunode.edge.state import writing_to

    if output and click.get_current_context().get_parameter_source("output_format") is ParameterSource.DEFAULT:
        output_format = {".json": "json", ".xml": "junit"}.get(output.suffix, output_format)
    if schema:
        from gpunode.core.report.schema import schema_of

        print_json(schema_of())
        return 0
    if folder and source != "last":
        raise InputError(f"{source} and --from given together", fix="name one of them")
    if output_format == "html" and not output and sys.stdout.isatty():
        raise InputError("a page of HTML is not for a terminal", fix="-o report.html; gpunode runs show prints a run")
    made = sources.of_folder(folder, read_spec()) if folder else sources.report_of(source)
    text = _text(replace(made, title=title or made.title), output_format)
    if output is None:
        echo(text, nl=False)
        return 0
    with writing_to(output):
        output.write_text(text, encoding="utf-8")
    echo(f"written: {output}, {counted(len(made.hosts), 'host')}", err=True)
    return 0


def _text(made: Report, output_format: str) -> str:
    if output_format == "json":
        from gpunode.core.report.schema import report_data

        return json_text(report_data(made), indent=2) + "\n"
    if output_format == "junit":
        from gpunode.core.report.junit import junit_text

        return junit_text(made)
    from gpunode.core.report.html import html_text
    from gpunode.edge.report import load_page

    return html_text(made, load_page())
