"""A damaged, incomplete or other bundle is found: by gpunode bundle verify, and by a plan before it has steps."""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from apt_server import Server
from bundle_site import NEEDS_GPG, Site, cut, flip, gpunode
from click.testing import CliRunner

from gpunode.cli.main import cli
from gpunode.core.bundle.manifest import Manifest, Packaged, TargetPart, lacking
from gpunode.core.model import PackageWant

pytest.importorskip("solv")
pytest_plugins = ("bundle_fixtures",)
pytestmark = NEEDS_GPG


@pytest.mark.parametrize(
    ("hurt", "what"), [(flip, "its SHA-256 is"), (cut, "bytes in place of"), (Path.unlink, "it is not there")]
)
@pytest.mark.parametrize("name", ["libnvidia-container1_1.20.1-1_amd64.deb", "Packages.gz", "InRelease"])
def test_verify_names_each_damaged_file(site: Site, hurt: Any, what: str, name: str) -> None:
    site.create()
    hurt(site.part / name)
    printed = gpunode("bundle", "verify", site.bundle, exit=1)
    assert f"nvidia-container-toolkit/{name}: " in printed and what in printed and "NOT whole" in printed


def test_verify_reads_a_bundle_that_is_served_and_one_in_a_file(site: Site) -> None:
    site.create()
    server = Server(site.bundle)
    assert "whole" in gpunode("bundle", "verify", server.url)
    flip(site.part / "Packages.gz")
    assert "NOT whole" in gpunode("bundle", "verify", server.url, exit=1)
    server.close()
    site.create("-o", site.folder / "bundle.tar")
    assert "whole" in gpunode("bundle", "verify", site.folder / "bundle.tar")
    file = site.folder / "bundle.tar"
    file.write_bytes(file.read_bytes()[:-30000])
    done = CliRunner().invoke(cli, ["bundle", "verify", str(file)], standalone_mode=False)
    assert done.return_value in (1, 5)  # by where it was cut off: files that are missing, or no archive


def test_a_tar_is_the_folder(site: Site) -> None:
    site.create()
    site.create("-o", site.folder / "other.tar")
    with tarfile.open(site.folder / "other.tar") as tar:
        inside = {m.name.partition("/")[2]: m for m in tar.getmembers() if not m.isdir()}
        file = tar.extractfile(inside["manifest.json"])
        assert isinstance(file, io.BufferedReader)
        assert set(json.load(file)["files"]) == set(site.manifest()["files"])
    assert set(inside) == {str(p.relative_to(site.bundle)) for p in site.bundle.rglob("*") if p.is_file()}


def test_a_manifest_that_was_changed_is_refused(site: Site) -> None:
    site.create()
    file = site.bundle / "manifest.json"
    file.write_text(file.read_text().replace('"created": "20', '"created": "19'))
    assert "its bytes were changed" in gpunode("bundle", "verify", site.bundle, exit=5)


@pytest.mark.parametrize("path", ["../outside", "/etc/passwd", "repos/../../outside", "repos//x", ".ssh/id", "a\nb"])
def test_a_manifest_with_files_elsewhere_is_refused(site: Site, path: str) -> None:
    site.create()
    manifest = site.manifest()
    manifest["files"][path] = {"sha256": "0" * 64, "size": 1}
    (site.bundle / "manifest.json").write_text(json.dumps(manifest))
    assert "would lie at" in gpunode("bundle", "verify", site.bundle, exit=2)


def test_a_bundle_that_is_not_the_one_meant_is_refused(site: Site) -> None:
    site.create()
    assert "bundle.sha256" in gpunode("bundle", "verify", site.bundle, "--sha256", "0" * 64, exit=5)


def test_a_place_without_a_bundle_says_so(tmp_path: Path) -> None:
    assert "no bundle" in gpunode("bundle", "verify", tmp_path / "nowhere", exit=2)
    assert "manifest.json" in gpunode("bundle", "verify", tmp_path, exit=2)


def endless(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize(
    ("name", "exit", "what"),
    [
        ("manifest.json", 5, "manifest.json is longer than"),
        ("manifest.json.asc", 5, "manifest.json.asc is longer than"),
        ("keys/bundle.asc", 5, "keys/bundle.asc is longer than"),
        ("repos/debian-12-amd64/nvidia-container-toolkit/Packages.gz", 1, "it has more bytes in place of"),
    ],
)
def test_a_file_without_an_end_is_read_as_far_as_it_may_go(site: Site, name: str, exit: int, what: str) -> None:
    site.create()
    endless(site.bundle / name if (site.bundle / name).exists() else site.part / Path(name).name)
    assert what in gpunode("bundle", "verify", site.bundle, exit=exit)


def test_a_tar_with_a_sparse_manifest_is_refused(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    with (tmp_path / "b/manifest.json").open("wb") as file:
        file.truncate(1 << 34)
    subprocess.run(["tar", "-C", tmp_path, "--sparse", "-cf", tmp_path / "b.tar", "b"], check=True)
    assert (tmp_path / "b.tar").stat().st_size < 1 << 20
    assert "is longer than" in gpunode("bundle", "verify", tmp_path / "b.tar", exit=5)


def test_a_packed_tar_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "b.tar", "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("b/manifest.json"))
    assert "cannot be read" in gpunode("bundle", "verify", tmp_path / "b.tar", exit=5)


def test_a_link_in_a_tar_leads_nowhere_outside_of_it(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "b.tar", "w") as tar:
        link = tarfile.TarInfo("b/manifest.json")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    assert "manifest.json" in gpunode("bundle", "verify", tmp_path / "b.tar", exit=2)


# ---------------------------------------------------------------- plan


def planned(site: Site, spec: dict[str, Any]) -> dict[str, Any]:
    """The plan of a recorded bare Debian 12 node with an H100."""
    probe = Path(__file__).parents[1] / "cases/probes/debian12-h100-fresh/probe.txt"
    (site.folder / "airgap.yml").write_text(yaml.safe_dump(spec))
    done = CliRunner().invoke(
        cli,
        ["plan", "--probe", str(probe), "-c", str(site.folder / "airgap.yml"), "--format", "json"],
        standalone_mode=False,
    )
    assert not done.exception, done.exception
    [host] = json.loads(done.stdout)["hosts"]
    return dict(host)


def airgapped(site: Site, **more: Any) -> dict[str, Any]:
    text = gpunode("bundle", "sources", site.bundle, "--url", f"file://{site.bundle}", "--format", "json")
    data: dict[str, Any] = json.loads(text)
    return {"driver": {"branch": "none"}, **data, **more}


def test_a_plan_uses_the_bundle_and_no_other_repository(site: Site) -> None:
    site.create()
    host = planned(site, airgapped(site))
    assert host["problems"] == []
    steps = {f"{s['role']}.{s['option']}": s["value"] for s in host["steps"]}
    files = {file["path"]: file["content"] or "" for file in steps["toolkit.sources"]}
    here = f"URIs: file://{site.bundle}/repos/debian-12/x86_64"
    assert f"{here}/distribution\n" in files["/etc/apt/sources.list.d/gpunode-distribution.sources"]
    assert (
        f"{here}/nvidia-container-toolkit\n"
        in files["/etc/apt/sources.list.d/gpunode-nvidia-container-toolkit.sources"]
    )
    packages = steps["toolkit.packages"]
    assert packages["alone"] is True
    assert sorted(packages["refresh"]) == sorted(path for path in files if path.endswith(".sources"))


@pytest.mark.parametrize("hurt", [flip, cut, Path.unlink])
def test_a_plan_with_a_damaged_bundle_has_no_steps(site: Site, hurt: Any) -> None:
    site.create()
    spec = airgapped(site)
    assert planned(site, spec)["problems"] == []  # remembered as whole from here on
    hurt(site.part / "libnvidia-container1_1.20.1-1_amd64.deb")
    host = planned(site, spec)
    assert host["steps"] == []
    assert "libnvidia-container1_1.20.1-1_amd64.deb" in host["problems"][0]["what"]


def test_a_plan_for_what_the_bundle_lacks_has_no_steps(site: Site) -> None:
    site.create()
    host = planned(site, airgapped(site, toolkit={"version": "1.19.0"}))
    assert host["steps"] == []
    assert "lacks nvidia-container-toolkit 1.19.0-1" in host["problems"][0]["what"]


def test_a_plan_with_another_bundle_than_the_one_named_has_no_steps(site: Site) -> None:
    site.create()
    spec = airgapped(site)
    site.create()  # made again: another key, another manifest
    host = planned(site, spec)
    assert host["steps"] == []
    assert "bundle.sha256" in json.dumps(host["problems"]) or "SHA-256" in host["problems"][0]["what"]


def test_a_file_that_was_whole_is_not_read_again(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpunode.edge.bundle.verify import Folder

    site.create()
    spec = airgapped(site)
    planned(site, spec)
    read: list[str] = []
    real = Folder.open
    monkeypatch.setattr(Folder, "open", lambda self, path: (read.append(path), real(self, path))[1])
    planned(site, spec)
    assert read == ["manifest.json"]


@pytest.mark.parametrize(
    ("wanted", "version", "there"),
    [
        ("kernel-devel-5.14.0-427.el9.x86_64", "", True),
        ("kernel-devel-5.14.0-427.el9", "", True),
        ("kernel-devel", "", True),
        ("kernel-devel-5.14.0-503.el9.x86_64", "", False),
        ("kernel-default-devel-6.4.0-150600.21", "", True),
        ("kernel-default-devel-6.4.0-150600.2", "", False),
        ("nvidia-open", "580.*", True),
        ("nvidia-open", "580.95.05", True),
        ("nvidia-open", "595.*", False),
        ("bash", "", True),  # of the base
        ("zsh", "", False),
    ],
)
def test_the_bundle_is_asked_in_the_words_of_a_plan(wanted: str, version: str, there: bool) -> None:
    def package(name: str, version: str) -> Packaged:
        return Packaged(name=name, version=version, arch="x86_64", file="f", sha256="0", size=1, url="", checked="")

    some = (
        package("kernel-devel", "5.14.0-427.el9"),
        package("kernel-default-devel", "6.4.0-150600.21.2"),
        package("nvidia-open", "3:580.95.05-1.el9"),
    )
    part = TargetPart(
        family="rhel", gpus=(), asked=(), base="b", base_names=("bash",), repositories={"nvidia-cuda": some}
    )
    manifest = Manifest(gpunode="0", created="", fingerprint="", targets={"rocky:9/x86_64": part}, files={})
    problems = lacking(manifest, "rocky:9/x86_64", [PackageWant(name=wanted, version=version)])
    assert (problems == ()) is there
    assert "rocky:8/x86_64" in lacking(manifest, "rocky:8/x86_64", [])[0].what
