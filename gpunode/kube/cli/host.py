"""What `gpunode kube scheduler` and `gpunode kube kubelet` have in common: their options, and how they answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from gpunode.cli.common import format_option, options, tree_option
from gpunode.cli.edits import diffs, edit_data, pending, print_done
from gpunode.cli.output import echo, print_json

if TYPE_CHECKING:
    from gpunode.edge.host.target import Host, Subject

ROOT = tree_option("nothing is restarted")
VERSION = click.option(
    "--server-version", metavar="V", default="", help="Release of Kubernetes here, such as 1.34 or v1.34.2."
)
_FORMAT = format_option("text", "json")
_HOW = (
    click.option("--dry-run", is_flag=True, help="Show what would change, change nothing."),
    click.option("--no-wait", is_flag=True, help="Write the files; nothing is restarted, nothing awaited."),
)


HostOf = Callable[..., "Host"]  # (given options, wait=True) → what the verbs work on


def add_verbs(
    group: click.Group, what: Sequence[Any], host_of: HostOf, *, writes: str, undoes: str, examples: Mapping[str, str]
) -> None:
    """Give a group `configure`, `unconfigure` and `diff`; `examples`: lines of what stands behind each verb."""
    done = "0 done or nothing to do, 1 failed and rolled back, 2 invalid input, 5 refused."
    each = {verb: [f"{verb} {line}".rstrip() for line in lines.split("\n")] for verb, lines in examples.items()}

    def epilog(lines: Iterable[str], codes: str) -> str:
        shown = "".join(f"  gpunode kube {group.name} {line}\n" for line in lines)
        return f"Examples:\n\n\b\n{shown}\nExit codes: {codes}"

    group.epilog = epilog((lines[0] for lines in each.values()), done.replace("5", "3 differences (diff), 5"))

    def add(verb: str, text: str, codes: str, command: Callable[..., int]) -> None:
        group.command(verb, help=text, epilog=epilog(each[verb], codes))(command)

    def change(*, undo: bool) -> Callable[..., int]:
        def run(dry_run: bool, no_wait: bool, output_format: str, **given: Any) -> int:
            from gpunode.edge.host import target

            host = host_of(given, wait=not no_wait)
            result = (target.unconfigure if undo else target.configure)(lambda _: host, check=dry_run)
            return print_done(_known(result[0]), result, output_format, dry_run=dry_run)

        return options(*what, *_HOW, _FORMAT)(run)

    def diff(output_format: str, **given: Any) -> int:
        from gpunode.edge.host import target

        subject = target.look(host_of(given))
        edit = target.edit(subject)
        if output_format == "json":
            print_json(edit_data(_known(subject), subject, edit))
        else:
            echo(diffs(subject.texts, edit), nl=False)
            for reason in edit.reasons:
                echo(f"# {reason.what}: {reason.why}")
        return pending(edit, output_format)

    add("configure", f"{writes}, wait for health; rolled back if it fails.", done, change(undo=False))
    add("unconfigure", undoes, done, change(undo=True))
    add(
        "diff", "Show what configure would change, as unified diffs, and why.",
        "0 nothing to do, 2 invalid input, 3 configure would change something, 5 refused.",
        options(*what, _FORMAT)(diff),
    )  # fmt: skip


def _known(subject: Subject[Host]) -> dict[str, str]:
    return {"component": subject.host.target.name, "root": subject.host.target.root}
