"""Bundles for Arch: signatures of packages compared, a signed database that the real pacman takes, plans with it."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import subprocess
import tarfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from apt_server import Server
from arch_packages import Pkg, arch_repository, signed
from bundle_site import NEEDS_GPG, gpunode

from gpunode.core.bundle.alpm import parse_desc
from gpunode.core.openpgp import binary
from gpunode.core.spec import parse_spec
from gpunode.edge.bundle.inside import check_inside
from gpunode.lab import packages_deb
from gpunode.lab.packages_deb import SigningKey

pytest.importorskip("solv")
pytest_plugins = ("bundle_fixtures",)
pytestmark = NEEDS_GPG
TARGET = "arch/x86_64"


@dataclass(frozen=True, kw_only=True)
class Arch:
    """A mirror of two repositories, and a folder with what a reference machine has of them."""

    server: Server
    folder: Path
    machine: Path
    spec: Path

    def create(self, *more: object, exit: int = 0) -> str:
        words = ["bundle", "create", "-c", self.spec, "--for", TARGET, "--gpu", "H100", "-o", self.bundle, *more]
        return gpunode(*words, "--repositories", f"{TARGET}={self.machine}", exit=exit)

    @property
    def bundle(self) -> Path:
        return self.folder / "bundle"

    @property
    def part(self) -> Path:
        return self.bundle / "repos/arch/x86_64/distribution"

    def manifest(self) -> dict[str, Any]:
        return dict(json.loads((self.bundle / "manifest.json").read_text()))

    def names(self) -> set[str]:
        [packages] = self.manifest()["targets"][TARGET]["repositories"].values()
        return {package["name"] for package in packages}


CORE = [Pkg(name="linux"), Pkg(name="linux-headers"), Pkg(name="glibc"), Pkg(name="bash", depends=["glibc"])]
EXTRA = [
    Pkg(name="nvidia-utils", version="595.1-1", depends=["glibc"]),
    Pkg(name="nvidia-open", version="595.1-3", depends=["linux", "nvidia-utils=595.1"]),
    Pkg(name="libnvidia-container", version="1.20-1"),
    Pkg(name="nvidia-container-toolkit", version="1.20-1", depends=["libnvidia-container"], arch="any"),
]
CLOSURE = {package.name for package in (*CORE, *EXTRA)} - {"bash", "linux-headers"}


@pytest.fixture
def arch(tmp_path: Path, key: SigningKey, monkeypatch: pytest.MonkeyPatch) -> Iterator[Arch]:
    for name in ("CACHE", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    monkeypatch.setattr("gpunode.edge.openpgp.KEY_KIND", "ed25519")
    monkeypatch.setattr("gpunode.edge.bundle.store.time.sleep", lambda _: None)
    arch_repository(tmp_path / "www/core/os/x86_64", "core", key, *CORE)
    arch_repository(tmp_path / "www/extra/os/x86_64", "extra", key, *EXTRA, inside=True)
    server = Server(tmp_path / "www")
    machine = tmp_path / "machine"
    machine.mkdir()
    sections = "".join(f"[{name}]\nInclude = /etc/pacman.d/mirrorlist\n" for name in ("core", "extra"))
    (machine / "pacman.conf").write_text(f"[options]\nArchitecture = auto\n\n{sections}")
    (machine / "mirrorlist").write_text(f"# nearest\nServer = {server.url}/$repo/os/$arch\n")
    (machine / "archlinux.gpg").write_bytes(key.public)
    (tmp_path / "spec.yml").write_text("{}")
    yield Arch(server=server, folder=tmp_path, machine=machine, spec=tmp_path / "spec.yml")
    server.close()


def test_a_bundle_for_arch_is_the_closure_in_one_repository(arch: Arch, key: SigningKey) -> None:
    arch.create("--package", "bash")
    assert arch.names() == CLOSURE | {"bash"}
    assert "whole" in gpunode("bundle", "verify", arch.bundle)
    packages = arch.manifest()["targets"][TARGET]["repositories"]["distribution"]
    assert {package["checked"] for package in packages} == {f"its own signature by {key.fingerprint}"}
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress((arch.part / "gpunode-distribution.db").read_bytes()))) as db:
        entries = {m.name for m in db if m.isfile()}
    assert entries == {f"{p.name}-{p.version}/desc" for p in (*CORE, *EXTRA) if p.name in arch.names()}
    document = json.loads((arch.bundle / "bundle.spdx.json").read_text())
    purls = {p["externalRefs"][0]["referenceLocator"] for p in document["packages"]}
    assert "pkg:alpm/arch/nvidia-open@595.1-3?arch=x86_64&distro=arch" in purls


def test_what_every_node_has_is_left_out(arch: Arch) -> None:
    (arch.folder / "base.txt").write_text("glibc 2.40-1\nlinux 6.12-1\n")
    arch.create("--base", arch.folder / "base.txt")
    assert arch.names() == CLOSURE - {"glibc", "linux"}


def test_a_package_of_another_key_is_refused(arch: Arch) -> None:
    file = next((arch.folder / "www/core/os/x86_64").glob("glibc-*.gz"))
    with packages_deb.gpg_home() as home:
        other = packages_deb.make_key(Path(home), "somebody else")
        file.with_name(f"{file.name}.sig").write_bytes(signed(other, file))
        packages_deb.stop_agent(Path(home))
    assert "glibc" in arch.create(exit=5)
    assert not arch.bundle.exists()


def test_a_package_without_a_signature_is_refused(arch: Arch) -> None:
    next((arch.folder / "www/core/os/x86_64").glob("glibc-*.sig")).unlink()
    assert "is not signed" in arch.create(exit=5)


def test_an_old_package_under_a_new_versions_name_is_refused(arch: Arch, key: SigningKey) -> None:
    """Its signature is right; the database, which nobody signs, calls it what it is not."""
    folder = arch.folder / "www/extra/os/x86_64"

    class Renamed(Pkg):
        def data(self) -> bytes:
            return replace(CORE[2], version="1.0-1").data()  # glibc's

    some = [p for p in EXTRA if p.name != "libnvidia-container"]
    arch_repository(folder, "extra", key, *some, Renamed(name="libnvidia-container", version="1.20-1"), inside=True)
    printed = arch.create(exit=5)
    assert "the file is glibc 1.0-1 x86_64, and its list calls it libnvidia-container 1.20-1 x86_64" in printed
    assert not arch.bundle.exists()


@pytest.mark.skipif(not shutil.which("zstd"), reason="needs zstd")
def test_no_more_of_a_package_is_unpacked_than_stands_before_its_own_words(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name, data in ((".PKGINFO", CORE[2].data()), ("rest", bytes(200 << 20))):
            member = tarfile.TarInfo(name)
            text = b"pkgname = a\npkgver = 1-1\narch = any\n" if name == ".PKGINFO" else data
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text))
    subprocess.run(["zstd", "-q", tmp_path / "a.tar"], check=True)
    began = time.process_time()
    check_inside(parse_desc(Pkg(name="a", version="1-1", arch="any").desc(), repository="r", base="b", origin="o"),
                 tmp_path / "a.tar.zst")  # fmt: skip
    assert time.process_time() - began < 1


def test_a_key_that_was_revoked_is_not_trusted(arch: Arch, key: SigningKey) -> None:
    (arch.machine / "archlinux-revoked").write_text(f"{key.fingerprint}\n")
    assert "is revoked" in arch.create(exit=2)
    with packages_deb.gpg_home() as home:
        other = packages_deb.make_key(Path(home), "somebody else")
        (arch.machine / "archlinux.gpg").write_bytes(binary(key.public) + binary(other.public))
        packages_deb.stop_agent(Path(home))
    assert "not to be trusted" in arch.create(exit=5)


def test_a_database_that_is_none_is_refused(arch: Arch) -> None:
    (arch.folder / "www/core/os/x86_64/core.db").write_bytes(b"<html>")
    assert "no database of pacman" in arch.create(exit=1)


def test_without_the_keyring_nothing_is_made(arch: Arch, monkeypatch: pytest.MonkeyPatch) -> None:
    (arch.machine / "archlinux.gpg").unlink()
    monkeypatch.setattr("gpunode.edge.bundle.reference.DEBIANS_KEYRINGS", arch.folder)
    assert "archlinux-keyring" in arch.create(exit=2) or Path("/usr/share/pacman/keyrings/archlinux.gpg").exists()


def test_a_bundle_is_made_from_another_bundle(arch: Arch) -> None:
    arch.create("--package", "bash")
    server = Server(arch.bundle)
    spec = gpunode("bundle", "sources", arch.bundle, "--url", server.url, "--format", "json")
    arch.spec.write_text(spec)
    words = ["bundle", "create", "-c", arch.spec, "--for", TARGET, "--gpu", "H100", "-o", arch.folder / "second"]
    gpunode(*words)
    second = json.loads((arch.folder / "second/manifest.json").read_text())["targets"][TARGET]["repositories"]
    assert {package["name"] for package in second["distribution"]} == CLOSURE
    (arch.part / "gpunode-distribution.db.sig").write_bytes(b"")
    assert "not to be trusted" in gpunode(*words, exit=5)
    server.close()


def airgapped(arch: Arch, url: str) -> dict[str, Any]:
    """The plan of the recorded Arch node with the bundle."""
    arch.spec.write_text(gpunode("bundle", "sources", arch.bundle, "--url", url, "--format", "json"))
    probe = Path(__file__).parents[1] / "cases/probes/arch-h100-fresh/probe.txt"
    [host] = json.loads(gpunode("plan", "--probe", probe, "-c", arch.spec, "--format", "json", exit=3))["hosts"]
    return dict(host)


def test_a_plan_uses_the_bundle_and_no_other_repository(arch: Arch) -> None:
    arch.create()
    host = airgapped(arch, f"file://{arch.bundle}")
    assert host["problems"] == []
    steps = {f"{s['role']}.{s['option']}": s["value"] for s in host["steps"]}
    files = {file["path"]: file["content"] for file in steps["driver.sources"]}
    conf = files["/etc/pacman.d/gpunode-distribution.conf"]
    assert f"Server = file://{arch.part}\n" in conf and "SigLevel = PackageNever DatabaseRequired\n" in conf
    assert "# Key = /etc/pacman.d/gpunode-distribution.asc\n" in conf
    assert "BEGIN PGP PUBLIC KEY" in files["/etc/pacman.d/gpunode-distribution.asc"]
    for step in ("driver.packages", "toolkit.packages"):
        assert steps[step]["refresh"] == ["/etc/pacman.d/gpunode-distribution.conf"] and steps[step]["alone"]


@pytest.mark.skipif(not shutil.which("pacman"), reason="needs pacman")
@pytest.mark.parametrize("over", ["file", "http"])
def test_the_real_pacman_takes_it(arch: Arch, over: str) -> None:
    """Configured by pacman.sh as on a node, in a root of its own; a database that was changed is refused."""
    arch.create()
    server = Server(arch.bundle)
    url = server.url if over == "http" else f"file://{arch.bundle}"
    spec = parse_spec(yaml.safe_load(gpunode("bundle", "sources", arch.bundle, "--url", url)))
    root = arch.folder / "root"
    for path in ("in/.sources", "var/lib/pacman/local", "cache", "etc"):
        (root / path).mkdir(parents=True)
    (root / "var/lib/pacman/local/ALPM_DB_VERSION").write_text("9\n")
    source = spec.sources["distribution"]
    (root / "key.asc").write_text(source.key)
    place = source.url.replace("{distro}/{machine}", "arch/x86_64")
    text = (
        f"# Key = {root}/key.asc\n[gpunode-distribution]\nSigLevel = PackageNever DatabaseRequired\nServer = {place}\n"
    )
    (root / "in/.sources/gpunode-distribution.conf").write_text(text)
    (root / "etc/pacman.conf").write_text(
        f"[options]\nRootDir = {root}\nDBPath = {root}/var/lib/pacman\nCacheDir = {root}/cache\n"
        "Architecture = x86_64\nGPGDir = /nowhere\n[core]\nServer = http://192.0.2.1/\n"
    )
    script = (
        (Path(__file__).parents[2] / "gpunode/node/packages/pacman.sh").read_text().replace("/etc/pacman.conf", "$CONF")
    )
    setting = f"GPUNODE_IN={root}/in CONF={root}/etc/pacman.conf log={root}/log; umask 077; alone() {{ :; }}\n"

    def pacman(*words: str) -> subprocess.CompletedProcess[str]:
        program = f"{setting}{script}\npacman_alone; pacman_ {' '.join(words)}\n"
        environment = {**os.environ, "LC_ALL": "C"}
        return subprocess.run(["sh", "-c", program], capture_output=True, text=True, check=False, env=environment)

    done = pacman("-Sy")
    assert done.returncode == 0, done.stderr + (root / "log").read_text()
    done = pacman("-S", "--print", "--print-format", "%n", "nvidia-open", "nvidia-container-toolkit")
    assert set(done.stdout.split()) == CLOSURE, done.stderr
    done = pacman("-S", "nvidia-open", "nvidia-container-toolkit")
    assert done.returncode == 0, done.stdout + done.stderr
    assert {path.name for path in (root / "usr/share/doc").iterdir()} == CLOSURE
    victim = arch.part / "gpunode-distribution.db"
    data = gzip.decompress(victim.read_bytes())
    victim.write_bytes(gzip.compress(data.replace(b"595.1", b"595.2"), mtime=0))
    assert "signature" in pacman("-Syy").stderr
    server.close()
