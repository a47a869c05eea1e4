"""The command line's own habits: start-up, help, usage errors, exit codes, how errors look."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from types import MappingProxyType

import click
import pytest
from click.testing import CliRunner

from gpunode import __version__
from gpunode.cli.about import own_playbook_command
from gpunode.cli.common import report_exception, report_usage, worst_exit
from gpunode.cli.main import COMMANDS, SECTIONS, cli, main
from gpunode.core.errors import Exit, InputError, InterruptedByUser, RefusedError, StaleError, UnreachableError
from gpunode.core.report.text import results_data
from gpunode.edge.fleet.runs import Runs

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run_gpunode(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """`run_gpunode("plan", exit=2)`: the command as a user calls it, in this process."""

    def run(
        *words: object, exit: int | None = 0, cwd: Path = tmp_path, env: Mapping[str, str] = MappingProxyType({})
    ) -> subprocess.CompletedProcess[str]:
        with monkeypatch.context() as here, pytest.raises(SystemExit) as ended:
            here.chdir(cwd)
            for name, value in {"XDG_STATE_HOME": str(tmp_path / "state"), "NO_COLOR": "1", **env}.items():
                here.setenv(name, value)
            here.setattr(sys, "argv", ["gpunode", *map(str, words)])
            main()
        out, err = capsys.readouterr()
        code = int(ended.value.code or 0)
        assert exit is None or code == exit, f"{words}\n{out}\n{err}"
        return subprocess.CompletedProcess([*words], code, out, err)

    return run


def test_help_imports_nothing_but_click() -> None:
    code = (
        "import sys, click; before = set(sys.modules)\n"
        "from gpunode.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "print(*sorted(m for m in set(sys.modules) - before), file=sys.stderr)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    extra = {name.partition(".")[0] for name in ran.stderr.split()}
    assert extra & {"yaml", "rich", "paramiko", "ansible", "jinja2", "pynvml", "cattrs", "tomlkit", "asyncio"} == set()
    assert {name for name in ran.stderr.split() if name.startswith("gpunode")} <= {
        "gpunode",
        "gpunode.cli",
        "gpunode.cli.lazy",
        "gpunode.cli.main",
    }


# command → packages of others, and parts of gpunode, that it may load beside EVERY
MAY_LOAD = {
    "solve --gpu 10de:2330 --distro ubuntu:24.04": (
        "tomli core.knowledge core.openpgp core.secrets core.solve core.spec core.untrusted edge.ansible edge.load "
        "edge.tables"
    ),
    "plan --probe probe.txt": (
        "jinja2 markupsafe tomli tomlkit yaml core.checks core.content core.diff core.edits core.facts core.items "
        "core.knowledge core.openpgp core.plain core.plan core.report core.rollout core.secrets core.sharing "
        "core.solve core.spec core.untrusted core.validation core.yaml_text edge.ansible edge.ask edge.desired "
        "edge.fleet edge.load edge.supervise edge.tables node"
    ),
    "doctor --log line.log": "ahocorasick tomli core.checks core.doctor edge.doctor edge.tables",
}
EVERY = (
    "click core.engines core.errors core.grammar core.grouped core.late core.mask core.meant core.model core.numbers "
    "core.printable core.remote edge.detect edge.isolate edge.programs edge.share edge.side_by_side edge.ssh edge.state"
)
SHOW = """
import sys; from gpunode.cli.main import main
try: main(sys.argv[1:])
finally: print("loaded", *(f"{name}:{getattr(module, '__file__', '')}" for name, module in sys.modules.items()))
"""


@pytest.mark.parametrize("command", MAY_LOAD)
def test_a_command_loads_only_what_it_uses(command: str, tmp_path: Path) -> None:
    (tmp_path / "line.log").write_text("NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.\n")
    cases = Path(__file__).parents[1] / "cases/probes"
    (tmp_path / "probe.txt").write_bytes((cases / "debian12-h100-fresh/probe.txt").read_bytes())
    ran = subprocess.run(
        [sys.executable, "-c", SHOW, *command.split()],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "https_proxy": "http://127.0.0.1:9"},  # where nobody gives keys
    )
    assert ran.returncode in (0, 1, 3), ran.stderr
    loaded = dict(one.split(":", 1) for one in ran.stdout.rpartition("loaded ")[2].split())
    ours = {".".join(name.split(".")[1:3]) for name in loaded if name.startswith("gpunode.")}
    others = {
        name.partition(".")[0] for name, file in loaded.items() if "site-packages" in file and "mypyc" not in name
    }
    parts = {part for part in ours if not part.startswith("cli") and part not in ("core", "edge")}
    assert parts | others - {"_distutils_hack"} <= {*EVERY.split(), *MAY_LOAD[command].split()}


def test_an_engine_that_is_configured_is_looked_at_without_plan_spec_or_other_engines(tmp_path: Path) -> None:
    config = tmp_path / "etc/containerd/config.toml"
    config.parent.mkdir(parents=True)
    config.write_text("version = 2\n")
    asked = ["--runtime", "containerd", "--engine-version", "1.7", "--root", str(tmp_path)]
    with pytest.raises(SystemExit, match=str(int(Exit.OK))):
        main(["runtime", "configure", *asked])
    code = (
        "import sys; from gpunode.cli.main import main\n"
        "try: main(['runtime', 'status', *sys.argv[1:]])\n"
        "finally: print(*sys.modules, file=sys.stderr)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code, *asked], capture_output=True, text=True, check=True)
    loaded = set(ran.stderr.split())
    assert "gpunode.core.edits.engines.containerd" in loaded
    assert not loaded & {"tomlkit", "yaml", "jinja2", "difflib", "tomllib", "cattrs", "gpunode.core.knowledge"}
    packages = ("plan", "spec", "solve", "items", "edits.kubernetes")
    engines = ("docker", "crio", "podman", "k3s", "k0s", "microk8s")
    others = [f"gpunode.core.{name}" for name in packages] + [f"gpunode.core.edits.engines.{name}" for name in engines]
    kubelet = {"gpunode.core.items", "gpunode.core.items.kubelet"}  # what it wants of the engine
    assert {name for name in loaded if name.startswith(tuple(others))} <= kubelet


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_exists_and_has_examples(name: str) -> None:
    module, attribute = COMMANDS[name][0].split(":")
    command = getattr(import_module(module), attribute)
    assert isinstance(command, click.Command)
    assert command.help
    subcommands = command.commands.values() if isinstance(command, click.Group) else ()
    assert "Examples:" in (command.epilog or "") or any("Example" in (c.epilog or "") for c in subcommands)


def test_the_version_is_the_packages(run_gpunode: Run) -> None:
    assert run_gpunode("--version").stdout == f"gpunode {__version__}\n"


def test_version_as_a_command_says_what_a_bug_report_needs(run_gpunode: Run) -> None:
    assert run_gpunode("version").stdout.startswith(f"gpunode {__version__}\npython 3.")
    found = json.loads(run_gpunode("version", "--format", "json").stdout)
    assert found["gpunode"] == __version__
    assert set(found) == {"gpunode", "python", "ansible-core", "ansible-playbook", "knowledge"}
    assert Path(found["ansible-playbook"]).is_file()


def test_another_ansible_on_the_path_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, other = own_playbook_command(), tmp_path / "ansible-playbook"
    monkeypatch.setenv("PATH", f"{own.parent}:{tmp_path}")
    assert "note:" not in CliRunner().invoke(cli, ["version"]).output
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{own.parent}")
    shown = CliRunner().invoke(cli, ["version"]).output
    assert f"note: ansible-playbook on the PATH is {other}" in shown and shown.rstrip().endswith(f"with {own}")


@pytest.mark.parametrize("words", [[], ["provision"], ["kube", "apply"]], ids=" ".join)
def test_help_as_a_command_is_the_option(run_gpunode: Run, words: list[str]) -> None:
    assert run_gpunode("help", *words).stdout == run_gpunode(*words, "--help").stdout
    assert "no such command 'aply'. Did you mean 'apply'?" in run_gpunode("help", "kube", "aply", exit=2).stderr


def test_every_command_is_in_one_section_of_the_help() -> None:
    assert sorted(name for names in SECTIONS.values() for name in names) == sorted(COMMANDS)


def test_options_of_hosts_are_in_sections_of_their_own(run_gpunode: Run) -> None:
    assert "--max-unavailable" not in run_gpunode("provision", "--help").stdout
    text = run_gpunode("provision", "--help-all").stdout
    assert "--max-unavailable" in text
    titles = [line.rstrip(":") for line in text.splitlines() if re.fullmatch(r"[A-Z][A-Za-z]+:", line)]
    assert titles == ["Options", "Hosts", "Connection", "GPUs", "Rollout", "Kubernetes", "Messages"]
    assert text.index("Hosts:") < text.index("--inventory") < text.index("Connection:") < text.index("--forks")


@pytest.mark.parametrize("word", ["review/", "./review", "~/review", "a/b"])
def test_a_path_is_never_taken_for_a_host(run_gpunode: Run, word: str, tmp_path: Path) -> None:
    ran = run_gpunode("provision", word, exit=2, cwd=tmp_path)
    assert f"'{word}' is a path" in ran.stderr and "resolve" not in ran.stderr


def test_an_inventory_without_its_option_is_not_taken_for_a_host(run_gpunode: Run, tmp_path: Path) -> None:
    (tmp_path / "hosts.yml").write_text("all: {}")
    assert "-i hosts.yml" in run_gpunode("plan", "hosts.yml", exit=2, cwd=tmp_path).stderr


# ---------------------------------------------------------------- how much is said


@pytest.mark.slow
def test_what_is_done_is_said_as_asked_and_kept_in_a_file(run_gpunode: Run, tmp_path: Path) -> None:
    log = tmp_path / "gpunode.log"
    ask = ["verify", "--local", "--no-smoke", "--allow-no-gpu"]
    usual = run_gpunode(*ask, "--log-file", log, exit=None).stderr
    assert "probed" in usual and "probing 1 hosts" not in usual
    assert "probing 1 hosts" in run_gpunode("-v", *ask, exit=None).stderr
    assert "exit status 0" in run_gpunode(*ask, "-vv", exit=None).stderr
    assert run_gpunode(*ask, "--quiet", exit=None).stderr == ""
    text = log.read_text()
    assert f"INFO gpunode {__version__}: verify --local" in text and "DEBUG localhost: probed, " in text
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


def test_an_error_is_in_the_log_file_without_its_secrets(run_gpunode: Run, tmp_path: Path) -> None:
    log = tmp_path / "gpunode.log"
    (tmp_path / "gpunode.yml").write_text("proxy: {password: s3cret}\n")
    run_gpunode("plan", "--local", "--log-file", log, cwd=tmp_path, exit=2)
    assert "ERROR" not in log.read_text() or "s3cret" not in log.read_text()
    assert "a log" in run_gpunode("plan", "x/", "--log-file", tmp_path / "a log" / "x", exit=2).stderr


def test_an_unknown_command_is_answered_with_the_nearest(run_gpunode: Run) -> None:
    ran = run_gpunode("detct", exit=2)
    assert "Did you mean 'detect'?" in ran.stderr
    assert ran.stdout == ""
    assert "Did you mean 'render'?" in run_gpunode("kube", "rendr", exit=2).stderr


def test_an_unknown_option_is_answered_with_the_nearest(run_gpunode: Run) -> None:
    ran = run_gpunode("detect", "--lokal", exit=2)
    assert "--local" in ran.stderr


def test_a_usage_error_is_json_when_json_was_asked_for(run_gpunode: Run) -> None:
    ran = run_gpunode("detect", "--format", "json", "--forks", "none", exit=2)
    error = json.loads(ran.stdout)["error"]
    assert "--forks" in error["what"]
    assert error["exit"] == 2


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_name_the_program(run_gpunode: Run, shell: str) -> None:
    script = run_gpunode("completion", shell).stdout
    assert "_GPUNODE_COMPLETE" in script
    assert "gpunode" in script


def test_the_completion_of_bash_is_understood_and_completes_commands(run_gpunode: Run) -> None:
    script = run_gpunode("completion", "bash").stdout
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    ran = run_gpunode(env={"_GPUNODE_COMPLETE": "bash_complete", "COMP_WORDS": "gpunode det", "COMP_CWORD": "1"})
    assert ran.stdout == "plain,detect\n"


@pytest.mark.parametrize(
    ("words", "number", "want"),
    [
        ("gpunode runs show ", 3, ["last", "20261122T081500Z-1f2e3d"]),
        ("gpunode rollback --to ", 3, ["20261122T081500Z-1f2e3d"]),
        ("gpunode report 2026", 2, ["20261122T081500Z-1f2e3d"]),
        ("gpunode solve --distro debian:1", 3, ["debian:11", "debian:12", "debian:13"]),
        ("gpunode lab up --distro rocky:9", 4, ["rocky:9"]),
        ("gpunode lab ssh x", 3, [""]),
    ],
)
@pytest.mark.slow
def test_names_are_completed(run_gpunode: Run, tmp_path: Path, words: str, number: int, want: list[str]) -> None:
    state = tmp_path / "gpunode"
    state.mkdir()
    runs = Runs(state / "runs.sqlite")
    runs.begin("20261122T081500Z-1f2e3d", "provision", {}, "ctl:1", [])
    runs.close()
    asked = {"_GPUNODE_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(number)}
    ran = run_gpunode(env={**asked, "XDG_STATE_HOME": str(tmp_path)})
    assert [line.partition(",")[2] for line in ran.stdout.splitlines()] == want


# ---------------------------------------------------------------- exit codes


@pytest.mark.parametrize(
    ("codes", "worst"),
    [
        ((), 0),
        ((0, 0), 0),
        ((0, 3), 3),
        ((3, 5), 5),
        ((5, 4, 3), 4),
        ((3, 4, 5, 1, 0), 1),
        ((1, 130), 130),
    ],
)
def test_of_several_hosts_the_first_of_1_4_5_3_decides(codes: tuple[int, ...], worst: int) -> None:
    assert worst_exit(Exit(code).outcome for code in codes) == worst


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InputError("x"), 2),
        (StaleError("x"), 3),
        (UnreachableError("x"), 4),
        (RefusedError("x"), 5),
        (InterruptedByUser("x"), 130),
    ],
)
def test_each_error_class_has_its_exit_code(error: Exception, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert report_exception(error, click.Context(cli)) == code
    assert capsys.readouterr().err == "error: x\n"


def test_an_error_says_what_was_expected_and_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    error = InputError("colour is 'blu'", expected="red or blue", fix="did you mean 'blue'?")
    report_exception(error, click.Context(cli))
    assert capsys.readouterr().err == (
        "error: colour is 'blu'\n  expected: red or blue\n  do next:  did you mean 'blue'?\n"
    )


@pytest.mark.parametrize(
    ("expected", "printed"), [("", "gone (fix: look)"), ("here", "gone\n  expected: here\n  do next:  look")]
)
def test_what_to_do_is_in_the_result_of_a_host_once(expected: str, printed: str) -> None:
    error = UnreachableError("gone", expected=expected, fix="look")
    result = error.of_host("n1")
    (data,) = results_data([result])
    assert (data["exit"], data["message"], data["fix"]) == (4, error.stated, "look")
    assert "look" not in error.stated and result.sentence == printed


def test_an_error_is_one_json_object_when_json_was_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    ctx = click.Context(cli)
    ctx.meta["gpunode.format"] = "json"
    report_exception(UnreachableError("gone", expected="here", fix="look"), ctx)
    out, err = capsys.readouterr()
    assert json.loads(out) == {"error": {"what": "gone", "expected": "here", "fix": "look", "exit": 4}}
    assert err == ""


def test_a_bug_is_one_line_and_its_traceback_is_kept_in_a_private_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    def boom(*_args: object, **_options: object) -> None:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr("gpunode.edge.detect.find_hosts", boom)
    with pytest.raises(SystemExit) as ended:
        main(["detect", "--local"])
    assert ended.value.code == 1
    message = capsys.readouterr().err
    assert message.startswith("error: unexpected ZeroDivisionError: by zero\n")
    [kept] = (tmp_path / "gpunode").glob("traceback-*.txt")
    assert str(kept) in message
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert stat.S_IMODE(kept.parent.stat().st_mode) == 0o700
    assert "ZeroDivisionError" in kept.read_text()
    assert "Traceback" not in message


def test_ctrl_c_ends_with_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(*_args: object, **_options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gpunode.edge.detect.find_hosts", interrupt)
    with pytest.raises(SystemExit) as ended:
        main(["detect", "--local"])
    assert ended.value.code == Exit.INTERRUPTED
    assert "interrupted" in capsys.readouterr().err


@pytest.mark.slow
def test_a_reader_that_goes_away_is_no_bug() -> None:
    read, write = os.pipe()
    os.close(read)
    probe = Path(__file__).parents[1] / "cases/probes/debian12-h100-fresh"
    commands = [["--help"], ["completion", "bash"], ["detect", "--probe", probe]]
    ends = [
        subprocess.run([sys.executable, "-m", "gpunode", *words], stdout=write, stderr=subprocess.PIPE, check=False)
        for words in commands
    ]
    os.close(write)
    assert [end.returncode for end in ends] == [128 + signal.SIGPIPE] * 3  # as a shell reports the signal
    assert not [end.stderr for end in ends if b"Traceback" in end.stderr or b"unexpected" in end.stderr]


@pytest.mark.slow
def test_a_reader_that_goes_away_after_the_first_line_is_no_failure() -> None:
    probe = Path(__file__).parents[1] / "cases/probes/debian12-h100-fresh"
    with subprocess.Popen(
        [sys.executable, "-m", "gpunode", "detect", "--probe", probe], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as shown:
        assert shown.stdout and shown.stdout.read(1)  # head -1 ends here, more lines follow
        shown.stdout.close()
        shown.wait(60)
    assert shown.returncode in (0, 128 + signal.SIGPIPE)  # 0: all was written before


def test_a_mistake_without_a_context_is_shown_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert report_usage(click.UsageError("no"), cli) == Exit.INPUT
    assert "no" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "says"),
    [(": [", "gpunode.yml:1:"), ("- a\n", "gpunode.yml: the top level is"), (None, "No such file")],
)
def test_a_gpunode_yml_that_cannot_be_read_is_one_error(
    run_gpunode: Run, tmp_path: Path, text: str | None, says: str
) -> None:
    file = tmp_path / "gpunode.yml"
    if text is not None:
        file.write_text(text)
    ran = run_gpunode("plan", "--local", "-c", file, exit=2)
    assert says in ran.stderr
    assert "unexpected" not in ran.stderr


def test_a_plan_that_nobody_can_apply_is_not_written(run_gpunode: Run, tmp_path: Path) -> None:
    (tmp_path / "gpunode.yml").write_text("driver: {branch: '390'}\n")
    probe = Path(__file__).parents[1] / "cases/probes/debian12-h100-fresh"
    ran = run_gpunode("plan", "--probe", str(probe), "-o", "review", exit=5, cwd=tmp_path)
    assert "not written: review" in ran.stderr and not (tmp_path / "review").exists()
