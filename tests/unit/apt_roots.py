"""Isolated roots of apt for a release of Debian or Ubuntu: real indexes, nothing installed, nothing of this machine.

The indexes are kept below the user's cache for a day, without what no question here can reach: three of four packages
of Ubuntu 22.04 are modules of old kernels, and apt looks at each for every question.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.resources import as_file, files
from pathlib import Path

import pytest

from gpunode.core.model import PackageWant
from gpunode.lab import images, machine, vendor

CODENAMES = {
    "debian:12": "bookworm",
    "debian:13": "trixie",
    "ubuntu:22.04": "jammy",
    "ubuntu:24.04": "noble",
    "ubuntu:26.04": "resolute",
}
DAY = 24 * 3600
LEFT_BEHIND = {  # kernels that people ran after their archive had no modules, or no headers, of them any more
    "debian:12": ("6.1.0-51-cloud-amd64",),
    "ubuntu:22.04": ("6.8.0-117-generic", "6.8.0-1059-oracle"),
}


@dataclass(frozen=True)
class Root:
    """A release's archive, as apt sees it."""

    home: Path
    asked: dict[tuple[str, ...], str] = field(default_factory=dict)

    def apt(self, *words: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "APT_CONFIG": str(self.home / "apt.conf"), "LC_ALL": "C.UTF-8"}
        return subprocess.run(words, env=environment, capture_output=True, text=True, check=False)

    @cached_property
    def names(self) -> frozenset[str]:
        """Every package that the archive has, not those that others only name."""
        found = re.findall(r"^Package: (\S+)$", self.apt("apt-cache", "dumpavail").stdout, re.M)
        return frozenset(found)

    def lacking(self, wants: Sequence[PackageWant]) -> list[str]:
        return [want.name for want in wants if want.name not in self.names]

    def fault(self, wants: Sequence[PackageWant]) -> str:
        """What apt says against a transaction; "" where it resolves.  The same question is asked once."""
        words = tuple(f"{want.name}={want.version}" if want.version else want.name for want in wants)
        if words not in self.asked:
            done = self.apt("apt-get", "--simulate", "--quiet", "install", *words)
            said = [*done.stdout.splitlines(), *done.stderr.splitlines()]  # --quiet=2 would leave the reason out
            self.asked[words] = "\n".join(said[-8:]) if done.returncode else ""
        return self.asked[words]

    def kernels(self) -> Iterator[str]:
        """Releases of kernels that the archive has, by flavour and version, oldest first."""
        yield from kernels_of(self.names)


def kernels_of(names: Iterable[str]) -> list[str]:
    found = {match[1] for name in names if (match := re.fullmatch(r"linux-image-(?:unsigned-)?(\d\S+)", name))}
    return sorted(found - {name for name in found if name.endswith(("-dbg", "-dbgsym", "-unsigned"))}, key=by_version)


def by_version(release: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", release))


def by_kind(releases: Iterable[str]) -> dict[tuple[str, str], list[str]]:
    """The kernels of each line and flavour, in the order in which they come."""
    found: dict[tuple[str, str], list[str]] = {}
    for release in releases:
        if match := re.fullmatch(
            r"(\d+\.\d+)\..*?-((?:rt-|cloud-)?(?:amd|arm)64|(?!.*(?:amd|arm)64)[a-z][a-z0-9-]*)", release
        ):
            found.setdefault((match[1], match[2]), []).append(release)
    return found


# where questions begin: kernels, drivers, and what the rows name beside those; the rest is what these depend on
_ASKED = re.compile(r"(linux-(image|headers|modules|objects|signatures)|.*nvidia|libcuda|dkms\Z|infiniband-diags\Z)")
_OF_KERNEL = re.compile(r"linux-[a-z0-9.+-]*?-\d+\.\d+\.\d+[-+]")
_WORDS = re.compile(r"^(Package|Pre-Depends|Depends|Provides|Recommends): (.*)$", re.M)


def without_the_rest(lists: Sequence[Path], named: Sequence[str]) -> None:
    """Leave in lists of packages what a question can reach: of each line of kernels the two newest and the oldest."""
    stanzas = {path: path.read_text().split("\n\n") for path in lists}
    rows = [dict(_WORDS.findall(stanza)) for some in stanzas.values() for stanza in some]
    kinds = by_kind(kernels_of(row["Package"] for row in rows if row)).values()
    asked = tuple(f"-{release}" for releases in kinds for release in {*releases[-2:], releases[0], *named})
    leads: dict[str, set[str]] = {}  # a name, or what packages provide → names that it needs, or that provide it
    for row in filter(None, rows):
        needs = leads.setdefault(row["Package"], set())
        for key in ("Pre-Depends", "Depends", "Recommends"):
            needs.update(re.findall(r"(?:^|[,|])\s*([a-z0-9][a-z0-9+.-]*)", row.get(key, "")))
        for name in re.findall(r"(?:^|,)\s*([a-z0-9][a-z0-9+.-]*)", row.get("Provides", "")):
            leads.setdefault(name, set()).add(row["Package"])
    todo = [name for name in leads if _ASKED.match(name) and (not _OF_KERNEL.match(name) or name.endswith(asked))]
    kept = {name for name in leads if name.startswith("linux-image-")} - {*todo}
    while todo:
        name = todo.pop()
        if name not in kept:
            kept.add(name)
            todo += leads.get(name, ())
    for path, some in stanzas.items():
        path.write_text(
            "\n\n".join(one for one in some if dict(_WORDS.findall(one)).get("Package", "") in kept or not one.strip())
        )


def root(distro: str, arch: str = "amd64", *, whole: bool = False) -> Root:
    """The root of that release, `whole` with all packages; its test is skipped where the archive cannot be reached."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    home = cache / "gpunode/tests/apt" / (CODENAMES[distro] + f"-{arch}" * (arch != "amd64") + "-whole" * whole)
    for name in ("lists/partial", "archives/partial", "etc/apt.conf.d", "etc/preferences.d"):
        (home / name).mkdir(parents=True, exist_ok=True)
    archive = machine.archive()
    (home / "status").write_text("")
    (home / "apt.conf").write_text(f"{archive.settings}\n{vendor.SETTINGS.format(home=home, arch=arch)}")
    fresh, named = home / "fresh", LEFT_BEHIND.get(distro, ())
    one = Root(home)
    if fresh.exists() and fresh.read_text() == " ".join(named) and time.time() - fresh.stat().st_mtime < DAY:
        return one
    with as_file(files("gpunode.lab") / "ubuntu/archive-key.asc") as key:
        (home / "sources.list").write_text("".join(sources(distro, archive, str(key), arch)))
        done = one.apt("apt-get", "--quiet=2", "update")
    if done.returncode:
        pytest.skip(f"needs the archives of Debian and Ubuntu: {done.stderr.strip()[-200:]}")
    if not whole:
        without_the_rest([*(home / "lists").glob("*_Packages")], named)
    (home / "lists").touch()  # newer than its sources, on file systems with coarse times, too
    fresh.write_text(" ".join(named))
    return one


def sources(distro: str, archive: machine.Archive, key: str, arch: str) -> Iterator[str]:
    name = CODENAMES[distro]
    if distro.startswith("ubuntu"):
        for suite in (name, f"{name}-updates", f"{name}-security"):
            yield f"deb [arch={arch} signed-by={key}] {archive.ubuntu} {suite} main restricted universe multiverse\n"
        return
    signed = f"[arch={arch} signed-by={images.KEYRINGS['debian']}]"
    for url, suite in ((archive.main, name), (archive.main, f"{name}-updates"), (archive.security, f"{name}-security")):
        yield f"deb {signed} {url} {suite} main contrib non-free non-free-firmware\n"
