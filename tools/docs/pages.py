"""The pages of docs/ that the code itself knows best: `python -m tools.docs.pages docs` writes them.

A test compares those that are in git with what these functions give, so a page cannot rot; the others are for the site.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from gpunode.cli.lazy import LOG_OPTIONS
from gpunode.core.doctor.table import LAYERS, XidRow
from gpunode.core.errors import Exit
from gpunode.core.knowledge import Knowledge
from gpunode.core.spec import Spec
from gpunode.core.spec.reference import SpecKey, reference
from tools.docs import collection, tables
from tools.docs.api import api_page
from tools.docs.tables import NOTE
from tools.docs.tables import cell as _cell

MEANING = {
    Exit.OK: "done, or nothing to do",
    Exit.FAILED: "a step failed on some host; configuration edits were rolled back where that is possible",
    Exit.INPUT: "usage, or input that cannot be read or is not valid; nothing was touched. Also: a question with no "
    "terminal to ask it on and no `--yes`",
    Exit.PENDING: "differences pending (`plan`, `verify`, `provision --check`), or the plan is stale",
    Exit.UNREACHABLE: "a host is unreachable, or refused us: no route, host key, authentication, sudo",
    Exit.REFUSED: "a problem: understood, and refused, because it would not work or would break the node",
    Exit.INTERRUPTED: "interrupted, or the question was answered with no",
}


def pages() -> dict[str, str]:
    """File name → its text, of the files that are in git."""
    return {
        "spec.md": spec_page(),
        "cli.md": cli_page(),
        "checks.md": tables.checks_page(),
        "report.schema.json": report_schema_text(),
        "accept.schema.json": accept_schema_text(),
    }


def site_pages(docs: Path) -> dict[str, str]:
    """File name → its text, of the pages that the site alone has; `docs` is the folder with the example of api.md."""
    return {
        "api.md": api_page(docs),
        "faults.md": faults_page(),
        "roles.md": collection.roles_page(),
        "knowledge.md": knowledge_page(),
    }


# ---------------------------------------------------------------- gpunode.yml


def spec_page() -> str:
    """Every key of gpunode.yml under a heading of its own: values, default and meaning."""
    keys = "\n".join(map(_spec_text, reference(Spec)))
    return (
        f"# gpunode.yml\n\n{NOTE}\n"
        "An empty file is a valid one: every key has a default. An unknown key is refused, with the nearest known one. "
        "The inventory variable `gpunode_spec` has the same shape and is merged over the file key by key, with "
        "Ansible's own precedence, so a pool of nodes is an inventory group. Each key has a heading, so it can be "
        f"linked to: `spec.md#driverbranch` is `driver.branch`.\n\n{keys}"
    )


def _spec_text(key: SpecKey) -> str:
    text = f"{'###' if '.' in key.path else '##'} `{key.path}`\n\n{key.doc}\n"
    return f"{text}\nValues: {key.values}. Default: `{key.default}`.\n" if key.values else text


# ---------------------------------------------------------------- what doctor knows


def faults_page() -> str:
    """Every fault, Xid and SXid that `gpunode doctor` knows."""
    from gpunode.edge.doctor import load_faults

    known = load_faults()
    rows = {layer: [f for f in known.faults.values() if f.layer == layer] for layer in LAYERS}
    faults = "\n".join(
        f"## {layer}\n\n| id | cause | fix |\n|---|---|---|\n"
        + "".join(f"| `{f.id}` | {_cell(f.cause)} | {_cell(f.fix)} |\n" for f in found)
        for layer, found in rows.items()
    )
    xids = "\n".join(
        f"| {x.code} | {_cell(x.description)} | {x.immediate} | {x.investigatory} | {_blame(x)} |"
        for x in known.codes.xids.values()
    )
    sxids = "\n".join(
        f"| {x.code} | {_cell(x.description)} | {x.severity} | {_cell(x.plain)} | {_cell(x.immediate)} |"
        for x in known.codes.sxids.values()
    )
    return (
        f"# Faults\n\n{NOTE}\nWhat [`gpunode doctor`](doctor.md) knows; `--format json` has the source of each.\n\n"
        f"{faults}\n"
        f"# Xid codes\n\nNVIDIA's catalogue ({known.codes.xid_source}), with the actions it names. In the last column: "
        "*application*, where NVIDIA's catalogue holds the application responsible (`gpunode verify` warns instead of "
        "failing); *ignored*, where NVIDIA's device plugin ignores the code, so that the GPU stays allocatable (the "
        "alert `GpuXid` leaves it out, too).\n\n"
        "| code | what | immediate action | then | application, ignored |\n|---|---|---|---|---|\n"
        f"{xids}\n\n"
        f"# SXid codes\n\nOf NVSwitches ({known.codes.sxid_source}).\n\n"
        f"| code | what | class | meaning | what to do |\n|---|---|---|---|---|\n{sxids}\n"
    )


def _blame(code: XidRow) -> str:
    return ", ".join([*["application"] * code.application, *["ignored"] * code.ignored])


# ---------------------------------------------------------------- what a report holds


def accept_schema_text() -> str:
    """The JSON Schema of the record that `gpunode accept` writes for each host."""
    from gpunode.core.accept.result import AcceptRecord
    from gpunode.core.report.schema import schema_of

    schema = schema_of(AcceptRecord, "gpunode accept: the record of a host")
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def report_schema_text() -> str:
    """The JSON Schema of `gpunode report --format json`, as `--schema` prints it."""
    from gpunode.core.report.schema import schema_of

    return json.dumps(schema_of(), indent=2, ensure_ascii=False) + "\n"


# ---------------------------------------------------------------- what the knowledge holds


def knowledge_page() -> str:
    """The data that every decision rests on, and what follows from it for each distribution and generation."""
    from gpunode.edge.load import load_knowledge, load_kube_knowledge

    known = load_knowledge()
    return (
        f"# Knowledge: drivers, CUDA, distributions, GPUs\n\n{NOTE}\nThe data of `gpunode/knowledge/` as of "
        f"{known.as_of}. `gpunode knowledge show NAME` prints a row with its source; [Contributing]"
        "(../CONTRIBUTING.md#the-knowledge) says how to add one.\n\n"
        f"{choices(known)}\n{tables.tables(known)}\n{tables.cluster(load_kube_knowledge())}\n{mig_profiles()}\n{tables.gpus(known)}"
    )


GENERATIONS = {  # a GPU of each
    "10de:102d": "Kepler (K80)",
    "10de:13f2": "Maxwell (M60)",
    "10de:15f8": "Pascal (P100)",
    "10de:1db4": "Volta (V100)",
    "10de:1eb8": "Turing (T4)",
    "10de:20b5": "Ampere (A100)",
    "10de:26b9": "Ada (L40S)",
    "10de:2330": "Hopper (H100)",
    "10de:2901": "Blackwell (B200)",
    "10de:2b85": "Blackwell (RTX 5090)",
}


def choices(knowledge: Knowledge) -> str:
    """Driver branch and flavour for every distribution and GPU generation."""
    from gpunode.core.solve import SolveRequest, solve

    def cell(distro: str, gpu: str) -> str:
        driver = solve(SolveRequest(gpus=(gpu,), distro=distro), knowledge).driver
        own = "" if not driver or driver.repository else ", *distro*"
        return f"{driver.branch} {driver.flavour}{own}" if driver else "–"

    rows = "\n".join(f"| {d} | {' | '.join(cell(d, g) for g in GENERATIONS)} |" for d in knowledge.distros)
    return (
        "## What gpunode chooses\n\nThe driver for one GPU of each generation on a fresh x86_64 machine, when nothing "
        "else is asked for. *Distro*: from the distribution's own packages. A dash: nothing fits; `gpunode solve` "
        "gives the reason and an alternative. The rules are in [Driver, CUDA and fabric](driver.md#the-rules).\n\n"
        f"| | {' | '.join(GENERATIONS.values())} |\n|---|{'---|' * len(GENERATIONS)}\n{rows}\n"
    )


def mig_profiles() -> str:
    """Every product that supports MIG, with its profiles: how many at most, and where they may start."""
    from gpunode.core.sharing.mig import Product, Profile
    from gpunode.edge.load import load_mig

    def cell(product: Product, profile: Profile) -> str:
        starts = f" at {' '.join(map(str, profile.starts))}" if product.placed else ""
        since = f", driver {profile.since}" if profile.since else ""
        return f"`{profile.name}` {profile.most}×{starts}{since}"

    def row(product: Product) -> str:
        mode = "kept" if product.mode == "kept" else "lost"
        cells = "; ".join(cell(product, profile) for profile in product.profiles)
        return f"| {product.name} | {' '.join(product.ids)} | {product.driver} | {mode} | {cells} |"

    return (
        "## MIG profiles by GPU\n\nWhich GPUs support MIG, with which profiles, how many instances of each alone at "
        "most, and at which memory slices one may start. *Mode*: whether the MIG mode survives a reboot; instances "
        "never do. `gpunode sharing profiles` prints the same with slices, memory and sources; "
        "[Sharing GPUs](sharing.md#mig) says how to use them.\n\n"
        "| product | PCI ids | driver from | mode | profiles |\n|---|---|---|---|---|\n"
        + "\n".join(row(product) for product in load_mig())
        + "\n"
    )


# ---------------------------------------------------------------- commands


def cli_page() -> str:
    """Every command with its arguments and options; options of several commands are described once."""
    from gpunode.cli.main import cli

    top = click.Context(cli, info_name="gpunode")
    shared = _shared(cli, top)
    body = "\n".join(_command(cli, top, shared))
    codes = "\n".join(f"| {code.value} | {MEANING[code]} |" for code in Exit)
    return (
        f"# The command line\n\n{NOTE}\n`python -m gpunode` is the same as `gpunode`. "
        "`-v`, `-q` and `--log-file` may stand before or behind the name of a command; `--help-all` shows every option "
        f"of a command.\n\n{body}\n## Shared options\n\nOf several commands.\n\n| option | meaning |\n|---|---|\n"
        + "\n".join(shared)
        + f"\n\n## Exit codes\n\nAll commands share them.\n\n| code | meaning |\n|---|---|\n{codes}\n\n"
        "Where several hosts end differently, the first that occurs of 1, 4, 5, 3. [Troubleshooting by exit code]"
        "(faq.md#troubleshooting-by-exit-code) says what to do about each.\n"
    )


SHARED = 4  # commands that have an option, in the same words


def _shared(cli: click.Group, top: click.Context) -> list[str]:
    counts = Counter(_row(option) for command, ctx in _commands(cli, top) for option in _options(command, ctx))
    return [row for row, times in counts.items() if times >= SHARED]


def _commands(command: click.Command, ctx: click.Context) -> Iterator[tuple[click.Command, click.Context]]:
    if command.hidden:
        return
    yield command, ctx
    if isinstance(command, click.Group):
        for name in command.list_commands(ctx):
            if inner := command.get_command(ctx, name):
                yield from _commands(inner, click.Context(inner, info_name=name, parent=ctx))


def _options(command: click.Command, ctx: click.Context) -> list[click.Option]:
    options = [p for p in command.params if isinstance(p, click.Option) and not p.hidden]
    return [p for p in options if ctx.parent is None or (p not in LOG_OPTIONS and "--help-all" not in p.opts)]


def _row(option: click.Option) -> str:
    return f"| `{_cell(_option(option))}` | {_cell(option.help or '')}{_default(option)} |"


def _command(top: click.Command, ctx: click.Context, shared: Sequence[str]) -> Iterator[str]:
    for command, where in _commands(top, ctx):
        arguments = [p for p in command.params if isinstance(p, click.Argument)]
        options = _options(command, where)
        usage = " ".join([where.command_path, *(["[OPTIONS]"] if options else []), *map(_argument, arguments)])
        group = isinstance(command, click.Group)
        yield f"## {where.command_path}\n\n```\n{usage}{' COMMAND …' if group else ''}\n```\n\n{_text(command.help)}\n"
        own = [row for row in map(_row, options) if row not in shared]
        if own:
            yield "| option | meaning |\n|---|---|"
            yield from own
            yield ""
        if named := [f"`{option.opts[-1]}`" for option in options if _row(option) in shared]:
            yield f"[Shared options](#shared-options): {', '.join(named)}.\n"
        if command.epilog:
            epilog = inspect.cleandoc(command.epilog.replace(chr(8), "")).replace(chr(10) * 3, chr(10))
            yield f"```text\n{epilog}\n```\n"


def _argument(argument: click.Argument) -> str:
    name = argument.metavar or (argument.name or "").upper()
    if argument.metavar:
        return name
    name += "…" if argument.nargs == -1 else ""
    return name if argument.required else f"[{name}]"


def _option(option: click.Option) -> str:
    names = ", ".join([*option.opts, *option.secondary_opts])
    if option.is_flag or option.count:
        return names
    if isinstance(option.type, click.Choice):
        return f"{names} {'|'.join(map(str, option.type.choices))}"
    return f"{names} {option.metavar or (option.name or '').upper()}"


def _default(option: click.Option) -> str:
    if not option.show_default or option.default in (None, "", ()):
        return ""
    return f" Default: `{option.default}`."


def _text(text: str | None) -> str:
    return inspect.cleandoc((text or "").replace("\b", "")).strip()


READMES = {  # with the head of the table of what was tested on
    "README.md": ("GPUs", "driver", "system", "date", "gpunode selftest"),
    "README.zh-CN.md": ("GPU", "驱动", "系统", "日期", "gpunode selftest"),
}
CHINESE = (  # what the rows of that table say in English, and what they say there
    (r", a virtual machine \|", "（VM） |"),
    (r"(\d+) passed, none failed, (\d+) not possible", r"通过 \1，无失败，无法判断 \2"),
    (r"(\d+) passed, (\d+) failed: (.+?), (\d+) not possible", r"通过 \1，失败 \2：\3，无法判断 \4"),
)


def readme_text(root: Path, name: str = "README.md") -> str:
    """README.md or its translation with the table of what was tested on, from the records in tests/cases/selftest/."""
    from gpunode.edge.selftest.run import load_record, results_of

    folders = sorted(path.parent for path in root.glob("tests/cases/selftest/*/record.json"))
    records = {folder.name: load_record(folder) for folder in folders}
    judged = {name: (record, results_of(record)) for name, record in records.items()}
    text = tables.with_tested_on((root / name).read_text(encoding="utf-8"), READMES[name], judged)
    for english, chinese in CHINESE if "zh" in name else ():
        text = re.sub(english, chinese, text)
    return text


def main(folder: str) -> None:
    """Write the pages into `folder`, and the generated files of the collection beside it."""
    for path, text in collection.collection_files().items():
        file = Path(folder, "..", path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    for name, text in {**pages(), **site_pages(Path(folder))}.items():
        Path(folder, name).write_text(text, encoding="utf-8")
    for name in READMES:
        Path(folder, "..", name).write_text(readme_text(Path(folder, ".."), name), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
