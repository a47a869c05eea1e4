"""The first provision of a node against a script by hand (by_hand.sh), in turns on equal nodes, with the same packages.

Smoke tests, which the script does not have, are counted apart.  `python -m benchmarks.first_provision debian:12`: that
distribution only.
"""

from __future__ import annotations

import base64
import io
import json
import re
import shlex
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from benchmarks.measure import ENVIRONMENT, GPUNODE, children_cpu, log, row, run
from gpunode import lab
from gpunode.core.errors import GpunodeError
from gpunode.lab import Lab, Node
from gpunode.lab.machine import podman
from gpunode.lab.packages_vendor import canonical

ROUNDS = 2
SCRIPT = Path(__file__).with_name("by_hand.sh")
PLACE = "/root/by-hand"
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "debian:12": ("Debian 12, stub packages", {}),
    "ubuntu:24.04": (
        "Ubuntu 24.04, Canonical's own user space of 580",
        {"driver": {"branch": "580", "modules": "precompiled"}},
    ),
}
START, QUESTION, ANSIBLE, BETWEEN, LAST = (
    "start and probe",
    "question to apt and plan",
    "Ansible's start",
    "between steps",
    "last probe",
)
# what a line of --log-file is the start of
PARTS = (
    (re.compile(r" DEBUG \S+: probed, "), QUESTION),
    (re.compile(r" INFO in /\S+: "), ANSIBLE),
    (re.compile(r" DEBUG \S+: (.+): started \("), ""),
    (re.compile(r" DEBUG \S+: .+: (?:ok|changed) \("), LAST),
)


@dataclass(frozen=True)
class Part:
    """A part of a run: seconds of the clock, and of the node's CPU."""

    what: str
    seconds: float
    cpu: float


@dataclass(frozen=True)
class Timed:
    """A run; all in seconds."""

    parts: tuple[Part, ...]
    controller: float

    @property
    def seconds(self) -> float:
        return sum(part.seconds for part in self.parts)

    @property
    def cpu(self) -> float:
        return sum(part.cpu for part in self.parts)

    def without(self, what: str) -> Timed:
        return Timed(tuple(part for part in self.parts if part.what != what), self.controller)


def plan_of(made: Lab, host: str, spec: Path | None = None) -> list[dict[str, Any]]:
    words = ("-i", made.inventory, "-c", spec or made.spec, "--limit", host)
    return list(json.loads(run(GPUNODE, "plan", *words, "--format", "json", ok=(3,)))["hosts"][0]["steps"])


def on_node(made: Lab, host: str, command: str, *, stdin: str = "") -> str:
    done = made.run(host, command, stdin=stdin)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def asked_for(steps: list[dict[str, Any]]) -> list[str]:
    """Names of the packages that the plan names; the others are their dependencies."""
    return sorted({p["name"] for step in steps if step["option"] == "packages" for p in step["value"]["install"]})


def installed(made: Lab, host: str) -> set[str]:
    """Every package of a node as NAME=VERSION."""
    return set(made.run(host, "dpkg-query -W -f '${Package}=${Version}\\n'").stdout.split())


# ---------------------------------------------------------------- measured


def node_cpu(node: Node) -> Callable[[], float]:
    """Reads how many seconds of CPU the container of a node has had, all its processes together."""
    pid = podman("inspect", "--format", "{{.State.Pid}}", node.container).stdout.strip()
    groups = dict(line.split(":", 2)[1:] for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines())
    if "cpuacct" in groups:
        usage = Path(f"/sys/fs/cgroup/cpuacct{groups['cpuacct']}/cpuacct.usage")
        return lambda: int(usage.read_text()) / 1e9
    stat = Path(f"/sys/fs/cgroup{groups[''].removesuffix('/init.scope')}/cpu.stat")
    return lambda: int(stat.read_text().split()[1]) / 1e6


def timed(words: Iterable[object], node: Node, messages: Path | None = None) -> Timed:
    """Run a command that changes a node; its parts by what is appended to `messages`."""
    read, before = node_cpu(node), children_cpu()
    marks = [(START, time.perf_counter(), read())]
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            [str(word) for word in words], stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=ENVIRONMENT
        )
        heard = messages.open() if messages else io.StringIO()
        while process.poll() is None:
            for line in heard.readlines():
                part = begun(line)
                if part and not (part == QUESTION and marks[-1][0] == LAST):  # probed again
                    marks.append((part, time.perf_counter(), read()))
            time.sleep(0.02)
        marks.append(("", time.perf_counter(), read()))
        output.seek(0)
        assert process.returncode == 0, output.read()
    parts = []
    for (what, start, earlier), (then, end, after) in pairwise(marks):
        parts.append(Part(BETWEEN if what == LAST and then else what, end - start, after - earlier))
    return Timed(tuple(parts), children_cpu() - before)


def begun(line: str) -> str:
    """The part of a run that such a message is the start of; empty for another one."""
    found = ((pattern.search(line), part) for pattern, part in PARTS)
    return next((part or match[1] for match, part in found if match), "")


def provision(made: Lab, node: Node, spec: Path) -> Timed:
    with tempfile.NamedTemporaryFile("r") as messages:
        words = (GPUNODE, "provision", "-i", made.inventory, "-c", spec, "--limit", node.name, "--yes")
        return timed([*words, "--log-file", messages.name], node, Path(messages.name))


def by_hand(made: Lab, node: Node) -> Timed:
    return timed(["ssh", "-F", made.ssh_config, node.name, f"sh {PLACE}/by_hand.sh"], node)


# ---------------------------------------------------------------- the script


def archive(files: Iterable[dict[str, Any]]) -> str:
    with io.BytesIO() as data:
        with tarfile.open(fileobj=data, mode="w") as tar:
            for file in files:
                text = file["content"].encode()
                member = tarfile.TarInfo(file["path"].lstrip("/"))
                member.size, member.mode = len(text), int(file["mode"], 8)
                tar.addfile(member, io.BytesIO(text))
        return base64.b64encode(data.getvalue()).decode()


def script_from(made: Lab, done: Node, steps: list[dict[str, Any]], before: set[str]) -> dict[str, str]:
    """The files of by_hand.sh, in base64: what the plan names, versions and engines as on node `done`."""
    packages = [one for step in steps if step["option"] == "packages" for one in step["value"]["install"]]
    files = [file for step in steps if step["option"] in ("sources", "files") for file in step["value"]]
    activate = [step["value"] for step in steps if step["option"] == "activate"]
    wanted = sorted(p for p in installed(made, done.name) - before if p.split("=")[0] in asked_for(steps))
    headers = [p for p in wanted if p.startswith("linux-headers-")]
    words = {
        "gone": [file["path"] for file in files if file["content"] is None],
        "headers": headers,
        "packages": [p for p in wanted if p not in headers],
        "held": [one["name"] for one in packages if one["hold"]],
        "modules": [module for value in activate for module in value["load"]],
        "services": [service for value in activate for service in value["services"]],
        "engines": [edit["runtime"] for step in steps if step["option"] == "edits" for edit in step["value"]],
    }
    text = "".join(f"{name}={shlex.quote(' '.join(some))}\n" for name, some in words.items())
    return {
        "by_hand.sh": base64.b64encode(SCRIPT.read_bytes()).decode(),
        "words": base64.b64encode(text.encode()).decode(),
        "files.tar": archive(file for file in files if file["content"] is not None),
        "engines.tar": on_node(made, done.name, "tar -C / -c etc/containerd etc/docker | base64 --wrap=0"),
    }


def lay_out(made: Lab, node: Node, script: dict[str, str]) -> None:
    for name, data in script.items():
        on_node(made, node.name, f"mkdir -p {PLACE} && base64 -d >{PLACE}/{name}", stdin=data)


# ---------------------------------------------------------------- the rows


def measure(distro: str) -> None:
    title, wish = KINDS[distro]
    name = f"bench-{distro.partition(':')[0]}"
    with lab.up(2, name=name, distro=distro, log=log) as made, tempfile.TemporaryDirectory() as tmp:
        spec = Path(tmp, "gpunode.yml")
        spec.write_text(yaml.safe_dump(yaml.safe_load(made.spec.read_text()) | wish))
        one, other = made.nodes
        steps, before = plan_of(made, other.name, spec), installed(made, other.name)
        smoke = next(step["title"] for step in steps if step["option"] == "smoke")
        ours, theirs = [provision(made, one, spec)], []
        have = installed(made, one.name)
        script = script_from(made, one, steps, before)
        for turn in range(ROUNDS):
            if turn:
                made.reset(log=log)
                ours.append(provision(made, other, spec))
            bare = one if turn else other
            lay_out(made, bare, script)
            theirs.append(by_hand(made, bare))
            same = (have & installed(made, bare.name)) - before
    whole = min(ours, key=lambda run: run.seconds)
    best, hand = whole.without(smoke), min(theirs, key=lambda run: run.seconds)
    more = best.seconds - hand.seconds
    row(
        f"first `provision` of a node against a script by hand ({title}; {len(same)} of {len(have - before)} packages "
        f"the same), smoke tests ({whole.seconds - best.seconds:.1f} s) apart",
        f"{best.seconds:.1f} s against {hand.seconds:.1f} s: {more:+.1f} s",
        "≤ the script's time + 10 s",
    )
    row("… CPU time of the node, without smoke tests", f"{best.cpu:.1f} s against {hand.cpu:.1f} s")
    row("… CPU time of the controller", f"{best.controller:.1f} s against {hand.controller:.1f} s")
    parts: dict[str, tuple[float, float]] = {}
    for part in whole.parts:
        past = parts.get(part.what, (0.0, 0.0))
        parts[part.what] = (past[0] + part.seconds, past[1] + part.cpu)
    text = "; ".join(f"{what} {clock:.1f} ({cpu:.1f})" for what, (clock, cpu) in parts.items())
    row("… where the seconds went (CPU time of the node)", text)


def main(distros: Iterable[str]) -> None:
    for distro in distros:
        left_out = ""
        try:
            names = {path.name for path in canonical("24.04", log=log).values()} if distro != "debian:12" else set()
            if distro == "debian:12" or any(name.startswith("nvidia-utils-580-server_") for name in names):
                measure(distro)
                continue
            left_out = "Ubuntu's archive does not give NVIDIA's packages"
        except GpunodeError as error:
            left_out = str(error)
        row(f"first `provision` of a node against a script by hand ({KINDS[distro][0]})", f"left out: {left_out}")


if __name__ == "__main__":
    main(sys.argv[1:] or KINDS)
