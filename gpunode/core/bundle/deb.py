"""Packages and Release files of apt repositories: read, searched, and written again for some of the packages."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

from gpunode.core.errors import GpunodeError
from gpunode.core.late import dataclass, regex
from gpunode.core.model import PackageWant
from gpunode.core.solve.deb_versions import Relation, fits, parse_relations, version_key

_FIELD = regex(r"^([!-9;-~]+):[ \t]*(.*(?:\n[ \t].*)*)", re.M)


@dataclass(frozen=True, eq=False)
class Deb:
    """One stanza of a Packages file, and the repository it is from."""

    name: str
    version: str
    stanza: str
    repository: str
    base: str  # the URL that Filename is relative to
    origin: str = ""  # the address of the repository

    @cached_property
    def fields(self) -> Mapping[str, str]:
        return dict(_FIELD.findall(self.stanza))

    @property
    def url(self) -> str:
        return f"{self.base.rstrip('/')}/{self.fields['Filename'].removeprefix('./')}"

    @property
    def file_name(self) -> str:
        return self.fields["Filename"].rpartition("/")[2]

    @property
    def arch(self) -> str:
        return self.fields.get("Architecture", "")

    @property
    def size(self) -> int:
        return int(self.fields["Size"])

    @property
    def sha256(self) -> str:
        return self.fields["SHA256"].lower()

    @cached_property
    def requires(self) -> tuple[tuple[Relation, ...], ...]:
        """Dependencies, each as its alternatives."""
        text = ", ".join(filter(None, (self.fields.get("Pre-Depends"), self.fields.get("Depends"))))
        return tuple(parse_relations(text))

    @cached_property
    def conflicts(self) -> tuple[Relation, ...]:
        text = ", ".join(filter(None, (self.fields.get("Conflicts"), self.fields.get("Breaks"))))
        return tuple(one for group in parse_relations(text) for one in group)

    @cached_property
    def provides(self) -> tuple[Relation, ...]:
        return tuple(one for group in parse_relations(self.fields.get("Provides", "")) for one in group)


def parse_packages(text: str, *, repository: str, base: str, origin: str = "") -> Iterator[Deb]:
    """The stanzas of a Packages file; raises GpunodeError on one without its name, version, file, size or SHA256."""
    for stanza in re.split(r"\n\s*\n", text.strip("\n")):
        if not stanza.strip():
            continue
        found = {
            key: re.search(rf"^{key}:[ \t]*(\S+)", stanza, re.M) for key in ("Package", "Version", "SHA256", "Size")
        }
        name, version = found["Package"], found["Version"]
        if not name or not version or not found["SHA256"] or not found["Size"] or "\nFilename:" not in stanza:
            raise GpunodeError(
                f"{base}: a stanza of its package list lacks what every package has: {stanza[:80]!r}",
                expected="Package, Version, Filename, Size and SHA256",
                fix="look whether the repository is one of apt's",
            )
        yield Deb(name[1], version[1], stanza, repository, base, origin)


class DebUniverse:
    """All packages of some repositories; of names that exist in a version asked for, only that version."""

    def __init__(self, debs: Iterable[Deb], *, arch: str, patterns: Sequence[str] = ()) -> None:
        self.names: dict[str, list[Deb]] = {}
        self.virtual: dict[str, list[Deb]] = {}
        for deb in debs:
            if re.search(rf"^Architecture: (all|{arch})$", deb.stanza, re.M):
                self.names.setdefault(deb.name, []).append(deb)
        for name, found in self.names.items():
            asked = [deb for deb in found if any(fnmatch.fnmatchcase(deb.version, pattern) for pattern in patterns)]
            kept = asked or found
            self.names[name] = sorted(kept, key=lambda deb: version_key(deb.version), reverse=True)
        for found in self.names.values():
            for deb in found:
                for one in deb.provides if "\nProvides:" in deb.stanza else ():
                    self.virtual.setdefault(one.name, []).append(deb)

    def candidates(self, relation: Relation) -> list[Deb]:
        """The packages that the relation takes, the newest first, then those that only provide the name."""
        real = [deb for deb in self.names.get(relation.name, ()) if fits(deb.version, relation)]
        return real + [
            deb for deb in self.virtual.get(relation.name, ()) if deb not in real and _provides(deb, relation)
        ]

    def wanted(self, want: PackageWant) -> list[Deb]:
        """The versions of a package asked for that are as asked."""
        pattern = want.version or "*"
        return [deb for deb in self.names.get(want.name, ()) if fnmatch.fnmatchcase(deb.version, pattern)]


def _provides(deb: Deb, relation: Relation) -> bool:
    """A versioned relation is met by versioned Provides alone (Debian Policy 7.5)."""
    mine = [one for one in deb.provides if one.name == relation.name]
    return any(not relation.op or (one.version and fits(one.version, relation)) for one in mine)


# ---------------------------------------------------------------- Release


def release_hashes(release: str) -> dict[str, tuple[str, int]]:
    """Path → (SHA-256, size) of a Release file."""
    block = re.search(r"^SHA256:[ \t]*\n((?:[ \t]+.*\n?)+)", release, re.M)
    rows = (line.split() for line in (block[1] if block else "").splitlines())
    return {row[2].removeprefix("./"): (row[0].lower(), int(row[1])) for row in rows if len(row) == 3}


def packages_text(debs: Iterable[Deb]) -> str:
    """A Packages file of a flat repository: the stanzas as they were, but for where the file lies."""
    ordered = sorted(debs, key=lambda deb: (deb.name, version_key(deb.version)))
    stanzas = (re.sub(r"^Filename:.*$", f"Filename: ./{deb.file_name}", deb.stanza, flags=re.M) for deb in ordered)
    return "\n".join(f"{stanza}\n" for stanza in stanzas)
