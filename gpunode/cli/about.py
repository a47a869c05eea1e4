"""gpunode version, gpunode help."""

from __future__ import annotations

from pathlib import Path

import click

from gpunode.cli.common import format_option
from gpunode.cli.output import echo, print_json


@click.command(epilog="Examples:\n\n\b\n  gpunode version\n  gpunode version --format json")
@format_option("text", "json")
def version(output_format: str) -> int:
    """Show the versions of gpunode, Python and Ansible, and the day of the knowledge: for a bug report."""
    import platform
    from importlib.metadata import version as installed

    from gpunode import __version__
    from gpunode.edge.load import load_knowledge

    found = {
        "gpunode": __version__,
        "python": platform.python_version(),
        "ansible-core": installed("ansible-core"),
        "ansible-playbook": str(own_playbook_command()),
        "knowledge": str(load_knowledge().as_of),
    }
    if output_format == "json":
        print_json(found)
    else:
        echo("\n".join(f"{name} {text}" for name, text in found.items()))
        if other := other_playbook_command():
            echo(
                f"note: ansible-playbook on the PATH is {other}, of another installation: gpunode does not use it. "
                f"It may be too old for a plan folder; run those with {own_playbook_command()}"
            )
    return 0


def own_playbook_command() -> Path:
    """The ansible-playbook that gpunode runs: that of its own environment."""
    from gpunode.edge.programs import program_of

    return program_of("ansible-playbook")


def other_playbook_command() -> str:
    """The ansible-playbook that a shell would run, where it is of another installation; else ""."""
    import shutil

    found = shutil.which("ansible-playbook")
    return found if found and Path(found).resolve() != own_playbook_command().resolve() else ""


@click.command("help", epilog="Examples:\n\n\b\n  gpunode help\n  gpunode help provision\n  gpunode help kube apply")
@click.argument("words", nargs=-1, metavar="[COMMAND]...")
@click.pass_context
def help_(ctx: click.Context, words: tuple[str, ...]) -> int:
    """Show what --help shows, of gpunode or of one of its commands."""
    here = ctx.find_root()
    for word in words:
        group = here.command
        inner = group.get_command(here, word) if isinstance(group, click.Group) else None
        if inner is None:
            from gpunode.cli.lazy import no_such_command

            raise no_such_command(word, group.list_commands(here) if isinstance(group, click.Group) else (), ctx)
        here = click.Context(inner, info_name=word, parent=here)
    echo(here.get_help())
    return 0
