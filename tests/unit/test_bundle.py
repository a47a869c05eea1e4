"""gpunode bundle, from small signed repositories over HTTP: made, resumed, checked, read by the real apt."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from apt_server import Server, deb, repository
from click.testing import CliRunner

from gpunode.cli.main import cli
from gpunode.core.bundle.manifest import Manifest, Packaged, TargetPart, lacking
from gpunode.core.errors import GpunodeError
from gpunode.core.model import PackageWant
from gpunode.core.spec import parse_spec
from gpunode.lab import packages_deb
from gpunode.lab.packages_deb import SigningKey

pytest.importorskip("solv")
pytestmark = pytest.mark.skipif(not (shutil.which("gpg") and shutil.which("gpgv")), reason="needs gpg and gpgv")
TARGET = "debian:12/x86_64"
PARTS = ("nvidia-container-toolkit-base", "libnvidia-container-tools", "libnvidia-container1")


@dataclass(frozen=True, kw_only=True)
class Site:
    """Two repositories behind a server, and the files that name them."""

    server: Server
    folder: Path
    spec: Path
    repositories: Path
    key: SigningKey

    def create(self, *more: object, exit: int = 0) -> Any:
        words = ["bundle", "create", "-c", self.spec, "--for", TARGET, "--gpu", "10de:2330"]
        words += ["--repositories", f"{TARGET}={self.repositories}", "-o", self.folder / "bundle", *more]
        return gpunode(*words, exit=exit)

    @property
    def bundle(self) -> Path:
        return self.folder / "bundle"

    @property
    def part(self) -> Path:
        """The repository of the toolkit in the bundle."""
        return self.bundle / "repos/debian-12/x86_64/nvidia-container-toolkit"

    def manifest(self) -> dict[str, Any]:
        return dict(json.loads((self.bundle / "manifest.json").read_text()))


def gpunode(*words: object, exit: int = 0) -> str:
    done = CliRunner().invoke(cli, [str(word) for word in words], standalone_mode=False)
    code = done.exception.exit if isinstance(done.exception, GpunodeError) else done.return_value
    assert code == exit, f"{done.output}{done.exception!r}"
    return done.output + (str(done.exception) if done.exception else "")


@pytest.fixture(scope="module")
def key() -> Iterator[SigningKey]:
    with packages_deb.gpg_home() as home:
        yield packages_deb.make_key(Path(home), "a vendor")
        packages_deb.stop_agent(Path(home))


@pytest.fixture
def site(tmp_path: Path, key: SigningKey, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr("gpunode.edge.bundle.store.time.sleep", lambda _: None)
    monkeypatch.setattr("gpunode.edge.openpgp.KEY_KIND", "ed25519")  # made in no time
    monkeypatch.chdir(tmp_path)
    top = {"depends": ", ".join(f"{name} (= 1.20.0-1)" for name in PARTS) + ", libc6 (>= 2.30)"}
    toolkit = [deb("nvidia-container-toolkit", "1.20.0-1", **top), *(deb(name, "1.20.0-1") for name in PARTS)]
    repository(tmp_path / "www/toolkit", key, *toolkit, deb("nvidia-docker2", "2.14.0-1"))
    repository(tmp_path / "www/distribution", key, deb("libc6", "2.36-9"), deb("bash", "5.2"), deb("nvtop", "3.0"))
    server = Server(tmp_path / "www")
    (tmp_path / "key.asc").write_bytes(key.public)
    source = {"url": f"{server.url}/toolkit", "key": str(tmp_path / "key.asc"), "fingerprint": key.fingerprint}
    spec = {"driver": {"branch": "none"}, "sources": {"nvidia-container-toolkit": source}}
    (tmp_path / "spec.yml").write_text(yaml.safe_dump(spec))
    sources = f"Types: deb\nURIs: {server.url}/distribution\nSuites: /\nSigned-By: {tmp_path}/key.asc\n"
    (tmp_path / "debian.sources").write_text(sources)
    yield Site(
        server=server,
        folder=tmp_path,
        spec=tmp_path / "spec.yml",
        repositories=tmp_path / "debian.sources",
        key=key,
    )
    server.close()


def names(site: Site) -> dict[str, set[str]]:
    found = site.manifest()["targets"][TARGET]["repositories"]
    return {name: {p["name"] for p in packages} for name, packages in found.items()}


def test_a_bundle_holds_the_closure_and_nothing_else(site: Site) -> None:
    site.create("--package", "nvtop")
    assert names(site) == {
        "nvidia-container-toolkit": {"nvidia-container-toolkit", *PARTS},
        "distribution": {"libc6", "nvtop"},
    }
    assert "whole" in gpunode("bundle", "verify", site.bundle)
    there = {str(p.relative_to(site.bundle)) for p in site.bundle.rglob("*") if p.is_file()}
    assert there == {*site.manifest()["files"], "manifest.json", "manifest.json.asc"}
    sums = subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=site.bundle, check=False)
    assert sums.returncode == 0


def test_what_every_node_has_is_left_out(site: Site) -> None:
    (site.folder / "base.txt").write_text("libc6:amd64\t2.36-9\nbash\t5.2\n")
    site.create("--base", site.folder / "base.txt")
    assert names(site)["distribution"] == set()
    assert site.manifest()["targets"][TARGET]["base"] == "base.txt"


def test_the_bill_of_materials_names_every_package_with_its_checksum(site: Site) -> None:
    site.create()
    document = json.loads((site.bundle / "bundle.spdx.json").read_text())
    assert (document["spdxVersion"], document["dataLicense"]) == ("SPDX-2.3", "CC0-1.0")
    packages = {p["packageFileName"]: p for p in document["packages"]}
    listed = [p for part in site.manifest()["targets"][TARGET]["repositories"].values() for p in part]
    assert set(packages) == {p["file"] for p in listed}
    for one in listed:
        assert packages[one["file"]]["checksums"] == [{"algorithm": "SHA256", "checksumValue": one["sha256"]}]
        purl = packages[one["file"]]["externalRefs"][0]["referenceLocator"]
        assert purl == f"pkg:deb/debian/{one['name']}@{one['version']}?arch=amd64&distro=debian-12"
    assert len({p["SPDXID"] for p in document["packages"]}) == len(packages)


@pytest.mark.skipif(not shutil.which("apt-get"), reason="needs apt")
def test_the_real_apt_installs_from_the_bundle_alone(site: Site) -> None:
    site.create("--url", f"file://{site.bundle}")
    spec = parse_spec(yaml.safe_load((site.bundle / "sources.yml").read_text()))
    root = site.folder / "root"
    for folder in ("state/lists/partial", "cache/archives/partial"):
        (root / folder).mkdir(parents=True)
    (root / "status").touch()
    lines = []
    for name, source in spec.sources.items():
        (root / f"{name}.asc").write_text(source.key)
        url = source.url.replace("{distro}", "debian-12").replace("{machine}", "x86_64")
        lines.append(f"deb [signed-by={root}/{name}.asc] {url} /\n")
    (root / "sources.list").write_text("".join(lines))
    places = {
        "Dir::State": f"{root}/state",
        "Dir::State::status": f"{root}/status",
        "Dir::Cache": f"{root}/cache",
        "Dir::Etc::sourcelist": f"{root}/sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "APT::Sandbox::User": "root",
        "APT::Architecture": "amd64",
        "APT::Update::Error-Mode": "any",
    }
    options = [f"-o{name}={value}" for name, value in places.items()]

    def apt(*words: str) -> str:
        done = subprocess.run(["apt-get", *options, *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    apt("update")
    said = apt("-y", "--download-only", "install", "nvidia-container-toolkit")
    got = {p.name.partition("_")[0] for p in (root / "cache/archives").glob("*.deb")} or said
    wanted = {"nvidia-container-toolkit", *PARTS, "libc6"}
    assert got == wanted or all(f"{name} " in said for name in wanted)  # apt reads file:// in place


def test_a_download_that_broke_off_goes_on_and_is_not_begun_again(site: Site) -> None:
    file = next((site.folder / "www/toolkit").glob("libnvidia-container1_*.deb"))
    site.server.cut[file.name] = 100
    site.create()
    asked = [wanted for name, wanted in site.server.asked if name == file.name]
    assert asked == ["", "bytes=100-"]
    assert site.server.sent[file.name] == file.stat().st_size


def test_a_create_that_was_killed_is_taken_up_by_the_next(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one stops in the middle of a file, as at kill -9: nothing of it is at the bundle's place."""
    import gpunode.edge.bundle.store as store

    file = next((site.folder / "www/toolkit").glob("libnvidia-container1_*.deb"))
    site.server.cut[file.name] = 100
    monkeypatch.setattr(store, "TRIES", 1)
    said = site.create(exit=1)
    assert file.name in said and "goes on where it broke off" in said
    assert not site.bundle.exists()
    site.create()
    assert site.server.sent[file.name] == file.stat().st_size
    site.server.sent.clear()
    site.create()  # once more: nothing but lists is fetched
    assert [name for name in site.server.sent if name.endswith(".deb")] == []


def test_a_server_without_ranges_begins_again(site: Site, key: SigningKey) -> None:
    plain = Server(site.folder / "www", ranges=False)
    text = site.spec.read_text().replace(site.server.url, plain.url)
    site.spec.write_text(text)
    file = next((site.folder / "www/toolkit").glob("libnvidia-container1_*.deb"))
    plain.cut[file.name] = 100
    site.create()
    plain.close()
    assert plain.sent[file.name] == file.stat().st_size + 100


def test_a_file_of_several_targets_is_there_once(site: Site) -> None:
    both = f"{TARGET},debian:13/x86_64"
    site.create("--for", both, "--repositories", f"debian:13/x86_64={site.repositories}")
    files = [site.bundle / f"repos/debian-{n}/x86_64/distribution/libc6_2.36-9_amd64.deb" for n in (12, 13)]
    assert files[0].samefile(files[1])


def test_a_bundle_is_made_from_another_bundle(site: Site) -> None:
    """Behind the gap a bundle is a repository like any other: a smaller one can be made of it."""
    site.create("--package", "nvtop")
    server = Server(site.bundle)
    text = gpunode("bundle", "sources", site.bundle, "--url", server.url, "--format", "json")
    site.spec.write_text(yaml.safe_dump(json.loads(text) | {"driver": {"branch": "none"}}))
    words = ["bundle", "create", "-c", site.spec, "--for", TARGET, "--gpu", "10de:2330", "-o", site.folder / "second"]
    gpunode(*words)
    server.close()
    second = json.loads((site.folder / "second/manifest.json").read_text())["targets"][TARGET]["repositories"]
    found = {name: {p["name"] for p in packages} for name, packages in second.items()}
    assert found == {"nvidia-container-toolkit": {"nvidia-container-toolkit", *PARTS}, "distribution": {"libc6"}}


def test_a_file_that_is_not_the_one_of_the_lists_is_refused(site: Site) -> None:
    file = next((site.folder / "www/toolkit").glob("libnvidia-container1_*.deb"))
    data = file.read_bytes()
    file.write_bytes(data[:-1] + b"?")
    said = site.create(exit=1)
    assert file.name in said and "as the signed metadata says" in said
    assert not site.bundle.exists()


def test_lists_that_were_changed_are_refused(site: Site) -> None:
    release = site.folder / "www/distribution/InRelease"
    release.write_text(release.read_text().replace("Origin: test", "Origin: best"))
    assert "its bytes were changed" in site.create(exit=5)


def test_lists_of_packages_that_release_does_not_name_are_refused(site: Site) -> None:
    import gzip

    packages = site.folder / "www/distribution/Packages.gz"
    packages.write_bytes(gzip.compress(gzip.decompress(packages.read_bytes()) + b"\n"))
    assert "not the one that the signed Release names" in site.create(exit=1)


def test_a_signature_by_another_key_is_refused(site: Site) -> None:
    with packages_deb.gpg_home() as home:
        other = packages_deb.make_key(Path(home), "somebody else")
        shutil.rmtree(site.folder / "www/distribution")
        repository(site.folder / "www/distribution", other, deb("libc6", "2.36-9"))
        packages_deb.stop_agent(Path(home))
    assert "it is by another key" in site.create(exit=5)


def test_lists_whose_time_is_over_are_taken_only_when_asked(site: Site, key: SigningKey) -> None:
    folder = site.folder / "www/distribution"
    (folder / "Release").write_text(f"Valid-Until: Thu, 01 Jan 2015 00:00:00 UTC\n{(folder / 'Release').read_text()}")
    packages_deb._sign(folder, key)
    assert "valid until Thu, 01 Jan 2015" in site.create(exit=5)
    site.create("--allow-expired")


def test_what_cannot_be_had_is_named(site: Site) -> None:
    assert "no repository has nonesuch" in site.create("--package", "nonesuch", exit=5)


def test_a_folder_that_is_no_bundle_is_not_written_over(site: Site) -> None:
    site.bundle.mkdir()
    (site.bundle / "thesis.tex").write_text("years of work")
    assert "no bundle" in site.create(exit=2)
    assert (site.bundle / "thesis.tex").read_text() == "years of work"


# ---------------------------------------------------------------- verify


def flip(path: Path) -> None:
    data = path.read_bytes()
    path.unlink()  # its bytes are the store's as well
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


def cut(path: Path) -> None:
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data[: len(data) // 2])


@pytest.mark.parametrize(
    ("hurt", "what"), [(flip, "its SHA-256 is"), (cut, "bytes in place of"), (Path.unlink, "it is not there")]
)
@pytest.mark.parametrize("name", ["libnvidia-container1_1.20.0-1_amd64.deb", "Packages.gz", "InRelease"])
def test_verify_names_each_damaged_file(site: Site, hurt: Any, what: str, name: str) -> None:
    site.create()
    hurt(site.part / name)
    said = gpunode("bundle", "verify", site.bundle, exit=1)
    assert f"nvidia-container-toolkit/{name}: " in said and what in said and "NOT whole" in said


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
    hurt(site.part / "libnvidia-container1_1.20.0-1_amd64.deb")
    host = planned(site, spec)
    assert host["steps"] == []
    assert "libnvidia-container1_1.20.0-1_amd64.deb" in host["problems"][0]["what"]


def test_a_plan_for_what_the_bundle_lacks_has_no_steps(site: Site) -> None:
    site.create()
    host = planned(site, airgapped(site, toolkit={"version": "1.19.0"}))
    assert host["steps"] == []
    assert "lacks nvidia-container-toolkit 1.19.0-1" in host["problems"][0]["what"]


def test_a_plan_with_another_bundle_than_the_one_named_has_no_steps(site: Site) -> None:
    site.create()
    spec = airgapped(site)
    site.create()  # made anew: another key, another manifest
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


# ---------------------------------------------------------------- what goes along


def test_charts_of_the_cluster_go_along(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from gpunode.edge import load

    known = load.load_kube_knowledge()
    chart = known.charts["nvidia-device-plugin"]
    data = b"a chart"
    (site.folder / "www/charts").mkdir()
    (site.folder / "www/charts/p.tgz").write_bytes(data)
    digest = hashlib.sha256(data).hexdigest()
    entry = {"version": chart.version, "urls": ["p.tgz"], "digest": digest}
    (site.folder / "www/charts/index.yaml").write_text(yaml.safe_dump({"entries": {chart.name: [entry]}}))
    here = {**known.charts, chart.name: replace(chart, repository=f"{site.server.url}/charts")}
    monkeypatch.setattr(load, "load_kube_knowledge", lambda: replace(known, charts=here))
    more = {"kubernetes": {"install": "helm", "server_version": "1.34", "node_feature_discovery": True}}
    more |= {"sharing": {"strategy": "time-slicing", "replicas": 2}}
    site.spec.write_text(yaml.safe_dump(yaml.safe_load(site.spec.read_text()) | more))
    site.create("--cluster")
    manifest = site.manifest()
    assert manifest["charts"] == [f"charts/{chart.name}-{chart.version}.tgz"]
    assert (site.bundle / manifest["charts"][0]).read_bytes() == data
    (site.folder / "www/charts/p.tgz").write_bytes(b"another chart")
    assert "not what the index" in site.create("--cluster", exit=1)


def test_a_chart_of_a_registry_is_named_and_left_to_helm(site: Site) -> None:
    more = {"kubernetes": {"install": "helm", "server_version": "1.34"}, "sharing": {"strategy": "dra"}}
    site.spec.write_text(yaml.safe_dump(yaml.safe_load(site.spec.read_text()) | more))
    assert "helm pull oci://registry.k8s.io/dra-driver-nvidia/charts/" in site.create("--cluster")
    assert site.manifest()["charts"] == []


def test_the_images_of_the_cluster_are_listed(site: Site) -> None:
    more = {"kubernetes": {"server_version": "1.34"}, "sharing": {"strategy": "gpushare"}}
    site.spec.write_text(yaml.safe_dump(yaml.safe_load(site.spec.read_text()) | more))
    site.create("--cluster")
    images = site.manifest()["images"]
    assert (site.bundle / "images.txt").read_text().split() == images
    assert any("gpushare" in image for image in images)


def test_wheels_go_along_with_what_they_need(site: Site) -> None:
    info = "demo-1.0.dist-info"
    files = {
        "demo.py": "",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
    }
    wheel = site.folder / "demo-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    site.create("--wheels", wheel)
    assert site.manifest()["wheels"] == ["wheels/demo-1.0-py3-none-any.whl"]
    document = json.loads((site.bundle / "bundle.spdx.json").read_text())
    purls = [p["externalRefs"][0]["referenceLocator"] for p in document["packages"]]
    assert "pkg:pypi/demo@1.0" in purls
    assert "cannot be had" in site.create("--wheels", site.folder / "no-such.whl", exit=1)


# ---------------------------------------------------------------- brought to where it is needed


def test_serve_gives_files_and_nothing_else(site: Site) -> None:
    import threading
    import urllib.error
    import urllib.request

    from gpunode.edge.bundle.serve import server

    site.create()
    (site.bundle / "out").symlink_to(site.spec)
    with server(site.bundle, "127.0.0.1", 0) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{serving.server_port}"
        assert "whole" in gpunode("bundle", "verify", url)
        for path, code in {"/": 403, "/repos/": 403, "/out": 404, "/../spec.yml": 404, "/%2e%2e/spec.yml": 404}.items():
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(url + path)
            assert (path, refused.value.code) == (path, code)
        serving.shutdown()


@pytest.mark.parametrize("text", ["host", "host:folder", ":/folder", "/folder"])
def test_a_destination_needs_a_host_and_a_folder(site: Site, text: str) -> None:
    site.create()
    assert "expected" in gpunode("bundle", "push", site.bundle, text, exit=2)


class Remote:
    """SFTP on a folder of this machine, as paramiko offers it."""

    def __init__(self, root: Path) -> None:
        self.root, self.put_paths = root, []  # type: ignore[var-annotated]

    def stat(self, path: str) -> os.stat_result:
        return (self.root / path.lstrip("/")).stat()

    def mkdir(self, path: str, mode: int) -> None:
        (self.root / path.lstrip("/")).mkdir(mode)

    def put(self, source: str, path: str) -> None:
        self.put_paths.append(path)
        shutil.copyfile(source, self.root / path.lstrip("/"))

    def chmod(self, path: str, mode: int) -> None:
        (self.root / path.lstrip("/")).chmod(mode)

    def posix_rename(self, old: str, new: str) -> None:
        (self.root / old.lstrip("/")).rename(self.root / new.lstrip("/"))


def test_what_is_there_already_is_not_copied_again(site: Site) -> None:
    from gpunode.edge.bundle.push import _copy

    site.create()
    (site.folder / "there").mkdir()
    remote = Remote(site.folder / "there")
    made: set[str] = set()
    names = [*site.manifest()["files"], "manifest.json"]
    assert sum(_copy(remote, site.bundle / name, f"/srv/b/{name}", made) for name in names) == len(names)
    victim = names[0]
    (site.folder / "there/srv/b" / victim).unlink()
    assert sum(_copy(remote, site.bundle / name, f"/srv/b/{name}", made) for name in names) == 1
    assert remote.put_paths[-1] == f"/srv/b/{victim}.part"
    assert gpunode("bundle", "verify", site.bundle)


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
