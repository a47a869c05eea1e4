"""Services and modules that a script takes out of the way, killed at each step: the next run brings them back."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from test_activate_sh import MODINFO, MODPROBE

from gpunode.core.edits.commit import commit_request
from gpunode.core.facts.machine import unfinished
from gpunode.core.items.activation import activate_request
from gpunode.core.items.runfile import runfile_request
from gpunode.core.items.sharing import mig_request
from gpunode.core.model import MigInstance, NodeFacts, NvmlGpu, Outcome, Sharing
from gpunode.core.remote import parse_outcome, program
from gpunode.node import script

UNITS = ("nvidia-persistenced", "dcgm")
MODULES = ("nvidia", "nvidia_fs", "nvidia_uvm")
SLOT = "0000:17:00.0"
NAME = "NVIDIA-Linux-x86_64-535.274.02.run"
# Before each call that changes something, and after each of systemctl's, all of the PID namespace but its first process
# is killed; nothing is without a namespace of its own.
COUNT = """if [ -n "$GPUNODE_IN" ]; then
  n=$(($(cat "$NODE/calls") + 1))
  echo "$n" >"$NODE/calls"
  [ "$n" != "$(cat "$NODE/kill")" ] || [ "$(readlink /proc/1/ns/pid)" = "$OUTSIDE" ] || { kill -9 -1; kill -9 $$; }
fi
"""
SYSTEMCTL = """#!/bin/sh
unit=$3
[ "$1" = is-active ] && [ "$2" = -q ] || unit=$2
unit=${unit%.service}
case $1 in
  start | stop) COUNT ;;
esac
case $1 in
  is-active) [ -e "$NODE/active/$unit" ] ;;
  start) : >"$NODE/active/$unit" ;;
  stop) rm "$NODE/active/$unit" ;;
  *) exit 1 ;;
esac || exit
case $1 in
  start | stop) COUNT ;;
esac
"""
# MIG takes a reset, as on Ampere
SMI = """#!/bin/sh
case "$*" in
  *index,pci.bus_id*) echo '0, 00000000:17:00.0' ;;
  *mig.mode.current*) cat "$NODE/mode" ;;
  *mig.mode.pending*) cat "$NODE/pending" ;;
  *"-mig 1") echo Enabled >"$NODE/pending" ;;
  *--gpu-reset) COUNT cp "$NODE/pending" "$NODE/mode" ;;
  *-lgi) [ ! -e "$NODE/cut" ] || echo '| 0 MIG 7g.80gb 0 1 0:8 |' ;;
  *-lci) [ ! -e "$NODE/cut" ] || echo '|   0   1   MIG 7g.80gb  0  0  0:1 |' ;;
  *-cgi*) : >"$NODE/cut" ;;
esac
"""
INSTALLER = """#!/bin/sh
COUNT
echo 535.274.02 >"$NODE/installed"
cp "$NODE/installed" "$NODE/nvidia.log"
"""
INSIDE = """
mount --bind "$NODE/module" /sys/module && mount -t tmpfs none /var/lib && mkdir /var/lib/gpunode || exit 99
mount --bind "$NODE/state" /var/lib/gpunode || exit 99
for name in $LOADED; do modprobe "$name"; done
sh -s
status=$?
ls /sys/module >"$NODE/loaded"
exit $status
"""


class Node:
    killed = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("bin", "module", "state/runfile", "active"):
            (folder / name).mkdir(parents=True)
        shims = {"modprobe": MODPROBE.replace("#!/bin/sh\n", f"#!/bin/sh\n{COUNT}"), "modinfo": MODINFO}
        shims |= {"systemctl": SYSTEMCTL.replace("COUNT", COUNT), "nvidia-smi": SMI.replace("COUNT", COUNT)}
        for name, text in shims.items():
            (folder / "bin" / name).write_text(text)
            (folder / "bin" / name).chmod(0o755)
        for name, text in {"installed": "580.95.05", "lacks": "", "mode": "Disabled", "pending": "Disabled"}.items():
            (folder / name).write_text(f"{text}\n")
        for unit in UNITS:
            (folder / "active" / unit).touch()
        installer = INSTALLER.replace("COUNT\n", COUNT)
        (folder / "state/runfile" / NAME).write_text(installer)
        sums = subprocess.run(["sha256sum"], input=installer, capture_output=True, text=True, check=True).stdout
        (folder / f"state/runfile/{NAME}.sha256").write_text(f"{sums.split()[0]}\n")

    def run(self, name: str, request: dict[str, bytes], *, kill: int = 0, loaded: tuple[str, ...] = ()) -> Outcome:
        (self.folder / "calls").write_text("0\n")
        (self.folder / "kill").write_text(f"{kill}\n")
        text = script(name).replace("/var/lib/nvidia/log", f"{self.folder}/nvidia.log")
        for path in ("/proc/driver/nvidia", "/boot/", "/usr/lib/", "/lib/modules"):
            text = text.replace(path, f"{self.folder}{path}")
        done = subprocess.run(
            ["unshare", "-m", "-p", "-f", "--mount-proc", "sh", "-c", INSIDE],
            input=program(text, request),
            capture_output=True,
            text=True,
            check=False,
            env={
                "PATH": f"{self.folder}/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                "NODE": str(self.folder),
                "LOADED": " ".join(loaded),
                "OUTSIDE": str(Path("/proc/self/ns/pid").readlink()),
                "GPUNODE_IN": "",
            },
        )
        if done.returncode == 99 or "unshare" in done.stderr:
            pytest.skip("no mount namespaces here")
        self.killed = done.returncode == 137
        return parse_outcome(done.stdout, done.returncode)

    @property
    def state(self) -> tuple[list[str], list[str]]:
        loaded = (self.folder / "loaded").read_text().split()
        return loaded, sorted(path.name for path in (self.folder / "active").iterdir())

    @property
    def records(self) -> list[dict[str, str]]:
        path = self.folder / "state/journal.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def paused(self) -> tuple[str, ...]:
        return unfinished((r["phase"], r["id"]) for r in self.records if r["op"] == "pause")

    def start(self, what: str, kill: int = 0) -> Outcome:
        loaded = () if (self.folder / "loaded").exists() else MODULES
        return self.run(f"{what}.sh", request_of(what), kill=kill, loaded=loaded)


def request_of(what: str) -> dict[str, bytes]:
    if what == "activate":
        return activate_request({"load": ["nvidia"], "version": "580.178.04"})
    if what == "runfile":
        value = {"kind": "driver", "name": NAME, "version": "535.274.02", "options": ["--silent", "--no-nouveau-check"]}
        return runfile_request("install", value)
    other = MigInstance(gpu=1, id=1, profile="7g.80gb", start=0, size=8, computes=1)
    facts = NodeFacts(nvml=(NvmlGpu(index=0, slot=SLOT),), sharing=Sharing(instances=(other,)))
    instance = {"profile": "7g.80gb", "id": 0, "start": 0}
    return mig_request({"gpus": [{"slot": SLOT, "mode": "on", "instances": [instance]}]}, facts, "")


ALL = (list(MODULES), sorted(UNITS))


def killed_node(folder: Path, what: str, at: int) -> Node:
    node = Node(folder)
    node.start(what, at)
    return node


@pytest.mark.parametrize("what", ["activate", "runfile", "mig"])
def test_what_a_killed_run_has_stopped_and_unloaded_the_next_one_brings_back(tmp_path: Path, what: str) -> None:
    down, at = 0, 1
    while (node := killed_node(tmp_path / str(at), what, at)).killed:
        before, expected = node.state, bool(node.paused)
        checked = node.run("commit.sh", commit_request(check=True))
        assert node.state == before, (at, "check mode changes nothing")
        outcome = node.run("commit.sh", commit_request())
        assert node.state == ALL, (at, before, outcome)
        assert node.paused == (), (at, outcome)
        assert (checked.status, outcome.status) == ("changed" if expected else "unchanged",) * 2, (at, checked, outcome)
        assert len(checked.changed) == len(outcome.changed), (at, checked, outcome)
        assert node.run("commit.sh", commit_request()).status == "unchanged"
        down += before != ALL
        shutil.rmtree(node.folder)
        at += 1
    assert down >= len(UNITS), "it was killed with services down"
    assert (node.state[1], node.paused) == (sorted(UNITS), ()), "a run to the end leaves nothing open"
    assert any(record["op"] == "pause" for record in node.records)


def test_what_cannot_load_yet_is_tried_once_more_and_then_left(tmp_path: Path) -> None:
    node = killed_node(tmp_path / "node", "runfile", 8)
    assert node.killed and node.state[0] != list(MODULES)
    (node.folder / "lacks").write_text("".join(f"{name}\n" for name in MODULES))
    first = node.run("commit.sh", commit_request())
    assert (first.status, bool(node.paused), node.state[1]) == ("changed", True, sorted(UNITS))
    assert any("does not load now" in note for note in first.notes)
    (node.folder / "lacks").write_text("")
    assert node.start("runfile").status == "changed", "the step that brings the driver"
    assert (node.state, node.paused) == (ALL, ())
    again = killed_node(tmp_path / "again", "runfile", 8)
    (again.folder / "lacks").write_text("nvidia\n")
    again.run("commit.sh", commit_request())
    assert again.paused
    again.run("commit.sh", commit_request())
    assert not again.paused
    assert again.run("commit.sh", commit_request()).status == "unchanged"


def test_after_a_boot_nothing_is_brought_back(tmp_path: Path) -> None:
    node = killed_node(tmp_path / "node", "activate", 6)
    path = node.folder / "state/journal.jsonl"
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    path.write_text(path.read_text().replace(boot, "00000000-0000-4000-8000-000000000000"))
    before = node.state
    node.run("commit.sh", commit_request())
    assert (node.state, node.paused) == (before, ())


def test_a_journal_of_another_tree_starts_nothing_on_this_machine(tmp_path: Path) -> None:
    node = killed_node(tmp_path / "node", "activate", 6)
    before = node.state
    elsewhere = {"state": b"/var/lib/gpunode\n"}
    assert node.run("commit.sh", commit_request() | elsewhere).status == "unchanged"
    assert node.state == before and node.paused


def test_a_journal_of_an_older_version_names_nothing_to_bring_back(tmp_path: Path) -> None:
    node = killed_node(tmp_path / "node", "activate", 6)
    path = node.folder / "state/journal.jsonl"
    path.write_text("".join(f"{json.dumps(r, separators=(',', ':'))}\n" for r in node.records if r["op"] != "pause"))
    before = node.state
    assert node.run("commit.sh", commit_request()).status == "unchanged"
    assert node.state == before
