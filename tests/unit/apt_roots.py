"""Isolated roots of apt for a release of Debian or Ubuntu: real indexes, nothing installed, nothing of this machine.

The indexes are kept below the user's cache for a day; a release has some 30 MB of them.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.resources import as_file, files
from pathlib import Path

import pytest

from gpunode.core.model import PackageWant
from gpunode.lab import images, machine

CODENAMES = {
    "debian:12": "bookworm",
    "debian:13": "trixie",
    "ubuntu:22.04": "jammy",
    "ubuntu:24.04": "noble",
    "ubuntu:26.04": "resolute",
}
SETTINGS = """\
APT::Architecture "{arch}";
APT::Architectures {{ "{arch}"; }};
APT::Sandbox::User "root";
APT::Install-Recommends "false";
APT::Update::Error-Mode "any";
Acquire::Languages "none";
Dir::State "{home}";
Dir::State::lists "{home}/lists";
Dir::State::status "{home}/status";
Dir::Cache "{home}";
Dir::Cache::archives "{home}/archives";
Dir::Etc "{home}/etc";
Dir::Etc::sourcelist "{home}/sources.list";
Dir::Etc::sourceparts "-";
"""
DAY = 24 * 3600


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
        found = {match[1] for name in self.names if (match := re.fullmatch(r"linux-image-(?:unsigned-)?(\d\S+)", name))}
        yield from sorted(found - {name for name in found if name.endswith(("-dbg", "-dbgsym"))}, key=by_version)


def by_version(release: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", release))


def root(distro: str, arch: str = "amd64") -> Root:
    """The root of that release; its test is passed over where the archive cannot be reached."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    home = cache / "gpunode/tests/apt" / (CODENAMES[distro] + f"-{arch}" * (arch != "amd64"))
    for name in ("lists/partial", "archives/partial", "etc/apt.conf.d", "etc/preferences.d"):
        (home / name).mkdir(parents=True, exist_ok=True)
    archive = machine.archive()
    (home / "status").write_text("")
    (home / "apt.conf").write_text(f"{archive.settings}\n{SETTINGS.format(home=home, arch=arch)}")
    fresh = home / "fresh"
    one = Root(home)
    if fresh.exists() and time.time() - fresh.stat().st_mtime < DAY:
        return one
    with as_file(files("gpunode.lab") / "ubuntu/archive-key.asc") as key:
        (home / "sources.list").write_text("".join(sources(distro, archive, str(key), arch)))
        done = one.apt("apt-get", "--quiet=2", "update")
    if done.returncode:
        pytest.skip(f"needs the archives of Debian and Ubuntu: {done.stderr.strip()[-200:]}")
    (home / "lists").touch()  # newer than its sources, on file systems with coarse times, too
    fresh.touch()
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
