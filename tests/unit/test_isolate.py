"""What nobody foresaw on one host is that host's result: every command goes on with the others."""

from __future__ import annotations

import json
import re
import shutil
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from fleet_world import World

from gpunode.cli.main import cli
from gpunode.cli.terminal import show_log
from gpunode.core.errors import GpunodeError, RefusedError
from gpunode.core.facts import parse_probe
from gpunode.core.model import NodeFacts, Plan
from gpunode.core.secrets import Secrets
from gpunode.edge import detect, doctor
from gpunode.edge.desired import DesiredState
from gpunode.edge.detect import Targets
from gpunode.edge.fleet import provision as fleet
from gpunode.edge.fleet import since, standing, workflow
from gpunode.edge.fleet.runs import Runs
from gpunode.edge.isolate import as_error, isolated
from gpunode.edge.ssh.many import Ran, _answer
from gpunode.edge.ssh.shell import Target

PROBES = Path(__file__).parents[1] / "cases/probes"
PROBE = PROBES / "debian12-h100-provisioned/probe.txt"
ODD, HOSTS = "gpu2", ("gpu1", "gpu2", "gpu3")


def too_deep(depth: int = 0) -> None:
    too_deep(depth + 1)


def raises(kind: type[Exception]) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        if kind is RecursionError:
            too_deep()
        raise kind("Exceeds the limit (4300 digits) for integer string conversion")

    return fail


KINDS = pytest.mark.parametrize("kind", [ValueError, RecursionError])


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three saved probes; and a state directory of the test's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder = tmp_path / "saved"
    folder.mkdir()
    for host in HOSTS:
        shutil.copy(PROBE, folder / f"{host}.probe")
    return folder


def odd_for(host: str, right: Callable[..., Any], kind: type[Exception]) -> Callable[..., Any]:
    """`right`, that raises where any argument is the odd host, or belongs to it."""

    def call(*args: Any, **more: Any) -> Any:
        names = [getattr(one, "host", one) for one in (*args, *more.values())]
        return raises(kind)() if host in [n for n in names if isinstance(n, str)] else right(*args, **more)

    return call


def run(*args: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(cli, [*map(str, args)], standalone_mode=False)
    assert result.exception is None, result.exception
    return result.return_value, result.stdout, result.stderr


def reported(text: str) -> Path:
    """The traceback file that a message names; with the id that it names."""
    found = re.search(r"report it as ([0-9a-f]{8}), with (\S+)", text)
    assert found, text
    path = Path(found[2])
    assert found[1] in path.name and stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "Traceback" in path.read_text()
    return path


# ---------------------------------------------------------------- each command


@KINDS
def test_plan(saved: Path, kind: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    good = {h["host"]: h for h in json.loads(run("plan", "--probe", saved, "--format", "json")[1])["hosts"]}
    monkeypatch.setattr(DesiredState, "plan", odd_for(ODD, DesiredState.plan, kind))
    code, out, _ = run("plan", "--probe", saved, "--format", "json")
    hosts = {h["host"]: h for h in json.loads(out)["hosts"]}
    assert code == 1 and {h: hosts[h] for h in ("gpu1", "gpu3")} == {h: good[h] for h in ("gpu1", "gpu3")}
    assert hosts[ODD]["error"]["what"].startswith(f"{ODD}: unexpected {kind.__name__}: ")
    reported(hosts[ODD]["error"]["fix"])
    code, out, err = run("plan", "--probe", saved)
    assert code == 1 and "gpu1" in out and "gpu3" in out and ODD in err and "Traceback" not in err


@KINDS
def test_plan_whose_words_cannot_be_made(saved: Path, kind: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    from gpunode.core.report import text as report

    right = report.class_text

    def odd(plans: list[Plan], **more: Any) -> str:
        return raises(kind)() if ODD in [plan.host for plan in plans] else right(plans, **more)

    monkeypatch.setattr(report, "class_text", odd)
    code, out, err = run("plan", "--probe", saved)
    assert code == 1 and "gpu1" in out and "gpu3" in out and f"{ODD}: unexpected {kind.__name__}" in err
    reported(err)


@KINDS
def test_verify(saved: Path, kind: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    where = Targets(probes=(saved,))
    good = {r.host: r for r in workflow.verify(where, DesiredState(to_run=False), smoke=False)}
    for place, right in (("_verified", workflow._verified), ("planned", DesiredState.plan)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                *((workflow, place) if place == "_verified" else (DesiredState, "plan")), odd_for(ODD, right, kind)
            )
            found = {r.host: r for r in workflow.verify(where, DesiredState(to_run=False), smoke=False)}
        assert {h: found[h] for h in ("gpu1", "gpu3")} == {h: good[h] for h in ("gpu1", "gpu3")}
        assert found[ODD].outcome == "failed"
        reported(found[ODD].fix)


@KINDS
def test_verify_since_a_run(saved: Path, kind: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(since, "_differences", odd_for(ODD, since._differences, kind))
    found = since.verify_since(Targets(probes=(saved,)), DesiredState(to_run=False), Runs(), "r1", smoke=False)
    assert [r.host for r in found] == list(HOSTS)
    assert found[1].outcome == "failed" and all("not in run r1" in r.checks[0].message for r in (found[0], found[2]))
    reported(found[1].fix)


@KINDS
def test_smoke_of_one_host(kind: type[Exception], saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ran(programs: Iterable[tuple[Target, str]], **_: Any) -> list[Ran]:
        return [Ran(target=target, stdout=target.name) for target, _ in programs]

    def parse(stdout: str, rc: int) -> tuple[Any, ...]:
        return raises(kind)() if stdout == ODD else ()

    monkeypatch.setattr("gpunode.edge.ssh.many.run_many", ran)
    monkeypatch.setattr("gpunode.edge.doctor.smoke_checks", parse)
    desired = DesiredState(to_run=False)
    facts = parse_probe(PROBE.read_text())
    hosts = [
        workflow.HostPlan(
            detected=detect.Detected(host=name, target=Target(name=name)), planned=desired.plan(name, facts)
        )
        for name in HOSTS
    ]
    found = workflow._smoke(hosts, Targets(), desired)
    assert found["gpu1"] == found["gpu3"] == () and [c.status for c in found[ODD]] == ["failed"]
    reported(found[ODD][0].fix)


@KINDS
def test_detect(saved: Path, kind: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    from gpunode.cli import detect as command

    for name in ("_data", "_row"):
        monkeypatch.setattr(command, name, odd_for(ODD, getattr(command, name), kind))
    code, out, _ = run("detect", "--probe", saved, "--format", "json")
    assert code == 1 and ["facts" in h for h in json.loads(out)["hosts"]] == [True, False, True]
    code, out, err = run("detect", "--probe", saved)
    assert code == 1 and "gpu1" in out and "gpu3" in out and ODD not in out
    reported(err)


@KINDS
def test_a_probe_that_the_parser_fails_on(saved: Path, kind: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    def parse(text: str, **_: Any) -> NodeFacts:
        return raises(kind)() if ODD in text else parse_probe(text)

    monkeypatch.setattr("gpunode.core.facts.parse_probe", parse)
    (saved / f"{ODD}.probe").write_text(f"{ODD}\n")
    assert [bool(one.error) for one in detect.detect(Targets(probes=(saved,)))] == [False, True, False]
    asked = [detect.Detected(host=h, target=Target(name=h)) for h in HOSTS]

    def answers(programs: list[tuple[Target, str]], *, on_done: Callable[[Ran], None], **_: Any) -> list[Ran]:
        found = [Ran(target=t, stdout=(saved / f"{t.name}.probe").read_text()) for t, _ in programs]
        for one in found:
            on_done(one)
        return found

    monkeypatch.setattr(detect, "run_many", answers)
    found = detect.probe(asked, Targets())
    assert [bool(one.error) for one in found] == [False, True, False]
    assert found[1].error and found[1].probe == f"{ODD}\n"
    reported(str(found[1].error))


def test_one_of_several_saved_probes_that_is_none(saved: Path) -> None:
    (saved / f"{ODD}.probe").write_bytes(b"\0garbage")
    code, out, err = run("plan", "--probe", saved)
    assert code == 2 and "gpu1" in out and "gpu3" in out and f"probe {saved}/{ODD}.probe" in err


@KINDS
def test_doctor(saved: Path, kind: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_examined", odd_for(ODD, doctor._examined, kind))
    code, out, _ = run("doctor", "--probe", saved, "--format", "json")
    hosts = json.loads(out)["hosts"]
    assert code == 1 and [bool(h["error"]) for h in hosts] == [False, True, False]
    reported(hosts[1]["error"]["fix"])
    code, out, err = run("doctor", "--probe", saved)
    assert code == 1 and "gpu1\n" in out and "gpu3\n" in out and ODD in err


@KINDS
def test_check_boot(saved: Path, kind: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    from gpunode.cli import check_boot as command

    monkeypatch.setattr(command, "_checks", odd_for(ODD, command._checks, kind))
    code, out, _ = run("check-boot", "--probe", saved, "--format", "json")
    hosts = json.loads(out)["hosts"]
    assert code == 1 and [bool(h["checks"]) for h in hosts] == [True, False, True]
    reported(hosts[1]["error"]["fix"])


@KINDS
def test_report(saved: Path, kind: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    from gpunode.edge import report

    make_host = report.make_host

    def card(host: str, **shown: Any) -> Any:
        return raises(kind)() if host == ODD and "error" not in (shown.get("plan") or {}) else make_host(host, **shown)

    for name, replaced in (("_of_probe", odd_for(ODD, report._of_probe, kind)), ("make_host", card)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(report, name, replaced)
            code, out, _ = run("report", "--from", saved, "--format", "json")
        hosts = {h["name"]: h for h in json.loads(out)["hosts"]}
        assert code == 0 and sorted(hosts) == sorted(HOSTS)
        assert hosts["gpu1"]["seen"] and hosts["gpu3"]["seen"] and hosts[ODD]["state"] == "failed"
        assert f"unexpected {kind.__name__}" in hosts[ODD]["message"]


@KINDS
def test_rollback_list(kind: type[Exception], saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_many(programs: list[tuple[Target, str]], *, on_done: Callable[[Ran], None], **_: Any) -> None:
        for target, _text in programs:
            on_done(Ran(target=target, stdout=target.name))

    monkeypatch.setattr(standing, "run_many", run_many)
    monkeypatch.setattr(standing, "_standing", lambda host, ran: raises(kind)() if host == ODD else [])
    code, out, err = run("rollback", *HOSTS, "--list")
    assert code == 1 and "gpu1: 0 runs" in out and "gpu3: 0 runs" in out and f"{ODD}: unexpected" in err
    reported(err)


def test_an_answer_of_ansible_that_is_no_object(tmp_path: Path) -> None:
    target = Target(name=ODD, connection="docker")
    for text in ("[]", "null", "7", '{"rc": 0}', "[" * 100_000, '{"rc": "0", "stdout": "", "stderr": ""}'):
        (tmp_path / "answer").write_text(text)
        answer = _answer(target, tmp_path / "answer", "words of ansible")
        assert answer.error and answer.error.exit == 4 and not answer.stdout


# ---------------------------------------------------------------- provision


@KINDS
@pytest.mark.parametrize("where", ["_apply", "settled", "see"])
def test_provision(where: str, kind: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug in a job ends its own hosts; one in what is made of a host, that host; the rest is done and recorded."""
    world = World(["fresh", "fresh", "drifted"])
    odd = world.hosts[1]
    if where == "_apply":
        applied = fleet._Provision._apply

        def apply(jobs: Any, work: Any, hosts: Any) -> None:
            raises(kind)() if odd in hosts else applied(jobs, work, hosts)

        monkeypatch.setattr(fleet._Provision, "_apply", apply)
    elif where == "settled":
        right = fleet.settled
        monkeypatch.setattr(fleet, "settled", lambda host, *a: raises(kind)() if host == odd else right(host, *a))
    else:  # only the page of a report lacks it
        monkeypatch.setattr("gpunode.edge.report_data.see", raises(kind))
    exits = world.provision({}, tmp_path, rollout={"waves": ["100%"], "max_failures": "100%"})
    assert exits is not None and set(exits) == set(world.hosts)
    bad = {"_apply": set(world.hosts[:2]), "settled": {odd}, "see": set()}[where]  # those two are one job
    assert {host for host, code in exits.items() if code} == bad
    rows = {row.host: row for row in world.journal(tmp_path).hosts(world.journal(tmp_path).latest(1)[0].name)}
    assert {host for host, row in rows.items() if row.state == "failed"} == bad
    assert all(rows[host].state == "done" for host in set(world.hosts) - bad)
    for host in bad:
        assert f"unexpected {kind.__name__}" in rows[host].message
        reported(rows[host].fix)


# ---------------------------------------------------------------- the report of a bug


def test_an_error_for_people_stays_what_it_is() -> None:
    refused = RefusedError("no", fix="do not")
    assert isolated("gpu1", lambda: 7) == 7
    assert as_error(refused) is refused


def test_the_same_bug_on_many_hosts_is_one_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    errors = [isolated(f"gpu{n}", raises(kind)) for kind in (ValueError, RecursionError) for n in range(50)]
    assert all(isinstance(error, GpunodeError) and error.exit == 1 for error in errors)
    assert len({reported(error.fix) for error in errors if isinstance(error, GpunodeError)}) == 2
    assert len(list((tmp_path / "gpunode").iterdir())) == 2


def test_what_an_exception_says_is_cut_and_its_secrets_are_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    def fail() -> None:
        raise ValueError("password=hunter2 " + "x" * 1_000_000)

    error = isolated("gpu1", fail)
    assert isinstance(error, GpunodeError) and len(error.what) < 400
    path = reported(error.fix)
    assert "hunter2" not in str(error) + path.read_text() and path.stat().st_size < 100_000


def test_a_traceback_that_cannot_be_kept_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "state").write_text("a file where the folder should be")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    show_log()  # as the command line does
    errors = [isolated(host, raises(ZeroDivisionError)) for host in HOSTS]
    printed = capsys.readouterr().err
    assert printed.count("Traceback") == 1 and "ZeroDivisionError" in printed
    for error in errors:
        assert isinstance(error, GpunodeError)
        assert "the traceback that was logged" in error.fix and f"{tmp_path}/state/gpunode" in error.fix
        assert "Traceback" not in str(error)


SPOKEN = [
    pytest.param("cannot read 'a\udc80b' \x1b]0;title\x07", ["\x1b", "\udc80"], id="surrogates, escapes"),
    pytest.param("tcp://me:pw/hunter2@host refused", ["hunter2"], id="a password with a slash"),
    pytest.param("password = " + "hunter2" * 10_000, ["hunter2"], id="longer than what is kept"),
    pytest.param("config\n[auth]\n  token: hunter2\n", ["hunter2"], id="a config"),
]


@pytest.mark.parametrize(("words", "never"), SPOKEN)
def test_a_report_has_no_secret_and_nothing_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, never: list[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    def call() -> None:
        try:
            raise KeyError(words)
        except KeyError as error:
            raise ValueError(words) from error

    found = isolated("gpu1", call)
    assert isinstance(found, GpunodeError)
    text = found.what + reported(found.fix).read_text()
    assert "Traceback" in text and not [one for one in never if one in text]


def test_a_report_of_an_exception_without_words_is_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    def call() -> None:
        raise Mute

    found = isolated("gpu1", call)
    assert isinstance(found, GpunodeError) and "unexpected Mute: (without words)" in found.what
    reported(found.fix)


def test_a_bug_in_planning_never_shows_the_secrets_of_the_spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that no pattern would find are known by their value."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    def met(_self: object, _host: str, _facts: object, _spec: object, secrets: Secrets, _archive: object) -> None:
        raise ValueError(f"something about {next(iter(secrets.values.values())).partition(':')[2]}")

    monkeypatch.setattr(DesiredState, "_plan", met)
    state = DesiredState({"proxy": "http://me:bare-words@proxy.lan:3128"})
    found = isolated("gpu1", lambda: state.plan("gpu1", NodeFacts()))
    assert isinstance(found, GpunodeError) and found.what == "gpu1: unexpected ValueError: something about ********"
    assert "bare-words" not in reported(found.fix).read_text()
