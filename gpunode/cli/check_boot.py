"""gpunode check-boot."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpunode.cli.common import (
    PROBES,
    format_option,
    print_json,
    show_error,
    target_options,
    with_probes,
    worst_exit,
)
from gpunode.core.errors import Exit, error_data

if TYPE_CHECKING:
    from gpunode.edge.detect import Where


@click.command(
    epilog="Examples:\n\n\b\n"
    "  gpunode check-boot --local\n"
    "  gpunode check-boot -i inventory/hosts.yml --format json\n"
    "  gpunode check-boot --probe saved/gpu1.probe\n\n"
    "Exit codes: 0 for every kernel, 1 not for some kernel, 4 a host is unreachable."
)
@target_options
@PROBES
@format_option("text", "json")
def check_boot(where: Where, probes: tuple[Path, ...], output_format: str) -> int:
    """Say for each installed kernel whether the GPU will work after booting it, and why not."""
    from dataclasses import asdict

    from gpunode.core.checks.boot import boot_checks
    from gpunode.core.report.text import checks_text
    from gpunode.edge.detect import detect
    from gpunode.edge.fleet.progress import probing
    from gpunode.edge.load import load_knowledge

    where = with_probes(where, probes)
    with probing(output_format) as on_done:
        found = detect(where, on_done=on_done)
    results = [(one, boot_checks(one.facts, load_knowledge()) if one.facts else []) for one in found]
    if output_format == "json":
        data = [
            {"host": one.host, "checks": [asdict(c) for c in checks], "error": one.error and error_data(one.error)}
            for one, checks in results
        ]
        print_json({"hosts": data})
    for one, checks in results if output_format == "text" else ():
        if one.error:
            show_error(one.error, host=one.host)
        else:
            click.echo(f"{one.host}\n{checks_text(checks)}")
    failed = any(check.status == "failed" for _, checks in results for check in checks)
    return worst_exit([one.error.exit for one in found if one.error] + [Exit.FAILED] * failed)
