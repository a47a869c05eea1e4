"""node/commit/commit.sh and the engine: its own check, what is in force, the restart, health, containers, rollback."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace

import pytest
from commit_node import SYSTEMCTL, Node, unit

from gpunode.core.edits.commit import FileChange, commit_request, side_by_side
from gpunode.core.model import Outcome

pytest_plugins = ("commit_fixtures",)


def test_the_unit_is_notified_and_the_change_stays_when_it_is_healthy(node: Node) -> None:
    outcome = node.run(FileChange(path=str(node.config), data=b"new\n"), after=unit(node))
    assert outcome.status == "changed"
    assert outcome.message == "1 file changed, engine.service restarted"
    assert (node.notified(), (node.root / "running").read_text()) == (["restart"], "new\n")
    assert [line["phase"] for line in node.journal] == ["intent", "done"]


@pytest.mark.parametrize("check", [True, False])
def test_of_an_undo_which_has_no_plan_the_changes_name_the_restart(dash: Node, check: bool) -> None:
    change = FileChange(path=str(dash.config), data=b"new\n")
    files = (f"rewrites {dash.config}",)
    for request, said in (({"used": b""}, ("restarts engine.service",)), ({}, ())):
        dash.config.write_text("old\n")
        assert dash.ask(commit_request((change,), after=unit(dash), check=check) | request).texts == (*files, *said)
    (dash.root / "active").write_text("inactive\n")
    dash.config.write_text("old\n")
    assert dash.ask(commit_request((change,), after=unit(dash), check=check) | {"used": b""}).texts == files


@pytest.mark.parametrize("text", ["broken\n", "crashes\n"])
def test_an_unhealthy_unit_gets_its_files_back_and_is_healthy_again(node: Node, text: str) -> None:
    os.utime(node.config, (1_000_000_000, 1_000_000_000))
    new = node.root / "etc/new.d/x.conf"
    outcome = node.run(
        FileChange(path=str(new), data=b"x"), FileChange(path=str(node.config), data=text.encode()), after=unit(node)
    )
    assert outcome.status == "rolled_back"
    words = 'level=error msg="cannot read plugin" | level=fatal msg="bad config"'
    assert outcome.message.endswith(words), "the daemon's own words, none of systemd's"
    assert "engine.service: Failed with result exit-code." in outcome.log
    assert outcome.fix
    assert (node.config.read_text(), new.parent.exists()) == ("old\n", False)
    assert node.config.stat().st_mtime == 1_000_000_000
    assert (node.notified(), (node.root / "active").read_text()) == (["restart", "restart"], "active\n")
    assert [line["phase"] for line in node.journal] == ["intent", "undone"]
    assert node.leftovers == []


def test_a_unit_that_was_broken_before_is_said_to_be(dash: Node) -> None:
    dash.config.write_text("broken before\n")
    (dash.root / "active").write_text("failed\n")
    outcome = dash.run(FileChange(path=str(dash.config), data=b"broken after\n"), after=unit(dash))
    assert outcome.status == "rolled_back"
    said = 'level=error msg="cannot read plugin" | level=fatal msg="bad config"'
    either = "the former files were put back, and engine.service does not start with them either"
    assert outcome.message == (
        f"engine.service does not restart with the new configuration: {said}; "
        f"{either}: the fault was there before, and it is stopped now"
    ), "what both have said is there once"
    assert outcome.fix.count("journalctl") == 1
    assert dash.config.read_text() == "broken before\n"


def test_a_unit_that_does_not_run_is_not_started(dash: Node) -> None:
    (dash.root / "active").write_text("inactive\n")
    outcome = dash.run(FileChange(path=str(dash.config), data=b"new\n"), after=unit(dash))
    assert (outcome.status, dash.notified()) == ("changed", [])
    assert "does not run" in outcome.notes[0]


def test_the_daemons_own_check_comes_before_the_file_is_in_place(node: Node) -> None:
    seen = node.root / "seen"
    node.shim(
        "daemon",
        f'#!/bin/sh\ncat "$2" "{node.config}" >"{seen}"\n! grep -q invalid "$2" || {{ echo "$2: no"; exit 1; }}\n',
    )
    validated = unit(node, validate=("daemon", "--check", "@FILE@"))
    outcome = node.run(FileChange(path=str(node.config), data=b"invalid\n"), after=validated)
    assert outcome.status == "rolled_back"
    assert f"{node.config}: no" in outcome.message, "not the name of the file for the try"
    assert (node.config.read_text(), node.notified(), node.leftovers) == ("old\n", [], [])
    assert node.run(FileChange(path=str(node.config), data=b"valid\n"), after=validated).status == "changed"
    assert seen.read_text() == "valid\nold\n"


def test_a_daemon_without_a_check_is_not_asked(dash: Node) -> None:
    dash.shim("daemon", "#!/bin/sh\necho 'unknown flag: --check' >&2\nexit 125\n")
    outcome = dash.run(
        FileChange(path=str(dash.config), data=b"new\n"), after=unit(dash, validate=("daemon", "--check", "@FILE@"))
    )
    assert outcome.status == "changed"


def test_a_check_that_refuses_the_old_file_too_does_not_decide(dash: Node) -> None:
    dash.shim("daemon", "#!/bin/sh\necho 'userland-proxy-path is not set'\nexit 1\n")
    outcome = dash.run(
        FileChange(path=str(dash.config), data=b"new\n"), after=unit(dash, validate=("daemon", "--check", "@FILE@"))
    )
    assert (outcome.status, dash.config.read_text()) == ("changed", "new\n")
    assert "before and after the change alike" in outcome.notes[0]


def test_a_socket_that_does_not_answer_is_unhealthy(dash: Node) -> None:
    asked = dash.root / "asked"
    dash.shim("client", f'#!/bin/sh\necho "$*" >>"{asked}"\necho refused\n! grep -q new "{dash.config}"\n')
    outcome = dash.run(
        FileChange(path=str(dash.config), data=b"new\n"),
        after=unit(dash, health=(("not-installed", "x"), ("client", "ping me", "twice"))),
    )
    assert outcome.status == "rolled_back"
    assert "does not answer" in outcome.message
    assert "ping me twice" in asked.read_text()
    assert outcome.log.split("\n").count("refused") == 1, "what it said last, and not what it said each time"


def test_an_engine_that_takes_its_files_up_by_itself_is_not_reported(dash: Node) -> None:
    outcome = dash.write("new\n", unit(dash, verb=""))
    assert (outcome.status, outcome.message, dash.notified()) == ("changed", "1 file changed", [])


def test_a_unit_that_dies_a_moment_later_is_unhealthy(dash: Node) -> None:
    later = 'show) n=$(cat asked 2>/dev/null || echo 0); echo $((n + 1)) >asked; echo "MainPID=$n"'
    dash.shim("systemctl", SYSTEMCTL.replace('show) echo "MainPID=$(cat pid)"', later))
    outcome = dash.write("new\n", unit(dash))
    assert outcome.status == "rolled_back"
    assert outcome.message.startswith("engine.service does not stay up with the new configuration: ")
    assert dash.config.read_text() == "old\n"


def left_to_settle(node: Node) -> list[str]:
    """A transaction whose unit is healthy, and which is left without an outcome; and another one beside it."""
    change = FileChange(path=str(node.config), data=b"new\n")
    [one] = node.start_and_read(commit_request((change,), after=unit(node, settle=1)) | side_by_side((), later=True))
    assert (node.unfinished, node.config.read_text(), node.notified()) == ({one}, "new\n", ["restart"])
    other = FileChange(path=str(node.root / "etc/other"), data=b"x\n")
    assert node.ask(commit_request((other,)) | side_by_side([one])).texts == (f"creates {node.root}/etc/other",)
    assert node.unfinished == {one}, "what another run proves is left alone"
    return [one]


def test_a_unit_that_has_stayed_up_while_others_started_keeps_its_files(node: Node) -> None:
    settling = left_to_settle(node)
    outcome = node.ask(side_by_side(settling))
    assert (outcome.status, outcome.message) == ("unchanged", "what was restarted stays up")
    assert (node.unfinished, node.config.read_text(), node.notified()) == (set(), "new\n", ["restart"])
    assert node.ask(side_by_side(settling)).status == "unchanged", "again does no harm"


@pytest.mark.parametrize("what", ["active", "pid"])
def test_a_unit_that_has_ended_or_started_again_meanwhile_gets_its_files_back(node: Node, what: str) -> None:
    settling = left_to_settle(node)
    (node.root / what).write_text({"active": "failed\n", "pid": "900\n"}[what])
    outcome = node.ask(side_by_side(settling))
    assert outcome.status == "rolled_back"
    assert outcome.message.startswith("engine.service does not stay up with the new configuration: ")
    assert (node.config.read_text(), node.notified()) == ("old\n", ["restart", "restart"])
    assert (node.unfinished, (node.root / "etc/other").exists()) == (set(), True)


def test_a_run_that_finds_it_interrupted_looks_at_the_unit_itself(node: Node) -> None:
    left_to_settle(node)
    assert "finished the change" in node.ask(commit_request()).texts[0]
    assert (node.unfinished, node.config.read_text(), node.notified()) == (set(), "new\n", ["restart"])


def test_a_unit_that_logs_nothing_itself_leaves_no_empty_reason(dash: Node) -> None:
    dash.shim("journalctl", "#!/bin/sh\necho 'engine.service: Failed with result exit-code.'\n")
    outcome = dash.write("broken\n", unit(dash))
    assert outcome.status == "rolled_back"
    assert outcome.message == "engine.service does not restart with the new configuration"


# ---------------------------------------------------------------- what is in force

# A daemon that prints its file as what is in force, after a setting of its own.
DUMP = """#!/bin/sh
[ "$1 $3 $4" = "-c config dump" ] || exit 9
if grep -q invalid "$2"; then echo "daemon: $2: row 1 column 2" >&2; exit 1; fi
grep -q '^root' "$2" || echo 'root = "/var/lib/engine"'
cat "$2"
"""
OLD = """version = 2
imports = ["/etc/b.toml", "/etc/a.toml"]
root = "/mine"

[plugins]
  [plugins."io.x.cri"]
    caps = [
      "CHOWN",
    ]
    [plugins."io.x.cri".runtimes.runc]
      type = "a=b"
    [plugins."io.x.cri".registry.auth."a.b:5000"]
      password = "hunter2"
"""
NVIDIA = """    [plugins.'io.x.cri'.runtimes.nvidia]
      'Binary.Name' = 'x'
"""


@pytest.fixture
def dumper(dash: Node) -> Node:
    dash.shim("daemon", DUMP)
    dash.config.write_text(OLD)
    return dash


def edited(node: Node, text: str, *others: FileChange, handler: str = "nvidia") -> Outcome:
    """What comes of an edit that configures the runtime `handler`."""
    after = unit(node, validate=("daemon", "-c", "@FILE@", "config", "dump"))
    changes = (*others, FileChange(path=str(node.config), data=text.encode()))
    request = commit_request(changes, after=replace(after, settle=0))
    request["after"] += f"handlers {handler}\n".encode()
    outcome = node.ask(request)
    assert "hunter" not in f"{outcome}{(node.state / 'journal.jsonl').read_text()}", "no password leaves the node"
    return outcome


@pytest.mark.parametrize("handler", ["nvidia", "nvidia-2", "nvidia nvidia-2"])
def test_a_runtime_that_the_daemon_sees_is_accepted(dumper: Node, handler: str) -> None:
    text = OLD + NVIDIA + NVIDIA.replace("nvidia]", "'nvidia-2'.options]")
    assert edited(dumper, text, handler=handler).status == "changed"
    assert dumper.notified() == ["restart"]


def test_a_daemon_without_a_list_of_runtimes_is_not_asked_for_one(dumper: Node) -> None:
    assert edited(dumper, 'disabled_plugins = ["cri"]\n').status == "changed"


def test_a_runtime_that_the_daemon_does_not_see_is_not_called_configured(dash: Node) -> None:
    dash.shim("daemon", DUMP)
    dash.config.write_text(OLD)
    outcome = edited(dash, OLD + NVIDIA, handler="nvidia-2")
    assert outcome.status == "rolled_back"
    assert outcome.message.startswith("the daemon would not see the runtime nvidia-2")


def test_a_configuration_that_was_broken_before_may_be_replaced(dash: Node) -> None:
    dash.shim("daemon", DUMP)
    dash.config.write_text("invalid\n")
    assert edited(dash, OLD + NVIDIA).status == "changed"


def test_a_daemon_that_runs_and_would_not_start_again_is_not_restarted(dash: Node) -> None:
    dash.shim("daemon", DUMP)
    dash.config.write_text("invalid\n")
    outcome = edited(dash, "invalid\n" + NVIDIA)
    assert (outcome.status, dash.config.read_text(), dash.notified()) == ("rolled_back", "invalid\n", [])
    assert outcome.message.startswith("engine.service runs, and does not start again with its configuration")
    assert "fix the configuration first" in outcome.fix


# ---------------------------------------------------------------- what runs

CTR = (("ctr", "--address", "/run/c.sock", "version"),)
DOCKER = (("docker", "-H", "unix:///run/d.sock", "version"),)


@pytest.mark.parametrize(("before", "status"), [("ok", "rolled_back"), ("error", "changed")])
def test_the_cri_plugin_must_load_if_it_did_before(dash: Node, before: str, status: str) -> None:
    lines = [f'echo "io.containerd.grpc.v1 cri linux/amd64 {state}"' for state in ("error", before)]
    dash.shim("ctr", f'#!/bin/sh\nif grep -q new "$NODE/etc/config"; then {lines[0]}; else {lines[1]}; fi\n')
    assert dash.write("new\n", unit(dash, plugin="cri", health=CTR)).status == status


@pytest.fixture
def pod() -> Iterator[int]:
    process = subprocess.Popen(["sleep", "600"])
    yield process.pid
    process.kill()
    process.wait()


def containerd(node: Node, lists: str) -> None:
    """A containerd whose containers are what the commands print; `told` says whether it was restarted."""
    text = f'[ -e "$NODE/told" ] && told=yes || told=\necho "TASK PID STATUS"\n{lists}\n'
    node.shim("ctr", f'#!/bin/sh\ncase "$*" in *namespaces*) echo k8s.io ;; *"-n k8s.io tasks"*) {text} ;; esac\n')


def test_a_container_that_the_engine_no_longer_knows_of_takes_the_change_back(node: Node, pod: int) -> None:
    containerd(node, f'echo "db {pod} RUNNING"; [ -n "$told" ] && ! grep -q old etc/config || echo "web {pod} RUNNING"')
    outcome = node.write("new\n", unit(node, health=CTR))
    assert outcome.status == "rolled_back"
    assert outcome.message.startswith("engine.service has lost running containers: k8s.io/web with the new config")
    assert node.config.read_text() == "old\n"


def test_containers_that_all_end_with_the_restart_take_the_change_back(dash: Node) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    containerd(dash, f'[ -n "$told" ] || echo "web {gone.pid} RUNNING"')
    outcome = dash.write("new\n", unit(dash, health=CTR))
    assert outcome.status == "rolled_back"
    assert "took its containers along" in outcome.message


def test_a_container_that_ends_by_itself_meanwhile_is_only_mentioned(dash: Node, pod: int) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    containerd(dash, f'echo "web {pod} RUNNING"; [ -n "$told" ] || echo "job {gone.pid} RUNNING"')
    outcome = dash.write("new\n", unit(dash, health=CTR))
    assert (outcome.status, outcome.notes) == ("changed", ("ended while engine.service was restarted: k8s.io/job",))


DOCKERD = """#!/bin/sh
case "$*" in
  *Runtimes*) echo runtimes io.containerd.runc.v2 runc; grep -q forgets "$NODE/etc/config" || echo nvidia ;;
  *LiveRestore*) echo {live} ;;
  *" ps "*) [ -e "$NODE/told" ] || echo 4f2a ;;
  *inspect*) echo "/web {pid}" ;;
esac
"""


@pytest.mark.parametrize(
    ("live", "verb", "status"),
    [("true", "restart", "rolled_back"), ("false", "restart", "changed"), ("false", "reload", "rolled_back")],
)
def test_docker_may_stop_containers_only_where_a_restart_does(
    dash: Node, pod: int, live: str, verb: str, status: str
) -> None:
    dash.shim("docker", DOCKERD.format(live=live, pid=pod))
    outcome = dash.write("new\n", unit(dash, health=DOCKER, verb=verb))
    assert outcome.status == status
    assert ("lost running containers: /web" in outcome.message) == (status == "rolled_back")


def test_docker_has_to_know_the_runtime_afterwards(dash: Node, pod: int) -> None:
    dash.shim("docker", DOCKERD.format(live="false", pid=pod))
    for text, status in (("forgets\n", "rolled_back"), ("new\n", "changed")):
        change = FileChange(path=str(dash.config), data=text.encode())
        request = commit_request((change,), after=replace(unit(dash, health=DOCKER), settle=0))
        request["after"] += b"handlers nvidia\n"
        outcome = dash.ask(request)
        assert outcome.status == status
        assert ("does not know the runtime nvidia" in outcome.message) == (status == "rolled_back")
        assert "the files were put back" not in outcome.message, "the old files need not know it"


def test_health_that_proves_what_is_new_is_not_asked_of_the_old_files(dash: Node) -> None:
    dash.shim("docker", '#!/bin/sh\ncase "$*" in *version) ;; *) exit 1 ;; esac\n')
    new = ("docker", "-H", "unix:///run/d.sock", "info", "--format", "nvidia")
    outcome = dash.write("new\n", unit(dash, health=(new, *DOCKER)))
    assert outcome.status == "rolled_back"
    assert outcome.message.startswith("engine.service does not answer with the new configuration")
    assert "the files were put back" not in outcome.message
