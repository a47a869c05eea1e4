"""A node with a kubelet, and one with k3s: gpunode against a real containerd, systemd and kernel.

The kubelet is its files alone.  k3s is a script that renders config.toml as k3s' agent does (it finds
nvidia-container-runtime, takes default-runtime from config.yaml and ends when that was not found), then becomes
containerd.  Nothing of Kubernetes itself runs, there is no driver and no image: smoke checks are not asked here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpunode.lab import Lab

pytestmark = pytest.mark.lab

KUBELET = """set -e
mkdir -p /etc/kubernetes /var/lib/kubelet
touch /etc/kubernetes/kubelet.conf
printf 'kind: KubeletConfiguration\\ncgroupDriver: systemd\\n' >/var/lib/kubelet/config.yaml
printf '#!/bin/sh\\necho Kubernetes v1.30.14\\n' >/usr/local/bin/kubelet
chmod +x /usr/local/bin/kubelet
echo 'net.ipv4.ip_forward = 0' >/etc/sysctl.d/99-hardening.conf
echo 0 >/proc/sys/net/ipv4/ip_forward
"""
# its root is where a lab node has a file system that overlays can be made on
K3S_SCRIPT = r"""#!/bin/sh
case $1 in
--version) echo "k3s version v1.31.5+k3s1 (0000000)"; exit ;;
ctr) shift; exec /usr/bin/ctr "$@" ;;
esac
config=/var/lib/rancher/k3s/agent/etc/containerd/config.toml
default=$(sed -n 's/^default-runtime: //p' /etc/rancher/k3s/config.yaml)
found=
[ -e /run/hidden ] || [ ! -x /usr/bin/nvidia-container-runtime ] || found=nvidia
[ "$default" = "" ] || [ "$default" = "$found" ] || {
	echo "level=fatal msg=\"default runtime $default was not found\""
	exit 1
}
cri='plugins."io.containerd.grpc.v1.cri"'
{
	printf 'version = 2\nroot = "/var/lib/containerd/k3s"\nstate = "/run/k3s/containerd"\n'
	printf '[grpc]\n  address = "/run/k3s/containerd/containerd.sock"\n[%s]\n' "$cri"
	printf '  stream_server_port = "10011"\n  restrict_oom_score_adj = true\n'
	printf '[%s.containerd]\n  snapshotter = "overlayfs"\n' "$cri"
	[ "$default" = "" ] || printf '  default_runtime_name = "%s"\n' "$default"
	printf '[%s.containerd.runtimes.runc]\n  runtime_type = "io.containerd.runc.v2"\n' "$cri"
	printf '[%s.containerd.runtimes.runc.options]\n  SystemdCgroup = true\n' "$cri"
	[ "$found" = "" ] || {
		printf '[%s.containerd.runtimes."nvidia"]\n  runtime_type = "io.containerd.runc.v2"\n' "$cri"
		printf '[%s.containerd.runtimes."nvidia".options]\n  BinaryName = "/usr/bin/nvidia-container-runtime"\n' "$cri"
		printf '  SystemdCgroup = true\n'
	}
} >$config
exec /usr/bin/containerd -c $config
"""
K3S_CONTAINERD = r"""#!/bin/sh
[ "$1" != --version ] || { echo "containerd github.com/k3s-io/containerd v1.7.16-k3s1 0000000"; exit; }
exec /usr/bin/containerd "$@"
"""
K3S_UNIT = """[Service]
Type=notify
KillMode=process
Environment=CONTAINERD_ADDRESS=/run/k3s/containerd/containerd.sock
ExecStart=/usr/local/bin/k3s server --disable traefik
ExecStartPost=-/usr/local/lib/gpunode-lab/pause
[Install]
WantedBy=multi-user.target
"""
K3S = f"""set -e
rm -rf /etc/kubernetes /var/lib/kubelet /usr/local/bin/kubelet /etc/sysctl.d/99-hardening.conf
mkdir -p /var/lib/rancher/k3s/agent/etc/containerd /var/lib/rancher/k3s/data/current/bin /etc/rancher/k3s
cat >/usr/local/bin/k3s <<'EOF'
{K3S_SCRIPT}EOF
cat >/var/lib/rancher/k3s/data/current/bin/containerd <<'EOF'
{K3S_CONTAINERD}EOF
cat >/etc/systemd/system/k3s.service <<'EOF'
{K3S_UNIT}EOF
chmod +x /usr/local/bin/k3s /var/lib/rancher/k3s/data/current/bin/containerd
printf '# mine\\nwrite-kubeconfig-mode: "0640"\\n' >/etc/rancher/k3s/config.yaml
systemctl daemon-reload
systemctl enable --now k3s
"""
RUNTIME = "/usr/bin/nvidia-container-runtime"
HIDDEN = "/run/hidden"  # k3s does not find the runtime
CONFIG = "/etc/rancher/k3s/config.yaml"
RENDERED = "/var/lib/rancher/k3s/agent/etc/containerd/config.toml"


class Node:
    """One lab node and gpunode on it; only the engines are gpunode's affair."""

    def __init__(self, lab: Lab, run: Callable[..., Any], spec: Path) -> None:
        self.lab, self._run, self.spec = lab, run, spec
        base = yaml.safe_load(lab.spec.read_text())
        spec.write_text(yaml.safe_dump(base | {"driver": {"branch": "none"}}))

    def host(self, verb: str, *args: object, exit: int = 0) -> dict[str, Any]:
        done = self._run(verb, "-i", self.lab.inventory, "-c", self.spec, *args, "--format", "json", exit=exit)
        [host] = json.loads(done.stdout)["hosts"]
        return dict(host)

    def provision(self) -> str:
        """What it said: without a driver the smoke checks at its end do not all pass."""
        done = self._run("provision", "-i", self.lab.inventory, "-c", self.spec, "--yes", exit=None)
        return str(done.stdout + done.stderr)

    def sh(self, command: str) -> str:
        done = self.lab.run(self.lab.nodes[0], command)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return str(done.stdout)


@pytest.fixture(scope="module")
def node(lab_up: Callable[..., Lab], run_gpunode: Callable[..., Any], tmp_path_factory: Any) -> Iterator[Node]:
    with lab_up(1, name="t-kube", distro="debian:12") as lab:
        yield Node(lab, run_gpunode, tmp_path_factory.mktemp("kube") / "spec.yml")


def steps(plan: dict[str, Any]) -> dict[str, Any]:
    return {f"{step['role']}.{step['option']}": step for step in plan.get("steps", ())}


def test_the_kubelets_driver_and_the_kernels_settings_are_brought_about(node: Node) -> None:
    node.sh(KUBELET)
    plan = node.host("plan", exit=3)
    printed = json.dumps(plan)
    assert "cgroup drivers differ: the kubelet has systemd (/var/lib/kubelet/config.yaml)" in printed
    assert "/etc/sysctl.d/99-hardening.conf sets net.ipv4.ip_forward = 0" in printed
    assert "docker is left as it is" in printed
    node.provision()
    assert node.sh("cat /proc/sys/net/ipv4/ip_forward").strip() == "1"
    assert "net.ipv4.ip_forward = 1" in node.sh("cat /etc/sysctl.d/99-gpunode.conf")
    assert node.sh("containerd config dump | grep -c 'SystemdCgroup = true'").strip() == "2", "runc and nvidia"
    assert steps(node.host("plan")) == {}
    assert node.sh("cat /etc/docker/daemon.json 2>/dev/null; true") == ""


def test_k3s_gets_its_default_and_is_started_again(node: Node) -> None:
    node.sh(f"[ -x {RUNTIME} ]")
    node.sh(K3S)
    node.provision()
    assert node.sh(f"cat {CONFIG}") == '# mine\nwrite-kubeconfig-mode: "0640"\ndefault-runtime: nvidia\n'
    assert 'default_runtime_name = "nvidia"' in node.sh(f"cat {RENDERED}")
    assert node.sh("systemctl is-active k3s").strip() == "active"
    assert steps(node.host("plan")) == {}


def test_k3s_that_ends_with_the_new_setting_gets_the_old_one_back(node: Node) -> None:
    node.sh(f"sed -i /default-runtime/d {CONFIG}; touch {HIDDEN}; systemctl restart k3s")
    before = node.sh(f"cat {CONFIG}")
    printed = node.provision()
    assert "k3s.service does not restart with the new configuration: " in printed
    assert "default runtime nvidia was not found" in printed
    assert node.sh(f"cat {CONFIG}") == before
    assert node.sh("systemctl is-active k3s").strip() == "active"


def test_k3s_that_was_started_before_the_runtime_came_is_only_restarted(node: Node) -> None:
    node.sh(f"rm {HIDDEN}; echo 'default-runtime: nvidia' >>{CONFIG}")
    assert "nvidia" not in node.sh(f"cat {RENDERED}")
    kept = node.sh(f"stat -c '%i %Y' {CONFIG}")
    assert list(steps(node.host("plan", exit=3))) == ["preflight.expect", "runtime.edits", "verify.smoke"]
    node.provision()
    assert 'default_runtime_name = "nvidia"' in node.sh(f"cat {RENDERED}")
    assert node.sh(f"stat -c '%i %Y' {CONFIG}") == kept
    assert steps(node.host("plan")) == {}
