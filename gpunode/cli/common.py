"""What all commands share: options that name hosts, output formats, and how errors are shown."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gpunode.cli.completion import complete_files, complete_hosts
from gpunode.cli.output import Styled, echo, print_json
from gpunode.core.errors import Exit, GpunodeError, InputError, error_data

if TYPE_CHECKING:
    from gpunode.core.model import HostOutcome

Command = TypeVar("Command", bound=Callable[..., Any])
FORMAT = "gpunode.format"  # key of click's Context.meta: which format the user asked for

CONFIG = "gpunode.config"  # key of click's Context.meta: the value of -c
FOLDER = "gpunode.folder"  # key of click's Context.meta: where the user's gpunode.yml is
_READ = "gpunode.read"  # key of click's Context.meta: a part for each file that was read, for the first line

DEFAULT_SPEC = Path("gpunode.yml")
_NO_HOST_ASKED = ("probes", "logs", "use_lab")  # options of commands that then need no inventory


def worst_exit(outcomes: Iterable[HostOutcome]) -> Exit:
    """One exit code for several hosts: interrupted or bad input first, then the first that occurs of 1, 4, 5, 3."""
    found = set(outcomes)
    order: tuple[HostOutcome, ...] = ("interrupted", "invalid", "failed", "unreachable", "refused", "pending")
    return Exit.of(next((outcome for outcome in order if outcome in found), "ok"))


# ---------------------------------------------------------------- options


class NewFile(click.Path):
    """The file of -o, in a folder that is there: else the work before it would be in vain."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = Path(str(super().convert(value, param, ctx)))
        if file := next((above for above in path.parents if above.exists() and not above.is_dir()), None):
            raise InputError(f"-o {path}: {file} is no folder", fix="choose another place")
        if self.file_okay and not (folder := path.parent).is_dir():
            raise InputError(f"-o {path}: there is no folder {folder}", fix=f"mkdir -p {folder}, or name another file")
        return path


NEW_FILE = NewFile(path_type=Path, dir_okay=False)


def format_option(*formats: str) -> Callable[[Command], Command]:
    """`--format`, the first of `formats` being the default; errors then come in that format too."""

    def remember(ctx: click.Context, _option: click.Parameter, value: str) -> str:
        ctx.meta[FORMAT] = value
        return value

    return click.option(
        "--format",
        "output_format",
        type=click.Choice(formats),
        default=formats[0],
        show_default=True,
        is_eager=True,
        callback=remember,
        help="How to print the result.",
    )


def options(*given: Callable[[Any], Any], section: str = "") -> Callable[[Command], Command]:
    """Several click options at once, in their order; `section` is their title in the command's help."""

    def wrap(command: Command) -> Command:
        for option in reversed(given):
            command = option(command)
            if section:
                command.__click_params__[-1].section = section  # type: ignore[attr-defined]
        return command

    return wrap


class Duration(click.FloatRange):
    """Seconds: 90, 90s, 30m, 2h."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not (found := re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", str(value))):
            self.fail(f"{value!r} is no time: write 90s, 30m or 2h", param, ctx)
        return super().convert(float(found[1]) * {"m": 60, "h": 3600}.get(found[2], 1), param, ctx)


def seconds(name: str, text: str, *, least: float, default: float) -> Callable[[Command], Command]:
    """An option of so many seconds."""
    return click.option(name, type=Duration(least), default=default, show_default=True, metavar="TIME", help=text)


def tree_option(untouched: str) -> Callable[[Any], Any]:
    """--root: the files of another tree; help says what of it is left alone."""
    tree = click.Path(exists=True, file_okay=False, path_type=Path)
    words = f"Another tree, such as a mounted image: its files, {untouched}."
    return click.option("--root", type=tree, default="/", show_default=True, help=words)


ASK_BECOME_PASS = click.option("-K", "--ask-become-pass", is_flag=True, help="Ask for the sudo password.")
_TARGETS = (
    click.argument("hosts", nargs=-1, metavar="[HOST]..."),
    click.option(
        "-i",
        "--inventory",
        multiple=True,
        metavar="PATH",
        shell_complete=complete_files,
        help="Ansible inventory: file, folder, script, or 'host1,host2,'. Repeatable. Default: hosts.yml next to "
        "gpunode.yml, or Ansible's own (ANSIBLE_INVENTORY, ansible.cfg).",
    ),
    click.option("--local", is_flag=True, help="This machine itself."),
    click.option(
        "--limit",
        default="",
        metavar="PATTERN",
        shell_complete=complete_hosts,
        help="Only these hosts of the inventory (Ansible pattern).",
    ),
    click.option("--forks", type=click.IntRange(1, 500), default=50, show_default=True, help="Hosts at the same time."),
    seconds("--connect-timeout", "Seconds to wait for a connection.", least=0.1, default=10.0),
    seconds("--timeout", "Seconds that reading one host may take.", least=1, default=120.0),
    click.option(
        "--accept-new-host-keys",
        is_flag=True,
        help="Add the keys of hosts that known_hosts does not know yet. A changed key is refused all the same.",
    ),
    click.option("-b", "--become", is_flag=True, help="Become root by sudo (an inventory says so by ansible_become)."),
    ASK_BECOME_PASS,
    click.option(
        "--vault-password-file",
        "vault_password_files",
        multiple=True,
        metavar="FILE",
        help="Password of Ansible vault. Repeatable.",
    ),
)


def target_options(command: Command) -> Command:
    """HOST… and the options that say which hosts, and how to reach them; the command gets `targets: Targets`."""

    where = [param.name for param in options(*_TARGETS)(lambda: None).__click_params__]  # type: ignore[attr-defined]

    @functools.wraps(command)
    def with_where(*args: Any, **options: Any) -> Any:
        found = {name: options.pop(name) for name in where}
        if not any((found["hosts"], found["inventory"], found["local"], *map(options.get, _NO_HOST_ASKED))):
            found["inventory"] = _default_inventory(click.get_current_context())
        elif found["hosts"] and not any((found["inventory"], found["local"], found["limit"])):
            found |= _of_default_inventory(click.get_current_context(), found)
        own = options.get("use_lab") or (found["hosts"] and Path(found["hosts"][0]).is_dir())  # they bring a spec
        _say_files(click.get_current_context(), found["inventory"], hidden=own)
        if probes := options.pop("probes", ()):  # of `--probe a b c` the shell's * leaves b and c among the hosts
            found |= {"hosts": (), "probes": (*probes, *map(Path, found["hosts"]))}
        asked = found.pop("ask_become_pass")
        password = sudo_password(asked=asked)
        if found["inventory"]:  # not before: a vault's password may be asked for, too
            found["listing"] = _listing(found["inventory"], found["limit"], found["vault_password_files"])
        from gpunode.edge.detect import Targets

        found["become"] = found["become"] or asked
        return command(*args, targets=Targets(**found, become_password=password), **options)

    hosts = options(*_TARGETS[:4], section="Hosts")
    return hosts(options(*_TARGETS[4:], section="Connection")(with_where))  # type: ignore[return-value]


def sudo_password(*, asked: bool) -> str:
    """What a person types for --ask-become-pass, or a program writes; "" without it."""
    if not asked or is_terminal():
        return str(click.prompt("sudo password", hide_input=True, err=True)) if asked else ""
    if not (typed := sys.stdin.readline().rstrip("\n")):
        fix = "give ansible_become_password in the inventory, best in a vault"
        raise InputError(
            "no terminal to ask for the sudo password on", expected="a terminal, or a line of input", fix=fix
        )
    return typed


def _default_inventory(ctx: click.Context) -> tuple[str, ...]:
    """The inventory that is meant where none is named.  Raises InputError for one that a near name has."""
    from gpunode.edge.ansible.default_inventory import NAME, NEAR_HOSTS, default_inventory, own_file

    folder = ctx.meta.get(FOLDER, Path())
    if not (found := default_inventory(folder)):
        own_file(folder, NAME, NEAR_HOSTS, "-i")
    return found


def _say_files(ctx: click.Context, sources: tuple[str, ...] = (), *, hidden: bool = False) -> None:
    """Before all else: which files are the input, each once."""
    from gpunode.cli.terminal import say

    read = [*ctx.meta.pop(_READ, ()), *([f"inventory: {', '.join(sources)}"] if sources else [])]
    if read and not hidden and ctx.meta.get(FORMAT, "text") in ("text", "yaml", "html"):
        say(" · ".join(read))


def _of_default_inventory(ctx: click.Context, found: Mapping[str, Any]) -> dict[str, Any]:
    """The options for hosts that all have the name of one of the default inventory: it says how to reach them."""
    from gpunode.cli.terminal import say
    from gpunode.core.meant import meant
    from gpunode.edge.ansible.default_inventory import default_inventory

    hosts = found["hosts"]
    if not (sources := default_inventory(ctx.meta.get(FOLDER, Path()))) or any(Path(host).exists() for host in hosts):
        return {}
    from gpunode.edge.ansible.inventory import load_inventory

    try:
        listed = load_inventory(sources, vault_password_files=found["vault_password_files"])
    except InputError:  # nobody has named it
        return {}
    known = [host.name for host in listed]
    if other := [host for host in hosts if host not in known]:
        for host, near in ((host, meant(host.rpartition("@")[2], known, cutoff=0.8)) for host in other):
            if near:
                say(f"warning: {host} is no host of {', '.join(sources)}: {near}")
        return {}
    return {"inventory": sources, "limit": ",".join(hosts), "hosts": ()}


def _listing(sources: tuple[str, ...], limit: str, vault_password_files: tuple[str, ...]) -> Callable[[], Any]:
    """The inventory's hosts, read while the rest is imported."""
    from gpunode.edge.ansible import ahead

    def read() -> Any:
        from gpunode.edge.ansible.inventory import load_inventory

        return load_inventory(sources, limit=limit, vault_password_files=vault_password_files)

    return ahead.begin(read)


PROBES = click.option(  # in place of hosts, in the `targets` of target_options
    "--probe",
    "probes",
    multiple=True,
    metavar="FILE...",
    type=click.Path(path_type=Path),
    help="Saved probes (files, or folders of HOST.probe or HOST/probe.txt): no host is asked.",
)


def _spec_option(text: str, late: str = "", none: str = "") -> Callable[[Command], Command]:
    """`-c`; `late`: the command gets `read_spec`, which reads the file, and names it so, where it is needed."""

    def load(ctx: click.Context, value: str | None) -> Any:
        from gpunode.edge.ansible.default_inventory import NEAR_SPEC, own_file
        from gpunode.edge.load import load_checked_data

        file = value or own_file(Path(), DEFAULT_SPEC.name, NEAR_SPEC, "-c")
        data = load_checked_data(file) if file else {}
        ctx.meta[_READ] = [f"{late or 'spec'}: {file or none}"] if file or none else []
        if late:
            _say_files(ctx)
        return data

    def read(ctx: click.Context, _option: click.Parameter, value: str | None) -> Any:
        ctx.meta[CONFIG], ctx.meta[FOLDER] = value, Path(value or DEFAULT_SPEC).parent
        return functools.cache(functools.partial(load, ctx, value)) if late else load(ctx, value)

    name = "read_spec" if late else "spec_data"
    return click.option("-c", "--config", name, metavar="FILE", shell_complete=complete_files, callback=read, help=text)


_SPEC = "The desired state (gpunode explain). Default: gpunode.yml of the current folder, if there is one."
read_spec_option = _spec_option(_SPEC, "spec")
late_spec_option = _spec_option(f"{_SPEC} Read for its rollout section, where anything is changed.", "rollout")
_SECRETS = "File with the passwords that the recorded spec refers to. Default: gpunode.yml."
secrets_option = _spec_option(_SECRETS, "also read")


def spec_option(command: Command, optional: bool = False) -> Command:
    """`-c gpunode.yml`; it is plain data in `spec_data`, {} without; `optional`: no defaults count then."""

    @functools.wraps(command)
    def named(*args: Any, **options: Any) -> Any:
        _say_files(click.get_current_context(), options.get("inventory", ()))
        return command(*args, **options)

    return _spec_option(_SPEC, none="none" if optional else "none, defaults")(named)  # type: ignore[return-value]


# ---------------------------------------------------------------- the question before hosts are changed


def is_terminal() -> bool:
    return sys.stdin.isatty()


def confirm(question: str, *, fix: str, before: str = "") -> None:
    """Ask whether to go on.  Raises InterruptedByUser for no, InputError with `fix` where there is no terminal."""
    from gpunode.core.errors import InterruptedByUser

    if not is_terminal():
        raise InputError(
            "there is no terminal to ask on, and --yes is not given", expected="a terminal, or --yes", fix=fix
        )
    if before:
        echo(before)
    if not click.confirm(question):
        raise InterruptedByUser("declined; nothing was touched")


# ---------------------------------------------------------------- errors


def show_error(error: GpunodeError, *, host: str = "") -> None:
    """The error on stderr: what, what was expected, what to do next; `host` is put before it where it is not named."""
    from gpunode.cli.terminal import keep

    named = not host or error.what.startswith(f"{host}: ")
    text = f"{'' if named else f'{host}: '}{error}"
    keep(text)
    echo(Styled("error: ", "red", bold=True), text, err=True)


def show_errors(errors: Sequence[tuple[str, GpunodeError]]) -> None:
    """The errors of hosts on stderr, one by one; of very many, by cause."""
    if not errors:
        return
    from gpunode.core.report.text import MANY

    if len(errors) <= MANY:
        for host, error in errors:
            show_error(error, host=host)
        return
    from gpunode.core.report.fleet import causes

    lines = causes([error.of_host(host) for host, error in errors])
    echo("\n".join([f"{len(errors)} hosts in error:", *lines]), err=True)


def report_exception(error: Exception, ctx: click.Context) -> int:
    """Show what a command raised and give its exit code; a bug's traceback is kept in a file, not shown."""
    from gpunode.edge.isolate import as_error

    known = as_error(error)
    if ctx.meta.get(FORMAT) == "json":
        print_json({"error": error_data(known)})
    else:
        show_error(known)
    return int(known.exit)


def report_usage(error: click.ClickException, root: click.Command) -> int:
    """Show a mistake in the command line of `root`, as other errors are shown; exit code 2."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        return int(Exit.INPUT)
    ctx = getattr(error, "ctx", None)
    fix = _meant_option(error) or f"{ctx.command_path if ctx else _typed_command(root)} --help"
    if ctx is not None and ctx.meta.get(FORMAT) == "json":
        print_json({"error": {"what": error.format_message(), "expected": "", "fix": fix, "exit": 2}})
    else:
        text = error.message if isinstance(error, click.NoSuchOption) else error.format_message()
        text = re.sub("a valid (integer|float) range", "a number", text)  # what Click calls its types
        show_error(GpunodeError(text[:1].lower() + text[1:] if text[1:2].islower() else text, fix=fix))
    return int(Exit.INPUT)


def _typed_command(root: click.Command) -> str:
    """The command that was typed: of an option without its value Click says not whose it is."""
    ctx = click.Context(root, info_name="gpunode")
    for word in sys.argv[1:]:
        if isinstance(ctx.command, click.Group) and (command := ctx.command.get_command(ctx, word)):
            ctx = click.Context(command, info_name=word, parent=ctx)
    return ctx.command_path


def _having(option: str, ctx: click.Context) -> Iterator[str]:
    """The commands that have that option."""
    if not isinstance(ctx.command, click.Group):
        if any(option in param.opts for param in ctx.command.params):
            yield ctx.command_path
        return
    for name in ctx.command.list_commands(ctx):
        if command := ctx.command.get_command(ctx, name):
            yield from _having(option, click.Context(command, info_name=name, parent=ctx))


def _meant_option(error: click.ClickException) -> str:
    """The question whether another option, or another of its choices, is meant; or ""."""
    from gpunode.core.meant import meant

    if isinstance(error, click.NoSuchOption) and error.ctx:
        words = [word for word in sys.argv if word.startswith(error.option_name) and not word.startswith("--")]
        names = [name for param in error.ctx.command.params for name in param.opts if name[:1] == "-"]
        short = f"its short options: {', '.join(name for name in names if name[:2] != '--')}" if words else ""
        known = [name.lstrip("-") for name in names if name[:2] == "--"]
        near = functools.partial(meant, (words or [error.option_name])[0].strip("-"), known, prefix="--")
        if not near(cutoff=0.8) and (others := [*_having(error.option_name, error.ctx.find_root())]):
            return f"{error.option_name} belongs to {', '.join(others[:3])}{' …' * bool(others[3:])}"
        return near(otherwise=short)
    if isinstance(error, click.BadParameter) and isinstance(choice := getattr(error.param, "type", None), click.Choice):
        return meant(error.message.split("'")[1], choice.choices)
    return ""


_CLUSTER = (
    click.option(
        "--kubeconfig",
        default="",
        metavar="FILE",
        help="Path of the kubeconfig. Default: $KUBECONFIG, ~/.kube/config, or the pod's account.",
    ),
    click.option("--context", default="", metavar="NAME", help="Context of the kubeconfig. Default: its current one."),
    seconds("--request-timeout", "Seconds that one request may take.", least=0.1, default=30.0),
)


def cluster_options(command: Command) -> Command:
    """--kubeconfig, --context and --request-timeout; the command gets `connect`, a function that opens the Api."""

    @functools.wraps(command)
    def with_cluster(*args: Any, kubeconfig: str, context: str, request_timeout: float, **given: Any) -> Any:
        def connect() -> Any:
            from gpunode.edge.fleet import draining

            return draining.connect(kubeconfig, context, timeout=request_timeout)

        return command(*args, connect=connect, **given)

    return options(*_CLUSTER, section="Kubernetes")(with_cluster)  # type: ignore[return-value]
