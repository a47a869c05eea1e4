"""cdi.sh with a faked nvidia-ctk, in three shells."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from gpunode.core.edits.commit import commit_request
from gpunode.core.errors import InputError
from gpunode.core.items.cdi import cdi_request
from gpunode.core.model import (
    Outcome,
)
from gpunode.core.remote import parse_outcome, program
from gpunode.node import script

TEMPLATES = Path(__file__).parents[2] / "gpunode/templates"
SPEC = "# made for driver 580.95.05\n"
SHELLS = [shell for shell in (["dash"], ["bash"], ["busybox", "sh"]) if shutil.which(shell[0])]
CTK = """case "$*" in
"cdi generate --output="*) ;;
*) exit 64 ;;
esac
[ -e "$SPEC" ] || { echo "failed to initialize NVML" >&2; exit 1; }
cp "$SPEC" "${3#--output=}\""""
SYSTEMCTL = """echo "$*" >>"$CALLS"
case "$*" in
"show -p Version") ;;
"cat nvidia-cdi-refresh.path") ;;
"is-enabled "*) grep -qx "$2" "$ENABLED" 2>/dev/null || exit 1; echo enabled ;;
"is-active "*) grep -qx "start $2" "$CALLS" || exit 3; echo active ;;
"--no-reload enable "*) echo "$3" >>"$ENABLED" ;;
"start "*) ;;
"is-failed "*) [ -e "$CALLS.failed" ] && [ "$2" = nvidia-cdi-refresh.service ] && echo failed ;;
"reset-failed "*) rm "$CALLS.failed" ;;
*) exit 64 ;;
esac"""


class Node:
    """A folder of fake commands before PATH; what nobody prepared fails."""

    def __init__(self, folder: Path, shell: list[str]) -> None:
        self.folder, self.shell = folder, shell
        self.output = folder / "cdi/nvidia.yaml"
        (folder / "bin").mkdir(parents=True)
        self.fake("nvidia-ctk", CTK)
        self.fake("systemctl", "exit 1")

    def fake(self, name: str, body: str) -> None:
        path = self.folder / "bin" / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def spec(self, text: str) -> None:
        (self.folder / "spec").write_text(text)

    def run(self, *, check: bool = False, **value: str) -> Outcome:
        request = cdi_request({"output": str(self.output), **value}, check=check)
        env = os.environ | {
            "PATH": f"{self.folder}/bin:{os.environ['PATH']}",
            "SPEC": str(self.folder / "spec"),
            "CALLS": str(self.folder / "calls"),
            "ENABLED": str(self.folder / "enabled"),
        }
        return self.send("cdi.sh", request, env)

    def commit(self) -> Outcome:
        """The next run of any kind, which finishes or undoes what this one has left."""
        return self.send("commit.sh", commit_request(), dict(os.environ))

    def send(self, name: str, request: dict[str, bytes], env: dict[str, str]) -> Outcome:
        request["state"] = f"{self.folder / 'state'}\n".encode()
        done = subprocess.run(
            [shutil.which(self.shell[0]) or "", *self.shell[1:], "-s"],
            input=program(script(name), request),
            text=True,
            capture_output=True,
            env=env,
            check=False,
            start_new_session=True,
        )
        return parse_outcome(done.stdout, done.returncode)


@pytest.fixture(params=SHELLS, ids=lambda shell: shell[0])
def node(tmp_path: Path, request: pytest.FixtureRequest) -> Node:
    return Node(tmp_path, list(request.param))


def test_the_specification_is_made_once_and_again_when_nvidia_ctk_says_something_else(node: Node) -> None:
    node.spec(SPEC)
    first = node.run()
    assert (first.status, first.texts) == ("changed", (f"creates {node.output}",))
    assert node.output.read_text() == SPEC
    assert node.output.stat().st_mode & 0o777 == 0o644
    assert node.run().status == "unchanged"
    assert [path.name for path in node.output.parent.iterdir()] == ["nvidia.yaml"]
    node.spec(SPEC.replace("580.95.05", "595.58.03"))
    again = node.run()
    assert (again.status, again.texts) == ("changed", (f"rewrites {node.output}",))
    assert "595.58.03" in node.output.read_text()


def test_the_specification_has_the_label_of_the_policy_where_there_is_one(node: Node) -> None:
    node.spec(SPEC)
    node.fake("restorecon", f'echo "$*" >>{node.folder}/labelled; exit 1')  # not even where it fails is that trouble
    assert node.run().status == "changed"
    assert (node.folder / "labelled").read_text() == f"{node.output}\n"


def test_check_mode_says_what_would_change_and_changes_nothing(node: Node) -> None:
    node.spec(SPEC)
    outcome = node.run(check=True)
    assert (outcome.status, outcome.texts) == ("changed", (f"creates {node.output}",))
    assert not node.output.exists()


def test_the_refresh_units_are_enabled_and_watched_without_a_reload_of_systemd(node: Node) -> None:
    node.spec(SPEC)
    node.fake("systemctl", SYSTEMCTL)
    outcome = node.run()
    assert outcome.texts[1:] == (
        "enables nvidia-cdi-refresh.service",
        "enables nvidia-cdi-refresh.path",
        "starts nvidia-cdi-refresh.path",
    )
    assert node.run().status == "unchanged"
    assert "daemon-reload" not in (node.folder / "calls").read_text()


@pytest.mark.parametrize(
    ("unit", "command", "program"),
    [
        ("cdi-refresh", "ExecCondition", "nvidia-smi"),
        ("mps", "ExecStartPre", "nvidia-smi"),
        ("mps", "ExecStart", "nvidia-cuda-mps-control"),
    ],
)
def test_units_of_our_own_find_the_programs_of_a_driver_that_an_image_brought(
    unit: str, command: str, program: str, tmp_path: Path
) -> None:
    (tmp_path / program).write_text("#!/bin/sh\necho found\n")
    (tmp_path / program).chmod(0o755)
    text = (TEMPLATES / f"{unit}.service.j2").read_text().replace("/usr/local/nvidia/bin", str(tmp_path))
    settings = [line.partition("=")[::2] for line in text.splitlines() if "=" in line]
    given = [word.split("=", 1) for name, value in settings if name == "Environment" for word in shlex.split(value)]
    environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin", **dict(given)}
    asked = shlex.split(dict(settings)[command])
    done = subprocess.run(asked, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "found\n", done.stderr


ENDED = """case "$*" in
"show -p Result -p ExecMainStartTimestampMonotonic "*)
  cat "$CALLS.ended" 2>/dev/null || echo "Result=success ExecMainStartTimestampMonotonic=0"; exit ;;
"show -p Result "*) head -n 1 "$CALLS.ended"; exit ;;
"start "*.service) echo "$*" >>"$CALLS"; printf '%s' "$AFTER" >"$CALLS.ended"; exit ;;
esac
"""
RAN = "Result=success\nExecMainStartTimestampMonotonic=4711\n"
PASSED_OVER = "Result=exec-condition\nExecMainStartTimestampMonotonic=0\n"
SERVICE = "start nvidia-cdi-refresh.service"


def test_it_is_kept_so_where_the_refresh_service_has_run(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.spec(SPEC)
    node.fake("systemctl", ENDED + SYSTEMCTL)
    monkeypatch.setenv("AFTER", RAN)
    assert node.run(check=True).message.endswith("would be renewed")
    assert not (node.folder / "calls.ended").exists()
    assert node.run().message == "the CDI specification is what nvidia-ctk makes, and is kept so"
    assert node.run().status == "unchanged"
    assert (node.folder / "calls").read_text().count(SERVICE) == 1


@pytest.mark.parametrize(
    ("after", "note"),
    [
        (PASSED_OVER, "nvidia-cdi-refresh.service passes this node over by its ExecCondition"),
        ("Result=success\nExecMainStartTimestampMonotonic=0\n", "did not run, its conditions are not met"),
        (
            "Result=exit-code\nExecMainStartTimestampMonotonic=4711\n",
            "nvidia-cdi-refresh.service fails (Result=exit-code)",
        ),
    ],
)
def test_it_is_not_called_kept_where_the_refresh_service_renews_nothing(
    node: Node, monkeypatch: pytest.MonkeyPatch, after: str, note: str
) -> None:
    node.spec(SPEC)
    node.fake("systemctl", ENDED + SYSTEMCTL)
    monkeypatch.setenv("AFTER", after)
    outcome = node.run()
    assert (outcome.status, outcome.message) == ("changed", "the CDI specification is what nvidia-ctk makes")
    assert [text for text in outcome.notes if note in text]


def test_units_of_our_own_keep_it_where_those_of_the_toolkit_pass_the_node_over(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a node whose driver is an image's, without a folder in /lib/modules: NVIDIA's unit made nothing there."""
    node.spec(SPEC)
    node.fake("systemctl", ENDED + SYSTEMCTL)
    monkeypatch.setenv("AFTER", PASSED_OVER)
    node.run()
    outcome = node.run(check=True, service="[Service]\n", path="[Path]\n")
    assert outcome.notes[0] == "nvidia-cdi-refresh.service passes this node over by its ExecCondition"
    assert outcome.texts == (
        "creates /etc/systemd/system/gpunode-cdi-refresh.service",
        "creates /etc/systemd/system/gpunode-cdi-refresh.path",
        "enables gpunode-cdi-refresh.service",
        "enables gpunode-cdi-refresh.path",
        "starts gpunode-cdi-refresh.path",
    )


def test_units_of_our_own_are_written_where_the_toolkit_brings_none(node: Node) -> None:
    node.spec(SPEC)
    node.fake("systemctl", SYSTEMCTL.replace('"cat nvidia-cdi-refresh.path") ;;', '"cat "*) exit 1 ;;'))
    outcome = node.run(check=True, service="[Service]\n", path="[Path]\n")
    assert outcome.texts[1:] == (
        "creates /etc/systemd/system/gpunode-cdi-refresh.service",
        "creates /etc/systemd/system/gpunode-cdi-refresh.path",
        "enables gpunode-cdi-refresh.service",
        "enables gpunode-cdi-refresh.path",
        "starts gpunode-cdi-refresh.path",
    )


def test_without_systemd_it_says_that_nothing_renews_it(node: Node) -> None:
    node.spec(SPEC)
    assert node.run().notes == ("no systemd here: after a new driver, run gpunode again",)


def test_a_node_without_a_driver_is_refused_and_keeps_its_specification(node: Node) -> None:
    node.spec(SPEC)
    node.run()
    (node.folder / "spec").unlink()
    outcome = node.run()
    assert outcome.status in ("refused", "failed")  # failed where this machine has a driver of its own
    assert "failed to initialize NVML" in outcome.message
    assert node.output.read_text() == SPEC


def test_a_node_without_nvidia_ctk_is_refused(node: Node) -> None:
    (node.folder / "bin/nvidia-ctk").unlink()
    if shutil.which("nvidia-ctk"):
        pytest.skip("this machine has nvidia-ctk")
    outcome = node.run()
    assert (outcome.status, outcome.message) == ("refused", "nvidia-ctk is not installed")


def test_two_specifications_of_one_folder_are_refused_by_name(node: Node) -> None:
    node.spec(SPEC)
    node.run()
    (node.output.parent / "nvidia.json").write_text("{}")
    outcome = node.run()
    assert (outcome.status, outcome.fix) == ("refused", "remove one of them")
    assert "engines take neither" in outcome.message


def test_a_folder_that_cannot_be_written_is_named(node: Node) -> None:
    node.spec(SPEC)
    (node.folder / "cdi").write_text("a file")
    outcome = node.run()
    assert outcome.status == "refused"
    assert outcome.message == f"{node.folder}/cdi is a file, and {node.output} needs a directory there"


@pytest.mark.parametrize("value", [{"output": "relative.yaml"}, {"output": "/a.txt"}, {"unit": "x"}, {"path": 1}])
def test_a_request_that_means_nothing_is_refused(value: dict[str, object]) -> None:
    with pytest.raises(InputError):
        cdi_request(value)


def test_a_refresh_unit_that_hit_its_start_limit_is_cleared(node: Node) -> None:
    node.spec(SPEC)
    node.fake("systemctl", SYSTEMCTL)
    node.run()
    (node.folder / "calls.failed").touch()
    assert node.run(check=True).texts == ("clears the failure of nvidia-cdi-refresh.service",)
    assert (node.folder / "calls.failed").exists()
    assert node.run().texts == ("clears the failure of nvidia-cdi-refresh.service",)
    assert not (node.folder / "calls.failed").exists() and node.run().status == "unchanged"


# Each call is a place to be killed at: the session of the script, before the command does anything.
KILL = """n=$(($(/bin/cat "$SPEC.calls") + 1))
echo "$n" >"$SPEC.calls"
if [ "$n" = "$(/bin/cat "$SPEC.kill")" ]; then
  read -r _ _ _ _ _ session _ </proc/self/stat
  kill -9 "-$session"
  kill -9 0
fi
"""
WRITERS = ("cat", "chmod", "cp", "dd", "mkdir", "mv", "rm", "sha256sum", "stat", "sync", "touch")


def after_kill(folder: Path, at: int, old: str) -> tuple[Node, bool]:
    """A node whose specification was to be made, or renewed, by a script that was killed at its call number `at`."""
    node = Node(folder, ["dash"])
    if old:
        node.spec(old)
        node.run()
    for name in WRITERS:
        node.fake(name, f'{KILL}exec {shutil.which(name)} "$@"')
    node.spec(SPEC)
    (folder / "spec.calls").write_text("0\n")
    (folder / "spec.kill").write_text(f"{at}\n")
    outcome = node.run()
    (folder / "spec.kill").write_text("0\n")
    return node, outcome.status == "failed"


@pytest.mark.parametrize("old", ["", "# of an older driver\n"])
def test_a_kill_leaves_a_whole_specification_and_the_journal_says_which(tmp_path: Path, old: str) -> None:
    at, seen = 1, set()
    while (found := after_kill(tmp_path / str(at), at, old))[1]:
        node = found[0]
        text = node.output.read_text() if node.output.exists() else ""
        assert text in (old, SPEC), at
        path = node.folder / "state/journal.jsonl"
        records = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        done = [r for r in records if r["op"] == "files" and r["phase"] == "done"]
        assert len(done) <= bool(old) + (text == SPEC), (at, "an outcome before the write")
        seen.add(text)
        assert node.commit().status in ("unchanged", "changed"), at
        left = [path.name for path in node.output.parent.iterdir()] if node.output.parent.exists() else []
        assert left == (["nvidia.yaml"] if text else []), at
        assert (node.output.read_text() if text else "") == text, at
        assert node.run().status == ("unchanged" if text == SPEC else "changed"), at
        assert node.output.read_text() == SPEC
        at += 1
    assert seen == {old, SPEC} and at > 10


def test_a_specification_that_its_refresh_service_has_written_stays_after_a_kill(tmp_path: Path) -> None:
    at, old = 1, "# of an older driver\n"
    while (found := after_kill(tmp_path / str(at), at, old))[1]:
        node = found[0]
        node.output.write_text("# newer\n")
        outcome = node.commit()
        assert (outcome.status in ("unchanged", "changed"), node.output.read_text()) == (True, "# newer\n"), (
            at,
            outcome,
        )
        assert not any("another program" in note for note in outcome.notes), at
        assert [path.name for path in node.output.parent.iterdir()] == ["nvidia.yaml"], at
        at += 1
    assert at > 10
