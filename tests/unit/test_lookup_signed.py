"""Look-ups by the key of a repository: what somebody else signed, nobody signed, or is over, is not looked at."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from apt_server import Server
from index_sites import apt_index, rpm_index

from gpunode.core.bundle.index import Index
from gpunode.core.bundle.upstream import Upstream
from gpunode.core.errors import GpunodeError
from gpunode.core.facts import parse_probe
from gpunode.core.model import Repository
from gpunode.edge.bundle.lookup import Indexes, read_index
from gpunode.edge.load import load_knowledge
from gpunode.edge.openpgp import Signer, signer

pytestmark = pytest.mark.skipif(not (shutil.which("gpg") and shutil.which("gpgv")), reason="needs gpg and gpgv")
PROBES = Path(__file__).parents[1] / "cases/probes"
DRIVER = [("nvidia-open", "595.99.02-1")]


@pytest.fixture(scope="module")
def keys() -> Iterator[tuple[Signer, Signer]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gpunode.edge.openpgp.KEY_KIND", "ed25519")
        with signer("the vendor") as vendor, signer("somebody else") as other:
            yield vendor, other


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = Server(tmp_path / "site")
    yield server
    server.close()


def index(site: Server, key: Signer, probe: str, **more: Any) -> Index | GpunodeError:
    facts = parse_probe((PROBES / probe / "probe.txt").read_text(encoding="utf-8"))
    repository = Repository(name="cuda", url=f"{site.url}/cuda/", fingerprint=key.fingerprint, **more)
    return Indexes(load_knowledge(), lambda _: key.public).index(repository, facts)


def refused(found: Index | GpunodeError) -> str:
    assert isinstance(found, GpunodeError), found
    return found.what


def apt_site(tmp_path: Path, first: str = "") -> Path:
    folder = apt_index(tmp_path / "site/cuda", DRIVER)
    release = (folder / "Release").read_text()
    (folder / "Release").write_text(first + release)
    return folder


APT, RPM = "debian12-h100-fresh", "rocky9-h100-fresh"
OVER = "Valid-Until: Thu, 01 Jan 2015 00:00:00 UTC\n"


@pytest.mark.parametrize("inside", [True, False], ids=["InRelease", "Release.gpg"])
def test_an_index_of_apt_by_its_key_is_read_and_by_another_it_is_not(
    inside: bool, tmp_path: Path, site: Server, keys: tuple[Signer, Signer]
) -> None:
    vendor, other = keys
    folder = apt_site(tmp_path)
    release = (folder / "Release").read_bytes()
    for key in (vendor, other):
        if inside:
            (folder / "InRelease").write_bytes(key.clearsigned(release))
        else:
            (folder / "Release.gpg").write_bytes(key.signature(release))
        found = index(site, vendor, APT)
        if key is vendor:
            assert isinstance(found, Index) and found.packages == {"nvidia-open": ("595.99.02-1",)}
    assert "is not to be trusted: it is by another key" in refused(found)


def test_an_index_without_a_signature_or_with_words_around_it_is_not_read(
    tmp_path: Path, site: Server, keys: tuple[Signer, Signer]
) -> None:
    folder = apt_site(tmp_path)
    assert "neither InRelease nor a signed Release" in refused(index(site, keys[0], APT))
    release = (folder / "Release").read_bytes()
    empty = release.partition(b"SHA256:")[0]
    (folder / "InRelease").write_bytes(release + keys[0].clearsigned(empty))  # the list stands before what is signed
    assert "no list of packages" in refused(index(site, keys[0], APT)) or "trusted" in refused(
        index(site, keys[0], APT)
    )


@pytest.mark.parametrize("until", [OVER, "Valid-Until: never\n", "Valid-Until: Mon, 99 Foo 99999 99:99:99 UTC\n"])
@pytest.mark.parametrize("signed", [True, False])
def test_lists_whose_time_is_over_are_not_looked_at(
    until: str, signed: bool, tmp_path: Path, site: Server, keys: tuple[Signer, Signer]
) -> None:
    folder = apt_site(tmp_path, until)
    if signed:
        (folder / "InRelease").write_bytes(keys[0].clearsigned((folder / "Release").read_bytes()))
        assert "its lists were valid until" in refused(index(site, keys[0], APT))
    else:
        with pytest.raises(GpunodeError, match="its lists were valid until"):
            read_index(Upstream(url=f"{site.url}/cuda/"), "x86_64", deb=True)


def test_lists_that_are_in_time_are_read(tmp_path: Path, site: Server, keys: tuple[Signer, Signer]) -> None:
    folder = apt_site(tmp_path, "Valid-Until: Thu, 01 Jan 2099 00:00:00 UTC\n")
    (folder / "InRelease").write_bytes(keys[0].clearsigned((folder / "Release").read_bytes()))
    assert isinstance(index(site, keys[0], APT), Index)


def test_repomd_is_compared_where_the_key_signs_it(tmp_path: Path, site: Server, keys: tuple[Signer, Signer]) -> None:
    vendor, other = keys
    rpm_index(tmp_path / "site/cuda", DRIVER)
    repomd = tmp_path / "site/cuda/repodata/repomd.xml"
    assert isinstance(index(site, vendor, RPM, signs="packages"), Index)
    assert "repomd.xml.asc is not there" in refused(index(site, vendor, RPM, signs="metadata"))
    signature = repomd.with_name("repomd.xml.asc")
    signature.write_bytes(other.signature(repomd.read_bytes()))
    assert "is not to be trusted" in refused(index(site, vendor, RPM, signs="metadata"))
    signature.write_bytes(vendor.signature(repomd.read_bytes()))
    assert isinstance(index(site, vendor, RPM, signs="metadata"), Index)
    repomd.write_bytes(repomd.read_bytes() + b"\n")  # swapped after it was signed
    assert "its bytes were changed" in refused(index(site, vendor, RPM, signs="metadata"))


def test_the_key_itself_is_the_one_of_the_fingerprint(
    tmp_path: Path, site: Server, keys: tuple[Signer, Signer]
) -> None:
    """A key that was swapped along with the signature is known by its fingerprint."""
    vendor, other = keys
    folder = apt_site(tmp_path)
    (folder / "InRelease").write_bytes(other.clearsigned((folder / "Release").read_bytes()))
    facts = parse_probe((PROBES / APT / "probe.txt").read_text(encoding="utf-8"))
    repository = Repository(name="cuda", url=f"{site.url}/cuda/", fingerprint=vendor.fingerprint)
    found = Indexes(load_knowledge(), lambda _: other.public).index(repository, facts)
    assert f"it is signed by {other.fingerprint}" in refused(found)
