"""gpunode explain: the keys of gpunode.yml, without a network or a browser."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gpunode.cli.common import format_option
from gpunode.cli.completion import complete_keys
from gpunode.cli.output import echo, print_json

if TYPE_CHECKING:
    from gpunode.core.spec.reference import SpecKey


@click.command(
    epilog="Examples:\n\n\b\n"
    "  gpunode explain\n"
    "  gpunode explain driver\n"
    "  gpunode explain driver.branch\n"
    "  gpunode explain --recursive | less\n\n"
    "Exit codes: 0 shown, 2 no such key."
)
@click.argument("key", default="", shell_complete=complete_keys)
@click.option("--recursive", is_flag=True, help="Show the keys within the keys, too.")
@format_option("text", "json")
def explain(key: str, recursive: bool, output_format: str) -> int:
    """Show what KEY of gpunode.yml means, its values, its default and the keys in it; without KEY, all at the top."""
    from dataclasses import asdict

    from gpunode.core.spec import Spec
    from gpunode.core.spec.reference import find_keys, reference

    found = find_keys(key, Spec) if key else reference(Spec)
    depth = _depth(found[0]) + 1 if key else 1
    shown = [one for one in found if recursive or _depth(one) <= depth]
    if output_format == "json":
        print_json({"keys": [asdict(one) for one in shown]})
        return 0
    echo("\n\n".join(_text(one) for one in shown))
    if not recursive and len(shown) < len(found):
        echo(f"\nkeys in these: gpunode explain {key + '.' if key else ''}NAME, or --recursive")
    return 0


def _depth(key: SpecKey) -> int:
    """How many keys it is in, itself included; names that a person gives are none."""
    from gpunode.core.spec.reference import NAMED

    return sum(word != NAMED for word in key.path.split("."))


def _text(key: SpecKey) -> str:
    import shutil
    import textwrap

    width = min(100, max(40, shutil.get_terminal_size((100, 0)).columns))
    lines = textwrap.wrap(key.doc, width, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False)
    values = [f"    values   {key.values.replace('`', '')}", f"    default  {key.default}"] if key.values else []
    return "\n".join([key.path, *lines, *values])
