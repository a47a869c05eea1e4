"""Edits, a person's changes, kills and undos in turn on nodes of two families, judged by trees with modes and owners.

The oracle knows nothing of gpunode: it is the same node on which the person has done the same without it.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from daemon_node import DaemonNode
from edit_cases import edit_request
from undo_node import DAEMON, Node

from gpunode.core.edits import RuntimeRequest, edit_runtime
from gpunode.core.model import Outcome
from gpunode.core.remote import program
from gpunode.node import script

pytestmark = [pytest.mark.lab, pytest.mark.extended, pytest.mark.timeout(1800)]

CONFIG = "/etc/containerd/config.toml"
FRESH = f"""
rm -rf {DAEMON} /etc/containerd /srv/cm /var/lib/gpunode && mkdir -p /etc/docker /etc/containerd /srv/cm
cat >{CONFIG} <<'EOF'
version = 2
# of a person
[plugins."io.containerd.grpc.v1.cri".containerd]
  default_runtime_name = "runc"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
EOF
printf '{{\\n  "log-level": "warn",\\n  "debug": false\\n}}\\n' >{DAEMON}
chmod 640 {DAEMON} && chown root:docker {DAEMON}
"""
RESTARTED = "systemctl reset-failed; systemctl restart containerd docker"
ACLS = "getfacl -R -p /etc/docker /etc/containerd /srv/cm"
KEY = f"""$ sed -i '1a\\  "dns": ["1.1.1.1"],' {DAEMON}"""
MOVED = "mv {0} /srv/cm/moved && ln -s /srv/cm/moved {0}"
READER = f"setfacl -m u:nobody:r {DAEMON}"
# `! COMMAND` is before gpunode, `$ COMMAND` after it, both of a person; `killed ENGINE PART`: kill -9 behind that part
SEQUENCES = {
    "a second run changes nothing": ["edit docker", "edit docker", "edit containerd", "edit containerd", "undo"],
    "a key of a person stays": ["edit docker", KEY, "undo"],
    "a key between two edits stays": ["edit docker", KEY, "edit docker nvidia", "undo"],
    "a value of a person stays": ["edit docker nvidia", f"$ sed -i s/warn/info/ {DAEMON}", "undo"],
    "a file behind a link": ["edit docker", f"$ {MOVED.format(DAEMON)}", "undo", "undo"],
    "a link that became a file": [
        f"! {MOVED.format(CONFIG)}",
        "edit containerd",
        f"$ sed -i 's/a person/another person/' {CONFIG}",
        "undo",
    ],
    "mode and owner of a person stay": ["edit containerd", f"$ chmod 600 {CONFIG}; chgrp docker {CONFIG}", "undo"],
    "an ACL of before": [f"! {READER}", "edit docker", "edit docker nvidia", "undo"],
    "an ACL of later stays": ["edit docker", f"$ {READER}", "edit docker nvidia", "undo"],
    "a file that gpunode made": [f"! rm {DAEMON}", "edit docker", "undo"],
    "a file that is gone": ["edit docker", f"$ rm {DAEMON}", "undo"],
    "killed before the first file": ["killed docker stage_all", "edit docker", "undo"],
    "killed behind the last file": ["killed docker install_all", KEY, "undo"],
    "an undo that was cut off": ["edit docker", "edit containerd", "cut off", "undo", "undo"],
}


class Sequenced:
    """A node, and what the words of a sequence do on it."""

    def __init__(self, node: Node) -> None:
        self.node, self.engines = node, DaemonNode(node.lab)

    def fresh(self, before: Iterable[str]) -> None:
        self.node.sh("\n".join((FRESH, *before, RESTARTED)))

    def photo(self) -> list[str]:
        return [*self.node.photo(), *self.node.sh(ACLS).splitlines()]

    def step(self, words: str) -> None:
        if words.startswith("$ "):
            self.node.sh(words[2:])
        elif words == "undo":
            self.node.json("uninstall", "--yes")
        elif words == "cut off":
            self.node.cut_off("uninstall", "files", controller=True, shell=True)
        else:
            verb, engine, *more = words.split()
            self.edit(engine, default="nvidia" in more, killed=more[0] if verb == "killed" else "")

    def edit(self, engine: Any, *, default: bool, killed: str) -> Outcome | None:
        request = RuntimeRequest(runtime=engine, default_runtime="nvidia" if default else "keep")
        facts = self.engines.facts()
        edit = edit_runtime(facts, request)
        asked = edit_request(facts, request, edit)
        if killed:
            text = script("commit.sh").replace(f"\n{killed}\n", f"\n{killed}\nkill -9 $$\n")
            assert self.engines.run(program(text, asked)).returncode != 0
            return None
        outcome = self.engines.commit(asked)
        assert outcome.status == ("changed" if edit.changes else "unchanged"), outcome
        return outcome


@pytest.fixture(scope="module", params=["debian:12", "rocky:9"])
def node(
    request: pytest.FixtureRequest, lab_up: Any, run_gpunode: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Sequenced]:
    name = f"t-sequences-{re.sub(r'[^a-z0-9]', '', request.param)}"
    with lab_up(name=name, distro=request.param, gpus=("h100",)) as lab:
        node = Node(lab, run_gpunode, tmp_path_factory.mktemp("spec"))
        for name in ("getfacl", "setfacl"):  # this machine's: not every mirror has their package
            tool = shutil.which(name)
            assert tool, f"no {name}: install the package acl"
            shutil.copy(tool, lab.nodes[0].hardware / name)
        node.sh("cp /lab/[gs]etfacl /usr/local/bin/")
        node.sh("printf '#!/bin/sh\\n' >/usr/bin/nvidia-container-runtime; chmod 755 /usr/bin/nvidia-container-runtime")
        yield Sequenced(node)


@pytest.mark.parametrize("steps", SEQUENCES.values(), ids=SEQUENCES)
def test_the_tree_is_as_if_gpunode_had_never_been_there(node: Sequenced, steps: list[str]) -> None:
    before = [one[2:] for one in steps if one.startswith("! ")]
    node.fresh(before)
    for words in steps:
        if words.startswith("$ "):
            node.step(words)
    alone = node.photo()
    node.fresh(before)
    for words in steps:
        if not words.startswith("! "):
            node.step(words)
    assert [*{*alone} ^ {*node.photo()}] == []
