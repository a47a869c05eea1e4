"""A lab node that is set up and taken back, and photos of it in between."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

DAEMON = "/etc/docker/daemon.json"
TREE = (Path(__file__).parent / "tree.sh").read_text()
STATES = """
lsmod | cut -d ' ' -f 1 | sort; cat /sys/module/nvidia/version 2>/dev/null
systemctl list-units --type=service --state=active --no-legend --plain | cut -d ' ' -f 1 |
  grep -E 'nvidia|containerd|docker'
if command -v apt-mark >/dev/null; then
  apt-mark showhold | sed 's/^/hold /'
  apt-mark showmanual | sed 's/^/manual /'
  { dpkg-query -W -f 'known ${Package}\\n'; awk -v RS= '$6 == 1 { print "auto", $2, $4 }' /var/lib/apt/extended_states
  } | awk '$1 == "known" { known[$2]; next } $2 in known' | sort  # apt forgets the marks of what is gone
fi
if command -v dnf >/dev/null; then
  dnf -q -C repoquery --userinstalled --qf '%{name}' 2>/dev/null | sort
  sed -n '/^[^#]/s/^/lock /p' /etc/dnf/plugins/versionlock.list 2>/dev/null | sort
fi
[ ! -e /var/lib/zypp/AutoInstalled ] || sed -n '/^[^#]/s/^/auto /p' /var/lib/zypp/AutoInstalled | sort -u
true"""
# apt and zypper write their marks in an order of their own, dnf the date beside its locks, and STATES has what they
# say; a log of DKMS has the date in it
LEFT_OUT = re.compile(
    r"\./var/lib/(apt/extended_states |zypp/AutoInstalled |dkms/.*/log/make\.log )"
    r"|\./etc/dnf/plugins/versionlock\.list [0-9a-f]{64}$"
    r"|\./usr/lib/sysimage/rpm/rpmdb\.sqlite "  # a database has free pages
)
# all processes of gpunode's scripts; %s is a signal
SIGNAL = (
    "pkill -%s -x -f '(/bin/)?sh -s'; "  # the main one first: an operation takes milliseconds
    "for p in /proc/[0-9]*; do "
    "tr '\\0' '\\n' < $p/environ 2>/dev/null | grep -q ^GPUNODE_IN= && kill -%s ${p#/proc/}; done; true"
)
# stops the main one, by what the shell itself can: an operation may be over before another process has started
HELD = 'for one in /tmp/gpunode.*/.alive; do while read -r pid _; do kill -STOP "$pid"; done <"$one"; done 2>/dev/null'
# reads the journal until a line after so many has an operation; a process for each look would be too slow
AWAIT = """exec 3</var/lib/gpunode/journal.jsonl
hit='' lines=0 looks=0
while [ -z "$hit" ] && [ $looks -lt 20000 ]; do
  looks=$((looks + 1))
  while IFS= read -r line <&3; do
    lines=$((lines + 1))
    case $line in *'"op":"%s"'*) [ $lines -le %d ] || { hit=1; %s; break; } ;; esac
  done
  [ "$hit" ] || sleep 0.005
done
[ "$hit" ]"""


class Node:
    """One lab node, its spec, and gpunode on it."""

    def __init__(self, lab: Any, run: Any, tmp: Path) -> None:
        self.lab, self._run = lab, run
        self.state = {"XDG_STATE_HOME": str(tmp / "state")}  # of one controller, whichever way it is called
        self.spec = tmp / f"{lab.name}.yml"
        self.before: list[str] = []

    def provision(self, **spec: Any) -> str:
        """The name of the run."""
        self.spec_of(**spec)
        done = self.json("provision", "-c", self.spec, "--yes")
        assert done["changed"]
        return str(done["extra"]["run"])

    def has(self, **spec: Any) -> None:
        """As provision leaves it, whichever test was the last one here."""
        self.spec_of(**spec)
        self.json("provision", "-c", self.spec, "--yes")

    def spec_of(self, **spec: Any) -> None:
        self.spec.write_text(yaml.safe_dump(yaml.safe_load(self.lab.spec.read_text()) | spec))

    def json(self, verb: str, *args: object, exit: int | None = 0) -> dict[str, Any]:
        done = self._run(verb, "-i", self.lab.inventory, *args, "--format", "json", exit=exit, env=self.state)
        [host] = json.loads(done.stdout)["hosts"]
        return dict(host)

    def resume(self) -> None:
        """The last run goes on where it was cut off."""
        self._run("runs", "resume", "last", "--yes", env=self.state)

    def runs(self) -> list[str]:
        return [run["name"] for run in self.json("rollback", "--list")["runs"]]

    def sh(self, command: str) -> str:
        done = self.lab.run(self.lab.nodes[0], command)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return str(done.stdout)

    def photo(self) -> list[str]:
        """The tree, and what is in force beside it."""
        tree = [line for line in self.sh(TREE).splitlines() if not LEFT_OUT.match(line)]
        return [*tree, *self.sh(STATES).splitlines()]

    def differs(self, before: list[str]) -> str:
        """What is not as in an earlier photo, "" when nothing is."""
        lines = sorted({*before} ^ {*self.photo()})
        return "".join(f"{'-' if line in before else '+'} {line}\n" for line in lines)

    def cut_off(self, verb: str, at: str, *, controller: bool, shell: bool) -> None:
        """Begin `verb`; when the journal has its intent of the operation `at`, kill one of them, or both."""
        known = len(self.sh("cat /var/lib/gpunode/journal.jsonl").splitlines())
        spec = ["-c", str(self.spec)] if verb == "provision" else []
        command = [sys.executable, "-m", "gpunode", verb, "-i", str(self.lab.inventory), *spec, "--yes"]
        running = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ | self.state
        )
        # the node itself watches, and stops it there
        self.sh(f"{AWAIT % (at, known, HELD)} && {{ {self.signal('STOP')}; }}")
        if controller:
            running.kill()
        self.sh(self.signal("KILL" if shell else "CONT"))
        printed, _ = running.communicate(timeout=120)
        assert running.returncode != 0, printed

    def interrupt(self, verb: str, at: str) -> str:
        """Begin `verb`; Ctrl-C when the journal has its intent of the operation `at`.  What it printed."""
        known = len(self.sh("cat /var/lib/gpunode/journal.jsonl").splitlines())
        command = [sys.executable, "-m", "gpunode", verb, "-i", str(self.lab.inventory), "-c", str(self.spec), "--yes"]
        running = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | self.state,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # background jobs ignore it
        )
        self.sh(AWAIT % (at, known, ":"))
        os.killpg(running.pid, signal.SIGINT)
        printed, _ = running.communicate(timeout=300)
        assert running.returncode == 130, printed
        return printed

    @staticmethod
    def signal(name: str) -> str:
        return SIGNAL.replace("%s", name)
