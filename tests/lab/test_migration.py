"""Old set-ups on real nodes: nvidia-docker2 of 2019 that blocks apt, and Debian's own driver, each made today's."""

from __future__ import annotations

from typing import Any

import pytest
from test_provision import Node, failed, passed

pytestmark = pytest.mark.lab

FOLDER = "/etc/apt/sources.list.d"
LIST = "deb https://nvidia.github.io/{}/debian10/amd64 /"
DAEMON = '{"log-driver": "journald", "runtimes": {"nvidia": {"path": "nvidia-container-runtime", "runtimeArgs": []}}}'
# deb NAME VERSION FIELD FILE-IN-THE-PACKAGE: a package as it was built then; /etc is configuration
BUILD = """
deb() {
  rm -rf /tmp/deb && mkdir -p /tmp/deb/DEBIAN "/tmp/deb$(dirname "$4")"
  cat >"/tmp/deb$4"
  chmod 755 "/tmp/deb$4"
  case $4 in /etc/*) echo "$4" >/tmp/deb/DEBIAN/conffiles ;; esac
  printf 'Package: %s\\nVersion: %s\\nArchitecture: amd64\\nMaintainer: nobody\\nDescription: of 2019\\n%s\\n' \
    "$1" "$2" "$3" >/tmp/deb/DEBIAN/control
  dpkg-deb -b /tmp/deb "/tmp/$1-$(echo "$2" | tr : _).deb" >/dev/null
}
"""
OLD = f"""{BUILD}
set -e
first='5:18.09.2~3-0~debian-buster' own=2.0.3+docker18.09.2-1 file=/etc/docker/daemon.json
# the node's Docker under the name of Docker's own package, in the version that came after
sed -i -e '/^Package: docker.io$/,/^$/{{s/^Package: .*/Package: docker-ce/' \
  -e 's/^Version: .*/Version: 5:20.10.24~3-0~debian-buster/' \
  -e '/^Conflicts:/d; /^Breaks:/d; /^Replaces:/d; /^Source:/d; }}' /var/lib/dpkg/status
for part in /var/lib/dpkg/info/docker.io.*; do mv "$part" "/var/lib/dpkg/info/docker-ce.${{part##*docker.io.}}"; done
echo '#!/bin/sh' | deb nvidia-container-runtime 2.0.0-1 'Priority: optional' /usr/bin/nvidia-container-runtime
echo '{DAEMON}' | deb nvidia-docker2 $own "Depends: docker-ce (= $first), nvidia-container-runtime" $file
rm -f $file
dpkg --force-depends -i /tmp/nvidia-container-runtime-*.deb /tmp/nvidia-docker2-*.deb
printf '%s\\n' '{LIST.format("libnvidia-container")}' '{LIST.format("nvidia-container-runtime")}' \
  '{LIST.format("nvidia-docker")}' >{FOLDER}/nvidia-docker.list
systemctl restart docker
"""


@pytest.fixture(scope="module")
def old(lab_up: Any, run_gpunode: Any, tmp_path_factory: pytest.TempPathFactory) -> Node:
    """Debian 12 with Docker, and the set-up of 2019: Docker was upgraded since, and apt refuses everything."""
    lab = lab_up(distro="debian:12", engines=("docker",))
    node = Node(lab, run_gpunode, tmp_path_factory.mktemp("spec"), {})
    node.sh(OLD)
    return node


@pytest.mark.timeout(1200)
def test_nvidia_docker2_that_blocks_apt_gives_way_to_the_toolkit(old: Node) -> None:
    blocked = old.lab.run(old.lab.nodes[0], "apt-get check")
    assert blocked.returncode and "nvidia-docker2 : Depends: docker-ce (= 5:18.09.2" in blocked.stdout + blocked.stderr
    plan = old.json("plan", exit=3)
    reasons = [r["why"] for step in plan["steps"] for r in step["reasons"]]
    assert any("asks for docker-ce 18.09.2 and no other" in why for why in reasons)
    done = old.json("provision", "--yes")
    assert not failed(done)
    gone = sorted(line for line in done["changed"] if line.startswith("removed "))
    assert gone == ["removed nvidia-container-runtime 2.0.0-1", "removed nvidia-docker2 2.0.3+docker18.09.2-1"]
    installed = old.sh("dpkg-query -W -f '${Package} ${db:Status-Abbrev}\\n' | grep ' ii'")
    assert "nvidia-container-toolkit " in installed and "nvidia-docker" not in installed
    assert "nvidia-container-runtime " not in installed
    assert "nvidia-docker.list" not in old.sh(f"ls {FOLDER}")
    assert '"log-driver": "journald"' in old.sh("cat /etc/docker/daemon.json"), "what a person has set stays"
    assert {"docker.runtime", "docker.gpus-all"} <= passed(old.json("verify"))
    assert old.json("provision", "--yes")["changed"] == []


@pytest.fixture(scope="module")
def distro(lab_up: Any, run_gpunode: Any, tmp_path_factory: pytest.TempPathFactory) -> Node:
    """Debian 12 with its non-free packages, and its own driver."""
    lab = lab_up(distro="debian:12+non-free", engines=())
    node = Node(lab, run_gpunode, tmp_path_factory.mktemp("spec"), {"driver": {"branch": "distro"}})
    node.json("provision", "--yes")
    return node


@pytest.mark.timeout(1200)
def test_the_distributions_own_driver_becomes_the_vendors_in_one_transaction(distro: Node) -> None:
    before = distro.sh("cat /sys/module/nvidia/version").strip()
    assert before.startswith("535.")
    distro.set({})
    done = distro.json("provision", "--yes")
    assert not failed(done)
    after = distro.sh("cat /sys/module/nvidia/version").strip()
    assert after.split(".")[0] > "535"
    versions = distro.sh(
        "dpkg-query -W -f '${Package} ${Version} ${db:Status-Abbrev}\\n' | grep -i nvidia | grep ' ii'"
    )
    old = [line for line in versions.splitlines() if before in line and not line.startswith("nvidia-modprobe ")]
    assert old == [], "all but the loader of modules, which goes with any version and which nothing asks for a newer of"
    assert not failed(distro.json("verify"))
    assert distro.json("provision", "--yes")["changed"] == []
