"""Repositories of rpm: metadata read, and written again for some of the packages; the signature in an rpm file."""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import unescape
from typing import Any

import yaml

from gpunode.core.errors import GpunodeError, RefusedError

_HEADER = '<?xml version="1.0" encoding="UTF-8"?>\n'
_LISTS = {  # the element and the namespace of each list
    "primary": (
        "metadata",
        'xmlns="http://linux.duke.edu/metadata/common" xmlns:rpm="http://linux.duke.edu/metadata/rpm"',
    ),
    "filelists": ("filelists", 'xmlns="http://linux.duke.edu/metadata/filelists"'),
}


@dataclass(frozen=True, eq=False)
class Rpm:
    """One package of a primary.xml, and its entry in filelists.xml."""

    name: str
    version: str  # [EPOCH:]VERSION-RELEASE
    arch: str
    href: str
    sha256: str
    size: int
    repository: str
    base: str  # the URL that href is relative to
    origin: str  # the address of the repository
    primary: str
    files: str = ""

    @property
    def url(self) -> str:
        return f"{self.base.rstrip('/')}/{self.href}"

    @property
    def file_name(self) -> str:
        return self.href.rpartition("/")[2]

    @property
    def full_name(self) -> str:
        """NAME-EPOCH:VERSION-RELEASE.ARCH, as modules name their artifacts."""
        version = self.version if ":" in self.version else f"0:{self.version}"
        return f"{self.name}-{version}.{self.arch}"


@dataclass(frozen=True, kw_only=True)
class Listed:
    """One list that repomd.xml names."""

    href: str
    sha256: str


def parse_repomd(text: str, where: str) -> dict[str, Listed]:
    """Type → list; raises GpunodeError for a list without a SHA-256."""
    found = {}
    for kind, body in re.findall(r'<data type="([^"]+)">(.*?)</data>', text, re.S):
        href = re.search(r'<location href="([^"]+)"', body)
        checksum = re.search(r'<checksum type="(sha256|sha512|sha384)">([0-9a-f]+)<', body)
        if href and checksum and checksum[1] == "sha256":
            found[kind] = Listed(href=unescape(href[1]), sha256=checksum[2])
    if "primary" not in found:
        raise GpunodeError(
            f"{where} names no list of packages with a SHA-256", fix="is it a repository of rpm? use another mirror"
        )
    return found


def parse_primary(primary: str, filelists: str, *, repository: str, base: str, origin: str) -> Iterator[Rpm]:
    """The packages; raises GpunodeError for one whose checksum is no SHA-256."""
    files = {m[1]: m[0] for m in re.finditer(r'<package pkgid="([0-9a-f]+)".*?</package>', filelists, re.S)}
    for match in re.finditer(r'<package type="rpm">.*?</package>', primary, re.S):
        text = match[0]
        name, arch = _one(r"<name>([^<]+)</name>", text), _one(r"<arch>([^<]+)</arch>", text)
        checksum = re.search(r'<checksum type="sha256"[^>]*>([0-9a-f]{64})<', text)
        if arch == "src" or not checksum:
            if arch == "src":
                continue
            raise GpunodeError(f"{base}: {name} has no SHA-256 in its list", fix="use another mirror")
        version = dict(re.findall(r'(epoch|ver|rel)="([^"]*)"', _one(r"<version ([^>]*)/>", text)))
        size = _one(r'<size [^>]*package="([0-9]{1,15})"', text)
        if not (name and size and {"ver", "rel"} <= set(version)):
            raise GpunodeError(
                f"{base}: a package of its list lacks its name, version or size: {text[:80]!r}",
                fix="use another mirror",
            )
        epoch = f"{version['epoch']}:" if version.get("epoch", "0") != "0" else ""
        yield Rpm(
            name=unescape(name),
            version=f"{epoch}{version['ver']}-{version['rel']}",
            arch=arch,
            href=unescape(_one(r'<location [^>]*href="([^"]+)"', text)),
            sha256=checksum[1],
            size=int(size),
            repository=repository,
            base=_one(r'<location [^>]*xml:base="([^"]+)"', text) or base,
            origin=origin,
            primary=text,
            files=files.get(checksum[1], ""),
        )


def _one(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    return found[1] if found else ""


# ---------------------------------------------------------------- modules


def left_out(modules: str, streams: Sequence[str], packages: Iterable[Rpm]) -> set[str]:
    """Full names of the packages that dnf would not see: those of streams that are not enabled, and those of no module
    whose name an enabled stream has.

    `streams` are NAME:STREAM; of a module that none of them names, the default stream is enabled where there is one.
    """
    enabled = dict(one.split(":", 1) for one in streams)
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    documents: list[Any] = [d for d in yaml.load_all(modules, Loader=loader) if isinstance(d, Mapping)]
    for document in documents:
        if document.get("document") == "modulemd-defaults" and "stream" in document["data"]:
            enabled.setdefault(document["data"]["module"], str(document["data"]["stream"]))
    active: set[str] = set()
    passive: set[str] = set()
    for document in documents:
        if document.get("document") == "modulemd":
            data = document["data"]
            mine = set(data.get("artifacts", {}).get("rpms", ()))
            (active if enabled.get(data["name"]) == str(data["stream"]) else passive).update(mine)
    shadowed = {name.rpartition(":")[0].rpartition("-")[0] for name in active}
    plain = {p.full_name for p in packages if p.name in shadowed and p.full_name not in active}
    return (passive - active) | plain


# ---------------------------------------------------------------- written again


def rpm_metadata(packages: Sequence[Rpm], modules: str = "", *, revision: int) -> dict[str, bytes]:
    """repodata/… of a repository in whose folder the packages lie: primary, filelists, modules, repomd.xml."""
    ordered = sorted(packages, key=lambda p: (p.name, p.version, p.arch))
    texts = {
        "primary": _list("primary", [_here(p) for p in ordered]),
        "filelists": _list("filelists", [p.files for p in ordered if p.files]),
    }
    if modules:
        texts["modules"] = modules
    files: dict[str, bytes] = {}
    entries = []
    for kind, text in texts.items():
        plain = text.encode()
        packed = zlib.compress(plain, wbits=31)  # gzip's form, without a time
        digest = hashlib.sha256(packed).hexdigest()
        path = f"repodata/{digest}-{kind}.{'yaml' if kind == 'modules' else 'xml'}.gz"
        files[path] = packed
        entries.append(
            f'  <data type="{kind}">\n    <checksum type="sha256">{digest}</checksum>\n'
            f'    <open-checksum type="sha256">{hashlib.sha256(plain).hexdigest()}</open-checksum>\n'
            f'    <location href="{path}"/>\n    <timestamp>{revision}</timestamp>\n'
            f"    <size>{len(packed)}</size>\n    <open-size>{len(plain)}</open-size>\n  </data>\n"
        )
    repomd = (
        f'{_HEADER}<repomd xmlns="http://linux.duke.edu/metadata/repo">\n  <revision>{revision}</revision>\n'
        f"{''.join(entries)}</repomd>\n"
    )
    return {**files, "repodata/repomd.xml": repomd.encode()}


def _here(package: Rpm) -> str:
    """Its entry, with the file beside the metadata's folder."""
    return re.sub(r"<location [^>]*/>", f'<location href="{package.file_name}"/>', package.primary, count=1)


def _list(kind: str, entries: Sequence[str]) -> str:
    element, namespaces = _LISTS[kind]
    body = "".join(f"{entry}\n" for entry in entries)
    return f'{_HEADER}<{element} {namespaces} packages="{len(entries)}">\n{body}</{element}>\n'


# ---------------------------------------------------------------- the file itself (rpm.org, Package Format V4)

_RSA, _DSA = 268, 267  # tags of the signature of the header alone
_PAYLOAD_DIGEST = 5092
_MAGIC = b"\x8e\xad\xe8\x01"


@dataclass(frozen=True, kw_only=True)
class SignedHeader:
    """What the signature in an rpm file is of, and the digest by which the header holds the rest of the file."""

    signature: bytes
    header: bytes
    payload_sha256: str
    payload_at: int


def signed_header(data: bytes, where: str) -> SignedHeader:
    """From the first bytes of a file, as many as hold its headers.  Raises RefusedError for one without a signature."""
    try:
        tags, end = _tags(data, 96)
        start = end + -end % 8
        inner, payload_at = _tags(data, start)
        signature = tags.get(_RSA) or tags.get(_DSA)
        digest = inner.get(_PAYLOAD_DIGEST, b"").split(b"\0")[0].decode()
    except (IndexError, ValueError) as error:
        raise RefusedError(f"{where} is no rpm file: {error}", fix="use another mirror") from error
    if not signature or not digest:
        raise RefusedError(f"{where} carries no signature that can be compared", fix="use a repository that signs")
    return SignedHeader(
        signature=signature, header=data[start:payload_at], payload_sha256=digest, payload_at=payload_at
    )


def _tags(data: bytes, at: int) -> tuple[dict[int, bytes], int]:
    """The values of a header's tags as bytes, and where it ends: an index of 16 bytes a tag, then the store."""
    if data[at : at + 4] != _MAGIC:
        raise ValueError(f"byte {at} begins no header")
    count, size = (int.from_bytes(data[at + n : at + n + 4], "big") for n in (8, 12))
    store = at + 16 + 16 * count
    if store + size > len(data):
        raise ValueError("its header is cut off")
    found = {}
    for n in range(count):
        row = data[at + 16 + 16 * n : at + 32 + 16 * n]
        tag, _kind, offset, length = (int.from_bytes(row[i : i + 4], "big") for i in (0, 4, 8, 12))
        found[tag] = data[store + offset : store + size] if tag == _PAYLOAD_DIGEST else data[store + offset :][:length]
    return found, store + size
