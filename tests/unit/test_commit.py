"""node/commit.sh in a temporary root: only where it keeps its state and what `systemctl` is are replaced."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpunode.core.edits import Activation
from gpunode.core.edits.undo import record, undo_data
from gpunode.core.errors import InputError
from gpunode.core.model import ConfigFile, Edit, NodeFacts, Outcome, Runtime, RuntimeWish
from gpunode.core.remote import parse_outcome, program
from gpunode.core.requests import FileChange, commit_request, edit_request, file_changes
from gpunode.node import script

SHELLS = {"dash": ["dash"], "bash": ["bash", "--posix"], "busybox": ["busybox", "sh"]}
# external commands of the script, for the shims that kill it
COMMANDS = (
    "awk basename cat chmod cp cut date dd dirname grep head mkdir mv readlink rm rmdir sed sha256sum sync tail touch "
    "tr"
)

# A systemd of one unit: `restart` takes up the config like a daemon that refuses lines with "broken".
SYSTEMCTL = """#!/bin/sh
cd "$NODE" || exit 9
case $1 in
  is-active) cat active; [ "$(cat active)" = active ] ;;
  show) echo "MainPID=$(cat pid)" ;;
  reset-failed) : ;;
  restart | reload)
    echo "$1" >>told
    if grep -q broken etc/config; then echo failed >active; exit 1; fi
    cp etc/config running
    echo $(($(cat pid) + 1)) >pid
    echo active >active
    if grep -q crashes etc/config; then echo failed >active; fi ;;
  *) echo "systemctl $*: not prepared" >&2; exit 9 ;;
esac
"""
JOURNALCTL = """#!/bin/sh
echo 'Starting engine.service'
echo 'level=info msg="no error yet"'
echo 'level=fatal msg="bad config"'
echo 'engine.service: Failed with result exit-code.'
"""


class Node:
    """A root with one config file, one unit, and the state folder of commit.sh."""

    def __init__(self, root: Path, shell: str = "dash") -> None:
        self.root = root
        self.shell = shell
        self.bin = root / "bin"
        self.config = root / "etc/config"
        self.state = root / "state"
        for folder in (self.bin, self.config.parent):
            folder.mkdir(parents=True)
        for name, text in {"active": "active\n", "pid": "100\n", "running": "old\n"}.items():
            (root / name).write_text(text)
        self.config.write_text("old\n")
        self.config.chmod(0o640)
        self.shim("systemctl", SYSTEMCTL)
        self.shim("journalctl", JOURNALCTL)
        self.shim("id", "#!/bin/sh\necho 0\n")
        self.shim("sleep", "#!/bin/sh\nexit 0\n")

    def shim(self, name: str, text: str) -> None:
        path = self.bin / name
        path.write_text(text)
        path.chmod(0o755)

    def start(self, request: dict[str, bytes]) -> subprocess.Popen[bytes]:
        # the script appends the usual folders to PATH; the shims stay in front
        env = {"PATH": f"{self.bin}:/usr/bin:/bin", "NODE": str(self.root), "TMPDIR": str(self.root)}
        process = subprocess.Popen(
            [*SHELLS[self.shell], "-s"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=env,
            start_new_session=True,
        )
        assert process.stdin
        process.stdin.write(program(script("commit.sh"), {"state": f"{self.state}\n".encode(), **request}).encode())
        process.stdin.close()
        return process

    def finish(self, process: subprocess.Popen[bytes]) -> Outcome:
        assert process.stdout
        text = process.stdout.read().decode()
        process.stdout.close()
        return parse_outcome(text, process.wait())

    def run(self, *changes: FileChange, after: Activation | None = None, check: bool = False) -> Outcome:
        return self.finish(self.start(commit_request(changes, after=after, settle=0, check=check)))

    @property
    def journal(self) -> list[dict[str, object]]:
        path = self.state / "journal.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def unfinished(self) -> set[object]:
        phases = {line["id"]: line["phase"] for line in self.journal}
        return {key for key, phase in phases.items() if phase == "intent"}

    @property
    def leftovers(self) -> list[str]:
        return [str(p) for p in (self.root / "etc").rglob("*") if ".gpunode" in p.name]

    def told(self) -> list[str]:
        path = self.root / "told"
        return path.read_text().split() if path.exists() else []


def unit(node: Node, **options: object) -> Activation:
    return Activation(**{"unit": "engine.service", "verb": "restart", "config": str(node.config), **options})  # type: ignore[arg-type]


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.fixture(params=SHELLS)
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Node]:
    if not shutil.which(SHELLS[request.param][0]):
        pytest.skip(f"no {request.param} here")
    yield Node(tmp_path / "a root with spaces", request.param)


@pytest.fixture
def dash(tmp_path: Path) -> Node:
    return Node(tmp_path / "node", "dash")


# ---------------------------------------------------------------- files


def test_a_new_file_gets_its_bytes_its_mode_and_its_folders(node: Node) -> None:
    data = bytes(range(256)) * 300
    path = node.root / "etc/a b/c/new.conf"
    outcome = node.run(FileChange(path=str(path), data=data, mode=0o640, expect=""))
    assert (outcome.status, outcome.changed) == ("changed", (f"creates {path}",))
    assert path.read_bytes() == data
    assert path.stat().st_mode & 0o777 == 0o640
    assert path.parent.stat().st_mode & 0o777 == 0o755


def test_a_file_that_is_there_keeps_its_mode_and_a_link_its_target(node: Node) -> None:
    link = node.root / "etc/link"
    link.symlink_to("config")
    outcome = node.run(FileChange(path=str(link), data=b"new\n", mode=0o600, expect=sha("old\n")))
    assert outcome.status == "changed"
    assert link.is_symlink()
    assert node.config.read_text() == "new\n"
    assert node.config.stat().st_mode & 0o777 == 0o640


def test_a_file_that_is_as_it_should_be_is_not_written(node: Node) -> None:
    before = node.config.stat()
    outcome = node.run(FileChange(path=str(node.config), data=b"old\n"), after=unit(node))
    assert (outcome.status, outcome.changed, node.told(), node.journal) == ("unchanged", (), [], [])
    after = node.config.stat()  # reading it may move its access time, and nothing else
    assert (after.st_ino, after.st_mode, after.st_mtime_ns) == (before.st_ino, before.st_mode, before.st_mtime_ns)


def test_a_file_is_removed_and_one_that_is_not_there_need_not_be(node: Node) -> None:
    assert node.run(FileChange(path=str(node.config), expect=sha("old\n"))).changed == (f"removes {node.config}",)
    assert not node.config.exists()
    assert node.run(FileChange(path=str(node.config))).status == "unchanged"


def test_check_mode_says_what_would_change_and_changes_nothing(node: Node) -> None:
    new = node.root / "etc/new"
    changes = (FileChange(path=str(new), data=b"x"), FileChange(path=str(node.config), data=b"y"))
    outcome = node.run(*changes, after=unit(node), check=True)
    assert outcome.status == "changed"
    assert outcome.changed == (f"creates {new}", f"rewrites {node.config}")
    assert (new.exists(), node.config.read_text(), node.state.exists(), node.told()) == (False, "old\n", False, [])


@pytest.mark.parametrize(("read", "expect"), [(False, sha("older\n")), (False, ""), (True, sha("older\n"))])
def test_a_file_that_changed_since_it_was_read_stops_all(dash: Node, read: bool, expect: str) -> None:
    new = dash.root / "etc/new"
    outcome = dash.run(
        FileChange(path=str(new), data=b"x"), FileChange(path=str(dash.config), data=b"new", expect=expect, read=read)
    )
    assert outcome.status == "refused"
    assert outcome.message == f"{dash.config} changed since it was read"
    assert outcome.fix
    assert (new.exists(), dash.config.read_text(), outcome.changed) == (False, "old\n", ())


def test_what_is_in_the_way_is_named(dash: Node) -> None:
    dangling = dash.root / "etc/dangling"
    dangling.symlink_to("nowhere")
    said = {
        path: dash.run(FileChange(path=str(path), data=b"x"))
        for path in (dangling, dash.config.parent, dash.config / "below")
    }
    assert {o.status for o in said.values()} == {"refused"}
    assert all(o.fix for o in said.values())
    assert said[dangling].message == f"{dangling} is a symbolic link that leads nowhere (nowhere)"
    assert said[dash.config.parent].message == f"{dash.config.parent} is a directory"
    assert said[dash.config / "below"].message.startswith(f"{dash.config} is a file, and")


def test_a_write_that_fails_leaves_every_file_as_it_was(node: Node) -> None:
    first, folder = node.root / "etc/first", node.root / "etc/made/by/us"
    full = 'case "$*" in *.1\\ *) echo "dd: No space left on device" >&2; exit 1 ;; esac'
    node.shim("dd", f'#!/bin/sh\n{full}\nexec /usr/bin/dd "$@"\n')
    outcome = node.run(
        FileChange(path=str(folder / "first"), data=b"x"),
        FileChange(path=str(node.config), data=b"new"),
        after=unit(node),
    )
    assert outcome.status == "rolled_back"
    assert "No space left on device" in outcome.message
    assert outcome.fix
    assert (first.exists(), (node.root / "etc/made").exists()) == (False, False)
    assert (node.config.read_text(), node.told(), node.leftovers, node.unfinished) == ("old\n", [], [], set())


def test_no_room_for_the_backup_stops_before_the_first_write(dash: Node) -> None:
    dash.shim("cp", '#!/bin/sh\necho "cp: No space left on device" >&2\nexit 1\n')
    outcome = dash.run(FileChange(path=str(dash.config), data=b"new"))
    assert outcome.status == "failed"
    assert "cannot keep a backup" in outcome.message
    assert (dash.config.read_text(), dash.journal) == ("old\n", [])


def test_secrets_stay_out_of_the_journal_and_backups_are_private(dash: Node) -> None:
    dash.config.write_text('password = "hunter2"\n')
    dash.run(FileChange(path=str(dash.config), data=b'password = "hunter3"\n'))
    assert "hunter" not in (dash.state / "journal.jsonl").read_text()
    assert dash.state.stat().st_mode & 0o777 == 0o700
    assert (dash.state / "journal.jsonl").stat().st_mode & 0o777 == 0o600


def test_journal_lines_are_json_whatever_the_path(dash: Node) -> None:
    path = dash.root / 'etc/a "b" \\c'
    assert dash.run(FileChange(path=str(path), data=b"x")).status == "changed"
    assert [line["phase"] for line in dash.journal] == ["intent", "done"]
    assert dash.journal[0]["files"] == [{"path": str(path), "before": "absent", "after": sha("x")}]


# ---------------------------------------------------------------- the service


def test_the_unit_is_told_and_the_change_stays_when_it_is_healthy(node: Node) -> None:
    outcome = node.run(FileChange(path=str(node.config), data=b"new\n"), after=unit(node))
    assert outcome.status == "changed"
    assert outcome.message == "1 file(s) changed, engine.service restarted"
    assert (node.told(), (node.root / "running").read_text()) == (["restart"], "new\n")
    assert [line["phase"] for line in node.journal] == ["intent", "done"]


@pytest.mark.parametrize("text", ["broken\n", "crashes\n"])
def test_an_unhealthy_unit_gets_its_files_back_and_is_healthy_again(node: Node, text: str) -> None:
    os.utime(node.config, (1_000_000_000, 1_000_000_000))
    new = node.root / "etc/new.d/x.conf"
    outcome = node.run(
        FileChange(path=str(new), data=b"x"), FileChange(path=str(node.config), data=text.encode()), after=unit(node)
    )
    assert outcome.status == "rolled_back"
    assert 'level=fatal msg="bad config"' in outcome.message, "the daemon's own words"
    assert outcome.fix
    assert (node.config.read_text(), new.parent.exists()) == ("old\n", False)
    assert node.config.stat().st_mtime == 1_000_000_000
    assert (node.told(), (node.root / "active").read_text()) == (["restart", "restart"], "active\n")
    assert [line["phase"] for line in node.journal] == ["intent", "undone"]
    assert node.leftovers == []


def test_a_unit_that_was_broken_before_is_said_to_be(dash: Node) -> None:
    dash.config.write_text("broken before\n")
    (dash.root / "active").write_text("failed\n")
    outcome = dash.run(FileChange(path=str(dash.config), data=b"broken after\n"), after=unit(dash))
    assert outcome.status == "rolled_back"
    assert "after the files were put back" in outcome.message
    assert dash.config.read_text() == "broken before\n"


def test_a_unit_that_does_not_run_is_not_started(dash: Node) -> None:
    (dash.root / "active").write_text("inactive\n")
    outcome = dash.run(FileChange(path=str(dash.config), data=b"new\n"), after=unit(dash))
    assert (outcome.status, dash.told()) == ("changed", [])
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
    assert (node.config.read_text(), node.told(), node.leftovers) == ("old\n", [], [])
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
    dash.shim("client", f'#!/bin/sh\necho "$*" >>"{asked}"\n! grep -q new "{dash.config}"\n')
    outcome = dash.run(
        FileChange(path=str(dash.config), data=b"new\n"),
        after=unit(dash, health=(("not-installed", "x"), ("client", "ping me", "twice"))),
    )
    assert outcome.status == "rolled_back"
    assert "does not answer" in outcome.message
    assert "ping me twice" in asked.read_text()


CTR = (("ctr", "--address", "/run/c.sock", "version"),)
PLUGINS = """#!/bin/sh
if grep -q new "$NODE/etc/config"; then echo "io.containerd.grpc.v1 cri linux/amd64 error"; else
echo "io.containerd.grpc.v1 cri linux/amd64 {before}"; fi
"""


@pytest.mark.parametrize(("before", "status"), [("ok", "rolled_back"), ("error", "changed")])
def test_the_cri_plugin_must_load_if_it_did_before(dash: Node, before: str, status: str) -> None:
    dash.shim("ctr", PLUGINS.format(before=before))
    outcome = dash.run(FileChange(path=str(dash.config), data=b"new\n"), after=unit(dash, plugin="cri", health=CTR))
    assert outcome.status == status


# ---------------------------------------------------------------- interruption

KILLER = """#!/bin/sh
n=$(($(/bin/cat "$NODE/count") + 1))
echo $n >"$NODE/count"
[ "$n" != "$(/bin/cat "$NODE/kill")" ] || kill -9 0
exec {real} "$@"
"""


def shims_that_kill(node: Node) -> None:
    for name in COMMANDS.split():
        node.shim(name, KILLER.format(real=shutil.which(name)))
    systemctl = SYSTEMCTL.replace(
        "cd ",
        'n=$(($(/bin/cat "$NODE/count") + 1))\necho $n >"$NODE/count"\n'
        '[ "$n" != "$(/bin/cat "$NODE/kill")" ] || kill -9 0\ncd ',
        1,
    )
    node.shim("systemctl", systemctl)


def set_kill(node: Node, at: int) -> None:
    (node.root / "count").write_text("0\n")
    (node.root / "kill").write_text(f"{at}\n")


@pytest.mark.parametrize("text", ["new\n", "broken\n"])
def test_kill_at_any_command_loses_nothing(tmp_path: Path, text: str) -> None:
    at, killed = 0, True
    outcomes = set()
    while killed:
        at += 1
        node = Node(tmp_path / str(at))
        shims_that_kill(node)
        set_kill(node, at)
        drop_in = node.root / "etc/conf.d/x"
        changes = (
            FileChange(path=str(drop_in), data=b"drop-in\n", expect=""),
            FileChange(path=str(node.config), data=text.encode()),
        )
        process = node.start(commit_request(changes, after=unit(node), settle=0))
        node.finish(process)
        killed = process.returncode == -signal.SIGKILL
        assert node.config.read_text() in ("old\n", text), "no file is ever half written"
        set_kill(node, 0)
        recovered = node.run()
        assert recovered.status in ("changed", "unchanged", "rolled_back"), (at, recovered)
        state = (drop_in.exists(), node.config.read_text())
        assert state in ((False, "old\n"), (True, text)), (at, state, recovered)
        assert (node.root / "running").read_text() == node.config.read_text(), (at, recovered)
        assert (node.leftovers, node.unfinished, (node.root / "active").read_text()) == ([], set(), "active\n"), at
        assert node.run().status == "unchanged"
        outcomes.add(state)
        shutil.rmtree(node.root)
    assert at > 30, "the loop went through the whole transaction"
    assert outcomes == ({(False, "old\n"), (True, "new\n")} if text == "new\n" else {(False, "old\n")})


def test_recovery_leaves_what_somebody_else_wrote_since(dash: Node) -> None:
    shims_that_kill(dash)
    for at in range(1, 200):
        set_kill(dash, at)
        dash.finish(dash.start(commit_request((FileChange(path=str(dash.config), data=b"new\n"),))))
        if dash.unfinished:
            break
    set_kill(dash, 0)
    dash.config.write_text("by hand\n")
    outcome = dash.run()
    assert dash.config.read_text() == "by hand\n"
    assert any("somebody else changed" in note for note in outcome.notes)
    assert dash.unfinished == set()


def test_two_writers_take_turns(node: Node) -> None:
    requests = [
        commit_request((FileChange(path=str(node.root / f"etc/{i}"), data=b"x"),), after=unit(node), settle=0)
        for i in range(4)
    ]
    outcomes = [node.finish(process) for process in [node.start(request) for request in requests]]
    assert [o.status for o in outcomes] == ["changed"] * 4
    assert [line["phase"] for line in node.journal] == ["intent", "done"] * 4, "never one inside another"


# ---------------------------------------------------------------- requests


def test_an_edit_compares_all_that_was_read_and_writes_the_root_last() -> None:
    root, site, drop_in = (
        "/etc/containerd/config.toml",
        "/etc/containerd/conf.d/10.toml",
        "/etc/containerd/conf.d/99-nvidia.toml",
    )
    runtime = Runtime(name="containerd", version="2.1.9", unit="containerd.service", config=root, files=(root, site))
    files = {
        root: ConfigFile(path=root, sha256="aa", mode=0o600, data=b"version = 3\n"),
        site: ConfigFile(path=site, sha256="bb", data=b""),
    }
    facts = NodeFacts(runtimes=(runtime,), files=files)
    undo = {path: record(None, data) for path, data in ((root, b"R"), (drop_in, b"D"))}
    edit = Edit(changes={root: b"R", drop_in: b"D"}, undo=undo, meant=("imports", "plugins.x"))
    request = edit_request(facts, RuntimeWish(runtime="containerd"), edit, check=True)
    assert request["changes"].decode() == (
        f"0\tread\t0644\tbb\t{root}\t{site}\n1\twrite\t0644\tabsent\t{root}\t{drop_in}\n"
        f"2\twrite\t0644\taa\t{root}\t{root}\n"
    )
    assert (request["data.1"], request["data.2"], request["check"]) == (b"D", b"R", b"1\n")
    assert request["validate"] == b"containerd\n-c\n@FILE@\nconfig\ndump\n"
    assert b"unit containerd.service\nverb restart\n" in request["after"]
    assert b"\ndump yes\nhandlers nvidia\n" in request["after"]
    assert json.loads(request["undo"]) == {"label": f"containerd {root}", **undo_data(edit.undo)}
    assert request["meant"] == b"imports\nplugins.x\n"


def test_files_of_a_role_become_changes() -> None:
    files = [{"path": "/etc/a", "content": "x", "mode": "0600"}, {"path": "/etc/b", "content": None}]
    assert file_changes(files) == [FileChange(path="/etc/a", data=b"x", mode=0o600), FileChange(path="/etc/b")]


@pytest.mark.parametrize(
    "file",
    [
        {"path": "/a", "content": 1},
        {"content": "x"},
        {"path": "/a", "content": "", "mode": "rw"},
        {"path": "/a", "content": "", "mode": 644},
    ],
)
def test_files_of_a_role_that_are_no_files_are_refused(file: dict[str, object]) -> None:
    with pytest.raises(InputError):
        file_changes([file])


@pytest.mark.parametrize("path", ["relative", "/a\tb", "/a\nb", "/a/../b"])
def test_paths_that_the_request_cannot_carry_are_refused(path: str) -> None:
    with pytest.raises(InputError):
        commit_request((FileChange(path=path, data=b""),))
