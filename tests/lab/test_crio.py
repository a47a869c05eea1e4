"""A real CRI-O in a Debian node: configured, pods through the nvidia runtime, rolled back, unconfigured.

Debian's archive has no CRI-O.  GPUNODE_CRIO_DIR names a folder with `crio` and `pinns`; without it this is skipped.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from daemon_node import IMAGE, DaemonNode
from edit_cases import edit_request

from gpunode.core.edits import RuntimeRequest, completed, edit_runtime, unconfigure_runtime
from gpunode.core.model import NodeFacts, Outcome

FOLDER = os.environ.get("GPUNODE_CRIO_DIR", "")
pytestmark = [pytest.mark.lab, pytest.mark.skipif(not FOLDER, reason="GPUNODE_CRIO_DIR names no folder")]

DROP_IN = "/etc/crio/crio.conf.d/99-nvidia.toml"
REQUEST = RuntimeRequest(runtime="crio")
# as CRI-O's own packages have it, with what a container in a container needs
CONFIG = """[crio]
storage_driver = "vfs"

[crio.image]
signature_policy = "/etc/containers/policy.json"
pause_image = "localhost/gpunode-test:1"

[crio.runtime]
default_runtime = "runc"
cgroup_manager = "cgroupfs"
conmon_cgroup = "pod"

[crio.runtime.runtimes.runc]
runtime_path = "/usr/sbin/runc"
monitor_path = "/usr/libexec/crio/conmon"

[crio.runtime.runtimes.crun]
runtime_path = "/usr/bin/crun"
monitor_path = "/usr/libexec/crio/conmon"
"""
UNIT = """[Unit]
Description=CRI-O
[Service]
Type=notify
ExecStart=/usr/bin/crio
TimeoutStopSec=5
[Install]
WantedBy=multi-user.target
"""
# a node may not lower its oom_score_adj
RUNC = """#!/bin/sh
before=
for word; do
  [ "$before" = --bundle ] && sed -i 's/"oomScoreAdj": *-*[0-9]*/"oomScoreAdj": 1000/' "$word/config.json"
  before=$word
done
exec /usr/sbin/runc.real "$@"
"""
SET_UP = f"""
apt-get -qq update >/dev/null 2>&1
DEBIAN_FRONTEND=noninteractive apt-get -qq install --no-install-recommends \\
  conmon runc crun containernetworking-plugins skopeo >/dev/null 2>&1
mkdir -p /usr/libexec/crio /etc/crio/policies && mv /usr/bin/conmon /usr/libexec/crio/conmon
cp /lab/crio /lab/pinns /usr/bin/
mv /usr/sbin/runc /usr/sbin/runc.real && cp /tmp/runc /usr/sbin/runc && chmod +x /usr/sbin/runc
sed -i 's/text_field(1, $container->{{image}}{{image}})/& . text_field(18, $container->{{image}}{{image}})/
  s,unix:///run/containerd/containerd.sock,unix:///run/crio/crio.sock,' /usr/local/bin/crictl
mkdir -p /tmp/image/bin && cd /tmp/image && cp "$(command -v busybox)" bin/ && ln -s busybox bin/sh
printf '#!/bin/sh\\nexec /bin/busybox sleep 100000\\n' >pause && chmod +x pause
tar -cf ../layer.tar . && cd ..
sum=$(sha256sum <layer.tar | cut -d ' ' -f 1)
printf '{{"architecture":"amd64","os":"linux","config":{{}},"rootfs":{{"type":"layers","diff_ids":["sha256:%s"]}}}}' \\
  "$sum" >config.json
echo '[{{"Config":"config.json","RepoTags":["{IMAGE}"],"Layers":["layer.tar"]}}]' >manifest.json
tar -cf image.tar layer.tar config.json manifest.json
skopeo --insecure-policy copy -q docker-archive:image.tar \\
  'containers-storage:[vfs@/var/lib/containers/storage+/run/containers/storage]{IMAGE}'
systemctl enable --now crio
"""


@pytest.fixture(scope="module")
def node(lab_up: Callable[..., Any]) -> DaemonNode:
    node = DaemonNode(lab_up(distro="debian:13", gpus=("h100",), engines=()))
    for name in ("crio", "pinns"):
        shutil.copy(Path(FOLDER) / name, node.node.hardware / name)
    node.put("/tmp", {"runc": RUNC.encode()})
    node.put("/etc/crio/crio.conf.d", {"10-crio.conf": CONFIG.encode()})
    node.put("/etc/systemd/system", {"crio.service": UNIT.encode()})
    node.sh(SET_UP)
    node.install_toolkit()
    return node


def commit(node: DaemonNode, facts: NodeFacts) -> Outcome:
    return node.commit(edit_request(facts, REQUEST, edit_runtime(facts, REQUEST)))


def traces(node: DaemonNode, handler: str) -> int:
    """How often the nvidia runtime was called for a pod that says hello."""
    node.trace()
    assert node.pod("run", handler, "echo hello").stdout.strip() == "hello"
    return len(node.trace())


def test_pods_go_through_the_nvidia_runtime_once_it_is_configured(node: DaemonNode) -> None:
    assert traces(node, "") == 0
    outcome = commit(node, node.facts())
    assert (outcome.status, outcome.texts) == ("changed", (f"creates {DROP_IN}",))
    assert "monitor_path" in node.sh(f"cat {DROP_IN}"), "conmon is not on the PATH: CRI-O would not start without"
    assert traces(node, "") > 0
    assert traces(node, "nvidia") > 0
    assert traces(node, "runc") == 0
    assert commit(node, node.facts()).status == "unchanged"


def test_what_crio_does_not_start_with_is_rolled_back(node: DaemonNode) -> None:
    before = node.sh(f"cat {DROP_IN}")
    facts = node.facts()
    request = RuntimeRequest(runtime="crio", path="/usr/bin/not-there")
    outcome = node.commit(edit_request(facts, request, edit_runtime(facts, request)))
    assert outcome.status == "rolled_back"
    assert "not-there" in outcome.message
    assert node.sh(f"cat {DROP_IN}; systemctl is-active crio") == f"{before}active\n"


def test_unconfigured_without_a_record_crio_is_as_it_was(node: DaemonNode) -> None:
    facts = node.facts()
    crio = facts.runtime("crio")
    assert crio
    files = {path: facts.files[path].data or b"" for path in crio.files}
    edit = unconfigure_runtime(files, completed(REQUEST, crio))
    assert edit.changes == {DROP_IN: None}
    assert node.commit(edit_request(facts, REQUEST, edit)).status == "changed"
    assert traces(node, "") == 0
