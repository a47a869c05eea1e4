"""The command `gpunode`: a table of verbs, each imported when it is used, and the one place where errors end."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import signal
import sys
from typing import Any, NoReturn

import click

from gpunode.cli.lazy import LazyGroup, Table, with_log_options

# `gpunode --help` imports nothing but click
COMMANDS: Table = {
    "init": ("gpunode.cli.init:init", "Write a first gpunode.yml and an inventory, after a few questions."),
    "detect": ("gpunode.cli.detect:detect", "Show what a node has: distribution, kernels, GPUs, driver, engines."),
    "solve": ("gpunode.cli.solve:solve", "Choose driver, CUDA and toolkit for a GPU, without any host."),
    "plan": ("gpunode.cli.plan:plan", "Show what provision would do, with reasons and diffs."),
    "provision": ("gpunode.cli.provision:provision", "Apply gpunode.yml to the nodes: plan, ask, run the playbook."),
    "verify": ("gpunode.cli.verify:verify", "Check that nodes match gpunode.yml and that their GPUs work."),
    "accept": ("gpunode.cli.accept:accept", "Measure nodes by the vendor's tools: floors, outliers, a signed record."),
    "uninstall": ("gpunode.cli.undo:uninstall", "Remove everything that gpunode installed or changed."),
    "rollback": ("gpunode.cli.undo:rollback", "Undo the last run, or all runs after an earlier one."),
    "runs": ("gpunode.cli.runs:runs", "Runs of this controller: list, show, resume, diff."),
    "report": ("gpunode.cli.report:report", "The state of a fleet on one page: HTML, JSON or JUnit."),
    "lock": ("gpunode.cli.lock:lock", "Record exact versions for each class of hosts, for --locked."),
    "check-boot": ("gpunode.cli.check_boot:check_boot", "Check whether the GPU will work after the next boot."),
    "doctor": ("gpunode.cli.doctor:doctor", "Diagnose a node, or logs: cause, evidence, fix."),
    "selftest": ("gpunode.cli.selftest:selftest", "Check gpunode against the GPUs of this machine; writes a record."),
    "runtime": (
        "gpunode.cli.runtime:runtime",
        "This machine's container engines: configure, unconfigure, status, diff.",
    ),
    "sharing": ("gpunode.cli.sharing:sharing", "The MIG profiles of a GPU."),
    "kube": ("gpunode.kube.cli:kube", "Kubernetes: render, apply and verify what a cluster needs for its GPUs."),
    "bundle": ("gpunode.cli.bundle:bundle", "Bundles with everything that nodes without a network need."),
    "knowledge": ("gpunode.cli.knowledge:knowledge", "The data that decisions rest on: rows, sources, age."),
    "lab": ("gpunode.cli.lab:lab", "Throw-away nodes with faked GPUs on this machine."),
    "explain": ("gpunode.cli.explain:explain", "What a key of gpunode.yml means: values and default."),
    "completion": ("gpunode.cli.completion:completion", "Print the completion script of a shell."),
    "version": ("gpunode.cli.about:version", "Show the versions of gpunode, Python and Ansible."),
    "help": ("gpunode.cli.about:help_", "Show what --help shows, of a command."),
}
SECTIONS = {
    "Everyday": ("init", "detect", "plan", "provision", "verify", "report", "doctor"),
    "Undo": ("uninstall", "rollback"),
    "Fleets": ("accept", "runs", "lock", "check-boot"),
    "Kubernetes and this machine": ("kube", "runtime", "sharing", "selftest"),
    "Nodes without a network": ("bundle",),
    "Without any node": ("explain", "solve", "knowledge", "lab"),
    "About gpunode": ("completion", "version", "help"),
}
RARE = ("lock", "check-boot", "sharing", "selftest", "knowledge", "solve", "bundle", "lab")


class Verbs(LazyGroup):
    """The verbs of `gpunode`."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; what it raises becomes a message and an exit code."""
        from gpunode.cli.terminal import forget, show_log

        show_log()
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:
            if isinstance(error, OSError) and error.errno == errno.EPIPE:
                raise  # the reader of our output went away: click ends quietly
            from gpunode.cli.common import report_exception

            return report_exception(error, ctx)
        finally:
            forget()


def _version(ctx: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if not wanted or ctx.resilient_parsing:
        return
    from gpunode import __version__

    click.echo(f"gpunode {__version__}")
    ctx.exit()


@click.group(
    cls=Verbs,
    table=COMMANDS,
    sections=SECTIONS,
    rare=RARE,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    epilog="Examples:\n\n\b\n"
    "  gpunode detect --local\n"
    "  gpunode plan -i inventory/hosts.yml --diff\n"
    "  gpunode provision -i inventory/hosts.yml\n\n"
    "Exit codes: 0 done, 1 failed, 2 usage or input, 3 differences, 4 unreachable, 5 refused, 130 interrupted.",
)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version.")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Install and maintain NVIDIA drivers, CUDA and container runtimes on GPU nodes, over SSH."""
    if os.environ.get("NO_COLOR"):
        ctx.color = False


with_log_options(cli)


def main(args: list[str] | None = None) -> NoReturn:
    """Run `gpunode ARGS` and exit; a command returns its exit code (None counts as 0)."""
    gc.set_threshold(200_000, 50)  # what imports and plans make is kept: looking through it was a seventh of the time
    for number in range(3):  # an ssh on the same terminal leaves them non-blocking: lines get lost, Ansible refuses
        with contextlib.suppress(OSError):
            os.set_blocking(number, True)
    stdout = sys.stdout
    try:
        code = cli.main(args, prog_name="gpunode", standalone_mode=False)
    except click.ClickException as error:
        from gpunode.cli.common import report_usage

        code = report_usage(error, cli)
    except click.Abort:
        click.echo("interrupted", err=True)
        code = 130
    except SystemExit as end:
        # click puts another stdout there when the reader of ours went away: gpunode detect … | head
        code = end.code if sys.stdout is stdout else 128 + signal.SIGPIPE
    except Exception as error:  # of an option before the command, which no command reports
        from gpunode.cli.common import report_exception

        code = report_exception(error, click.Context(cli))
    sys.exit(code)


def kubectl() -> NoReturn:
    """`kubectl gpunode ARGS`, a plugin of kubectl: the same as `gpunode kube ARGS`."""
    main(["kube", *sys.argv[1:]])
