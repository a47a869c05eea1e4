"""Packages of pacman's repositories: the entries of a database, read and written again for some of the packages."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from gpunode.core.errors import GpunodeError
from gpunode.core.model import PackageWant
from gpunode.core.solve.deb_versions import Relation

# https://man.archlinux.org/man/core/pacman/repo-add.8 makes it: for each package NAME-VERSION/desc, blocks of a line
# %FIELD%, lines of values, and an empty line
_BLOCK = re.compile(r"^%(\w+)%\n((?:.+\n?)*)", re.M)
_SEPARATOR, _WORD = re.compile(r"^[^0-9A-Za-z]+"), re.compile(r"[0-9]+|[A-Za-z]+")
_RELATION = re.compile(r"([^<>=\s]+?)(?:(<=|>=|=|<|>)(\S+))?")


@dataclass(frozen=True, eq=False)
class Alpm:
    """One package of a database."""

    name: str
    version: str  # [EPOCH:]VERSION-RELEASE
    arch: str  # x86_64 or any
    file_name: str
    sha256: str
    size: int
    repository: str
    base: str  # the URL of the folder that it lies in
    origin: str  # the address of the repository
    desc: str

    @property
    def url(self) -> str:
        return f"{self.base.rstrip('/')}/{self.file_name}"

    @cached_property
    def fields(self) -> dict[str, tuple[str, ...]]:
        return _fields(self.desc)

    @property
    def signature(self) -> str:
        """Base64 of its detached signature; "" where the database has none, and a file beside the package has it."""
        return "".join(self.fields.get("PGPSIG", ()))

    @cached_property
    def requires(self) -> tuple[tuple[Relation, ...], ...]:
        """Dependencies; pacman knows no alternatives but those that provide the same name."""
        return tuple((one,) for one in self._relations("DEPENDS"))

    @cached_property
    def conflicts(self) -> tuple[Relation, ...]:
        return self._relations("CONFLICTS")

    @cached_property
    def provides(self) -> tuple[Relation, ...]:
        return self._relations("PROVIDES")

    def _relations(self, field: str) -> tuple[Relation, ...]:
        return tuple(parse_relation(word) for word in self.fields.get(field, ()))


def _fields(desc: str) -> dict[str, tuple[str, ...]]:
    return {name: tuple(values.split("\n")[:-1] or ()) for name, values in _BLOCK.findall(f"{desc.strip()}\n")}


def parse_relation(word: str) -> Relation:
    """`NAME`, or NAME, an operator and a version.  Raises GpunodeError for what is neither.

    >>> parse_relation("libnvidia-ml.so=1-64")
    Relation(name='libnvidia-ml.so', op='=', version='1-64')
    """
    match = _RELATION.fullmatch(word.strip())
    if not match:
        raise GpunodeError(f"a package depends on {word!r}", expected="NAME, or NAME=VERSION", fix="use another mirror")
    return Relation(name=match[1], op=match[2] or "", version=match[3] or "")


def parse_desc(desc: str, *, repository: str, base: str, origin: str) -> Alpm:
    """A package's entry; raises GpunodeError for one without its name, version, file, size or SHA-256."""
    fields = _fields(desc)
    try:
        [name], [version], [file], [sha256], [size], [arch] = (
            fields[key] for key in ("NAME", "VERSION", "FILENAME", "SHA256SUM", "CSIZE", "ARCH")
        )
        if "/" in file or not re.fullmatch("[0-9a-f]{64}", sha256):
            raise ValueError(file)
        return Alpm(name, version, arch, file, sha256, int(size), repository, base, origin, desc)
    except (KeyError, ValueError) as error:
        raise GpunodeError(
            f"{base}: an entry of its database lacks what every package has: {desc[:80]!r}",
            expected="NAME, VERSION, FILENAME, CSIZE, SHA256SUM and ARCH",
            fix="look whether the repository is one of pacman's",
        ) from error


def entry_text(package: Alpm) -> str:
    """The entry as it was, without the signature: in the new database its checksum is what vouches for the package."""
    return re.sub(r"^%PGPSIG%\n(?:.+\n?)*\n?", "", package.desc, flags=re.M)


def database_name(repository: str, suite: str) -> str:
    """How pacman calls it: as the section of pacman.conf, or, where gpunode sets it up, by its own name."""
    return suite if suite != "/" else f"gpunode-{repository}"


# ---------------------------------------------------------------- versions: vercmp(8), alpm-pkgver(7)


def compare(a: str, b: str) -> int:
    """-1, 0 or 1, as vercmp prints it; a release that one of them lacks does not count.

    >>> compare("1.0rc1", "1.0"), compare("1:1.0", "2.0"), compare("1.0-2", "1.0")
    (-1, 1, 0)
    """
    (epoch_a, version_a, release_a), (epoch_b, version_b, release_b) = _parts(a), _parts(b)
    first = _segments(epoch_a, epoch_b) or _segments(version_a, version_b)
    return first or (_segments(release_a, release_b) if release_a and release_b else 0)


def _parts(version: str) -> tuple[str, str, str]:
    epoch, colon, rest = version.partition(":")
    if not colon or not epoch.isdigit():
        epoch, rest = "0", version
    plain, dash, release = rest.rpartition("-")
    return (epoch, plain, release) if dash else (epoch, rest, "")


def _segments(a: str, b: str) -> int:
    """Numbers and words in turn, each with what separates it from the one before."""
    while a and b:
        sep_a, sep_b = (len(text) - len(_SEPARATOR.sub("", text)) for text in (a, b))
        a, b = a[sep_a:], b[sep_b:]
        if not a or not b:
            break
        if sep_a != sep_b:
            return -1 if sep_a < sep_b else 1
        if a[0].isdigit() != b[0].isdigit():
            return 1 if a[0].isdigit() else -1
        word_a, word_b = (_WORD.findall(text)[0] for text in (a, b))
        a, b = a[len(word_a) :], b[len(word_b) :]
        if order := _word(word_a, word_b):
            return order
    if not a and not b:
        return 0
    older = b[:1].isalpha() if b else not a[0].isalpha()  # what a word follows is newer: 1.0 than 1.0rc, not than 1.0.a
    return 1 if older else -1


def _word(a: str, b: str) -> int:
    """Two numbers by their value, two words by their letters."""
    one, other = ((len(w.lstrip("0")), w.lstrip("0")) if w[0].isdigit() else (0, w) for w in (a, b))
    return (one > other) - (one < other)


def fits(version: str, relation: Relation) -> bool:
    """Whether a version is what the relation asks for."""
    order = compare(version, relation.version) if relation.op else 0
    return order in {"": (0,), "=": (0,), "<": (-1,), ">": (1,), "<=": (-1, 0), ">=": (0, 1)}[relation.op]


class Sync:
    """The packages of some repositories; of a name that several have, that of the first, as pacman does it."""

    def __init__(self, packages: Iterable[Alpm]) -> None:
        self.names: dict[str, list[Alpm]] = {}
        self._providers: dict[str, list[Alpm]] = {}
        for package in packages:
            if package.name not in self.names:
                self.names[package.name] = [package]
                for one in package.provides:
                    self._providers.setdefault(one.name, []).append(package)

    def candidates(self, relation: Relation) -> list[Alpm]:
        """The package of that name, then those that provide it, in the order of the repositories."""
        real = [package for package in self.names.get(relation.name, ()) if fits(package.version, relation)]
        return real + [
            package
            for package in self._providers.get(relation.name, ())
            if package not in real and any(_meets(one, relation) for one in package.provides)
        ]

    def likely(self, candidates: list[Alpm]) -> list[Alpm]:
        """What pacman takes where nobody answers it: the first."""
        return candidates[:1]

    def wanted(self, want: PackageWant) -> list[Alpm]:
        """The package asked for; of a name there is one version."""
        return self.names.get(want.name, [])

    def key(self, version: str) -> str:
        """Of one version each: nothing is newer."""
        return version


def _meets(provided: Relation, relation: Relation) -> bool:
    """A relation with a version is met only by what is provided in a version."""
    return provided.name == relation.name and (
        not relation.op or (bool(provided.op) and fits(provided.version, relation))
    )
