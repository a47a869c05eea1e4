"""Repositories of rpm: metadata read, and written again for some of the packages; the signature in an rpm file."""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

from gpunode.core.errors import GpunodeError, InputError, RefusedError
from gpunode.core.late import dataclass, field
from gpunode.core.untrusted import check_xml, load_yaml_documents

_HEADER = '<?xml version="1.0" encoding="UTF-8"?>\n'
_XML_BASE = "{http://www.w3.org/XML/1998/namespace}base"
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
    unpacked: int | None = None  # bytes that it declares to have when it is unpacked


def parse_repomd(text: str, where: str) -> dict[str, Listed]:
    """Type → list; raises GpunodeError for what is no repomd.xml, or a list without a SHA-256."""
    found = {}
    for one in _element(check_xml(text, where), where).iterfind("{*}data"):
        location, checksum, size = (one.find(f"{{*}}{name}") for name in ("location", "checksum", "open-size"))
        href = "" if location is None else location.get("href", "")
        digest = (checksum.text or "").strip() if checksum is not None and checksum.get("type") == "sha256" else ""
        if href and re.fullmatch("[0-9a-f]{64}", digest):
            unpacked = (size.text or "").strip() if size is not None else ""
            found[one.get("type", "")] = Listed(
                href=href, sha256=digest, unpacked=int(unpacked) if re.fullmatch("[0-9]{1,15}", unpacked) else None
            )
    if "primary" not in found:
        raise GpunodeError(
            f"{where} names no list of packages with a SHA-256", fix="is it a repository of rpm? use another mirror"
        )
    return found


def parse_primary(primary: str, filelists: str, *, repository: str, base: str, origin: str) -> Iterator[Rpm]:
    """The packages; raises GpunodeError for one whose checksum is no SHA-256."""
    files = {}
    for text in _parts(filelists, "<package "):
        if match := re.match(r'<package pkgid="([0-9a-f]{64})"', text):
            files[match[1]] = text
    for text in _parts(primary, '<package type="rpm">'):
        package = _element(f"<{_LISTS['primary'][0]} {_LISTS['primary'][1]}>{text}</{_LISTS['primary'][0]}>", base)[0]
        name, arch, digest = (package.findtext(f"{{*}}{tag}", "").strip() for tag in ("name", "arch", "checksum"))
        checksum = package.find("{*}checksum")
        if arch == "src":
            continue
        if checksum is None or checksum.get("type") != "sha256" or not re.fullmatch("[0-9a-f]{64}", digest):
            raise GpunodeError(f"{base}: {name[:80]} has no SHA-256 in its list", fix="use another mirror")
        version, size, location = (_attributes(package, tag) for tag in ("version", "size", "location"))
        if not (name and re.fullmatch("[0-9]{1,15}", size.get("package", "")) and {"ver", "rel"} <= set(version)):
            raise GpunodeError(
                f"{base}: a package of its list lacks its name, version or size: {text[:80]!r}",
                fix="use another mirror",
            )
        epoch = f"{version['epoch']}:" if version.get("epoch", "0") != "0" else ""
        yield Rpm(
            name=name,
            version=f"{epoch}{version['ver']}-{version['rel']}",
            arch=arch,
            href=location.get("href", ""),
            sha256=digest,
            size=int(size["package"]),
            repository=repository,
            base=location.get(_XML_BASE, "") or base,
            origin=origin,
            primary=text,
            files=files.get(digest, ""),
        )


def _parts(text: str, start: str, end: str = "</package>") -> Iterator[str]:
    """The elements that begin and end so, as they are written."""
    at = text.find(start)
    while at >= 0 and (stop := text.find(end, at)) >= 0:
        yield text[at : stop + len(end)]
        at = text.find(start, stop)


def _element(text: str, where: str) -> ElementTree.Element:
    try:
        return ElementTree.fromstring(text)  # noqa: S314 - without entities
    except (ElementTree.ParseError, UnicodeEncodeError) as error:  # of a surrogate, which no UTF-8 has
        raise GpunodeError(f"{where}: broken XML: {error}", fix="use another mirror") from None


def _attributes(package: ElementTree.Element, tag: str) -> dict[str, str]:
    found = package.find(f"{{*}}{tag}")
    return {} if found is None else dict(found.attrib)


# ---------------------------------------------------------------- modules


@dataclass(frozen=True, kw_only=True)
class Modules:
    """A modules.yaml: the packages of each NAME:STREAM, and the default stream of modules that have one."""

    artifacts: Mapping[tuple[str, str], frozenset[str]] = field(default_factory=dict)
    defaults: Mapping[str, str] = field(default_factory=dict)

    @property
    def streams(self) -> tuple[str, ...]:
        return tuple(f"{name}:{stream}" for name, stream in self.artifacts)


def parse_modules(text: str, where: str = "modules.yaml") -> Modules:
    """Raises InputError for what is no modules.yaml (https://github.com/fedora-modularity/libmodulemd, yaml_specs)."""
    artifacts: dict[tuple[str, str], frozenset[str]] = {}
    defaults: dict[str, str] = {}
    for document in load_yaml_documents(text, where) if text else ():
        kind, data = _member(document, "document"), _member(document, "data")
        if kind == "modulemd-defaults" and _member(data, "stream") is not None:
            defaults[_word(data, "module", where)] = _word(data, "stream", where)
        elif kind == "modulemd":
            rpms = _member(_member(data, "artifacts"), "rpms") or ()
            if not isinstance(rpms, list | tuple) or not all(isinstance(rpm, str) for rpm in rpms):
                raise InputError(f"{where}: the artifacts of a module are no list of packages", expected=_MODULEMD)
            key = (_word(data, "name", where), _word(data, "stream", where))
            artifacts[key] = artifacts.get(key, frozenset()) | frozenset(rpms)
    return Modules(artifacts=artifacts, defaults=defaults)


_MODULEMD = "data: {name: …, stream: …, artifacts: {rpms: […]}}"


def _member(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else None


def _word(data: Any, name: str, where: str) -> str:
    value = _member(data, name)
    if not isinstance(value, str | int | float):  # a stream may be 8 or 1.10
        raise InputError(f"{where}: a module's {name} is no text", expected=_MODULEMD)
    return str(value)


def left_out(modules: Modules, streams: Sequence[str], packages: Iterable[Rpm]) -> set[str]:
    """Full names of the packages that dnf would not see: those of streams that are not enabled, and those of no module
    whose name an enabled stream has.

    `streams` are NAME:STREAM; of a module that none of them names, the default stream is enabled where there is one.
    """
    enabled = {**modules.defaults, **dict(one.split(":", 1) for one in streams)}
    active: set[str] = set()
    passive: set[str] = set()
    for (name, stream), mine in modules.artifacts.items():
        (active if enabled.get(name) == stream else passive).update(mine)
    shadowed = {name.rpartition(":")[0].rpartition("-")[0] for name in active}
    plain = {p.full_name for p in packages if p.name in shadowed and p.full_name not in active}
    return (passive - active) | plain


# ---------------------------------------------------------------- written again


def rpm_metadata(packages: Sequence[Rpm], modules: str = "", *, revision: int) -> dict[str, bytes]:
    """repodata/… of a repository in whose folder the packages lie: primary, filelists, modules, repomd.xml."""
    ordered = sorted(packages, key=lambda p: (p.name, p.version, p.arch))
    # each entry with the file beside the metadata's folder
    here = [re.sub(r"<location [^>]*/>", f'<location href="{p.file_name}"/>', p.primary, count=1) for p in ordered]
    texts = {"primary": _list("primary", here), "filelists": _list("filelists", [p.files for p in ordered if p.files])}
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


def _list(kind: str, entries: Sequence[str]) -> str:
    element, namespaces = _LISTS[kind]
    body = "".join(f"{entry}\n" for entry in entries)
    return f'{_HEADER}<{element} {namespaces} packages="{len(entries)}">\n{body}</{element}>\n'


# ---------------------------------------------------------------- the file itself (rpm.org, Package Format V4)

_RSA, _DSA = 268, 267  # tags of the signature of the header alone
_PAYLOAD_DIGEST = 5092
_NAME, _VERSION, _RELEASE, _EPOCH, _ARCH = 1000, 1001, 1002, 1003, 1022
_TEXTS = (6, 8, 9)  # kinds whose count is of texts, each with a NUL behind it; the first one is taken
_SIZES = {3: 2, 4: 4, 5: 8}  # bytes of a number
_MAGIC = b"\x8e\xad\xe8\x01"


@dataclass(frozen=True, kw_only=True)
class SignedHeader:
    """What the signature in an rpm file is of, and the digest by which the header holds the rest of the file."""

    signature: bytes
    header: bytes
    payload_sha256: str
    payload_at: int
    package: tuple[str, str, str] = ("", "", "")  # name, [EPOCH:]VERSION-RELEASE, architecture


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
        signature=signature,
        header=data[start:payload_at],
        payload_sha256=digest,
        payload_at=payload_at,
        package=_package(inner),
    )


def _package(tags: Mapping[int, bytes]) -> tuple[str, str, str]:
    name, version, release, arch = (
        tags.get(tag, b"").decode("utf-8", "replace") for tag in (_NAME, _VERSION, _RELEASE, _ARCH)
    )
    epoch = int.from_bytes(tags.get(_EPOCH, b""), "big")
    return name, f"{f'{epoch}:' if epoch else ''}{version}-{release}", arch


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
        tag, kind, offset, length = (int.from_bytes(row[i : i + 4], "big") for i in (0, 4, 8, 12))
        start = store + offset
        end = data.index(0, start) if kind in _TEXTS else start + length * _SIZES.get(kind, 1)
        found[tag] = data[start : min(end, store + size)]
    return found, store + size
