"""`gpunode completion`: the script that makes a shell complete gpunode's commands, options and values."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command(
    epilog="Examples:\n\n\b\n"
    "  gpunode completion bash > ~/.local/share/bash-completion/completions/gpunode\n"
    "  gpunode completion zsh > ~/.zfunc/_gpunode\n"
    "  gpunode completion fish > ~/.config/fish/completions/gpunode.fish"
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell."""
    kind = get_completion_class(shell)
    assert kind is not None  # click ships these three
    click.echo(kind(ctx.find_root().command, {}, "gpunode", "_GPUNODE_COMPLETE").source())
