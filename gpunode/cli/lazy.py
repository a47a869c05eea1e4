"""A click group that is a table: each command is imported when it is called, not before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

# name → (where the click command is, its one line of help)
Table = Mapping[str, tuple[str, str]]


class LazyGroup(click.Group):
    """A group over such a table; its help imports none of the commands."""

    def __init__(self, *args: Any, table: Table, **more: Any) -> None:
        super().__init__(*args, **more)
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.table:
            return None
        from importlib import import_module

        module, attribute = self.table[cmd_name][0].split(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self.table.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.table and not args[0].startswith("-"):
            from difflib import get_close_matches

            near = get_close_matches(args[0], self.table, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"Known commands: {', '.join(self.table)}."
            raise click.UsageError(f"No such command {args[0]!r}. {hint}", ctx)
        return super().resolve_command(ctx, args)
