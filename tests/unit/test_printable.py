"""Control characters of nodes, logs and API objects become visible before anybody reads them."""

from __future__ import annotations

import ast
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from rich.console import ColorSystem

from gpunode.cli.main import cli
from gpunode.cli.output import Styled, echo
from gpunode.cli.terminal import screen
from gpunode.core.printable import json_text, printable, shortened, uncoloured

ROOT = Path(__file__).parents[2]
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
ANY = st.text(st.characters(blacklist_categories=())) | st.text(
    st.sampled_from("\x1b\x07\x9b\x00\x7f\u202e\u2069\n\ta{%")
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text, Größe, 节点, 😀\n\tindented", "plain text, Größe, 节点, 😀\n\tindented"),
        ("\x1b]0;pwn\x07", "\\x1b]0;pwn\\x07"),
        ("\x9b31m\x7f\x00", "\\x9b31m\\x7f\\x00"),
        ("user\u202egnp.exe", "user\\u202egnp.exe"),
        ("\u2066x\u2069\ufeff", "\\u2066x\\u2069\\ufeff"),
        ("\udc80\U000e0041", "\\udc80\\U000e0041"),
        ("a\rb", "a\\x0db"),
    ],
)
def test_controls_become_visible_and_everything_else_stays(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(ANY)
def test_no_control_is_left_and_twice_is_once(text: str) -> None:
    shown = printable(text)
    assert CONTROL.search(shown) is None
    assert printable(shown) == shown
    shown.encode()


@given(st.recursive(ANY | st.integers() | st.none(), lambda inner: st.lists(inner) | st.dictionaries(ANY, inner)))
def test_json_has_no_control_and_means_the_same(data: object) -> None:
    text = json_text(data)
    assert CONTROL.search(text) is None
    assert json.loads(text) == data


@given(ANY, st.integers(8, 100))
def test_a_shortened_text_is_one_printable_line(text: str, limit: int) -> None:
    assert CONTROL.search(shortened(text, limit)) is None
    assert "\n" not in shortened(text, limit)
    assert len(shortened("a" * 1000, limit)) == limit + 2


def test_colours_are_no_part_of_what_a_program_says() -> None:
    assert uncoloured("\x1b[1;31mE: \x1b[0mno\x1b]0;x\x07") == "E: no\x1b]0;x\x07"


# ---------------------------------------------------------------- the ways out

# names that write somewhere, and the modules that may use them: the writers themselves, and constants of our own
WAYS_OUT = {
    "click.echo": {"cli/output.py", "cli/main.py", "cli/completion.py", "cli/lazy.py"},  # help and names of ours
    "click.secho": set(),
    "click.style": {"cli/output.py"},
    "print": {"cli/terminal.py", "edge/host/nvml.py"},  # JSON of programs of their own
    "Console": {"cli/terminal.py"},
    "sys.stdout.write": set(),
    "sys.stderr.write": set(),
}


def test_everything_that_is_printed_goes_through_the_writers() -> None:
    package = ROOT / "gpunode"
    found = {
        (name, str(path.relative_to(package)))
        for path in package.rglob("*.py")
        if not {"lab", "collection", "node"} & set(path.relative_to(package).parts)
        and any(name in (text := path.read_text()) for name in WAYS_OUT)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and (name := ast.unparse(node.func)) in WAYS_OUT
    }
    assert {(name, path) for name, path in found if path not in WAYS_OUT[name]} == set()
    assert ("click.echo", "cli/output.py") in found


def test_a_line_keeps_its_own_colours_and_no_others(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr("click.utils.should_strip_ansi", lambda *_: False)
    echo("gpu1: ", Styled("exit 5\x1b[0m", "red"), ": \x1b[32mok\x1b]0;x\x07")
    assert capsys.readouterr().out == "gpu1: \x1b[31mexit 5\\x1b[0m\x1b[0m: \\x1b[32mok\\x1b]0;x\\x07\n"


def test_a_rich_console_keeps_its_own_colours_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    made = screen()
    made.file, made._force_terminal, made._color_system = io.StringIO(), True, ColorSystem.STANDARD
    made.print("[red]!\x1b[32m[/] \x9bx\u202e")
    assert made.file.getvalue() == "\x1b[31m!\\x1b[32m\x1b[0m \\x9bx\\u202e\n"


HOSTILE = "x\x1b]0;pwn\x07\x1b[31m\x9b\u202e\x7f"


@pytest.mark.parametrize(
    ("verb", "output_format"),
    [("detect", "text"), ("detect", "json"), ("detect", "yaml"), ("plan", "text"), ("plan", "json")],
)
def test_no_command_prints_what_a_probe_has_of_controls(verb: str, output_format: str, tmp_path: Path) -> None:
    text = (ROOT / "tests/cases/probes/debian12-h100-fresh/probe.txt").read_text()
    for word in ("(bookworm", "x86_64", "hostname "):
        text = text.replace(word, f"{word}{HOSTILE}")
    (tmp_path / "h.probe").write_text(text)
    done = CliRunner().invoke(cli, [verb, "--probe", str(tmp_path / "h.probe"), "--format", output_format])
    assert "pwn" in done.output
    assert CONTROL.search(done.output) is None


@pytest.mark.parametrize("output_format", ["html", "json", "junit"])
def test_no_report_has_controls(output_format: str, tmp_path: Path) -> None:
    text = (ROOT / "tests/cases/probes/debian12-h100-fresh/probe.txt").read_text()
    (tmp_path / "a.probe").write_text(text.replace("x86_64", f"x86_64{HOSTILE}"))
    (tmp_path / "b.json").write_text(json.dumps({"hosts": [{"host": "b", "error": {"what": HOSTILE, "exit": 4}}]}))
    made = tmp_path / "report"
    done = CliRunner().invoke(
        cli, ["report", "--from", str(tmp_path), "--format", output_format, "-o", str(made)], catch_exceptions=False
    )
    assert done.exit_code == 0, done.output
    assert "pwn" in made.read_text()
    assert CONTROL.search(made.read_text()) is None
