"""gpunode lock, and the option --locked of other commands."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpunode.cli.common import NEW_FILE, PROBES, Command, format_option, show_errors, target_options, worst_exit
from gpunode.cli.lazy import Verb
from gpunode.cli.output import echo, print_json
from gpunode.core.errors import error_data

if TYPE_CHECKING:
    from gpunode.core.model import HostOutcome
    from gpunode.core.plan.lockfile import Lock
    from gpunode.edge.detect import Targets

DEFAULT_LOCK = Path("gpunode.lock")


def locked_option(command: Command) -> Command:
    """`--locked`, `--lock-file`; the command gets `lock`, None without them."""

    @functools.wraps(command)
    def with_lock(*args: Any, **options: Any) -> Any:
        locked, path = options.pop("locked"), options.pop("lock_file")
        return command(*args, lock=read_lock(path or DEFAULT_LOCK) if locked or path else None, **options)

    flag = click.option("--locked", is_flag=True, help="Exactly the versions of gpunode.lock; refuse anything else.")
    file = click.option(
        "--lock-file", type=click.Path(path_type=Path), metavar="FILE", help="As --locked, by another file."
    )
    return flag(file(with_lock))  # type: ignore[return-value]


def read_lock(path: Path) -> Lock:
    """Raises InputError."""
    import tomli

    from gpunode.core.errors import InputError
    from gpunode.core.plan.lockfile import REPAIR, parse_lock

    text = ""
    try:
        text = path.read_text(encoding="utf-8")
        if text.strip() and "format" not in text:
            raise InputError(f"{path} is no lock file", fix="name the one that gpunode lock wrote, or restore it")
        return parse_lock(tomli.loads(text), str(path))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}", fix="gpunode lock -i INVENTORY writes one") from error
    except ValueError as error:
        why = "it has conflict markers of git" if "<<<<<<< " in text else str(error)
        raise InputError(f"{path}: {why}", fix=REPAIR) from error


@click.command(
    cls=Verb,
    epilog="Examples:\n\n\b\n"
    "  gpunode lock -i inventory/hosts.yml\n"
    "  gpunode lock -i inventory/hosts.yml --update\n"
    "  gpunode provision -i inventory/hosts.yml --locked\n\n"
    "Exit codes: 0 written, or as the file has it, 2 the hosts of a class differ, 3 the file has something else, "
    "4 a host is unreachable.",
)
@target_options
@PROBES
@click.option("-o", "--output", type=NEW_FILE, default=DEFAULT_LOCK, show_default=True, help="The lock file.")
@click.option("--update", is_flag=True, help="Write what the hosts have now over what the file has.")
@format_option("text", "json")
def lock(targets: Targets, output: Path, update: bool, output_format: str) -> int:
    """Record the exact driver, kernel, CUDA and toolkit of each class of hosts, or say what has changed since."""
    from gpunode.cli.progress import probing
    from gpunode.core.plan.lockfile import Lock, lock_differences, lock_text, make_lock
    from gpunode.edge.detect import detect
    from gpunode.edge.state import writing_to

    with probing(output_format) as on_done:
        found = detect(targets, on_done=on_done)
    errors = [one for one in found if one.error]
    if output_format == "text":
        show_errors([(one.host, one.error) for one in errors if one.error])
    new = make_lock([(one.host, one.facts) for one in found if one.facts])
    whole = bool(targets.inventory and not targets.limit and not errors)  # all that the file is about has answered
    old = read_lock(output) if output.exists() else Lock()
    new = new if whole else Lock({**old, **new})
    differs = lock_differences(old, new)
    written = not errors and bool(differs) and (update or not output.exists())
    if written:
        with writing_to(output):
            output.write_text(lock_text(new), encoding="utf-8")
    if output_format == "json":
        reported = [{"host": one.host, "error": one.error and error_data(one.error)} for one in errors]
        known = differs or (None if errors else [])  # with hosts that were not compared nobody knows that there is none
        print_json({"file": str(output), "differences": known, "written": written, "errors": reported})
    else:
        echo("\n".join(differs), nl=bool(differs))
        after = "written" if written else "as it was; --update rewrites it" if differs else "as the hosts are"
        after = f"not written; not compared: {len(errors)} of {len(found)} hosts" if errors else after
        echo(f"{output}: {after}")
    pending: list[HostOutcome] = ["pending"] if differs and not written else []
    return worst_exit([one.error.outcome for one in errors if one.error] + pending)
