"""What packages need: Debian's order of versions, relations, and the closure that libsolv finds."""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpunode.core.bundle.closure import dependency_problem
from gpunode.core.bundle.deb import DebUniverse, parse_packages
from gpunode.core.bundle.upstream import Upstream, parse_sources
from gpunode.core.errors import InputError, RefusedError
from gpunode.core.model import PackageWant
from gpunode.core.solve.deb_versions import Relation, fits, parse_relations, version_key

VERSIONS = (
    "0 0~ 1.0~rc1 1.0 1.0+b1 1.0-1 1.0-1+deb12u1 1.0-1+deb12u10 1.0-1+deb12u2 1.0a 1.00 1.0.1 1.10 1.9 1:0.1 2.36-9 "
    "580.95.05-1 580.126.09-1 595.91.07-0ubuntu1 1.18.1-1 1~~ 1~~a 1~ 1 1a 12.2.0-14 12.2.0-14+deb12u1"
).split()
WORDS = {"<": "lt", "=": "eq", ">": "gt"}


def sign(a: str, b: str) -> str:
    left, right = version_key(a), version_key(b)
    return "<" if left < right else ">" if left > right else "="


@pytest.mark.skipif(not shutil.which("dpkg"), reason="needs dpkg")
@pytest.mark.slow
def test_versions_sort_as_dpkg_sorts_them() -> None:
    wrong = [
        f"{a} {sign(a, b)} {b}"
        for a, b in itertools.combinations(VERSIONS, 2)
        if subprocess.run(["dpkg", "--compare-versions", a, WORDS[sign(a, b)], b], check=False).returncode
    ]
    assert wrong == []


@given(st.from_regex(r"\A([0-9]:)?[0-9][0-9a-z.+~]{0,6}(-[0-9a-z.+~]{1,4})?\Z"))
def test_a_tilde_comes_before_a_version_and_a_plus_after(version: str) -> None:
    assert version_key(version + "~") < version_key(version) < version_key(version + "+1")


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("a", [["a"]]),
        ("a (>= 1:2~3), b | c:any (<< 4)", [["a>=1:2~3"], ["b", "c<<4"]]),
        ("python3:any (>= 3.11~)", [["python3>=3.11~"]]),
        ("libc6 (= 2.36-9+deb12u10), ", [["libc6=2.36-9+deb12u10"]]),
        ("", []),
    ],
)
def test_relations_are_read(text: str, groups: list[list[str]]) -> None:
    assert [[f"{one.name}{one.op}{one.version}" for one in group] for group in parse_relations(text)] == groups


@pytest.mark.parametrize(("op", "good"), [("<<", "0.9"), ("<=", "1.0"), ("=", "1.0"), (">=", "1.0"), (">>", "1.1")])
def test_a_relation_takes_the_versions_that_it_names(op: str, good: str) -> None:
    relation = Relation(name="a", op=op, version="1.0")
    taken = {v for v in ("0.9", "1.0", "1.1") if fits(v, relation)}
    assert good in taken and len(taken) < 3


def stanza(name: str, version: str, **fields: str) -> str:
    lines = {"Package": name, "Version": version, "Architecture": "amd64", **fields}
    text = "".join(f"{key.replace('_', '-')}: {value}\n" for key, value in lines.items())
    return f"{text}Filename: ./{name}_{version}.deb\nSize: 1\nSHA256: {'0' * 64}\n"


def solved(stanzas: list[str], *wants: str, base: str = "", patterns: tuple[str, ...] = ()) -> list[str]:
    """NAME=VERSION of the closure."""
    solv = pytest.importorskip("solv")
    assert solv
    from gpunode.edge.bundle.resolve import chosen

    universe = DebUniverse(
        parse_packages("\n".join(stanzas), repository="r", base="u"), arch="amd64", patterns=patterns
    )
    asked = [PackageWant(name=name, version=version) for name, _, version in (w.partition("=") for w in wants)]
    found = dependency_problem(universe, asked, base=frozenset(base.split()))
    assert found.missing == ()
    return sorted(f"{deb.name}={deb.version}" for deb in chosen(found))


@pytest.mark.parametrize(
    ("stanzas", "wants", "closure"),
    [
        ([stanza("a", "1", Depends="b"), stanza("b", "1"), stanza("c", "1")], ["a"], ["a=1", "b=1"]),
        ([stanza("a", "1"), stanza("a", "1.10"), stanza("a", "1.9")], ["a"], ["a=1.10"]),
        ([stanza("a", "1"), stanza("a", "2")], ["a=1*"], ["a=1"]),
        ([stanza("a", "1", Depends="x | b"), stanza("b", "1")], ["a"], ["a=1", "b=1"]),
        ([stanza("a", "1", Depends="c | b"), stanza("b", "1"), stanza("c", "1")], ["a"], ["a=1", "c=1"]),
        ([stanza("a", "1", Depends="virtual"), stanza("b", "1", Provides="virtual")], ["a"], ["a=1", "b=1"]),
        ([stanza("a", "1", Depends="b (<< 2)"), stanza("b", "1"), stanza("b", "2")], ["a"], ["a=1", "b=1"]),
        ([stanza("a", "1", Pre_Depends="b"), stanza("b", "1", Depends="a")], ["a"], ["a=1", "b=1"]),
        ([stanza("a", "1", Recommends="b"), stanza("b", "1")], ["a"], ["a=1"]),
        # a package that provides and conflicts with the same name does not exclude itself (Policy 7.6.2)
        ([stanza("a", "1", Provides="mta", Conflicts="mta")], ["a"], ["a=1"]),
        (  # the older one, because the newest excludes what is asked for as well
            [stanza("a", "2", Conflicts="b"), stanza("a", "1"), stanza("b", "1")],
            ["a", "b"],
            ["a=1", "b=1"],
        ),
    ],
)
def test_the_closure_is_exact(stanzas: list[str], wants: list[str], closure: list[str]) -> None:
    assert solved(stanzas, *wants) == closure


def test_an_unversioned_name_that_is_provided_meets_no_version() -> None:
    with pytest.raises(RefusedError):
        solved([stanza("a", "1", Depends="v (>= 1)"), stanza("b", "1", Provides="v")], "a")
    assert solved([stanza("a", "1", Depends="v (>= 1)"), stanza("b", "1", Provides="v (= 2)")], "a") == ["a=1", "b=1"]


def test_what_every_node_has_is_left_out_with_what_it_needs() -> None:
    stanzas = [
        stanza("a", "1", Depends="libc6, shell"),
        stanza("libc6", "1", Depends="gcc-base"),
        stanza("gcc-base", "1"),
        stanza("dash", "1", Provides="shell"),
    ]
    assert solved(stanzas, "a") == ["a=1", "dash=1", "gcc-base=1", "libc6=1"]
    assert solved(stanzas, "a", base="libc6 dash") == ["a=1"]


def test_a_version_that_is_asked_for_is_taken_of_every_package_that_has_it() -> None:
    """As on the node, where a preference for this transaction says so: driver packages depend on each other exactly."""
    stanzas = [
        stanza("open", "580.1", Depends="driver"),
        stanza("driver", "580.1"),
        stanza("driver", "595.1"),
    ]
    assert solved(stanzas, "open=580.*", patterns=("580.*",)) == ["driver=580.1", "open=580.1"]


def test_what_cannot_be_had_together_is_said_by_name() -> None:
    stanzas = [stanza("open", "1", Conflicts="closed"), stanza("closed", "1")]
    with pytest.raises(RefusedError, match=r"open.*closed"):
        solved(stanzas, "open", "closed")


def test_what_no_repository_has_is_named() -> None:
    universe = DebUniverse(parse_packages(stanza("a", "1"), repository="r", base="u"), arch="amd64")
    asked = [PackageWant(name="a", version="2*"), PackageWant(name="b")]
    assert dependency_problem(universe, asked, base=frozenset()).missing == ("a 2*", "b")


DEB822 = """\
# a comment
Types: deb deb-src
URIs: http://one/debian
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: /usr/share/keyrings/k.gpg

Types: deb
Enabled: no
URIs: http://two
Suites: x
"""
REPO = """\
[baseos]
name=Rocky
baseurl=http://mirror/$releasever/BaseOS/$basearch/os/
gpgcheck=1
gpgkey=file:///etc/pki/rpm-gpg/KEY

[debug]
baseurl=http://mirror/debug
enabled=0
"""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (DEB822, [("http://one/debian", "bookworm"), ("http://one/debian", "bookworm-updates")]),
        (
            "deb [arch=amd64 signed-by=/k.gpg] http://a/debian sid main # x\n# deb http://b sid main\n",
            [("http://a/debian", "sid")],
        ),
        ("deb-src http://a sid main\ndeb http://b ./\n", [("http://b", "./")]),
        (REPO, [("http://mirror/9/BaseOS/x86_64/os/", "/")]),
    ],
)
def test_the_files_of_a_machine_name_its_repositories(text: str, found: list[tuple[str, str]]) -> None:
    read = parse_sources(text, "file", {"releasever": "9", "basearch": "x86_64"})
    assert [(one.url, one.suite) for one in read] == found


def test_a_key_in_the_file_itself_is_read_as_armor() -> None:
    text = "Types: deb\nURIs: http://a\nSuites: /\nSigned-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n abcd\n"
    [read] = parse_sources(text, "file")
    assert read.key.split("\n")[-3:] == ["-----BEGIN PGP PUBLIC KEY BLOCK-----", "", "abcd"]


@pytest.mark.parametrize(
    "text", ["", "# nothing\n", "[a]\nmirrorlist=http://x\n", "Types: deb-src\nURIs: x\nSuites: y\n"]
)
def test_files_that_name_no_repository_are_refused(text: str) -> None:
    with pytest.raises(InputError):
        parse_sources(text, "file")


@pytest.mark.parametrize(
    ("suite", "folder"),
    [("/", "http://a/x"), ("./", "http://a/x"), ("sub/", "http://a/x/sub"), ("sid", "http://a/x/dists/sid")],
)
def test_a_flat_repository_has_its_release_file_next_to_its_packages(suite: str, folder: str) -> None:
    assert Upstream(name="n", url="http://a/x/", suite=suite).release_folder == folder


def test_the_public_archives_are_known_with_their_keys_for_releases_that_gpunode_solves() -> None:
    from gpunode.edge.load import load_archives, load_knowledge
    from gpunode.edge.tables import knowledge_text

    rows = tomllib.loads(knowledge_text("archives"))["archives"]
    known = load_knowledge()
    for row in rows:
        assert (
            row["source"]
            and row["checked"]
            and row["url"].endswith(("debian", "debian-security", "ubuntu", "ubuntu-ports"))
        )
        assert all(re.fullmatch(r"[0-9A-F]{40}", one) for one in row["fingerprints"])
        assert all(
            known.distro(key) and arch in known.distros[key].archs for key in row["distros"] for arch in row["archs"]
        )
    suites = {one.suite for one in load_archives("debian:12", "x86_64")}
    assert suites == {"bookworm", "bookworm-updates", "bookworm-security"}
    assert load_archives("rocky:9", "x86_64") == ()
    [ports] = {one.url for one in load_archives("ubuntu:24.04", "aarch64")}
    assert ports == "http://ports.ubuntu.com/ubuntu-ports"
