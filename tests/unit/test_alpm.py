"""Databases of pacman: entries, versions as vercmp compares them, the closure, pacman.conf."""

from __future__ import annotations

import pytest
from arch_packages import Pkg
from hypothesis import given
from hypothesis import strategies as st

from gpunode.core.bundle.alpm import Alpm, Sync, compare, entry_text, parse_desc, parse_relation
from gpunode.core.bundle.closure import dependency_problem
from gpunode.core.bundle.upstream import parse_sources
from gpunode.core.errors import GpunodeError, InputError, RefusedError
from gpunode.core.model import PackageWant
from gpunode.core.solve.deb_versions import Relation
from gpunode.edge.bundle.resolve import chosen

pytest.importorskip("solv")


def known(*packages: Pkg, place: str = "http://mirror/extra") -> list[Alpm]:
    return [parse_desc(p.desc(), repository="distribution", base=place, origin=place) for p in packages]


# ---------------------------------------------------------------- entries of a database


def test_an_entry_says_what_a_package_is() -> None:
    [one] = known(Pkg(name="nvidia-open", version="1:595.1-2", depends=["linux", "nvidia-utils=595.1"]))
    assert (one.name, one.version, one.arch) == ("nvidia-open", "1:595.1-2", "x86_64")
    assert one.url == "http://mirror/extra/nvidia-open-1:595.1-2-x86_64.pkg.tar.gz"
    utils = Relation(name="nvidia-utils", op="=", version="595.1")
    assert one.requires == ((Relation(name="linux"),), (utils,))
    assert one.conflicts == ()


@pytest.mark.parametrize("field", ["NAME", "VERSION", "FILENAME", "CSIZE", "SHA256SUM", "ARCH"])
def test_an_entry_that_lacks_what_every_package_has_is_refused(field: str) -> None:
    text = Pkg(name="linux").desc().replace(f"%{field}%", "%OTHER%")
    with pytest.raises(GpunodeError, match="lacks what every package has"):
        parse_desc(text, repository="r", base="b", origin="o")


@pytest.mark.parametrize("name", ["../linux", "/etc/passwd", "a/b"])
def test_a_file_that_would_lie_elsewhere_is_refused(name: str) -> None:
    text = Pkg(name="linux").desc().replace(Pkg(name="linux").file_name, name)
    with pytest.raises(GpunodeError, match="lacks what every package has"):
        parse_desc(text, repository="r", base="b", origin="o")


@given(
    st.from_regex(r"[a-z0-9@_+][a-z0-9@._+-]{0,8}", fullmatch=True),
    st.sampled_from(["", "=", "<", ">", "<=", ">="]),
    st.from_regex(r"([0-9]:)?[a-z0-9][a-z0-9._+~]{0,8}(-[0-9.]{1,3})?", fullmatch=True),
)
def test_a_relation_is_read_as_it_was_written(name: str, op: str, version: str) -> None:
    version = version if op else ""
    assert parse_relation(f"{name}{op}{version}") == Relation(name=name, op=op, version=version)


@given(st.binary(max_size=200))
def test_an_entry_without_its_signature_is_the_same_package(signature: bytes) -> None:
    plain, with_it = Pkg(name="linux").desc(), Pkg(name="linux").desc(signature)
    assert entry_text(parse_desc(with_it, repository="r", base="b", origin="o")) == plain


# ---------------------------------------------------------------- versions

# the rows of vercmp(8), and of pacman's own tests (test/util/vercmptest.sh)
ORDERED = [
    "1.0a 1.0b 1.0beta 1.0p 1.0pre 1.0rc 1.0 1.0.a 1.0.1",
    "1 1.0 1.1 1.1.1 1.2 2.0 3.0.0",
    "1.5-1 1.5-2 1.5.1-1",
    "1.5.a 1.5.1",
    "1.5.b-1 1.5.1-1 1:1.0-1 2:0-1",
]


@pytest.mark.parametrize("row", ORDERED)
def test_versions_are_compared_as_vercmp_does(row: str) -> None:
    versions = row.split()
    for i, a in enumerate(versions):
        assert [compare(a, b) for b in versions] == [(i > j) - (i < j) for j in range(len(versions))]


@pytest.mark.parametrize(("a", "b"), [("1.5", "1.5-1"), ("0:1.5-1", "1.5-1"), ("1.05", "1.5"), ("2.0.", "2.0.")])
def test_versions_that_are_equal(a: str, b: str) -> None:
    assert compare(a, b) == compare(b, a) == 0


VERSION = st.from_regex(r"([0-9]:)?[0-9a-z][0-9a-z._+]{0,8}(-[0-9]{1,2})?", fullmatch=True)


@given(VERSION, VERSION)
def test_the_comparison_has_two_sides(a: str, b: str) -> None:
    assert compare(a, b) == -compare(b, a)
    assert compare(a, a) == 0


# ---------------------------------------------------------------- the closure


def closure(*lists: list[Alpm], want: str = "top", base: frozenset[str] = frozenset()) -> set[str]:
    universe, wants = Sync(package for some in lists for package in some), [PackageWant(name=want)]
    return {f"{p.name} {p.version}" for p in chosen(dependency_problem(universe, wants, base=base))}


def test_the_closure_follows_versions_and_what_is_provided() -> None:
    packages = known(
        Pkg(name="top", depends=["libfoo.so=2-64", "data>=1:1.0", "shell"]),
        Pkg(name="foo1", provides=["libfoo.so=1-64"]),
        Pkg(name="foo2", provides=["libfoo.so=2-64"], depends=["glibc"]),
        Pkg(name="data", version="1:1.2-1", arch="any"),
        Pkg(name="bash", provides=["shell"]),
        Pkg(name="glibc"),
        Pkg(name="unasked"),
    )
    assert closure(packages) == {"top 1.0-1", "foo2 1.0-1", "data 1:1.2-1", "bash 1.0-1", "glibc 1.0-1"}
    assert closure(packages, base=frozenset({"glibc", "bash"})) == {"top 1.0-1", "foo2 1.0-1", "data 1:1.2-1"}


def test_of_several_providers_that_of_the_first_repository_is_taken() -> None:
    core = known(Pkg(name="mkinitcpio", provides=["initramfs"]))
    extra = known(Pkg(name="booster", provides=["initramfs"]), Pkg(name="top", depends=["initramfs"]))
    assert closure(core, extra) == {"top 1.0-1", "mkinitcpio 1.0-1"}


@pytest.mark.parametrize(
    ("needs", "there", "fits"),
    [
        ("a>=595.45.04", "595.71-1", True),
        ("a>=595.71", "595.45.04-1", False),
        ("a=595.71", "595.71-3", True),
        ("a=595.71-1", "595.71-2", False),
        ("a<2", "1:1.0-1", False),
        ("a>1.0rc1", "1.0-1", True),
        ("a>=1.0", "1.0rc1-1", False),
    ],
)
def test_a_dependency_asks_for_a_version(needs: str, there: str, fits: bool) -> None:
    packages = known(Pkg(name="top", depends=[needs]), Pkg(name="a", version=there))
    if fits:
        assert closure(packages) == {"top 1.0-1", f"a {there}"}
    else:
        with pytest.raises(RefusedError, match="cannot be had together"):
            closure(packages)


def test_packages_that_exclude_each_other_are_refused() -> None:
    packages = known(Pkg(name="top", depends=["a", "b"]), Pkg(name="a", conflicts=["b"]), Pkg(name="b"))
    with pytest.raises(RefusedError, match="cannot be had together"):
        closure(packages)


def test_a_package_may_exclude_what_it_provides_itself() -> None:
    """As nvidia-open-dkms does with NVIDIA-MODULE."""
    assert closure(known(Pkg(name="top", provides=["module"], conflicts=["module"]))) == {"top 1.0-1"}


# ---------------------------------------------------------------- pacman.conf


CONF = """\
# the node's own
[options]
Architecture = auto
Include = /etc/pacman.d/gpunode-hold.conf

#[core-testing]
#Include = /etc/pacman.d/mirrorlist

[core]
Server = https://mirror.lan/$repo/os/$arch
Server = https://other.lan/$repo/os/$arch

[extra]
SigLevel = Required
  Server=https://mirror.lan/$repo/os/$arch
"""


def test_pacman_conf_names_repositories() -> None:
    found = parse_sources(CONF, "pacman.conf", {"basearch": "x86_64"})
    assert [(u.suite, u.url, u.signs) for u in found] == [
        ("core", "https://mirror.lan/core/os/x86_64", "packages"),
        ("extra", "https://mirror.lan/extra/os/x86_64", "packages"),
    ]


def test_a_repository_without_a_server_is_refused() -> None:
    with pytest.raises(InputError, match="no Server"):
        parse_sources("[options]\n[core]\nInclude = /nowhere\n", "pacman.conf")
