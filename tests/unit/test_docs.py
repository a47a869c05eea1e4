"""The documentation says what is so: generated pages are fresh, links lead somewhere, shown commands exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import click
from rows import over
from test_style import messages

from gpunode.cli.main import COMMANDS, cli
from gpunode.core import content, untrusted
from gpunode.core.checks.ids import CHECKS
from gpunode.core.doctor import logs
from gpunode.edge import share
from gpunode.edge.bundle import inside, lookup, rpm, verify
from gpunode.edge.detect import Targets
from gpunode.edge.ssh import shell
from gpunode.kube.core import usage
from gpunode.kube.edge import client
from gpunode.node import part
from tools.docs.pages import pages, site_pages

ROOT = Path(__file__).parents[2]
MADE = site_pages(ROOT / "docs")  # in no clone; the site's strict build follows their links
PAGES = sorted(page for page in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")) if page.name not in MADE)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_the_generated_pages_are_what_make_docs_would_write() -> None:
    old = [name for name, text in pages().items() if (ROOT / "docs" / name).read_text() != text]
    assert old == [], "`make docs` writes these again"


def all_commands() -> dict[str, click.Command]:
    """gpunode kube apply → its command, for every one that is shown."""

    def below(command: click.Command, ctx: click.Context) -> Iterator[tuple[str, click.Command]]:
        yield ctx.command_path, command
        for name in command.list_commands(ctx) if isinstance(command, click.Group) else ():
            inner = command.get_command(ctx, name)
            if inner is not None and not inner.hidden:
                yield from below(inner, click.Context(inner, info_name=name, parent=ctx))

    return dict(below(cli, click.Context(cli, info_name="gpunode")))


@over(all_commands())
def test_every_help_has_examples_that_exist(path: str) -> None:
    examples = re.findall(r"^  (gpunode .+)$", all_commands()[path].epilog or "", re.MULTILINE)
    assert examples
    for example in examples:
        words = own_words(re.sub(r"\s+\(.+\)$", "", example))  # without a remark
        assert (complaint(words[1:]), example) == ("", example)


def ids_in_the_code() -> set[str]:
    """What stands as a check's id in Python and in smoke.sh; what is put together from parts is not found."""
    python = "".join(
        p.read_text() for part in ("core", "edge", "kube") for p in (ROOT / "gpunode" / part).rglob("*.py")
    )
    found = set(re.findall(r'\bCheck\(\s*id="([^"]+)"', python))
    found |= set(re.findall(r'"(kube\.[a-z-]+)"', (ROOT / "gpunode/kube/core/checks/proofs.py").read_text()))
    smoke = (ROOT / "gpunode/node/smoke/smoke.sh").read_text()
    return found | set(re.findall(r"\bcheck ([a-z]+\.[a-z-]+) ", smoke))


def test_the_page_of_checks_has_each_id_of_the_code_and_no_other() -> None:
    listed = {name for rows in CHECKS.values() for name in rows}
    assert ids_in_the_code() - listed == set(), "gpunode/core/checks/ids.py has no row of these"
    code = [p for part in ("core", "edge", "node", "kube") for p in (ROOT / "gpunode" / part).rglob("*.*[hy]")]
    text = "".join(p.read_text() for p in code if p.name != "checks.py" or p.parent.name != "core")
    made = {"containerd.cri-default", "docker.runtime", "docker.default", "docker.gpus-all"}  # smoke.sh: docker.$what
    unknown = {n for n in listed - made if not re.search(r"[A-Z]", n) and n not in text}
    assert unknown == set(), "gpunode/core/checks/ids.py has rows of these, and nothing prints them"


def test_a_unit_test_names_each_check_of_a_probe() -> None:
    """In another place than the table RESTS, which has every check that passes somewhere."""
    tests = "".join(path.read_text() for path in (ROOT / "tests/unit").glob("*.py"))
    tests = re.sub(r"^RESTS: .*?^}$", "", tests, flags=re.MULTILINE | re.DOTALL)
    [rows] = [rows for title, rows in CHECKS.items() if title.startswith("Health")]
    lacking = [name for name in rows if not re.search(rf"\b{re.escape(name)}\b", tests)]
    assert lacking == [], "no test in tests/unit names these: one with facts of both kinds is due"


def test_every_command_is_documented() -> None:
    text = (ROOT / "docs/cli.md").read_text()
    assert [name for name in COMMANDS if f"## gpunode {name}\n" not in text] == []


def anchors(text: str) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@over(PAGES, name=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    dead = []
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        if not file.exists() or (anchor and anchor not in anchors(file.read_text())):
            dead.append(target)
    assert dead == []


DOCS = [page for page in PAGES if page.name != "CHANGELOG.md"]


def glued_lists(text: str) -> list[str]:
    """First items of lists that follow a paragraph without a blank line: they would be part of the paragraph."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"^(?! |[-*] |[#>|]|\d+\. |$).*\n((?:[-*]|\d+\.) .*)$", prose, re.MULTILINE)


@over(DOCS, name=name_of)
def test_lists_stand_after_a_blank_line(page: Path) -> None:
    assert glued_lists(page.read_text()) == []


def test_every_page_is_in_the_index() -> None:
    linked = set(re.findall(r"\]\(([^)#\s]+)", (ROOT / "docs/README.md").read_text()))
    assert {p.name for p in PAGES if p.parent == ROOT / "docs"} - linked == {"README.md"}


# A shown command is a line "$ gpunode …" of a ```console or ```sh block, or "gpunode …" where none has a $; the rest is
# output.
BLOCK = re.compile(r"^```(?:console|sh)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def shown_commands(text: str) -> Iterator[str]:
    for block in BLOCK.findall(text):
        joined = block.replace("\\\n", " ")
        reported = [line for line in joined.splitlines() if line.startswith("$ ")] or joined.splitlines()
        lines = (line.removeprefix("$ ") for line in reported)
        yield from (line for line in lines if re.match(r"(?:gpunode|python -m gpunode|make) ", line))


def own_words(line: str) -> list[str]:
    """The words of a command line without comment, redirection, and the programs that it is piped into."""
    return list(takewhile(lambda word: word not in ("|", ">", "&&"), shlex.split(line, comments=True)))


def complaint(words: list[str]) -> str:
    """What is wrong with `gpunode WORDS`: an unknown command or option; "" when nothing is.  Runs nothing."""
    command: click.Command = cli
    ctx = click.Context(cli, info_name="gpunode")
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(ctx, words[0])
        if found is None:
            return f"no command {words[0]!r}"
        command, ctx, words = found, click.Context(found, info_name=words[0], parent=ctx), words[1:]
    known = {opt for param in command.params for opt in (*param.opts, *param.secondary_opts)} | {"--help", "-h"}
    ours = words[: words.index("--")] if "--" in words else words
    unknown = [w for w in ours if w.startswith("-") and len(w) > 1 and w.split("=")[0] not in known]
    return f"no option {', '.join(unknown)}" if unknown else ""


# what stands behind the name where a sentence speaks of gpunode: a verb or a word that joins, and no command
PROSE = re.compile(
    r"(?!runs\b)[a-z]+(?:s|ed)\b|runs nvidia|(?:again|against|and|at|authors|can|cannot|came|did|from|had|have|log)\b"
    r"|(?:may|on|prove|that|then|took|would|wrote)\b"
)
NAMED = re.compile(
    r"(?<![\w./-])(?<!kubectl )gpunode ((?:[a-z]|--?[a-z])[\w-]*(?: (?!kubectl)(?:--?[a-z][\w-]*|[\w./=<{…-]+))*)"
)


def named_commands(text: str) -> Iterator[str]:
    """The commands of gpunode that a text names; the words behind one may be the rest of its sentence."""
    return (words.partition(" …")[0] for words in NAMED.findall(text) if not PROSE.match(words))


def test_the_commands_that_messages_name_exist() -> None:
    folders = [path for path in (ROOT / "gpunode").iterdir() if path.name != "lab"]
    texts = [text for folder in folders for path in folder.rglob("*.py") for text in messages(path)]
    for path in (p for folder in folders for kind in ("sh", "toml", "j2") for p in folder.rglob(f"*.{kind}")):
        lines = enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        texts += [(f"{name_of(path)}:{n}", line) for n, line in lines if not line.lstrip().startswith("#")]
    named = [(place, words) for place, text in texts for words in named_commands(text)]
    assert len(named) > 200
    assert [(place, words, why) for place, words in named if (why := complaint(words.split()))] == []


@over(PAGES, name=name_of)
def test_shown_commands_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    wrong = []
    for line in shown_commands(page.read_text()):
        words = own_words(line)
        if words[0] == "make":
            bad = [w for w in words[1:] if "=" not in w and w not in targets]
            reason = f"no target {bad}" if bad else ""
        else:
            reason = complaint(words[words.index("gpunode") + 1 :])
        if reason:
            wrong.append(f"{line}: {reason}")
    assert wrong == []


def test_no_shown_command_waits_for_a_plan_to_find_nothing() -> None:
    """A plan with steps exits with 3, and so does verify of what is pending: nothing behind && would run."""
    chained = re.compile(r"gpunode (?:plan|verify|runtime diff)\b[^|;\n]*&&")
    assert chained.search("gpunode plan -o DIR && (cd DIR)")
    assert [(name_of(page), found[0]) for page in PAGES for found in chained.finditer(page.read_text())] == []


def test_the_tests_that_the_threat_model_names_exist() -> None:
    named = set(re.findall(r"\b((?:lab/)?test_\w+\.py)", (ROOT / "docs/safety.md").read_text()))
    missing = [name for name in named if not (ROOT / "tests" / (name if "/" in name else f"unit/{name}")).is_file()]
    assert len(named) > 20 and missing == []


def test_the_limits_that_the_threat_model_names_are_those_of_the_code() -> None:
    text = (ROOT / "docs/safety.md").read_text()
    lease = re.findall(r"^LEASE=(\d+)", part("base.sh").read_text(), re.M)
    output = re.findall(r"^TEXT_MAX=(\d+)", part("probe_words.sh").read_text(), re.M)
    named = (
        f"an answer {shell.OUTPUT_LIMIT >> 20} MiB and `--timeout` ({Targets().timeout:.0f} s)",
        f"a file of a node {content.LIMIT >> 20} MiB, a command's output {int(output[0]) >> 10} KiB",
        f"a host {share.SECONDS:.0f} s of processor time and {share.MEMORY >> 30} GiB",
        f"stand for {untrusted.EXPANDED:,} values",
        f"{untrusted.SIZE >> 20} MiB unpacked, {lookup.TIMEOUT} s without a byte",
        f"{logs.PART:,} characters, and {logs.PART // 2} on each side",
        f"{client.DEEPEST} levels; {usage._MOST_GPUS:,} GPUs of a node",
        f"an answer {client.MOST >> 20} MiB and {client.LONGEST:.0f} s",
        f"a list {client.MOST_LISTED >> 30} GiB and {client.MOST_PARTS:,} parts",
        f"an event {client.MOST_EVENT >> 20} MiB",
        f"a lease ends {lease[0]} s after the last command",
        f"an rpm's headers and a deb's control.tar {rpm.HEADERS >> 20} MiB each",
        f"a manifest, its signature and key {verify.MOST >> 20} MiB each",
    )
    assert [one for one in named if one not in text] == []
    assert rpm.HEADERS == inside.MOST_CONTROL
    assert [bool(shell._NAME.fullmatch("::" + "a" * n)) for n in (252, 253)] == [True, False]
    assert [bool(shell._ADDRESS.fullmatch("a" * n)) for n in (255, 256)] == [True, False]
    assert "a name 254 characters, an address 255" in text


def test_the_paths_of_the_recipes_for_contributors_exist() -> None:
    quoted = re.findall(
        r"`((?:gpunode|tests|docs|roles|molecule|\.ci)/[^`\s]*)`", (ROOT / "CONTRIBUTING.md").read_text()
    )
    # a word in capitals stands for a name that the reader chooses: its folder is there
    named = [re.sub(r"/[^/]*\b[A-Z]{3,}\b.*", "", path) for path in quoted]
    assert len(named) > 20
    assert [path for path in named if not (ROOT / path).exists()] == []
