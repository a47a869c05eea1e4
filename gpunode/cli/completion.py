"""`gpunode completion`: the script that makes a shell complete gpunode's commands, options and values."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import click
from click.shell_completion import CompletionItem, get_completion_class

Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


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


def _completer(names: Callable[[], Iterable[str]]) -> Completer:
    """Offers those of `names` that begin as what was typed; nothing where they cannot be had."""

    def complete(_ctx: click.Context, _param: click.Parameter, typed: str) -> list[CompletionItem]:
        try:
            return [CompletionItem(name) for name in names() if name.startswith(typed)]
        except Exception:  # a shell that waits for an answer has no use for an error
            return []

    return complete


def _runs(*before: str) -> Iterable[str]:
    from gpunode.edge.fleet.runs import asked

    names: list[str] = asked(lambda journal: [run.name for run in journal.latest()], [])
    return [*before, *names] if names else []


def _lab_nodes() -> Iterable[str]:
    from gpunode.lab.nodes import load_nodes

    return [node.name for node in load_nodes()]


def _distros() -> Iterable[str]:
    from gpunode.edge.load import load_knowledge

    return load_knowledge().distros


def _lab_distros() -> Iterable[str]:
    from gpunode.lab.images import RELEASES

    return RELEASES


def _keys() -> Iterable[str]:
    from gpunode.core.spec import Spec
    from gpunode.core.spec.reference import reference

    return [key.path for key in reference(Spec)]


def complete_files(_ctx: click.Context, _param: click.Parameter, typed: str) -> list[CompletionItem]:
    """The shell's own names of files."""
    return [CompletionItem(typed, type="file")]


def complete_hosts(ctx: click.Context, _param: click.Parameter, typed: str) -> list[CompletionItem]:
    """Hosts and groups of the inventory that the line names, or of the default one."""

    def names() -> Iterable[str]:
        from pathlib import Path

        from gpunode.edge.ansible.default_inventory import default_inventory
        from gpunode.edge.ansible.inventory import load_inventory

        hosts = load_inventory(ctx.params.get("inventory") or default_inventory(Path()))
        return [*(host.name for host in hosts), *sorted({group for host in hosts for group in host.groups})]

    return _completer(names)(ctx, _param, typed)


complete_keys = _completer(_keys)
complete_runs, complete_nodes = _completer(lambda: _runs("last")), _completer(_lab_nodes)
complete_run_names = _completer(_runs)  # where the last one is nowhere to go back to
complete_distros, complete_lab_distros = _completer(_distros), _completer(_lab_distros)
