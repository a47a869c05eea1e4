"""Rules for files that no linter knows."""

from __future__ import annotations

import ast
import pkgutil
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from rows import every, over

from tools.docs.pages import pages, site_pages

ROOT = Path(__file__).parents[2]
HIDDEN_FOLDERS = frozenset({".git", ".venv", ".cache", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis"})


def project_files() -> list[Path]:
    """The tracked files; outside of a git clone (an unpacked sdist) all but caches."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listing.returncode == 0:
        found = [ROOT / name for name in listing.stdout.split("\0") if name]
    else:
        found = [p for p in ROOT.rglob("*") if not HIDDEN_FOLDERS & set(p.relative_to(ROOT).parts)]
    return [p for p in found if p.is_file() and not p.is_symlink()]


def text_of(path: Path) -> str | None:
    """The file as text, or None when it is binary."""
    data = path.read_bytes()
    return None if b"\0" in data[:8000] else data.decode(errors="replace")


# Where a build happened is nobody's business: absolute paths of a workplace, private registries, agents' words.
# Written in pieces, so that this file does not find itself.
LEAKS = re.compile(
    "|".join(
        [
            r"(?<![\w.-])/work" r"/",
            r"/root/\.py" r"env",
            r"/opt/(?:py" r"pi|whe" r"els)",
            r"(?i:\bsub-?ag" r"ents?\b|\bartifact" r"ory\b|\bnexus/repos" r"itory\b)",
            r"(?i:\bcla" r"ude\b|\banthro" r"pic\b)",
            r"https?://(?:[\w-]+\.)+(?:internal|corp|intranet)\b",
        ]
    )
)


def test_no_file_reports_the_place_where_it_was_written() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {hit.group()}"
        for path in project_files()
        for hit in LEAKS.finditer(text_of(path) or "")
    ]
    assert found == []


def test_shell_scripts_are_posix_and_say_what_they_do() -> None:
    """A script starts with #!/bin/sh and a comment; a part that is sent within another program with the comment."""
    wrong = []
    for path in project_files():
        lines = [*(text_of(path) or "").splitlines(), "", ""]
        comment = lines[1] if lines[0] == "#!/bin/sh" else lines[0]
        if path.suffix == ".sh" and not comment.startswith("# "):
            wrong.append(str(path.relative_to(ROOT)))
    assert wrong == []


# ---- words: the table in CONTRIBUTING.md says what stays out of texts that users read, and what to write instead
WORDS_HEADING = "## Words\n"
# not read: what was, and a page that is made of docstrings
NOT_READ = frozenset({"CHANGELOG.md", "api.md"})


@cache
def unwanted_words(heading: str = "not") -> re.Pattern[str]:
    """The phrases that a table in CONTRIBUTING.md replaces, the one whose first column is called so."""
    section = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split(WORDS_HEADING)[1].split("\n## ")[0]
    table = section.split(f"| {heading} | but |\n")[1].split("\n\n")[0]
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", table, re.MULTILINE)
    phrases = (re.escape(phrase) for phrases, _ in rows for phrase in phrases.split(", "))
    return re.compile(rf"(?<![\w.-])(?:{'|'.join(phrases)})(?![\w-])", re.IGNORECASE)


def wrong_words(text: str, heading: str = "not") -> list[str]:
    """Lines with a phrase that the table does not want."""
    unwanted = unwanted_words(heading)
    lines = enumerate(text.splitlines(), 1)
    return [f"{n}: {word[0]!r} ({line.strip()[:100]})" for n, line in lines if (word := unwanted.search(line))]


def reading_matter() -> dict[str, str]:
    """Name → text: pages, READMEs of roles, and through docs/cli.md and roles.md every --help and every role."""
    files = [*ROOT.glob("docs/*.md"), *ROOT.glob("*.md"), *ROOT.glob("roles/*/README.md")]
    made = site_pages(ROOT / "docs")
    found = {str(p.relative_to(ROOT)): p.read_text(encoding="utf-8") for p in files if p.name not in made} | made
    found["CONTRIBUTING.md"] = re.sub(rf"{WORDS_HEADING}.*?(?=\n## )", "", found["CONTRIBUTING.md"], flags=re.DOTALL)
    return {name: text for name, text in found.items() if name not in NOT_READ}


def messages(path: Path) -> Iterator[tuple[str, str]]:
    """(FILE:LINE, text) of each text with a space in it that a file of the product's code has, docstrings left out.

    An f-string is one text, with … for its values.
    """
    nodes = [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    prose = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    formatted = [node for node in nodes if isinstance(node, ast.JoinedStr)]
    pieces = {id(piece) for node in formatted for piece in node.values}
    whole = (
        n for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str) and id(n) not in pieces | prose
    )
    found = [(node, str(node.value)) for node in whole]
    found += [(n, "".join(str(p.value) if isinstance(p, ast.Constant) else "…" for p in n.values)) for n in formatted]
    for node, text in found:
        if " " in text:
            yield f"{path.relative_to(ROOT)}:{node.lineno}", text


@over(reading_matter().items(), name=lambda row: row[0])
def test_pages_and_help_have_none_of_the_words_that_the_tables_replace(_name: str, text: str) -> None:
    assert wrong_words(text) == []
    assert wrong_words(text, "not in pages") == []


def test_messages_have_none_of_the_words_that_the_tables_replace() -> None:
    product = [path for path in (ROOT / "gpunode").rglob("*.py") if not path.is_relative_to(ROOT / "gpunode/lab")]
    texts = [text for path in product for text in messages(path)]
    assert [f"{place}: {found}" for place, text in texts for found in wrong_words(text)] == []
    lines = [(place, text) for place, text in texts if "\n" not in text]  # pages of plugins, scripts have more
    assert [f"{place}: {found}" for place, text in lines for found in wrong_words(text, "not in pages")] == []


# ---- the pages that people write: how long a sentence and a cell of a table may be
LONGEST = 40  # words


def hand_written() -> dict[str, str]:
    """Name → text of each page that no program writes."""
    made = {*pages(), *site_pages(ROOT / "docs")}
    return {
        name: text
        for name, text in reading_matter().items()
        if name.startswith(("docs/", "README", "CONTRIBUTING")) and name.removeprefix("docs/") not in made
    }


def prose(page: str) -> Iterator[tuple[str, str]]:
    """("cell" or "sentence", text) of a page: without code, comments, headings, and the addresses of links."""
    text = re.sub(r"<!--.*?-->", "", page, flags=re.DOTALL)
    text = re.sub(r"^( *)```.*?^\1```$", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^ {4}.*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )|\n(?=\s*\|)|\n(?=#)", text):
        words = " ".join(block.split())
        if words.startswith("|"):
            yield from (("cell", cell) for cell in re.split(r"(?<!\\)\|", words)[1:-1])
        elif not words.startswith("#"):
            ends = r"(?<=[.!?])[»\"')*]*\s+(?=[«\"'(*`]*[A-Z0-9`])"
            yield from (("sentence", sentence) for sentence in re.split(ends, words))


def too_long(page: str) -> list[str]:
    """Sentences and cells with more than LONGEST words."""
    counted = ((kind, text, len(text.split())) for kind, text in prose(page))
    return [f"{kind} of {count} words: {text}" for kind, text, count in counted if count > LONGEST]


def test_what_counts_as_a_sentence_and_as_a_cell() -> None:
    page = (
        "# A title\n\nOne. Two\nlines: `a. b`, 1.5. [Three](x.md)!\n\n- four\n\n```sh\ncode\n```\n\n| a \\| b | c. D |"
    )
    sentences = [("sentence", text) for text in ("One.", "Two lines: `a. b`, 1.5.", "Three!", "- four")]
    assert [(kind, text.strip()) for kind, text in prose(page) if text] == [
        *sentences, ("cell", "a \\| b"), ("cell", "c. D"),
    ]  # fmt: skip
    assert [found[:20] for found in too_long(f"{'word ' * 40}\n\n{'word ' * 41}\n\n| {'word ' * 41}|\n")] == [
        "sentence of 41 words", "cell of 41 words:  w",
    ]  # fmt: skip


@over(hand_written().items(), name=lambda row: row[0])
def test_a_page_has_short_sentences_and_cells(_name: str, text: str) -> None:
    assert too_long(text) == []


def test_every_piece_of_an_f_string_is_a_text_that_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    file = tmp_path / "some.py"
    file.write_text('x = 1\ny = f"one {x} two" f"three {x:>4} four"\nz = "five six"\n')
    assert dict(messages(file)) == {"some.py:2": "one … twothree … four", "some.py:3": "five six"}


def replaced_names() -> Iterator[tuple[str, str]]:
    """Each name of gpunode that a test replaces by a text, with the test's file."""
    for path in project_files():
        if path.suffix == ".py" and path.is_relative_to(ROOT / "tests"):
            for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "setattr":
                    first = call.args[0]
                    if isinstance(first, ast.Constant) and str(first.value).startswith("gpunode."):
                        yield str(path.relative_to(ROOT)), str(first.value)


def test_what_a_test_replaces_is_there() -> None:
    """Tests that replace something are slow ones, most of them: a function that is gone is to be seen at once."""
    every(replaced_names(), lambda _file, name: pkgutil.resolve_name(name))
