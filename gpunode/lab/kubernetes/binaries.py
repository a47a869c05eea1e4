"""The programs of Kubernetes that a lab cluster runs: a folder of yours, or a release fetched from dl.k8s.io."""

from __future__ import annotations

import hashlib
import io
import os
import re
import tarfile
import urllib.error
import urllib.request
from pathlib import Path

from gpunode.core.errors import GpunodeError, InputError
from gpunode.core.late import dataclass
from gpunode.lab import machine
from gpunode.lab.machine import Log

OF_KUBERNETES = (
    "kube-apiserver",
    "kube-controller-manager",
    "kube-proxy",
    "kube-scheduler",
    "kubeadm",
    "kubectl",
    "kubelet",
)
NEEDED = ("etcd", *OF_KUBERNETES)
RELEASES = "https://dl.k8s.io/release"
RELEASES_VARIABLE = "GPUNODE_LAB_KUBERNETES_RELEASES"  # a mirror of RELEASES
ETCD = "https://github.com/etcd-io/etcd/releases/download"
ETCD_VARIABLE = "GPUNODE_LAB_ETCD_RELEASES"  # a mirror of ETCD
ETCD_VERSION = "v3.6.5"  # not run here yet: clusters of the tests had etcd 3.5.1


@dataclass(frozen=True, kw_only=True)
class Binaries:
    """A folder that has NEEDED, and the version of what is in it (`v1.36.2`)."""

    folder: Path
    version: str

    @property
    def minor(self) -> int:
        return int(self.version.split(".")[1])

    def optional(self, name: str) -> Path | None:
        """A program that a cluster can do without, when it is there."""
        path = self.folder / name
        return path if path.is_file() else None


def find(word: str, *, log: Log) -> Binaries:
    """The programs that `--kubernetes WORD` means: a folder, or a version (`1.36`, `1.36.2`), which is fetched once.

    Raises InputError for a folder that lacks one, GpunodeError when a version cannot be fetched.
    """
    if re.fullmatch(r"v?1\.\d+(\.\d+)?", word) and not Path(word).is_dir():
        return folder_of(_fetch(word.removeprefix("v"), log))
    folder = Path(word).expanduser()
    if not folder.is_dir():
        raise InputError(
            f"--kubernetes {word}", expected="a folder with the programs of Kubernetes, or a version such as 1.36"
        )
    return folder_of(folder.resolve())


def folder_of(folder: str | Path) -> Binaries:
    """The programs in a folder.  Raises InputError with those it lacks."""
    folder = Path(folder)
    missing = [name for name in NEEDED if not os.access(folder / name, os.X_OK)]
    if missing:
        raise InputError(
            f"{folder} has no {', '.join(missing)}",
            expected=f"programs that can be run: {', '.join(NEEDED)}",
            fix=f"those of Kubernetes are at {RELEASES}/VERSION/bin/linux/amd64/, etcd at {ETCD}",
        )
    said = machine.run(str(folder / "kubelet"), "--version").stdout
    found = re.search(r"v1\.\d+\.\d+", said)
    if not found:
        raise InputError(f"{folder}/kubelet --version says {said.strip()[:60]!r}", expected="Kubernetes v1.MINOR.PATCH")
    return Binaries(folder=folder, version=found[0])


# ---------------------------------------------------------------- a release from the network


def _fetch(version: str, log: Log) -> Path:
    """The folder of that release in the cache; each file is compared with its published checksum before it is kept."""
    releases = os.environ.get(RELEASES_VARIABLE, RELEASES).rstrip("/")
    with machine.lock("kubernetes", log=log):
        kept = sorted(_cache().glob(f"v{version}.*" if version.count(".") == 1 else f"v{version}"))
        ready = [folder for folder in kept if all((folder / name).exists() for name in NEEDED)]
        if ready:
            return ready[-1]
        exact = f"v{version}" if version.count(".") == 2 else _text(f"{releases}/stable-{version}.txt")
        if not re.fullmatch(r"v1\.\d+\.\d+", exact):
            raise GpunodeError(f"{releases}/stable-{version}.txt says {exact[:60]!r}, which is no version")
        folder = _cache() / exact
        folder.mkdir(parents=True, exist_ok=True)
        log(f"fetching Kubernetes {exact} from {releases} and etcd {ETCD_VERSION} (about 700 MB, once)")
        for name in OF_KUBERNETES:
            url = f"{releases}/{exact}/bin/linux/amd64/{name}"
            _keep(folder / name, _compared(url, _text(f"{url}.sha256").split()[0]))
        _keep(folder / "etcd", _etcd())
        return folder


def _cache() -> Path:
    return machine.places().cache / "kubernetes"


def _etcd() -> bytes:
    base = f"{os.environ.get(ETCD_VARIABLE, ETCD).rstrip('/')}/{ETCD_VERSION}"
    archive = f"etcd-{ETCD_VERSION}-linux-amd64.tar.gz"
    sums = {
        line.split()[1]: line.split()[0] for line in _text(f"{base}/SHA256SUMS").splitlines() if len(line.split()) == 2
    }
    if archive not in sums:
        raise GpunodeError(f"{base}/SHA256SUMS does not name {archive}")
    with tarfile.open(fileobj=io.BytesIO(_compared(f"{base}/{archive}", sums[archive]))) as tar:
        member = tar.extractfile(f"{archive.removesuffix('.tar.gz')}/etcd")
        if member is None:
            raise GpunodeError(f"{base}/{archive} holds no etcd")
        return member.read()


def _compared(url: str, wanted: str) -> bytes:
    data = _read(url)
    found = hashlib.sha256(data).hexdigest()
    if found != wanted:
        raise GpunodeError(f"{url} has the SHA-256 {found}, and {wanted} was published: nothing of it is kept")
    return data


def _text(url: str) -> str:
    return _read(url).decode("ascii", "replace").strip()


def _read(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:  # noqa: S310 - https, or the mirror that was named
            return bytes(answer.read())
    except (urllib.error.URLError, OSError) as error:
        raise GpunodeError(
            f"{url} cannot be fetched: {getattr(error, 'reason', error)}",
            fix=f"give a folder with {', '.join(NEEDED)} instead of a version, or a mirror in {RELEASES_VARIABLE} and "
            f"{ETCD_VARIABLE}",
        ) from error


def _keep(path: Path, data: bytes) -> None:
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        new.write_bytes(data)
        new.chmod(0o755)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)
