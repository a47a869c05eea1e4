"""gpunode runtime: the configuration of this machine's container engines, without Ansible and without Kubernetes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

import click

from gpunode.cli.common import Command, format_option, options, show_error, tree_option
from gpunode.cli.edits import absolute, diffs, edit_data, pending, print_done
from gpunode.cli.output import echo, print_json
from gpunode.core.engines import DISTRIBUTIONS, ENGINES, NVIDIA_RUNTIME
from gpunode.core.errors import GpunodeError, InputError
from gpunode.core.printable import with_texts

if TYPE_CHECKING:
    from gpunode.core.model import Edit, NodeFacts, RuntimeName
    from gpunode.edge.host.runtimes import Engine, Options
    from gpunode.edge.host.target import Subject


@click.group(
    epilog="Examples:\n\n\b\n"
    "  gpunode runtime status\n"
    "  gpunode runtime diff --runtime containerd --set-as-default\n"
    "  gpunode runtime configure --runtime docker\n"
    "  gpunode runtime unconfigure --runtime docker\n"
    "  gpunode runtime configure --runtime containerd --root /mnt/image --engine-version 2.1\n\n"
    "Exit codes: 0 done or nothing to do, 1 failed and rolled back, 2 unreadable or invalid input,\n"
    "3 differences pending (diff, status), 5 refused."
)
def runtime() -> None:
    """Register the nvidia runtime with this machine's container engines; needs no Ansible and no Kubernetes."""


# options of nvidia-ctk that have no meaning here: name → what to do instead
_WITHOUT_MEANING = {
    "--executable-path": "the binary that the engine's unit starts is asked; --engine-version replaces it",
    "--config-source": "the files that the engine has in force are read; --config names another root",
    "--config-mode": "OCI hooks are gone since CRI-O has runtimes; leave it out",
    "--nvidia-runtime-hook-path": "only OCI hooks have it, and the nvidia runtime needs none; leave it out",
    "--oci-hook-path": "only OCI hooks have it, and the nvidia runtime needs none; leave it out",
}


def _without_meaning(_: click.Context, option: click.Parameter, value: str | None) -> None:
    if value is not None:
        raise InputError(f"{option.opts[0]} is an option of nvidia-ctk alone", fix=_WITHOUT_MEANING[option.opts[0]])


_WHAT = (
    click.option(
        "--runtime", type=click.Choice(ENGINES), help="Which engine; may be left out where there is only one."
    ),
    click.option(
        "--distribution",
        type=click.Choice(("none", *DISTRIBUTIONS)),
        help="The Kubernetes that brings this containerd; by default what is found.",
    ),
    click.option("--config", metavar="PATH", default="", help="The engine's root config file."),
    click.option(
        "--drop-in-config",
        "drop_in",
        metavar="PATH",
        help="The drop-in to write; empty ('') edits the root config itself.",
    ),
    click.option(
        "--nvidia-runtime-name",
        "--nvidia-runtime",
        "name",
        default="nvidia",
        show_default=True,
        metavar="NAME",
        help="The name of the nvidia runtime.",
    ),
    click.option(
        "--nvidia-runtime-path",
        "--runtime-path",
        "path",
        default=NVIDIA_RUNTIME,
        show_default=True,
        metavar="PATH",
        help="The binary of the nvidia runtime; a name alone is looked for on the PATH of services.",
    ),
    click.option(
        "--default-runtime",
        type=click.Choice(("auto", "nvidia", "runc", "keep")),
        default="auto",
        show_default=True,
        help="Runtime of containers that name none; auto: nvidia for the kubelet's engine, else as it is.",
    ),
    click.option(
        "--set-as-default", "--nvidia-set-as-default", is_flag=True, help="The same as --default-runtime nvidia."
    ),
    click.option(
        "--cdi/--no-cdi",
        "--cdi.enabled",
        "--cdi.enable",
        "--enable-cdi",
        default=None,
        help="Turn the engine's CDI support on, and make the CDI specification of this machine's GPUs; or off.",
    ),
    click.option(
        "--cgroup-driver",
        type=click.Choice(("auto", "systemd", "cgroupfs")),
        default="auto",
        show_default=True,
        help="auto: the kubelet's if there is one, else unchanged.",
    ),
    *(
        click.option(name, metavar="V", hidden=True, expose_value=False, callback=_without_meaning)
        for name in _WITHOUT_MEANING
    ),
    click.option("--enable-cri", is_flag=True, help="Take containerd's CRI plugin out of disabled_plugins."),
    click.option(
        "--engine-version",
        "version",
        default="",
        metavar="V",
        help="The engine's version, instead of the one that its binary says.",
    ),
    tree_option("no service"),
)
_HOW = (
    click.option("--dry-run", is_flag=True, help="Show what would change, change nothing."),
    click.option("--no-restart", is_flag=True, help="Do not restart the engine; restart it later."),
)


def _engine_options(*asked: Callable[[Any], Any], several: bool = False) -> Callable[[Command], Command]:
    """The options that say what is asked; the command gets them as `options: Options`.

    A command for `several` gets a list: one for each engine of this machine where none is named.
    """

    def wrap(command: Command) -> Command:
        @functools.wraps(command)
        def with_options(**given: Any) -> Any:
            from gpunode.edge.host.runtimes import Options, probed

            name, root, drop_in = given.pop("runtime"), given.pop("root").resolve(), given.pop("drop_in")
            own = bool(given["config"] or drop_in or given["version"])  # of one engine
            facts = None if name else probed(root)
            names = [name] if facts is None else _engines(facts, several=several and not own)
            asked = {one.name: given.pop(one.name) for one in fields(Options) if one.name in given}
            asked |= {"config": absolute(asked["config"]), "drop_in": None if drop_in is None else absolute(drop_in)}
            asked |= {"distribution": ""} if asked["distribution"] == "none" else {}
            asked |= {"default_runtime": "nvidia"} if given.pop("set_as_default") else {}
            asked |= {"root": root, "facts": facts, "restart": not given.pop("no_restart", False)}
            found = [Options(runtime=name, **asked) for name in names]
            return command(options=found if several else found[0], **given)

        return options(*asked)(with_options)  # type: ignore[return-value]

    return wrap


def _engines(facts: NodeFacts, *, several: bool) -> list[RuntimeName]:
    """The engines of this machine; the one that there is, unless `several` will do."""
    names = sorted({engine.name for engine in facts.runtimes})
    if len(names) == 1 or (several and names):
        return names
    raise InputError(
        f"engines found: {', '.join(names) or 'none'}", expected="one", fix="name it: --runtime containerd, docker, …"
    )


# ---------------------------------------------------------------- the commands


@runtime.command(
    short_help="Let the engine know the nvidia runtime.",
    epilog="Examples:\n\n\b\n"
    "  gpunode runtime configure --runtime containerd --set-as-default\n"
    "  gpunode runtime configure --runtime docker --dry-run\n"
    "  gpunode runtime configure --runtime containerd --config /srv/c.toml --engine-version 1.7 --no-restart\n\n"
    "Exit codes: 0 done or nothing to do, 1 failed and rolled back, 2 invalid input, 5 refused.",
)
@_engine_options(*_WHAT, *_HOW)
@format_option("text", "json")
def configure(options: Options, dry_run: bool, output_format: str) -> int:
    """Register the nvidia runtime with the container engine; rolled back on failure."""
    from gpunode.edge.host import cdi, runtimes

    subject, edit, outcome = runtimes.configure(options, check=dry_run)
    outcome = cdi.with_specification(options, outcome, check=dry_run)
    return print_done(_known(subject), (subject, edit, outcome), output_format, dry_run=dry_run)


@runtime.command(
    short_help="Undo configure.",
    epilog="Examples:\n\n\b\n"
    "  gpunode runtime unconfigure --runtime docker\n"
    "  gpunode runtime unconfigure --runtime containerd --dry-run\n\n"
    "Exit codes: 0 done or nothing to do, 1 failed and rolled back, 2 invalid input, 5 refused.",
)
@_engine_options(*_WHAT, *_HOW)
@format_option("text", "json")
def unconfigure(options: Options, dry_run: bool, output_format: str) -> int:
    """Undo configure, to the byte; of entries that others wrote only nvidia's are removed."""
    from gpunode.edge.host import runtimes

    result = runtimes.unconfigure(options, check=dry_run)
    return print_done(_known(result[0]), result, output_format, dry_run=dry_run)


@runtime.command(
    short_help="Show what configure would change.",
    epilog="Examples:\n\n\b\n"
    "  gpunode runtime diff --runtime containerd --set-as-default\n"
    "  gpunode runtime diff --runtime docker --root /mnt/image\n\n"
    "Exit codes: 0 nothing to do, 2 invalid input, 3 configure would change something, 5 refused.",
)
@_engine_options(*_WHAT)
@format_option("text", "json")
def diff(options: Options, output_format: str) -> int:
    """Show what configure would change, as unified diffs without secrets."""
    from gpunode.edge.host import cdi, runtimes, target

    subject = runtimes.look(options)
    edit, misfits = target.edit(subject), cdi.misfits(options)
    if output_format == "json":
        print_json(edit_data(_known(subject), subject, edit) | {"cdi": misfits})
    else:
        echo(diffs(subject.texts, edit) + "".join(f"CDI: {reason}\n" for reason in misfits), nl=False)
    return pending(edit, output_format, misfits)


@runtime.command(
    short_help="Show what each engine knows of the nvidia runtime.",
    epilog="Examples:\n\n\b\n"
    "  gpunode runtime status\n"
    "  gpunode runtime status --runtime containerd --set-as-default --format json\n\n"
    "Exit codes: 0 configured, 2 invalid input, 3 configure would change something, 5 refused.",
)
@_engine_options(*_WHAT, several=True)
@format_option("text", "json")
def status(options: list[Options], output_format: str) -> int:
    """Show whether the nvidia runtime is registered with each engine, from which files, and what is missing."""
    if len(options) == 1:
        data, code = _status(options[0], output_format)
    else:
        parts = [_status_or_error(one, output_format) for one in options]
        data, code = {"engines": [part for part, _ in parts]}, max(code for _, code in parts)
    if output_format == "json":
        print_json(data)
    return code


def _status_or_error(options: Options, output_format: str) -> tuple[dict[str, Any], int]:
    """One of several engines: what is wrong with its files says nothing of the others."""
    try:
        found = _status(options, output_format)
    except GpunodeError as error:
        if output_format == "text":
            show_error(error)
        found = {"runtime": options.runtime, "error": str(error)}, error.exit
    if output_format == "text":
        echo("")
    return found


def _status(options: Options, output_format: str) -> tuple[dict[str, Any], int]:
    from gpunode.edge.host import cdi, runtimes, target

    subject = runtimes.look(options)
    edit, misfits = target.edit(subject), cdi.misfits(options)
    if output_format == "text":
        echo(_status_text(subject, edit, misfits))
    return _status_data(subject, edit, misfits), pending(edit, output_format, misfits)


# ---------------------------------------------------------------- output


def _known(subject: Subject[Engine]) -> dict[str, str]:
    return {key: getattr(subject.host.request, key) for key in ("runtime", "distribution", "version")}


def _status_data(subject: Subject[Engine], edit: Edit, misfits: tuple[str, ...]) -> dict[str, Any]:
    from gpunode.edge.host.runtimes import state

    data, found = edit_data(_known(subject), subject, edit), state(subject)
    return {
        "configured": not edit.changes and not edit.restart and not edit.problems and not misfits,
        "cdi": misfits,
        "pending": [change["path"] for change in data.pop("changes")],
        "state": _quoted(asdict(found) | {"runtimes": [*found.runtimes]}),
        **data,
    }


def _status_text(subject: Subject[Engine], edit: Edit, misfits: tuple[str, ...]) -> str:
    from gpunode.edge.host import runtimes

    state, request = runtimes.state(subject), subject.host.request
    where = f" of {request.distribution}" if request.distribution else ""
    rows = [
        ("engine", f"{request.runtime}{where} {request.version or '(version unknown)'}"),
        ("files", ", ".join(state.files) or "none"),
        ("runtimes", ", ".join(state.runtimes) or "the built-in one"),
        ("default", state.default or "the built-in one"),
        (request.name, state.path or "not known to the engine"),
        ("CDI", {True: "on", False: "off", None: "not set"}[state.cdi]),
        ("cgroup driver", state.cgroup_driver or "not set"),
        *(("note", f"{note.what}: {note.why}") for note in (*state.notes, *subject.host.notes)),
        *(("would change", path) for path in sorted(edit.changes)),
        *(("would restart", reason.what) for reason in edit.reasons if edit.restart),
        *(("CDI specification", reason) for reason in misfits),
        ("configured", "no: refused" if edit.problems else "no" if pending(edit, "json", misfits) else "yes"),
    ]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {_quoted(text)}" for name, text in rows)


def _quoted(value: Any) -> Any:
    """What was read from files, without secrets."""
    from gpunode.core.mask import mask_quoted

    return with_texts(value, mask_quoted)
