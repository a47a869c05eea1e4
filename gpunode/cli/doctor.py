"""gpunode doctor."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpunode.cli.common import CONFIG, PROBES, format_option, read_spec_option, show_errors, target_options, worst_exit
from gpunode.cli.lazy import Verb
from gpunode.cli.output import echo, fitted, print_json, terminal_width
from gpunode.core.errors import error_data

if TYPE_CHECKING:
    from gpunode.edge.detect import Targets


@click.command(
    cls=Verb,
    epilog="Examples:\n\n\b\n"
    "  gpunode doctor --local\n"
    "  gpunode doctor -i inventory/hosts.yml\n"
    "  gpunode doctor --log /var/log/kern.log --log install.log.gz\n"
    "  gpunode doctor -i inventory/hosts.yml --fix\n"
    "  journalctl -u kubelet | gpunode doctor --log - --format json\n\n"
    "Exit codes: 0 nothing known is wrong, 1 something was found, 2 a log cannot be read, 4 a host is unreachable.",
)
@target_options
@read_spec_option
@click.option(
    "--log",
    "logs",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A log, an archive of logs (*.tar.gz), or text pasted from anywhere; - is standard input. Repeatable; no host "
    "is asked.",
)
@click.option(
    "--fix",
    is_flag=True,
    help="Where `gpunode provision` is the fix of what was found: plan, ask, apply, verify, and look once more.",
)
@click.option("-y", "--yes", is_flag=True, help="With --fix: do not ask.")
@PROBES
@format_option("text", "json")
@click.pass_context
def doctor(
    ctx: click.Context,
    targets: Targets,
    read_spec: Callable[[], dict[str, Any]],
    logs: tuple[Path, ...],
    fix: bool,
    yes: bool,
    output_format: str,
) -> int:
    """Diagnose a node, or logs: cause, evidence and fix, the most likely root cause first."""
    from gpunode.cli.terminal import verbosity
    from gpunode.core.doctor import diagnosis_data, diagnosis_text
    from gpunode.edge.doctor import Examined, examine_hosts, examine_logs, load_faults

    if logs and (targets.hosts or targets.inventory or targets.local or targets.probes):
        raise click.UsageError("logs and hosts given together: leave out one of them")
    if yes and not fix:
        raise click.UsageError("--yes goes with --fix")
    if fix and (logs or targets.probes or output_format == "json"):
        raise click.UsageError("--fix needs hosts, and answers as text")
    faults = load_faults()

    def show(one: Examined) -> None:
        if one.diagnosis:
            notes = "".join(f"  note: {note}\n" for note in one.notes)
            text = diagnosis_text(one.diagnosis, faults, quiet=not (logs or verbosity()))
            echo(fitted(f"{one.host}\n{notes}{text}", terminal_width()))

    if logs:
        results: list[Examined] = [examine_logs(logs)]
    else:
        from gpunode.cli.progress import probing

        if ctx.meta[CONFIG]:  # gpunode.yml of the current folder need not be valid; what is named has to be
            read_spec()
        with probing(output_format) as on_done:
            on_examined = show if output_format == "text" else lambda one: None
            results = examine_hosts(targets, on_done, on_examined, read_spec)
    if output_format == "json":
        nothing: dict[str, Any] = {"findings": [], "xids": [], "next": [], "earlier": []}
        data = [diagnosis_data(one.diagnosis, faults) if one.diagnosis else nothing for one in results]
        hosts = [
            {"host": one.host, "error": one.error and error_data(one.error), "notes": list(one.notes), **found}
            for one, found in zip(results, data, strict=True)
        ]
        print_json(data[0] if logs else {"hosts": hosts})
    if output_format == "text":
        if logs:
            show(*results)
        show_errors([(one.host, one.error) for one in results if one.error])
    if fix and (ours := [one.host for one in results if one.diagnosis and one.diagnosis.ours]):
        return _fix(ctx, targets, ours, yes=yes)
    failed = any(one.diagnosis and not one.diagnosis.sound for one in results)
    return worst_exit([one.error.outcome for one in results if one.error] + ["failed"] * failed)


def _fix(ctx: click.Context, targets: Targets, hosts: list[str], *, yes: bool) -> int:
    """Hand the hosts over to provision, which asks and verifies; then say what is left."""
    from gpunode.cli.provision import provision

    given = [*(f"--inventory={path}" for path in targets.inventory), *["--local"] * targets.local]
    given += [f"--config={ctx.meta[CONFIG]}"] * bool(ctx.meta[CONFIG])
    given += [f"--limit={','.join(hosts)}"] if targets.inventory else targets.hosts
    given += [
        f"--forks={targets.forks}",
        f"--connect-timeout={targets.connect_timeout}",
        f"--timeout={targets.timeout}",
    ]
    given += ["--accept-new-host-keys"] * targets.accept_new_host_keys + ["--become"] * targets.become
    given += ["--ask-become-pass"] * bool(targets.become_password)
    given += [f"--vault-password-file={path}" for path in targets.vault_password_files]

    def run(command: click.Command, *more: str) -> int:
        with command.make_context(command.name, [*given, *more], parent=ctx.parent) as made:
            return int(command.invoke(made))

    return run(provision, *["--yes"] * yes) or run(doctor)
