"""gpunode selftest."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpunode import __version__
from gpunode.cli.common import NEW_FILE, format_option, seconds
from gpunode.cli.output import echo, print_json
from gpunode.core.errors import Exit, InputError

NO_GPU = "no NVIDIA GPU here: PCI has none, and nvidia-smi lists none"

if TYPE_CHECKING:
    from gpunode.core.selftest.record import SelftestRecord


@click.command(
    epilog="Examples:\n\n\b\n"
    "  gpunode selftest\n"
    "  gpunode selftest --from gpunode-selftest-20261123-100000.tar.gz --format json\n"
    "  gpunode selftest --list\n\n"
    "Exit codes: 0 nothing failed, 1 a check failed, 2 usage, or the archive cannot be written or read,\n"
    "5 this machine has no NVIDIA GPU, 130 interrupted."
)
@seconds("--limit", "Seconds for all of it.", least=10, default=460)
@click.option("-o", "--output", type=NEW_FILE, metavar="FILE", help="The archive.")
@click.option(
    "--from",
    "source",
    type=click.Path(path_type=Path, exists=True),
    metavar="RECORD",
    help="Judge an archive, or its folder, again; nothing of this machine is read.",
)
@click.option("--list", "listed", is_flag=True, help="Print the checks and what they compare, and nothing else.")
@format_option("text", "json")
def selftest(limit: float, output: Path | None, source: Path | None, listed: bool, output_format: str) -> int:
    """Find out on this machine whether gpunode reports its GPUs correctly.

    Facts are compared field by field with nvidia-smi, NVML, lspci, sysfs and /proc, the knowledge with the devices.
    Nothing is changed. A redacted archive is written.
    """
    from gpunode.edge.selftest.capture import Clock
    from gpunode.edge.selftest.run import gpu_here, load_record, write_archive

    if listed:
        return _list(output_format)
    if source and output:
        raise click.UsageError("--from reads a record: leave out --output")
    if source:
        return _show(load_record(source), None, output_format)
    if not gpu_here(Clock(limit)):
        return _nothing(output_format)
    name = f"gpunode-selftest-{datetime.now(UTC):%Y%m%d-%H%M%S}.tar.gz"
    path = output or Path(name)
    if path.exists():
        raise InputError(f"{path} is there already", fix="choose another file: -o FILE")
    record = _run(limit)
    write_archive(path, record)
    return _show(record, path, output_format)


def _list(output_format: str) -> int:
    from gpunode.core.selftest.checks import CHECKS

    if output_format == "json":
        rows = [{"id": c.id, "compares": c.compares, "needs": list(c.needs)} for c in CHECKS]
        print_json({"checks": rows})
        return Exit.OK
    width = max(len(check.id) for check in CHECKS)
    for check in CHECKS:
        echo(f"{check.id:<{width}}  {check.compares}")
    return Exit.OK


def _nothing(output_format: str) -> int:
    """Of a machine on which no check is possible: one paragraph, and no archive."""
    from gpunode.core.selftest.checks import CHECKS
    from gpunode.core.selftest.record import SelftestRecord, results_data

    if output_format == "json":
        print_json({**results_data(SelftestRecord(gpunode=__version__), ()), "archive": None, "reason": NO_GPU})
    else:
        echo(
            f"{NO_GPU}. Nothing was checked, and no archive was written.\n"
            f"On a machine with one, selftest makes {len(CHECKS)} checks (gpunode selftest --list): what gpunode reads "
            "against\nnvidia-smi, NVML, lspci, sysfs and /proc; it changes nothing, and writes a redacted archive."
        )
    return Exit.REFUSED


def _run(limit: float) -> SelftestRecord:
    from gpunode.cli.terminal import screen
    from gpunode.edge.selftest.run import examine

    drawn = screen(stderr=True)
    if not drawn.is_terminal:
        return examine(limit)
    with drawn.status("probe") as status:
        return examine(limit, on_step=lambda step: status.update(f"after {step}"))


def _show(record: SelftestRecord, path: Path | None, output_format: str) -> int:
    from gpunode.core.selftest.record import outcome_of, results_data, results_text, times_text
    from gpunode.edge.selftest.run import gpus_of, results_of

    results = results_of(record)
    if output_format == "json":
        print_json({**results_data(record, results), "archive": str(path) if path else None})
    else:
        echo(results_text(results))
        echo(times_text(record))
        if path:
            echo(f"written: {path}, redacted; look through it, then send it: docs/selftest.md")
    return Exit.of(outcome_of(results, gpus=gpus_of(record)))
