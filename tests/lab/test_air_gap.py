"""A node whose network reaches nothing but a bundle: provisioned whole, and not one packet for elsewhere."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpunode.core.model import ENDS
from gpunode.lab.images import Variant
from gpunode.lab.machine import podman
from gpunode.lab.sources import image_of

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]

TREE = (
    "find /etc /usr /opt /var/lib/dpkg -xdev -type f 2>/dev/null | sort"
    " | xargs -d '\\n' stat -c '%n %s %Y' 2>/dev/null | sha256sum"
)
# Replies to ssh, the bundle's server and the discovery of neighbours may leave; anything else is counted and lost.
FENCE = """
table inet airgap {{
  counter elsewhere {{ }}
  counter bundle {{ }}
  chain mine {{
    oifname "lo" accept
    tcp sport 22 accept
    ip daddr {server} tcp dport {port} counter name bundle accept
    ip6 daddr {{ fe80::/10, ff02::/16 }} accept
    counter name elsewhere drop
  }}
  chain output {{ type filter hook output priority 0; jump mine; }}
  chain forward {{ type filter hook forward priority 0; jump mine; }}
}}
"""


@dataclass(frozen=True, kw_only=True)
class Gap:
    """A node behind the fence, the bundle that is served to it, and the spec that names it."""

    distro: str
    lab: Any
    bundle: Path
    spec: Path
    gpunode: Any

    @property
    def node(self) -> Any:
        return self.lab.nodes[0]

    def sh(self, command: str) -> str:
        done = self.lab.run(self.node, command)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return str(done.stdout)

    def json(self, verb: str, *args: object, exit: int = 0, spec: Path | None = None) -> dict[str, Any]:
        options = ("-i", self.lab.inventory, "-c", spec or self.spec, *args, "--format", "json")
        [host] = json.loads(self.gpunode(verb, *options, exit=exit).stdout)["hosts"]
        return dict(host)

    def counted(self, name: str) -> int:
        """Packets that a counter of the fence has seen."""
        printed = in_network(self.node, "nft", "list", "counter", "inet", "airgap", name)
        found = re.search(r"packets (\d+)", printed)
        assert found, printed
        return int(found[1])


def in_network(node: Any, *command: str, stdin: str = "") -> str:
    """Run a command of this machine in the node's network namespace."""
    pid = podman("inspect", "--format", "{{.State.Pid}}", node.container).stdout.strip()
    done = subprocess.run(
        ["nsenter", "-t", pid, "-n", *command], input=stdin, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# what the bundle is made for
REQUESTS: dict[str, dict[str, Any]] = {
    "debian:12": {"cuda": {"versions": ["12.8"]}, "runtimes": {"containerd": {"manage": "install"}}},
    "rocky:9": {"cuda": {"versions": ["12.8"]}},
}
# versions of CUDA for which no bundle was made, and a package of them
LACKING = {
    "debian:12": (["12.8", "13.0"], "cuda-toolkit-13-0"),
    "rocky:9": (["12.8", "13.0"], "cuda-toolkit-13-0"),
}


@pytest.fixture(scope="module", params=list(REQUESTS))
def gap(
    request: pytest.FixtureRequest, lab_up: Any, run_gpunode: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gap]:
    """A node without Python; nothing but the bundle's server can be reached from it.  Debian's has no engine yet."""
    if not shutil.which("nft"):
        pytest.skip("needs nft")
    folder, distro = tmp_path_factory.mktemp("air-gap"), request.param
    engines = () if distro == "debian:12" else ("containerd",)
    name = f"t-air-gap-{distro.partition(':')[0]}"
    lab = lab_up(distro=distro, gpus=("h100",), engines=engines, python=False, name=name)
    online = folder / "online.yml"
    online.write_text(yaml.safe_dump(yaml.safe_load(lab.spec.read_text()) | REQUESTS[distro]))
    run_gpunode("detect", "-i", lab.inventory, "--save", folder / "probes")
    bundle = folder / "bundle"
    run_gpunode(
        *("bundle", "create", "-c", online, "--probe", folder / "probes", "--allow-expired", "-o", bundle),
        *("--repositories", f"{distro}/x86_64={repositories(folder, distro)}"),
    )
    address = lab.nodes[0].address.rpartition(".")[0] + ".1"  # this machine, on the lab's network
    command = [sys.executable, "-m", "gpunode", "bundle", "serve", bundle, "--address", address, "--port", "0"]
    environment = {**os.environ, "XDG_STATE_HOME": str(folder / "state")}
    with subprocess.Popen(
        [*map(str, command), "--format", "json"], stdout=subprocess.PIPE, text=True, env=environment
    ) as server:
        assert server.stdout
        printed = "".join(iter(server.stdout.readline, "}\n")) + "}"
        port = int(json.loads(printed)["url"].rpartition(":")[2])
        spec = folder / "gpunode.yml"
        spec.write_text(yaml.safe_dump(REQUESTS[distro] | yaml.safe_load((bundle / "sources.yml").read_text())))
        in_network(lab.nodes[0], "nft", "-f", "-", stdin=FENCE.format(server=address, port=port))
        yield Gap(distro=distro, lab=lab, bundle=bundle, spec=spec, gpunode=run_gpunode)
        server.terminate()
    lab.down()


def repositories(folder: Path, distro: str) -> Path:
    """The files that name a node's own repositories: the lab's kernels, and for Debian what this machine has."""
    files = folder / "repositories"
    files.mkdir()
    info = image_of(Variant(distro=distro), print)[1]
    own = [s for s in info.sources if s.name in ("kernels", "epel") and s.distro == distro]
    if distro == "debian:12":
        shutil.copy("/etc/apt/sources.list.d/debian.sources", files)
    for source in own:
        url, key = f"file://{info.directory}/{source.path}", f"{info.directory}/{source.key}"
        if distro == "debian:12":
            text = f"Types: deb\nURIs: {url}\nSuites: /\nSigned-By: {key}\n"
            (files / "own.sources").write_text(text)
        else:
            text = f"[{source.name}]\nbaseurl={url}\ngpgcheck=1\ngpgkey=file://{key}\n"
            (files / f"{source.name}.repo").write_text(text)
    return files


def failed(host: dict[str, Any]) -> list[str]:
    return [f"{c['id']}: {c['message']}" for c in host["checks"] if c["status"] in ENDS]


def test_the_fence_lets_nothing_else_out(gap: Gap) -> None:
    done = gap.lab.run(gap.node, "timeout 3 bash -c 'echo >/dev/tcp/192.0.2.1/80'")
    assert done.returncode != 0
    assert gap.counted("elsewhere") > 0
    in_network(gap.node, "nft", "reset", "counters")
    assert gap.counted("elsewhere") == 0


@pytest.mark.parametrize("kind", ["changed", "cut off", "missing"])
def test_a_damaged_bundle_is_found_before_anything_is_touched(gap: Gap, kind: str) -> None:
    victim = next(gap.bundle.glob("repos/*/x86_64/*/libnvidia-container*"))
    data, before = victim.read_bytes(), gap.sh(TREE)
    victim.unlink()  # it shares its bytes with the store
    if kind != "missing":
        victim.write_bytes(data[:-1] + bytes([data[-1] ^ 1]) if kind == "changed" else data[:1000])
    try:
        host = gap.json("provision", "--yes", exit=5)
        assert victim.name in json.dumps(host)
        assert gap.sh(TREE) == before
        printed = gap.gpunode("bundle", "verify", gap.bundle, exit=1).stdout
        assert f"{victim.name}: " in printed and "NOT whole" in printed
    finally:
        victim.write_bytes(data)
    gap.gpunode("bundle", "verify", gap.bundle)


def test_what_the_bundle_lacks_is_found_before_anything_is_touched(gap: Gap, tmp_path: Path) -> None:
    before = gap.sh(TREE)
    more = tmp_path / "more.yml"
    versions, lacking = LACKING[gap.distro]
    more.write_text(yaml.safe_dump(yaml.safe_load(gap.spec.read_text()) | {"cuda": {"versions": versions}}))
    host = gap.json("provision", "--yes", exit=5, spec=more)
    assert lacking in json.dumps(host)
    assert gap.sh(TREE) == before


def test_a_node_is_provisioned_whole_from_the_bundle_alone(gap: Gap) -> None:
    """The driver with DKMS, CUDA, the toolkit, containerd: a pod proves it; no packet went elsewhere."""
    in_network(gap.node, "nft", "reset", "counters")
    done = gap.json("provision", "--yes")
    assert not failed(done)
    proven = {c["id"] for c in done["checks"] if c["status"] == "passed"}
    compilers = {f"cuda.nvcc-{version}" for version in REQUESTS[gap.distro].get("cuda", {}).get("versions", ())}
    assert {"driver.smi", "containerd.cri-nvidia", *compilers} <= proven
    assert gap.json("plan")["converged"]
    assert gap.json("provision", "--yes")["changed"] == []
    assert not failed(gap.json("verify"))
    assert gap.counted("bundle") > 0
    assert gap.counted("elsewhere") == 0
