"""gpunode kube convert."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from gpunode.cli.common import format_option
from gpunode.cli.output import echo, print_document, print_json
from gpunode.core.errors import Exit, InputError


@click.command(
    epilog="Examples:\n\n\b\n"
    "  gpunode kube convert old.yaml\n"
    "  gpunode kube convert old.yaml --server-version 1.30 -o new.yaml\n"
    "  kubectl get daemonset nvidia -o yaml | gpunode kube convert -\n\n"
    "Exit codes: 0 nothing is left to do, 2 usage or input, 3 something is left to a person (the rest is converted)."
)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path))
@click.option(
    "--server-version",
    default="",
    metavar="V",
    help="The server it is for; default: the newest that is known.",
)
@click.option(
    "-o", "--output", default="-", metavar="FILE|-", show_default=True, help="A file (FILE itself too), or the output."
)
@format_option("yaml", "json")
def convert(file: Path, server_version: str, output: str, output_format: str) -> int:
    """Bring manifests to the form that a server takes: apiVersions, annotations, a scheduler's Policy, feature gates.

    Comments stay.  What was changed and why goes to standard error; so does what a person has to decide.
    """
    from gpunode.core.kube.cluster import parse_server
    from gpunode.core.kube.convert import Old
    from gpunode.core.kube.convert import convert as convert_text
    from gpunode.edge.load import load_kube_knowledge, load_old_forms, load_scheduler_rules

    knowledge = load_kube_knowledge()
    server = parse_server(server_version or str(knowledge.newest), knowledge)
    old = Old(server=server, forms=load_old_forms(), knowledge=knowledge, rules=load_scheduler_rules())
    found = convert_text(_text(file), old, name=str(file))
    if output_format == "json":
        changes = [{"object": c.object, "what": c.what, "why": c.why} for c in found.changes]
        left = [{"what": problem.what, "fix": problem.fix} for problem in found.problems]
        print_json({"server": str(server), "changes": changes, "problems": left, "manifest": found.text})
        return Exit.PENDING if left else Exit.OK
    if output == "-":
        print_document(found.text)
    else:
        _write(Path(output), found.text)
    for change in found.changes:
        echo(f"{change.object}: {change.what} ({change.why})", err=True)
    for problem in found.problems:
        echo(f"left to you: {problem.what}\n  do next:  {problem.fix}", err=True)
    if not found.changes and not found.problems:
        echo(f"{file} needs no change for Kubernetes {server}", err=True)
    return Exit.PENDING if found.problems else Exit.OK


def _text(file: Path) -> str:
    try:
        return sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {file}: {error}", expected="a manifest, YAML or JSON in UTF-8") from error


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}", fix="choose another file") from error
