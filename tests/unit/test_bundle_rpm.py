"""Bundles of rpm: lists as createrepo_c writes them, modules, files whose signature is made here by GnuPG."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpunode.core.bundle.rpm import (
    Rpm,
    left_out,
    parse_modules,
    parse_primary,
    parse_repomd,
    rpm_metadata,
    signed_header,
)
from gpunode.core.bundle.target import Wants
from gpunode.core.bundle.upstream import Upstream
from gpunode.core.errors import GpunodeError, RefusedError
from gpunode.core.model import PackageWant
from gpunode.edge.bundle.rpm import RpmLists, check_rpm, rpm_closure
from gpunode.edge.openpgp import Signer, signer

MODULES = """\
---
document: modulemd-defaults
version: 1
data: {module: perl, stream: "5.32"}
---
document: modulemd
version: 2
data: {name: nvidia-driver, stream: 580-open, artifacts: {rpms: ["driver-3:580.1-1.el9.x86_64"]}}
---
document: modulemd
version: 2
data: {name: nvidia-driver, stream: 595-open, artifacts: {rpms: ["driver-3:595.1-1.el9.x86_64"]}}
---
document: modulemd
version: 2
data: {name: perl, stream: "5.32", artifacts: {rpms: ["perl-0:5.32-1.x86_64"]}}
...
"""


@dataclass(frozen=True)
class Made:
    """A package to be listed."""

    name: str
    version: str = "1-1"
    epoch: str = "0"
    requires: Sequence[str] = ()
    files: Sequence[str] = ()
    conflicts: Sequence[str] = ()

    @property
    def sha256(self) -> str:
        return hashlib.sha256(f"{self.name}{self.version}{self.epoch}".encode()).hexdigest()

    def primary(self) -> str:
        version, _, release = self.version.partition("-")
        evr = f'epoch="{self.epoch}" ver="{version}" rel="{release}"'
        provides = f'<rpm:entry name="{self.name}" flags="EQ" {evr}/>'
        requires = "".join(f'<rpm:entry name="{one}"/>' for one in self.requires)
        conflicts = "".join(f'<rpm:entry name="{one}"/>' for one in self.conflicts)
        return (
            f'<package type="rpm">\n<name>{self.name}</name>\n<arch>x86_64</arch>\n<version {evr}/>\n'
            f'<checksum type="sha256" pkgid="YES">{self.sha256}</checksum>\n<summary>s &amp; t</summary>\n'
            f'<size package="7" installed="9" archive="9"/>\n'
            f'<location href="Packages/{self.name}-{self.version}.x86_64.rpm"/>\n<format>\n'
            f"<rpm:provides>{provides}</rpm:provides>\n<rpm:requires>{requires}</rpm:requires>\n"
            f"<rpm:conflicts>{conflicts}</rpm:conflicts>\n</format>\n</package>"
        )

    def filelist(self) -> str:
        files = "".join(f"<file>{path}</file>" for path in self.files)
        version, _, release = self.version.partition("-")
        return (
            f'<package pkgid="{self.sha256}" name="{self.name}" arch="x86_64">\n'
            f'<version epoch="{self.epoch}" ver="{version}" rel="{release}"/>\n{files}\n</package>'
        )


def lists(*made: Made, modules: str = "") -> RpmLists:
    common, rpm, other = ("http://linux.duke.edu/metadata/" + name for name in ("common", "rpm", "filelists"))
    count, entries, files = len(made), "".join(m.primary() for m in made), "".join(m.filelist() for m in made)
    primary = f'<metadata xmlns="{common}" xmlns:rpm="{rpm}" packages="{count}">{entries}</metadata>'
    filelists = f'<filelists xmlns="{other}" packages="{count}">{files}</filelists>'
    upstream = Upstream(name="distribution", url="http://x")
    packages = parse_primary(primary, filelists, repository="distribution", base="http://x", origin=upstream.address)
    return RpmLists(upstream=upstream, packages=tuple(packages), primary=primary, filelists=filelists, modules=modules)


def closure(found: RpmLists, *wants: str, streams: tuple[str, ...] = (), base: str = "") -> list[str]:
    pytest.importorskip("solv")
    asked = tuple(PackageWant(name=n, version=v) for n, _, v in (w.partition("=") for w in wants))
    chosen = rpm_closure(
        [found], Wants(packages=asked, repositories=(), streams=streams), "x86_64", frozenset(base.split())
    )
    return sorted(f"{one.name}-{one.version}" for one in chosen)


@pytest.mark.parametrize(
    ("made", "wants", "found"),
    [
        ([Made("a", requires=["b"]), Made("b"), Made("c")], ["a"], ["a-1-1", "b-1-1"]),
        ([Made("a", "1-1"), Made("a", "1.10-1"), Made("a", "1.9-1")], ["a"], ["a-1.10-1"]),
        ([Made("a", "580.1-1", "3"), Made("a", "595.1-1", "3")], ["a=580.*"], ["a-3:580.1-1"]),
        ([Made("a", requires=["/usr/libexec/x"]), Made("b", files=["/usr/libexec/x"])], ["a"], ["a-1-1", "b-1-1"]),
        ([Made("kernel-devel", "5.14-1.el9")], ["kernel-devel-5.14-1.el9.x86_64"], ["kernel-devel-5.14-1.el9"]),
        (
            [Made("kernel-default-devel", "6.4-150600.21.2")],
            ["kernel-default-devel-6.4-150600.21"],
            ["kernel-default-devel-6.4-150600.21.2"],
        ),
        ([Made("a", requires=["(b if c)", "c"]), Made("b"), Made("c")], ["a"], ["a-1-1", "b-1-1", "c-1-1"]),
        # a dependency is taken in the version asked for of what belongs to it
        (
            [Made("a", "580.1-1", requires=["l"]), Made("l", "580.1-1"), Made("l", "595.1-1")],
            ["a=580.*"],
            ["a-580.1-1", "l-580.1-1"],
        ),
    ],
)
def test_the_closure_is_exact(made: list[Made], wants: list[str], found: list[str]) -> None:
    assert closure(lists(*made), *wants) == found


def test_only_the_streams_that_are_enabled_are_seen() -> None:
    found = lists(
        Made("driver", "580.1-1.el9", "3"),
        Made("driver", "595.1-1.el9", "3"),
        Made("perl", "5.32-1"),
        Made("perl", "6-1"),
        modules=MODULES,
    )
    assert closure(found, "driver", "perl", streams=("nvidia-driver:580-open",)) == [
        "driver-3:580.1-1.el9",
        "perl-5.32-1",
    ]
    assert closure(found, "driver", streams=("nvidia-driver:595-open",)) == ["driver-3:595.1-1.el9"]
    with pytest.raises(RefusedError, match="no repository has driver"):
        closure(found, "driver")


def test_packages_of_no_module_stay() -> None:
    assert left_out(parse_modules(MODULES), (), lists(Made("bash", "5-1")).packages) == {
        "driver-3:580.1-1.el9.x86_64",
        "driver-3:595.1-1.el9.x86_64",
    }


def test_what_excludes_each_other_is_refused() -> None:
    with pytest.raises(RefusedError, match="conflicts"):
        closure(lists(Made("a", conflicts=["b"]), Made("b")), "a", "b")


def test_the_metadata_written_is_read_by_another_program_as_it_was_meant(tmp_path: Path) -> None:
    made = lists(Made("a", "1-1", "2", files=["/usr/bin/a"]), Made("b", "2-3"))
    for path, data in rpm_metadata(made.packages, revision=7).items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_bytes(data)
    text = (tmp_path / "repodata/repomd.xml").read_text()
    assert set(parse_repomd(text, "x")) == {"primary", "filelists"}
    createrepo = pytest.importorskip("createrepo_c")
    read = createrepo.Metadata()
    read.locate_and_load_xml(str(tmp_path))
    found = {read.get(key).name: read.get(key) for key in read.keys()}  # noqa: SIM118 - no mapping
    assert {n: (p.epoch, p.version, p.release, p.location_href) for n, p in found.items()} == {
        "a": ("2", "1", "1", "a-1-1.x86_64.rpm"),
        "b": ("0", "2", "3", "b-2-3.x86_64.rpm"),
    }
    assert next(p.files for p in found.values() if p.name == "a")[0][2] == "a"


def test_modules_go_along_as_they_were() -> None:
    files = rpm_metadata(lists(Made("a")).packages, MODULES, revision=7)
    listed = parse_repomd(files["repodata/repomd.xml"].decode(), "x")
    assert gzip.decompress(files[listed["modules"].href]).decode() == MODULES


@pytest.mark.parametrize(
    "text", ["", "<repomd></repomd>", '<data type="primary"><checksum type="md5">aa</checksum></data>']
)
def test_metadata_without_checksums_is_refused(text: str) -> None:
    with pytest.raises(GpunodeError):
        parse_repomd(text, "x")


# ---------------------------------------------------------------- files


def header(tags: dict[int, bytes | str | int]) -> bytes:
    """A header of rpm: texts, numbers of 32 bits, and bytes."""
    index, store = b"", b""
    for tag, value in tags.items():
        kind = 6 if isinstance(value, str) else 4 if isinstance(value, int) else 7
        data = value.encode() + b"\0" if isinstance(value, str) else value
        data = data.to_bytes(4, "big") if isinstance(data, int) else data
        count = len(data) if kind == 7 else 1
        index += b"".join(n.to_bytes(4, "big") for n in (tag, kind, len(store), count))
        store += data
    return b"\x8e\xad\xe8\x01" + bytes(4) + len(tags).to_bytes(4, "big") + len(store).to_bytes(4, "big") + index + store


def rpm_file(
    key: Signer, payload: bytes = b"payload", *, claims: bytes | None = None, sign: bool = True, **of: str | int
) -> bytes:
    digest = hashlib.sha256(payload if claims is None else claims).hexdigest()
    named = {"name": "driver", "version": "595.1", "release": "1.el9", "arch": "x86_64", **of}
    tags = {"name": 1000, "version": 1001, "release": 1002, "epoch": 1003, "arch": 1022}
    main = header({5092: digest, **{tags[key]: value for key, value in named.items()}})
    signature = header({268: binary_signature(key, main)} if sign else {1000: "x"})
    return bytes(96) + signature + bytes(-(96 + len(signature)) % 8) + main + payload


def binary_signature(key: Signer, data: bytes) -> bytes:
    import base64

    lines = key.signature(data).decode().split("\n\n", 1)[1].splitlines()
    return base64.b64decode("".join(line for line in lines if not line.startswith(("=", "-"))))


@pytest.fixture(scope="module")
def key() -> Iterator[Signer]:
    import shutil

    if not (shutil.which("gpg") and shutil.which("gpgv")):
        pytest.skip("needs gpg and gpgv")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gpunode.edge.openpgp.KEY_KIND", "ed25519")
        with signer("a vendor") as made:
            yield made


def listed(version: str = "595.1-1.el9", name: str = "driver", arch: str = "x86_64") -> Rpm:
    return Rpm(name, version, arch, "a.rpm", "0" * 64, 1, "r", "http://x", "o", "")


def test_a_signed_file_is_taken(tmp_path: Path, key: Signer) -> None:
    (tmp_path / "a.rpm").write_bytes(rpm_file(key))
    check_rpm(listed(), tmp_path / "a.rpm", [key.public], [key.fingerprint])


@pytest.mark.parametrize(
    ("data", "printed"),
    [
        (lambda key: rpm_file(key).replace(b"driver", b"drover"), "its bytes were changed"),
        (lambda key: rpm_file(key, claims=b"another payload"), "not what its signed header says"),
        (lambda key: rpm_file(key, sign=False), "no signature"),
        (lambda key: rpm_file(key)[:150], "no rpm file"),
        (lambda key: b"<html>", "no rpm file"),
    ],
    ids=["header changed", "payload changed", "not signed", "cut off", "a web page"],
)
def test_a_file_that_is_not_the_vendors_is_refused(tmp_path: Path, key: Signer, data: object, printed: str) -> None:
    (tmp_path / "a.rpm").write_bytes(data(key))  # type: ignore[operator]
    with pytest.raises(RefusedError, match=printed):
        check_rpm(listed(), tmp_path / "a.rpm", [key.public], [key.fingerprint])


def test_a_file_by_another_key_is_refused(tmp_path: Path, key: Signer) -> None:
    (tmp_path / "a.rpm").write_bytes(rpm_file(key))
    with pytest.raises(RefusedError, match=key.fingerprint):
        check_rpm(listed(), tmp_path / "a.rpm", [key.public], ["0" * 40])


@pytest.mark.parametrize(
    "given", [{"version": "580.1"}, {"release": "9"}, {"epoch": 3}, {"name": "kernel"}, {"arch": "aarch64"}], ids=str
)
def test_another_package_of_the_vendors_under_this_name_is_refused(
    given: dict[str, str | int], tmp_path: Path, key: Signer
) -> None:
    """Lists that nobody signed may name an old package, which is rightly signed, as a new one."""
    (tmp_path / "a.rpm").write_bytes(rpm_file(key, **given))  # type: ignore[arg-type]
    with pytest.raises(RefusedError, match=r"the file is .*, and its list calls it driver 595\.1-1\.el9 x86_64"):
        check_rpm(listed(), tmp_path / "a.rpm", [key.public], [key.fingerprint])


def test_an_epoch_counts_as_the_list_has_it(tmp_path: Path, key: Signer) -> None:
    (tmp_path / "a.rpm").write_bytes(rpm_file(key, epoch=3))
    check_rpm(listed("3:595.1-1.el9"), tmp_path / "a.rpm", [key.public], [key.fingerprint])


def test_the_signature_is_of_the_header_alone(key: Signer) -> None:
    found = signed_header(rpm_file(key, b"xyz"), "a.rpm")
    assert (found.header[:4], found.payload_sha256) == (b"\x8e\xad\xe8\x01", hashlib.sha256(b"xyz").hexdigest())
