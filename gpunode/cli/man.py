"""`gpunode man`: the manual pages of gpunode's commands, made of what `--help` says."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import click

from gpunode.cli.lazy import LOG_OPTIONS
from gpunode.cli.output import echo
from gpunode.core.errors import InputError


@click.command(
    epilog="Examples:\n\n\b\n"
    "  gpunode man | man -l -\n"
    "  gpunode man kube apply | man -l -\n"
    "  gpunode man -o ~/.local/share/man/man1     (then: man gpunode-kube-apply)\n\n"
    "Exit codes: 0 written, 2 usage, no such command, or a folder that cannot be written."
)
@click.argument("words", nargs=-1, metavar="[COMMAND]...")
@click.option(
    "-o", "--output", "folder", type=click.Path(path_type=Path), metavar="DIR", help="Write all pages there, as *.1."
)
@click.pass_context
def man(ctx: click.Context, words: tuple[str, ...], folder: Path | None) -> int:
    """Print the manual page of gpunode, or of one of its commands; or write all of them to a folder."""
    found = pages(ctx.find_root().command)
    if folder is None:
        name = "-".join(("gpunode", *words))
        if name not in found:
            raise InputError(f"no command {' '.join(words)!r}", fix="gpunode --help lists the commands")
        echo(found[name], nl=False)
        return 0
    if words:
        raise InputError("a command and --output together", fix="--output writes the pages of all commands")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in found.items():
            (folder / f"{name}.1").write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error.strerror}", fix="choose another folder") from error
    echo(f"written: {len(found)} pages in {folder}", err=True)
    return 0


def pages(root: click.Command) -> dict[str, str]:
    """gpunode-kube-apply → its page, in man(7)'s language, for `root` and all commands below it."""
    return dict(_pages(root, click.Context(root, info_name="gpunode")))


def _pages(command: click.Command, ctx: click.Context) -> Iterator[tuple[str, str]]:
    name = ctx.command_path.replace(" ", "-")
    inner = _inner(command, ctx)
    yield name, "\n".join(line for line in _page(name, command, ctx, inner) if line) + "\n"
    for child in inner:
        yield from _pages(child.command, child)


def _inner(command: click.Command, ctx: click.Context) -> list[click.Context]:
    if not isinstance(command, click.Group):
        return []
    found = ((name, command.get_command(ctx, name)) for name in command.list_commands(ctx))
    return [click.Context(c, info_name=name, parent=ctx) for name, c in found if c and not c.hidden]


def _page(name: str, command: click.Command, ctx: click.Context, inner: list[click.Context]) -> Iterator[str]:
    from gpunode import __version__

    paragraphs = inspect.cleandoc((command.help or "").replace("\b", "")).split("\n\n")
    yield f'.TH "{_word(name.upper())}" "1" "" "gpunode {__version__}" "gpunode"'
    yield f".SH NAME\n{_word(name)} \\- {_line(_summary(command))}"
    yield f".SH SYNOPSIS\n.B {_word(ctx.command_path)}\n{_line(' '.join(command.collect_usage_pieces(ctx)))}"
    yield ".SH DESCRIPTION\n" + "\n.PP\n".join(_line(" ".join(text.split())) for text in paragraphs)
    options = [option for option in command.params if isinstance(option, click.Option) and not option.hidden]
    options = [option for option in options if ctx.parent is None or option not in LOG_OPTIONS]
    if options:
        yield ".SH OPTIONS"
        yield from (_entry(*record) for option in options if (record := option.get_help_record(ctx)))
    if inner:
        yield ".SH COMMANDS"
        yield from (_entry(str(c.info_name), _summary(c.command)) for c in inner)
    yield from _epilog(command.epilog or "")
    around = [c.command_path.replace(" ", "-") for c in ([ctx.parent] if ctx.parent else []) + inner]
    if around:
        yield ".SH SEE ALSO\n" + ",\n".join(f".BR {_word(other)} (1)" for other in around)


def _summary(command: click.Command) -> str:
    return " ".join(inspect.cleandoc(command.help or "").split("\n\n", maxsplit=1)[0].split())


def _entry(names: str, text: str) -> str:
    return f".TP\n.B {_word(names)}\n{_line(text)}"


def _epilog(text: str) -> Iterator[str]:
    """Paragraphs behind \\b are examples, `Exit codes:` is a section of its own."""
    for paragraph in filter(None, re.split(r"\n\n+", text)):
        if paragraph.startswith("\b\n"):
            lines = "\n".join(_line(line.removeprefix("  ")) for line in paragraph.removeprefix("\b\n").splitlines())
            yield f".SH EXAMPLES\n.nf\n{lines}\n.fi"
        elif paragraph.startswith("Exit codes:"):
            yield f".SH EXIT STATUS\n{_line(paragraph.removeprefix('Exit codes:').strip())}"
        elif not re.fullmatch(r"Examples?:", paragraph.strip()):
            yield f".PP\n{_line(' '.join(paragraph.split()))}"


def _word(text: str) -> str:
    """The text with all that is special to roff written otherwise; hyphens stay such as can be searched and copied."""
    escaped = (
        text.replace("\\", "\\e").replace("-", "\\-").replace('"', "\\(dq").replace("~", "\\(ti").replace("^", "\\(ha")
    )
    escaped = escaped.replace("'", "\\(aq").replace("`", "\\(ga")
    return "".join(c if c.isascii() else f"\\[u{ord(c):04X}]" for c in escaped)


def _line(text: str) -> str:
    """A line of text, which is no request even if it starts with a dot."""
    return f"\\&{_word(text)}" if text.startswith(".") else _word(text)
