"""What shells get: completion in the shells themselves, manual pages that man and mandoc take."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pexpect
import pytest

from gpunode.cli.main import COMMANDS, cli
from gpunode.cli.man import pages

Run = Callable[..., "subprocess.CompletedProcess[str]"]

# programs without the settings of whoever runs the tests; lines wide enough to stay whole
PLAIN = {"PATH": "/usr/bin:/bin", "MANWIDTH": "200", "MANPAGER": "cat", "LC_ALL": "C.UTF-8"}


def needs(program: str) -> None:
    if not shutil.which(program):
        pytest.skip(f"no {program} here")


@pytest.fixture
def home(tmp_path: Path, run_gpunode: Run) -> Path:
    """A home folder with bin/gpunode, and the completion scripts in it."""
    program = tmp_path / "bin/gpunode"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m gpunode "$@"\n')
    program.chmod(0o755)
    for shell in ("bash", "zsh", "fish"):
        (tmp_path / f"gpunode.{shell}").write_text(run_gpunode("completion", shell).stdout)
    return tmp_path


def environment(home: Path) -> dict[str, str]:
    kept = {key: os.environ[key] for key in ("PYTHONPATH",) if key in os.environ}
    return kept | PLAIN | {"HOME": str(home), "PATH": f"{home}/bin:/usr/bin:/bin", "TERM": "dumb", "PS1": "> "}


TYPED = [
    ("gpunode det", "gpunode detect"),
    ("gpunode kube rend", "gpunode kube render"),
    ("gpunode plan --acc", "--accept-new-host-keys"),
]


STARTS = {  # the shell without anybody's settings, and what makes our completion known to it
    "bash": ("--norc --noprofile -i", "source {}/gpunode.bash"),
    "zsh": ("-f -i", "autoload -Uz compinit; compinit -u; source {}/gpunode.zsh"),
}


@pytest.mark.parametrize("name", STARTS)
@pytest.mark.parametrize(("typed", "shown"), TYPED)
def test_tab_completes(home: Path, name: str, typed: str, shown: str) -> None:
    needs(name)
    options, known = STARTS[name]
    shell = pexpect.spawn(name, options.split(), env=environment(home), encoding="utf-8", timeout=30)
    shell.sendline(f"{known.format(home)}; echo rea''dy")
    shell.expect("ready\r\n")
    shell.send(f"{typed}\t")
    shell.expect_exact(shown)
    shell.close(force=True)


@pytest.mark.parametrize(("typed", "shown"), TYPED)
def test_fish_completes(home: Path, typed: str, shown: str) -> None:
    needs("fish")
    script = f"source {home}/gpunode.fish; complete -C '{typed}'"
    ran = subprocess.run(["fish", "-c", script], env=environment(home), capture_output=True, text=True, check=True)
    assert [line.split("\t")[0] for line in ran.stdout.splitlines()] == [shown.split()[-1]]


# ---------------------------------------------------------------- manual pages


@pytest.fixture(scope="module")
def manual(tmp_path_factory: pytest.TempPathFactory, run_gpunode: Run) -> Path:
    folder = tmp_path_factory.mktemp("man")
    run_gpunode("man", "-o", folder)
    return folder


def test_every_command_has_a_page_and_the_first_page_names_them_all(manual: Path) -> None:
    assert {f"gpunode-{name}.1" for name in COMMANDS} <= {page.name for page in manual.iterdir()}
    first = (manual / "gpunode.1").read_text()
    assert [n for n in COMMANDS if f".BR gpunode\\-{n.replace('-', chr(92) + '-')} (1)" not in first] == []


def test_man_formats_every_page_without_a_warning(manual: Path) -> None:
    needs("man")
    printed = {}
    for page in sorted(manual.iterdir()):
        command = ["man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", str(page)]
        printed[page.name] = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    assert {name: text for name, text in printed.items() if text} == {}


def test_mandoc_finds_no_error(manual: Path) -> None:
    needs("mandoc")
    command = ["mandoc", "-Tlint", "-Wwarning", *map(str, sorted(manual.iterdir()))]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    # a date would be that of the release: pages that are made where they are read have none
    assert [line for line in ran.stdout.splitlines() if "missing date" not in line] == []


def test_a_page_shows_what_help_says(manual: Path) -> None:
    needs("man")
    command = ["man", "-l", str(manual / "gpunode-kube-apply.1")]
    text = subprocess.run(command, env=PLAIN, capture_output=True, text=True, check=True).stdout
    for title in ("NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXAMPLES", "EXIT STATUS", "SEE ALSO"):
        assert f"\n{title}\n" in text
    assert "gpunode kube apply -c gpunode.yml --dry-run\n" in text
    assert "--wait / --no-wait" in text


def test_what_is_special_to_roff_is_shown_as_it_is() -> None:
    import click

    @click.command(epilog="Examples:\n\n\b\n  .x 'a' \\n ~/«y»\n  -b")
    @click.option("--odd", help='.start with a dot, a "quote" and a ` too')
    def command(odd: str) -> None:
        """'Tis a test.

        .PP is no request here.
        """

    needs("man")
    page = pages(command)["gpunode"]
    ran = subprocess.run(["man", "-l", "-"], input=page, env=PLAIN, capture_output=True, text=True, check=True)
    shown = [
        ".x 'a' \\n ~/«y»",
        "\n       -b\n",
        '.start with a dot, a "quote" and a ` too',
        "'Tis a test.",
        ".PP is no request",
    ]
    assert [text for text in shown if text not in ran.stdout] == []
    assert ran.stderr == ""


def test_the_page_of_a_command_is_printed(run_gpunode: Run) -> None:
    assert run_gpunode("man", "kube", "apply").stdout == pages(cli)["gpunode-kube-apply"]
    assert "no command" in run_gpunode("man", "nonsense", exit=2).stderr
    assert "cannot write" in run_gpunode("man", "-o", "/dev/null/x", exit=2).stderr
