"""gpunode check-boot."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gpunode.cli.common import PROBES, format_option, show_errors, target_options, worst_exit
from gpunode.cli.lazy import Verb
from gpunode.cli.output import echo, fitted, print_json, terminal_width
from gpunode.core.errors import GpunodeError, error_data

if TYPE_CHECKING:
    from gpunode.core.model import Check
    from gpunode.edge.detect import Detected, Targets


@click.command(
    cls=Verb,
    epilog="Examples:\n\n\b\n"
    "  gpunode check-boot --local\n"
    "  gpunode check-boot -i inventory/hosts.yml --format json\n"
    "  gpunode check-boot --probe saved/gpu1.probe\n\n"
    "Exit codes: 0 for every kernel, 1 not for some kernel, 4 a host is unreachable.",
)
@target_options
@PROBES
@format_option("text", "json")
def check_boot(targets: Targets, output_format: str) -> int:
    """Check for each installed kernel whether the GPU will work after booting it."""
    from dataclasses import asdict
    from functools import partial

    from gpunode.cli.progress import probing
    from gpunode.core.report.text import checks_text
    from gpunode.edge.detect import detect
    from gpunode.edge.share import in_its_share

    with probing(output_format) as on_done:
        found = detect(targets, on_done=on_done)
    results: list[tuple[str, list[Check] | GpunodeError]] = []
    for one in found:
        results.append((one.host, one.error if one.error else in_its_share(one.host, partial(_checks, one))))
    errors = [(host, checks) for host, checks in results if isinstance(checks, GpunodeError)]
    good = [(host, checks) for host, checks in results if not isinstance(checks, GpunodeError)]
    if output_format == "json":
        data = [
            {"host": host, "checks": [], "error": error_data(checks)}
            if isinstance(checks, GpunodeError)
            else {"host": host, "checks": [asdict(c) for c in checks], "error": None}
            for host, checks in results
        ]
        print_json({"hosts": data})
    else:
        for host, checks in good:
            echo(f"{host}\n{fitted(checks_text(checks), terminal_width())}")
        show_errors(errors)
    failed = any(check.status == "failed" for _, checks in good for check in checks)
    return worst_exit([error.outcome for _, error in errors] + ["failed"] * failed)


def _checks(host: Detected) -> list[Check]:
    from gpunode.core.checks.boot import boot_checks
    from gpunode.edge.load import load_knowledge

    assert host.facts
    return boot_checks(host.facts, load_knowledge())
