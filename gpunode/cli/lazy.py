"""A click group that is a table: each command is imported when it is called, not before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
    _log_option(
        "-v",
        "--verbose",
        count=True,
        help="Say what is done where, and why (-v); each task, connection and source (-vv).",
    ),
    _log_option("-q", "--quiet", is_flag=True, help="Only results and errors, no progress and no warnings."),
    _log_option("--log-file", metavar="FILE", help="Append all messages to this file, with times, as -vv has them."),
)


_ALL = "gpunode.help.all"  # key of click's Context.meta: --help-all was given
_RARE_SECTIONS = ("Connection", "GPUs", "Rollout", "Kubernetes", "Messages")
_RARE = ("check_repositories", "lock_file", "locked")
_DAILY = ("become", "ask_become_pass", "waves", "max_failures", "verbose")


def _show_all(ctx: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        ctx.meta[_ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


def _help_all(*, hidden: bool) -> click.Option:
    return click.Option(
        ["--help-all"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_show_all,
        hidden=hidden,
        help="Show this, with what is seldom needed.",
    )


HELP_ALL, HELP_ALL_SAME = _help_all(hidden=False), _help_all(hidden=True)  # the latter where --help shows all


def with_log_options(command: click.Command) -> click.Command:
    """The command, and all below it, with LOG_OPTIONS; not one whose words are another program's."""
    if not command.ignore_unknown_options and LOG_OPTIONS[0] not in command.params:
        command.params.extend(LOG_OPTIONS)
        command.params.append(
            HELP_ALL if isinstance(command, Verb) or bool(getattr(command, "rare", None)) else HELP_ALL_SAME
        )
    for inner in getattr(command, "commands", {}).values():
        with_log_options(inner)
    return command


class Verb(click.Command):
    """A command whose help has its options in sections (`section`): those without one come first.

    `--help` shows those of every day, `--help-all` the rest, too.
    """

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            if record and (_ALL in ctx.meta or _of_every_day(param)):
                sections.setdefault(getattr(param, "section", "Options"), []).append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def _of_every_day(param: click.Parameter) -> bool:
    if getattr(param, "section", "") in _RARE_SECTIONS:
        return param.name in _DAILY
    return param.name not in _RARE


def no_such_command(word: str, known: Iterable[str], ctx: click.Context) -> click.UsageError:
    """The error, with the name that may have been meant."""
    from gpunode.core.meant import meant

    names = list(known)
    hint = meant(word, names, f"Known commands: {', '.join(names)}." if names else "")
    return click.UsageError(f"No such command {word!r}. {hint[:1].upper()}{hint[1:]}".rstrip(), ctx)


class LazyGroup(click.Group):
    """A group over such a table; its help imports none of the commands.

    `sections`: title → names of commands; those of `rare` are listed by `--help-all`, and named by `--help`.
    """

    def __init__(
        self,
        *args: Any,
        table: Table,
        sections: Mapping[str, tuple[str, ...]] | None = None,
        rare: tuple[str, ...] = (),
        **more: Any,
    ) -> None:
        super().__init__(*args, **more)
        self.table = table
        self.sections = sections or {"Commands": tuple(table)}
        self.rare = rare

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
        for title, all_names in self.sections.items():
            names = [name for name in all_names if _ALL in ctx.meta or name not in self.rare]
            if names:
                with formatter.section(title):
                    formatter.write_dl([(name.ljust(width), self.table[name][1]) for name in names])
        if self.rare and _ALL not in ctx.meta:
            with formatter.section("More (--help-all)"):
                formatter.write_text(", ".join(self.rare))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            known = next((word for word in args if word in self.table), "")
            command = self.get_command(ctx, known)
            if not command or not any(error.option_name in param.opts for param in command.params):
                raise
            raise click.UsageError(
                f"{error.option_name} stands before the command. Options follow it: "
                f"{ctx.command_path} {known} {error.option_name} …",
                ctx,
            ) from error

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.table and not args[0].startswith("-"):
            raise no_such_command(args[0], self.table, ctx)
        return super().resolve_command(ctx, args)
