"""A click group that is a table: each command is imported when it is called, not before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

# name → (where the click command is, its one line of help)
Table = Mapping[str, tuple[str, str]]


def _heard(ctx: click.Context, option: click.Parameter, value: Any) -> None:
    """One of LOG_OPTIONS, before or behind the command's name: what was said last counts."""
    if value and not ctx.resilient_parsing:
        from gpunode.cli.terminal import listen

        listen(**{str(option.name): value})


def _log_option(*names: str, **more: Any) -> click.Option:
    option = click.Option(names, expose_value=False, callback=_heard, is_eager=True, **more)
    option.section = "Messages"  # type: ignore[attr-defined]
    return option


LOG_OPTIONS = (
    _log_option("-v", "--verbose", count=True, help="Say what is done where (-v), and each task and connection (-vv)."),
    _log_option("-q", "--quiet", is_flag=True, help="Only results and errors, no progress and no warnings."),
    _log_option("--log-file", metavar="FILE", help="Append all messages to this file, with times, as -vv has them."),
)


def with_log_options(command: click.Command) -> click.Command:
    """The command, and all below it, with LOG_OPTIONS; not one whose words are another program's."""
    if not command.ignore_unknown_options and LOG_OPTIONS[0] not in command.params:
        command.params.extend(LOG_OPTIONS)
    for inner in getattr(command, "commands", {}).values():
        with_log_options(inner)
    return command


class Verb(click.Command):
    """A command whose help has its options in sections (`section`): those without one come first."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            if record:
                sections.setdefault(getattr(param, "section", "Options"), []).append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


class LazyGroup(click.Group):
    """A group over such a table; its help imports none of the commands.  `sections`: title → names of commands."""

    def __init__(
        self, *args: Any, table: Table, sections: Mapping[str, tuple[str, ...]] | None = None, **more: Any
    ) -> None:
        super().__init__(*args, **more)
        self.table = table
        self.sections = sections or {"Commands": tuple(table)}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.table:
            return None
        from importlib import import_module

        module, attribute = self.table[cmd_name][0].split(":")
        command: click.Command = getattr(import_module(module), attribute)
        return with_log_options(command)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, self.table))
        for title, names in self.sections.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), self.table[name][1]) for name in names])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.table and not args[0].startswith("-"):
            from difflib import get_close_matches

            near = get_close_matches(args[0], self.table, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"Known commands: {', '.join(self.table)}."
            raise click.UsageError(f"No such command {args[0]!r}. {hint}", ctx)
        return super().resolve_command(ctx, args)
