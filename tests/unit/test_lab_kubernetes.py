"""What a lab cluster is made from: programs, certificates, files of its machines, images."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import stat
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from gpunode.core.errors import GpunodeError, InputError
from gpunode.lab import machine
from gpunode.lab.images import Variant
from gpunode.lab.kubernetes import archives, binaries, pki, seeds
from gpunode.lab.machine import Places
from gpunode.lab.nodes import Node, volumes

KUBELET = b"#!/bin/sh\necho Kubernetes v1.36.2\n"


def silent(_: str) -> None:
    pass


# ---------------------------------------------------------------- programs


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "programs"
    path.mkdir()
    for name in binaries.NEEDED:
        (path / name).write_bytes(KUBELET)
        (path / name).chmod(0o755)
    return path


def test_a_folder_of_programs_says_its_version(folder: Path) -> None:
    found = binaries.find(str(folder), log=silent)
    assert (found.folder, found.version, found.minor) == (folder, "v1.36.2", 36)
    assert found.optional("nvidia-device-plugin") is None


def test_a_folder_that_lacks_a_program_is_refused_with_its_name(folder: Path) -> None:
    (folder / "etcd").unlink()
    (folder / "kubectl").chmod(0o644)
    with pytest.raises(InputError, match="has no etcd, kubectl"):
        binaries.find(str(folder), log=silent)


def test_what_is_neither_folder_nor_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a version such as"):
        binaries.find(str(tmp_path / "nothing"), log=silent)


def test_a_kubelet_that_is_none_is_refused(folder: Path) -> None:
    (folder / "kubelet").write_text("#!/bin/sh\necho hello\n")
    with pytest.raises(InputError, match="says 'hello'"):
        binaries.find(str(folder), log=silent)


def etcd_archive() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        info = tarfile.TarInfo(f"etcd-{binaries.ETCD_VERSION}-linux-amd64/etcd")
        info.size = len(KUBELET)
        tar.addfile(info, io.BytesIO(KUBELET))
    return buffer.getvalue()


@pytest.fixture
def releases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, bytes]]:
    """A server that plays dl.k8s.io and etcd's releases; the cache is the test's own."""
    pages: dict[str, bytes] = {"/k/stable-1.36.txt": b"v1.36.2"}
    for name in binaries.OF_KUBERNETES:
        url = f"/k/v1.36.2/bin/linux/amd64/{name}"
        pages |= {url: KUBELET, f"{url}.sha256": hashlib.sha256(KUBELET).hexdigest().encode()}
    name, archive = f"etcd-{binaries.ETCD_VERSION}-linux-amd64.tar.gz", etcd_archive()
    base = f"/e/{binaries.ETCD_VERSION}"
    pages |= {f"{base}/{name}": archive}
    pages |= {f"{base}/SHA256SUMS": f"{hashlib.sha256(archive).hexdigest()}  {name}\n".encode()}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            data = pages.get(self.path)
            self.send_response(404 if data is None else 200)
            self.end_headers()
            self.wfile.write(data or b"")

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv(binaries.RELEASES_VARIABLE, f"http://127.0.0.1:{server.server_port}/k")
    monkeypatch.setenv(binaries.ETCD_VARIABLE, f"http://127.0.0.1:{server.server_port}/e")
    monkeypatch.setattr(machine, "places", lambda: Places(state=tmp_path / "state", cache=tmp_path / "cache"))
    yield pages
    server.shutdown()
    server.server_close()


def test_a_version_is_fetched_once_and_kept(releases: dict[str, bytes]) -> None:
    first = binaries.find("1.36", log=silent)
    assert first.version == "v1.36.2"
    assert all(os.access(first.folder / name, os.X_OK) for name in binaries.NEEDED)
    releases.clear()
    assert binaries.find("1.36", log=silent) == first
    assert binaries.find("v1.36.2", log=silent) == first


def test_a_file_with_another_checksum_is_not_kept(releases: dict[str, bytes], tmp_path: Path) -> None:
    releases["/k/v1.36.2/bin/linux/amd64/kubelet"] = b"evil"
    with pytest.raises(GpunodeError, match="kubelet has the SHA-256"):
        binaries.find("1.36", log=silent)
    assert not list(tmp_path.rglob("kubelet"))


def test_a_release_that_cannot_be_reached_says_what_else_works(releases: dict[str, bytes]) -> None:
    releases.clear()
    with pytest.raises(GpunodeError) as caught:
        binaries.find("1.35", log=silent)
    assert "stable-1.35.txt cannot be fetched" in caught.value.what
    assert "give a folder" in caught.value.fix


# ---------------------------------------------------------------- certificates


@pytest.fixture
def authority(tmp_path: Path) -> pki.Authority:
    return pki.make(tmp_path / "pki", "10.89.0.9")


def test_the_api_servers_certificate_is_for_its_addresses(authority: pki.Authority) -> None:
    own = x509.load_pem_x509_certificate((authority.folder / "apiserver.crt").read_bytes())
    names = own.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {str(one) for one in names.get_values_for_type(x509.IPAddress)} == {"10.89.0.9", "10.96.0.1", "127.0.0.1"}
    ca = x509.load_pem_x509_certificate((authority.folder / "ca.crt").read_bytes())
    own.verify_directly_issued_by(ca)


def test_a_kubeconfig_holds_user_and_groups_and_only_root_reads_keys(authority: pki.Authority) -> None:
    config = yaml.safe_load(authority.kubeconfig("system:node:a-1", ["system:nodes"]))
    user = config["users"][0]["user"]
    certificate = x509.load_pem_x509_certificate(base64.b64decode(user["client-certificate-data"]))
    assert certificate.subject.rfc4514_string() == "CN=system:node:a-1,O=system:nodes"
    serialization.load_pem_private_key(base64.b64decode(user["client-key-data"]), None)
    assert config["clusters"][0]["cluster"]["server"] == "https://10.89.0.9:6443"
    for key in authority.folder.glob("*.key"):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600


# ---------------------------------------------------------------- the machines' files


def test_a_node_has_its_units_enabled_and_its_secrets_to_itself(
    authority: pki.Authority, folder: Path, tmp_path: Path
) -> None:
    seed = tmp_path / "seed"
    seeds.seed_node(seed, 2, "a-2", authority, binaries.find(str(folder), log=silent))
    wants = seed / "etc/systemd/system/multi-user.target.wants"
    assert {one.name for one in wants.iterdir()} == {
        "gpunode-lab-routes.service",
        "kube-proxy.service",
        "kubelet.service",
    }
    assert all((wants / one.readlink()).is_file() for one in wants.iterdir())
    assert (seed / "usr/bin/kubelet").readlink() == Path("/opt/kubernetes/kubelet")
    assert stat.S_IMODE((seed / "etc/kubernetes/kubelet.conf").stat().st_mode) == 0o600
    assert stat.S_IMODE((seed / "usr/local/lib/gpunode-lab/kubelet-first").stat().st_mode) == 0o755
    network = json.loads((seed / "etc/cni/net.d/10-gpunode-lab.conflist").read_text())
    assert network["plugins"][0]["ipam"]["ranges"] == [[{"subnet": "10.244.2.0/24"}]]


def test_the_control_plane_starts_no_engine(tmp_path: Path) -> None:
    seeds.seed_control_plane(tmp_path)
    assert (tmp_path / "etc/systemd/system/containerd.service").readlink() == Path("/dev/null")
    wants = {one.name for one in (tmp_path / "etc/systemd/system/multi-user.target.wants").iterdir()}
    assert wants == {
        "etcd.service",
        "gpunode-lab-routes.service",
        "kube-apiserver.service",
        "kube-controller-manager.service",
    }


@pytest.mark.parametrize(
    ("minor", "socket", "old_cgroups", "flags"),
    [(26, False, False, True), (28, True, False, False), (31, True, True, False), (36, True, True, False)],
)
def test_a_kubelet_gets_what_its_release_knows(minor: int, socket: bool, old_cgroups: bool, flags: bool) -> None:
    found = seeds.kubelet_configuration(minor)
    assert ("containerRuntimeEndpoint" in found, "failCgroupV1" in found) == (socket, old_cgroups)
    assert bool(seeds.kubelet_flags(minor)) is flags


# ---------------------------------------------------------------- nodes


def test_a_node_of_a_cluster_sees_the_programs_and_needs_containerd(tmp_path: Path) -> None:
    node = Node(name="a-12", lab="a", address="", kubernetes="/opt/k")
    assert node.number == 12
    assert "/opt/k:/opt/kubernetes:ro" in volumes(node)
    assert node.variant.name == "debian-12-kubernetes"
    with pytest.raises(InputError, match="without containerd"):
        Variant(engines=(), kubernetes=True)


def test_the_weight_follows_the_number_of_nodes_and_is_never_lowered(tmp_path: Path) -> None:
    old, new = tmp_path / "cpu/libpod_parent/cpu.shares", tmp_path / "libpod_parent/cpu.weight"
    for path, text in ((old, "1024"), (new, "900")):
        path.parent.mkdir(parents=True)
        path.write_text(text)
    machine.weigh(3, tmp_path)
    assert (old.read_text(), new.read_text()) == ("3072", "900")
    machine.weigh(3, tmp_path / "nothing")


# ---------------------------------------------------------------- images, and the driver's part in containers


def test_an_archive_holds_programs_with_their_libraries(tmp_path: Path) -> None:
    for name in ("one.tar", "two.tar"):
        archives.write_archive(
            tmp_path / name,
            ["x/y:1"],
            {"/bin/true": Path("/bin/true"), "/run.sh": "#!/bin/sh\n"},
            links={"/bin/sh": "true"},
            entrypoint=["/run.sh"],
        )
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()
    with tarfile.open(tmp_path / "one.tar") as tar:
        manifest = json.load(tar.extractfile("manifest.json"))  # type: ignore[arg-type]
        config = json.load(tar.extractfile(manifest[0]["Config"]))  # type: ignore[arg-type]
        layer = tar.extractfile("layer.tar").read()  # type: ignore[union-attr]
    assert manifest[0]["RepoTags"] == ["x/y:1"]
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(layer).hexdigest()}"]
    with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
        names = tar.getnames()
        assert tar.getmember("bin/sh").linkname == "true"
        assert tar.getmember("tmp").isdir()  # the extender logs there
    assert {"bin/true", "run.sh"} < set(names)
    assert any("libc.so" in name for name in names)
