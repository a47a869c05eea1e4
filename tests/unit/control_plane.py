"""A control plane of Kubernetes without nodes: etcd, API server, controllers, scheduler, from a folder of programs.

All listen on 127.0.0.1, keep their data in one folder, and are ended with the context.  Who asks says so by a token.
"""

from __future__ import annotations

import json
import secrets
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from sshd import free_port

from gpunode.core.errors import GpunodeError
from gpunode.kube.edge.client import Api
from gpunode.kube.edge.kubeconfig import connect

CONTROLLERS = ("serviceaccount-controller", "namespace-controller")
CLAIMS = ",resourceclaim-controller"  # the name that it has since 1.29; resource claims are of use from 1.34 on


@dataclass
class ControlPlane:
    """`programs`: where the binaries are; `folder`: everything that is written."""

    programs: Path
    folder: Path
    ports: dict[str, int]
    host: str = "127.0.0.1"  # where the API server listens
    api: Api = field(init=False)
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "admin.conf"

    def start(self, name: str, *words: object, environment: Mapping[str, str] | None = None) -> None:
        """Start a program; what it writes goes to FOLDER/NAME.log."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                [str(self.programs / name), *map(str, words)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder, env=dict(environment or {}),
            )  # fmt: skip

    def kill(self, name: str) -> None:
        """End it at once, as kill -9 does."""
        process = self.running.pop(name)
        process.kill()
        process.wait()

    def log(self, name: str) -> IO[str]:
        return (self.folder / f"{name}.log").open(errors="replace")

    def write_kubeconfig(self, path: Path, token: str) -> Path:
        host = f"[{self.host}]" if ":" in self.host else self.host
        server = {"server": f"https://{host}:{self.ports['api']}", "insecure-skip-tls-verify": True}
        data = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "bench", "cluster": server}],
            "users": [{"name": "bench", "user": {"token": token}}],
            "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}],
            "current-context": "bench",
        }
        path.write_text(json.dumps(data))
        path.chmod(0o600)
        return path

    def token_of(self, namespace: str, account: str) -> str:
        """A token of a ServiceAccount, as its pod would get it."""
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        return str(self.api.request("POST", path, body=asked)["status"]["token"])

    def start_scheduler(self, configuration: Path | None = None, *flags: str) -> None:
        own = self.folder / "scheduler.conf"
        words = [f"--config={configuration}"] if configuration else [f"--kubeconfig={own}", "--leader-elect=false"]
        port = f"--secure-port={self.ports['scheduler']}"
        self.start("kube-scheduler", *words, *_asks_as(own), "--bind-address=127.0.0.1", port, "-v=2", *flags)


def _asks_as(kubeconfig: Path) -> tuple[str, str]:
    return f"--authentication-kubeconfig={kubeconfig}", f"--authorization-kubeconfig={kubeconfig}"


@contextmanager
def control_plane(programs: Path, folder: Path, *flags: str, host: str = "127.0.0.1") -> Iterator[ControlPlane]:
    """etcd, API server (with these flags, too) and controllers, up; no scheduler yet."""
    folder.mkdir(parents=True)
    names = ("api", "etcd", "peer", "controllers", "scheduler", "extender")
    plane = ControlPlane(programs=programs, folder=folder, ports={name: free_port() for name in names}, host=host)
    try:
        _start(plane, flags)
        yield plane
    finally:
        for name in reversed(list(plane.running)):
            plane.kill(name)


def _start(plane: ControlPlane, flags: Sequence[str]) -> None:
    folder, ports = plane.folder, plane.ports
    etcd, peer = (f"http://127.0.0.1:{ports[name]}" for name in ("etcd", "peer"))
    plane.start(
        "etcd", f"--data-dir={folder}/etcd", f"--listen-client-urls={etcd}", f"--advertise-client-urls={etcd}",
        f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=default={peer}",
        "--unsafe-no-fsync", "--log-level=warn",
    )  # fmt: skip
    subprocess.run(["openssl", "genrsa", "-out", folder / "sa.key", "2048"], check=True, capture_output=True)
    users = {"admin": "system:masters", "system:kube-scheduler": "", "system:kube-controller-manager": ""}
    tokens = {user: secrets.token_hex(16) for user in users}
    lines = [f'{tokens[user]},{user},{user},"{group}"\n' for user, group in users.items()]
    (folder / "tokens.csv").write_text("".join(lines))
    plane.start(
        "kube-apiserver", f"--etcd-servers={etcd}", f"--bind-address={plane.host}", f"--secure-port={ports['api']}",
        f"--cert-dir={folder}/certificates", f"--token-auth-file={folder}/tokens.csv", "--authorization-mode=RBAC",
        "--service-account-issuer=https://kubernetes.default.svc", f"--service-account-key-file={folder}/sa.key",
        f"--service-account-signing-key-file={folder}/sa.key", "--service-cluster-ip-range=10.96.0.0/16",
        # nobody makes accounts for pods here, nor says of a node that it has become ready
        "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition,Priority", *flags,
    )  # fmt: skip
    plane.write_kubeconfig(plane.kubeconfig, tokens["admin"])
    scheduler = plane.write_kubeconfig(folder / "scheduler.conf", tokens["system:kube-scheduler"])
    manager = plane.write_kubeconfig(folder / "controllers.conf", tokens["system:kube-controller-manager"])
    assert scheduler.exists()
    plane.api = connect(str(plane.kubeconfig))
    wait_for(lambda: _is_up(plane.api), "the API server", plane)
    claims = CLAIMS if int(plane.api.version().split(".")[1]) >= 34 else ""
    plane.start(
        "kube-controller-manager", f"--kubeconfig={manager}", *_asks_as(manager), "--bind-address=127.0.0.1",
        f"--secure-port={ports['controllers']}", "--leader-elect=false",
        f"--controllers={','.join(CONTROLLERS)}{claims}",
        "--use-service-account-credentials=true", f"--service-account-private-key-file={folder}/sa.key",
    )  # fmt: skip


def wait_for(is_there: Callable[[], Any], what: str, plane: ControlPlane, seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not is_there():
        dead = [name for name, process in plane.running.items() if process.poll() is not None]
        if dead or time.monotonic() > deadline:
            words = {name: plane.log(name).read()[-600:] for name in dead}
            raise SystemExit(f"{what} did not come up within {seconds:g} s; ended: {words or 'none'}")
        time.sleep(0.2)


def _is_up(api: Api) -> bool:
    """Ready, with the roles that it makes at its first start; the last of them is that which controllers need."""
    last = "namespaces/kube-system/rolebindings/system::extension-apiserver-authentication-reader"
    try:
        return api.find(f"/apis/rbac.authorization.k8s.io/v1/{last}") is not None
    except GpunodeError:
        return False
