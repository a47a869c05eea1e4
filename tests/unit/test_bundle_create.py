"""gpunode bundle create, from small signed repositories over HTTP: made, resumed, refused, read by the real apt."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from apt_server import Server, deb, repository
from bundle_site import NEEDS_GPG, PARTS, TARGET, Site, gpunode, names

from gpunode.cli.bundle import _telling
from gpunode.core.bundle.deb import Deb
from gpunode.core.errors import GpunodeError
from gpunode.core.spec import parse_spec
from gpunode.edge.bundle import store
from gpunode.edge.bundle.inside import check_inside
from gpunode.edge.bundle.store import Store, Wanted, Web, progress
from gpunode.edge.openpgp import Signer, signer
from gpunode.lab import packages_deb

pytest.importorskip("solv")
pytest_plugins = ("bundle_fixtures",)
pytestmark = NEEDS_GPG


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


def test_a_base_that_has_all_that_is_wanted_makes_no_bundle(site: Site) -> None:
    """The list of a node that was provisioned before."""
    (site.folder / "base.txt").write_text("\n".join(["libc6", "nvidia-container-toolkit", *PARTS]))
    said = site.create("--base", site.folder / "base.txt", exit=2)
    assert "nothing to bundle: base.txt has every package" in said and not site.bundle.exists()


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
        assert packages[one["file"]]["downloadLocation"] == one["url"]
    ids = {p["SPDXID"] for p in document["packages"]}
    assert len(ids) == len(packages)
    assert [one for one in ids if not re.fullmatch(r"SPDXRef-[A-Za-z0-9.-]+", one)] == []  # clause 3.2
    assert {r["relatedSpdxElement"] for r in document["relationships"]} == ids


def test_the_bill_of_materials_names_no_place_of_this_machine(site: Site) -> None:
    """SPDX 2.3, clause 7.7: a location is one to download from, or NOASSERTION."""
    spec = yaml.safe_load(site.spec.read_text())
    spec["sources"]["nvidia-container-toolkit"]["url"] = f"file://{site.folder}/www/toolkit"
    site.spec.write_text(yaml.safe_dump(spec))
    site.create()
    document = json.loads((site.bundle / "bundle.spdx.json").read_text())
    places = {p["downloadLocation"].partition(":")[0] for p in document["packages"]}
    assert places == {"http", "NOASSERTION"}


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
    printed = apt("-y", "--download-only", "install", "nvidia-container-toolkit")
    got = {p.name.partition("_")[0] for p in (root / "cache/archives").glob("*.deb")} or printed
    wanted = {"nvidia-container-toolkit", *PARTS, "libc6"}
    assert got == wanted or all(f"{name} " in printed for name in wanted)  # apt reads file:// in place


def test_a_download_that_broke_off_goes_on_and_is_not_started_again(site: Site) -> None:
    file = next((site.folder / "www/toolkit").glob("libnvidia-container1_*.deb"))
    site.server.cut[file.name] = 100
    site.create()
    asked = [wanted for name, wanted in site.server.asked if name == file.name]
    assert asked == ["", "bytes=100-"]
    assert site.server.sent[file.name] == file.stat().st_size


def test_a_create_that_was_killed_is_taken_up_by_the_next(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one stops in the middle of a file, as at kill -9: nothing of it is at the bundle's place."""
    file = next((site.folder / "www/toolkit").glob("libnvidia-container1_*.deb"))
    site.server.cut[file.name] = 100
    monkeypatch.setattr(store, "TRIES", 1)
    printed = site.create(exit=1)
    assert file.name in printed and "continues where it stopped" in printed
    assert not site.bundle.exists()
    site.create()
    assert site.server.sent[file.name] == file.stat().st_size
    site.server.sent.clear()
    site.create()  # once more: nothing but lists is fetched
    assert [name for name in site.server.sent if name.endswith(".deb")] == []


def test_a_server_without_ranges_begins_again(site: Site, key: Signer) -> None:
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
    printed = site.create(exit=1)
    assert file.name in printed and "as the signed metadata says" in printed
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
    with signer("somebody else") as other:
        shutil.rmtree(site.folder / "www/distribution")
        repository(site.folder / "www/distribution", other, deb("libc6", "2.36-9"))
    assert "it is by another key" in site.create(exit=5)


def test_lists_whose_time_is_over_are_taken_only_when_asked(site: Site, key: Signer) -> None:
    folder = site.folder / "www/distribution"
    release = f"Valid-Until: Thu, 01 Jan 2015 00:00:00 UTC\n{(folder / 'Release').read_text()}"
    (folder / "InRelease").write_bytes(key.clearsigned(release.encode()))
    assert "valid until Thu, 01 Jan 2015" in site.create(exit=5)
    site.create("--allow-expired")


def test_what_cannot_be_had_is_named(site: Site) -> None:
    assert "no repository has nonesuch" in site.create("--package", "nonesuch", exit=5)


def test_a_folder_that_is_no_bundle_is_not_written_over(site: Site) -> None:
    site.bundle.mkdir()
    (site.bundle / "thesis.tex").write_text("years of work")
    assert "no bundle" in site.create(exit=2)
    assert (site.bundle / "thesis.tex").read_text() == "years of work"


# ---------------------------------------------------------------- progress


def test_progress_counts_bytes_as_they_come_and_ends_with_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "PIECE", 1000)
    (tmp_path / "www").mkdir()
    sizes = {"a": 3500, "b": 1, "c": 2000}
    wanted = []
    server = Server(tmp_path / "www")
    for name, size in sizes.items():
        data = name.encode() * size
        (tmp_path / "www" / name).write_bytes(data)
        wanted.append(Wanted(url=f"{server.url}/{name}", sha256=hashlib.sha256(data).hexdigest(), size=size))
    reported: list[tuple[int, int, int, int]] = []
    Store(tmp_path / "store", Web()).fetch_all([*wanted, wanted[0]], lambda *numbers: reported.append(numbers))
    server.close()
    assert {(of, total) for _, of, _, total in reported} == {(3, 5501)}
    assert [done for _, _, done, _ in reported] == sorted(done for _, _, done, _ in reported)
    assert len(reported) == 4 + 1 + 2
    assert reported[-1] == (3, 3, 5501, 5501)


def test_a_log_gets_a_line_of_progress_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    """What is news at once, progress not before its time, and the last of it at the end."""
    with _telling() as notify:
        notify("debian:12/x86_64: 12 packages")
        for at in range(1, 6):
            notify(progress("fetched", at, 5, at << 20, 5 << 20))
    assert capsys.readouterr().err.splitlines() == [
        "debian:12/x86_64: 12 packages",
        "fetched 5 of 5 files, 5 of 5 MiB",
    ]


@pytest.mark.parametrize(("name", "version"), [("libc6", "2.30-1"), ("bash", "2.36-9")])
def test_a_package_that_is_another_than_its_list_says_is_refused(
    name: str, version: str, site: Site, key: Signer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list is signed, and wrong: a server that was broken into before it signs."""
    shutil.rmtree(site.folder / "www/distribution")
    real = packages_deb.deb_bytes
    other = real(deb(name, version))
    monkeypatch.setattr(
        packages_deb, "deb_bytes", lambda one: other if one.control["Package"] == "libc6" else real(one)
    )
    repository(site.folder / "www/distribution", key, deb("libc6", "2.36-9"), deb("bash", "5.2"))
    printed = site.create(exit=5)
    assert f"the file is {name} {version} amd64, and its list calls it libc6 2.36-9 amd64" in printed
    assert not site.bundle.exists()


CUT_OFF = b"!<arch>\n" + f"{'control.tar.gz':<48}{'9' * 10}`\n".encode() + b"\x1f\x8b"


@pytest.mark.parametrize("data", [b"", b"<html>", b"!<arch>\n", b"!<arch>\n" + b"x" * 60, CUT_OFF])
def test_what_is_no_package_of_debian_is_refused_in_words(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.deb").write_bytes(data)
    listed = Deb("a", "1", "Package: a\nVersion: 1\nArchitecture: amd64\nFilename: a.deb\n", "r", "http://x")
    with pytest.raises(GpunodeError, match=r"a\.deb.* (is no package|cannot be unpacked)"):
        check_inside(listed, tmp_path / "a.deb")
