"""A node whose containerd has what kubespray's templates make of the page's snippet: pods start, no edit of it."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator

import pytest
from kubespray import RELEASES, RUNC, snippet, written

from gpunode.lab import Lab

pytestmark = [pytest.mark.lab, pytest.mark.extended]

Run = Callable[..., subprocess.CompletedProcess[str]]
# kubespray's tasks around its template: the specification that its runtime names, and runc where it installs one
AROUND = f"ln -sf /usr/sbin/runc {RUNC}; ctr oci spec >/etc/containerd/cri-base.json"
# a node of the lab may not lower a pod's OOM score (docs/lab.md)
PLUGIN = re.compile(rb'^ *\[plugins\."io\.containerd\.(?:grpc\.v1\.cri|cri\.v1\.runtime)"\]\n', re.MULTILINE)


@pytest.fixture(scope="module", params=["debian:12", "debian:13+forky"])
def node(request: pytest.FixtureRequest, lab_up: Callable[..., Lab], run_gpunode: Run) -> Iterator[Lab]:
    name = f"t-kubespray-{request.param.partition(':')[2].replace('+', '-')}"
    with lab_up(1, name=name, distro=request.param, engines=("containerd",)) as lab:
        run_gpunode("provision", "-i", lab.inventory, "-c", lab.spec, "--yes")
        yield lab


@pytest.mark.parametrize("release", RELEASES)
def test_pods_of_both_runtimes_start_and_it_is_not_edited(release: str, node: Lab, run_gpunode: Run) -> None:
    [host] = node.nodes
    major = node.run(host, "containerd --version").stdout.split()[2].lstrip("v").partition(".")[0]
    if major != RELEASES[release][1].partition(".")[0]:
        pytest.skip(f"the node has containerd {major}")
    text, places = PLUGIN.subn(rb"\g<0>    restrict_oom_score_adj = true\n", written(release, snippet()))
    assert places == 1
    done = node.run(
        host, f"{AROUND}; cat >/etc/containerd/config.toml; systemctl restart containerd", stdin=text.decode()
    )
    assert done.returncode == 0, done
    asked = ("-i", node.inventory, "-c", node.spec)
    run_gpunode("provision", *asked, "--yes")  # where the driver of cgroups is systemd, devices are linked at boot, too
    assert node.run(host, "cat /etc/containerd/config.toml").stdout == text.decode(), "it is not edited"
    assert "nothing to do" in run_gpunode("plan", *asked).stdout
    said = run_gpunode("verify", *asked, "-v").stdout
    assert re.search(r"ok +containerd\.cri-nvidia\.gpus ", said) and re.search(r"ok +containerd\.cri-default ", said)
