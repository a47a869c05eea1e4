"""node/undo/restore.sh with a systemctl, modprobe and userdel of the test's own."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from gpunode.core.model import Outcome
from gpunode.core.remote import parse_outcome, program
from gpunode.core.undo.requests import UndoRequest, close_request
from gpunode.node import script

SYSTEMCTL = """#!/bin/sh
echo "$@" >>"$NODE/called"
unit=$(eval echo \\$$#)
case $1 in
  is-active) cat "$NODE/active.$unit" 2>/dev/null || { echo inactive; exit 3; } ;;
  is-enabled) cat "$NODE/enabled.$unit" 2>/dev/null || echo disabled ;;
  --no-reload) echo "Removed a link." ;;
  stop) [ ! -e "$NODE/stuck" ] || { echo 'Job failed' >&2; exit 1; } ;;
esac
"""
SHIM = '#!/bin/sh\necho "${0##*/} $*" >>"$NODE/called"\n'


class Node:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.state = root / "state"
        (root / "bin").mkdir()
        for name, text in {"systemctl": SYSTEMCTL, "modprobe": SHIM, "update-initramfs": SHIM}.items():
            (root / "bin" / name).write_text(text)
            (root / "bin" / name).chmod(0o755)

    def run(self, **request: str | bytes) -> Outcome:
        files = {name: text if isinstance(text, bytes) else text.encode() for name, text in request.items()}
        files["state"] = f"{self.state}\n".encode()
        done = subprocess.run(
            ["sh", "-s"],
            input=program(script("restore.sh"), files),
            capture_output=True,
            text=True,
            env={"PATH": f"{self.root}/bin:/usr/bin:/bin", "NODE": str(self.root), "TMPDIR": str(self.root)},
            check=False,
        )
        return parse_outcome(done.stdout + done.stderr, done.returncode)

    def called(self) -> list[str]:
        path = self.root / "called"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for line in lines if not line.startswith("is-")]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_only_units_that_run_are_stopped_and_only_enabled_ones_disabled(node: Node) -> None:
    (node.root / "active.a.service").write_text("active\n")
    (node.root / "enabled.b.service").write_text("enabled\n")
    outcome = node.run(stop="a.service\nb.service\n", disable="a.service\nb.service\n")
    assert (outcome.status, outcome.texts) == ("changed", ("stop a.service", "disable b.service"))
    assert node.called() == ["stop a.service", "--no-reload disable b.service"]


def test_units_that_gpunode_took_away_are_enabled_and_started_unless_they_are(node: Node) -> None:
    (node.root / "active.a.service").write_text("active\n")
    (node.root / "enabled.a.service").write_text("enabled\n")
    outcome = node.run(enable="a.service\nb.service\n", start="a.service\nb.service\n")
    assert (outcome.status, outcome.texts) == ("changed", ("enable b.service", "start b.service"))
    assert node.called() == ["--no-reload enable b.service", "reset-failed b.service", "start b.service"]


def test_check_mode_says_the_same_and_does_nothing(node: Node) -> None:
    (node.root / "active.a.service").write_text("active\n")
    image = node.root / "initrd.img"
    image.write_text("x")
    request = {"stop": "a.service\n", "initramfs": f"{image} absent\n", "close": "uninstall\n", "check": "1\n"}
    outcome = node.run(**request, rebuild="1\n")
    assert outcome.texts == ("stop a.service", "rebuild the initramfs", f"remove {image}")
    assert node.called() == [] and image.exists() and not node.state.exists()


def test_what_another_command_printed_is_not_the_reason_of_one_that_says_nothing(node: Node) -> None:
    (node.root / "enabled.a.service").write_text("enabled\n")
    outcome = node.run(disable="a.service\n", load="of_no_kernel\n")
    assert outcome.texts == ("disable a.service",)
    assert outcome.notes == ("of_no_kernel is not loaded again before the next boot",)


def test_a_unit_that_does_not_stop_ends_it(node: Node) -> None:
    (node.root / "active.a.service").write_text("active\n")
    (node.root / "stuck").touch()
    outcome = node.run(stop="a.service\n", rebuild="1\n")
    assert outcome.status == "failed" and outcome.message == "a.service cannot be stopped: Job failed"
    assert node.called() == ["stop a.service"]


def test_links_and_images_that_gpunode_made_go_and_again_nothing_is_left_to_do(node: Node) -> None:
    link, image, cdi = node.root / "195:0", node.root / "initrd.img", node.root / "nvidia.yaml"
    link.symlink_to("/dev/null")
    image.write_text("x")
    cdi.write_text("x")
    request = {"link": f"{link} absent\n", "initramfs": f"{image} absent\n", "cdi": f"{cdi} absent\n"}
    assert node.run(**request).texts[-2:] == (f"remove {cdi}", f"remove {image}")
    assert not link.is_symlink() and not image.exists() and not cdi.exists()
    assert node.run(**request).status == "unchanged"


def test_an_image_that_rebuilding_makes_again_goes_all_the_same(node: Node) -> None:
    image = node.root / "initrd.img"
    (node.root / "bin/update-initramfs").write_text(f"#!/bin/sh\necho x >{image}\n")
    outcome = node.run(initramfs=f"{image} absent\n", rebuild="1\n")
    assert outcome.texts == ("rebuild the initramfs (update-initramfs)", f"remove {image}")
    assert not image.exists()


def test_a_module_that_does_not_load_is_a_note(node: Node) -> None:
    outcome = node.run(load="no_such_module\n")
    assert outcome.status == "unchanged"
    assert outcome.notes[0].startswith("no_such_module is not loaded again before the next boot")


@pytest.mark.parametrize(
    ("verb", "keep", "kept"), [("uninstall", False, False), ("uninstall", True, True), ("rollback", False, True)]
)
def test_the_journal_says_when_it_is_done_and_copies_go_after_an_uninstall(
    node: Node, verb: str, keep: bool, kept: bool
) -> None:
    (node.state / "backup/x").mkdir(parents=True)
    (node.state / "journal.jsonl").write_text('{"v":1,"id":"a","op":"files"}\n')
    node.run(run=b"r9\n", **close_request(UndoRequest(verb=verb), "r1", keep=keep))  # type: ignore[arg-type]
    last = json.loads((node.state / "journal.jsonl").read_text().splitlines()[-1])
    assert (last["op"], last["phase"], last["run"], last.get("to")) == (
        verb,
        "done",
        "r9",
        "r1" if verb == "rollback" else None,
    )
    assert (node.state / "backup").exists() == kept
