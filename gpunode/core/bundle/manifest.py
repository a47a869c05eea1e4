"""manifest.json of a bundle: files with checksums, packages with where they are from; and what derives from it."""

from __future__ import annotations

import fnmatch
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from gpunode.core.errors import InputError
from gpunode.core.late import asdict, dataclass, regex
from gpunode.core.model import PackageWant, Problem

FORMAT = "gpunode-bundle 1"
NOTHING = "nothing"
PLAIN_PATH = regex(r"(?:[A-Za-z0-9][\w.+~:^%=@ -]*/)*[A-Za-z0-9_][\w.+~:^%=@ -]*")  # below the bundle, wherever that is
MANIFEST, SIGNATURE, SUMS, KEY, SBOM = (
    "manifest.json",
    "manifest.json.asc",
    "SHA256SUMS",
    "keys/bundle.asc",
    "bundle.spdx.json",
)


@dataclass(frozen=True, kw_only=True)
class Packaged:
    """One package: `file` is below the bundle, `url` where it was fetched, `checked` what proves whose it is."""

    name: str
    version: str
    arch: str
    file: str
    sha256: str
    size: int
    url: str
    checked: str


@dataclass(frozen=True, kw_only=True)
class Stored:
    """Checksum and size of a file."""

    sha256: str
    size: int


@dataclass(frozen=True, kw_only=True)
class TargetPart:
    """What the bundle has for one target: what was asked for, and by repository's name its packages."""

    family: str
    gpus: tuple[str, ...]
    asked: tuple[str, ...]
    base: str  # what every node has already: "nothing", or the name of the list that was given
    base_names: tuple[str, ...]  # the packages of that list
    repositories: Mapping[str, tuple[Packaged, ...]]


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """All of a bundle, but for this file and its signature."""

    format: str = FORMAT
    gpunode: str
    created: str  # RFC 3339, UTC
    fingerprint: str  # of the key that was made for this bundle
    targets: Mapping[str, TargetPart]
    files: Mapping[str, Stored]
    images: tuple[str, ...] = ()
    charts: tuple[str, ...] = ()
    wheels: tuple[str, ...] = ()


def manifest_bytes(manifest: Manifest) -> bytes:
    return (json.dumps(asdict(manifest), indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()


def parse_manifest(data: bytes, where: str) -> Manifest:
    """Raises InputError for what is no manifest, or one of a later format."""
    import cattrs  # slow to import, and every plan could need this module

    try:
        plain = json.loads(data)
        if not isinstance(plain, dict) or plain.get("format") != FORMAT:
            raise ValueError(f"its format is {plain.get('format') if isinstance(plain, dict) else 'not known'}")
        manifest = cattrs.structure(plain, Manifest)
        if strange := [path for path in manifest.files if not PLAIN_PATH.fullmatch(path)]:
            raise ValueError(f"a file of it would lie at {strange[0]!r}")
        return manifest
    except (ValueError, KeyError, TypeError, RecursionError, cattrs.BaseValidationError) as error:
        raise InputError(
            f"{where} is no manifest of a bundle: {str(error).splitlines()[0]}",
            expected=FORMAT,
            fix="make the bundle again: gpunode bundle create",
        ) from error


def sums_text(files: Mapping[str, Stored]) -> str:
    """What `sha256sum --check` reads."""
    return "".join(sums_line(path, stored) for path, stored in sorted(files.items()) if path != SUMS)


def sums_line(path: str, stored: Stored) -> str:
    return f"{stored.sha256}  {path}\n"


def repository_folder(target_folder: str, name: str) -> str:
    """Where a target's repository lies in the bundle."""
    return f"repos/{target_folder}/{name}"


def fragment(manifest: Manifest, url: str, key: str, sha256: str) -> dict[str, Any]:
    """The part of gpunode.yml that has nodes use this bundle at `url`; `key` is its armored public key.

    `sha256` is that of manifest.json: plan and provision take no other.
    """
    names = dict.fromkeys(name for part in manifest.targets.values() for name in part.repositories)
    base = url.rstrip("/")
    return {
        "bundle": {"url": base, "sha256": sha256},
        "sources": {
            name: {
                "url": f"{base}/{repository_folder('{distro}/{machine}', name)}",
                "key": key,
                "fingerprint": manifest.fingerprint,
                "signs": "metadata",
            }
            for name in names
        },
    }


def lacking(manifest: Manifest, target: str, wants: Sequence[PackageWant]) -> tuple[Problem, ...]:
    """What a plan for that target asks for and the bundle has not."""
    part = manifest.targets.get(target)
    if part is None:
        return (
            Problem(
                what=f"the bundle has nothing for {target}",
                fix=f"make it again with --for {target}; it has {', '.join(sorted(manifest.targets))}",
            ),
        )
    have = [package for packages in part.repositories.values() for package in packages]
    base = set(part.base_names)
    gone = [
        f"{want.name} {want.version}".strip()
        for want in wants
        if want.name not in base
        and not any(_named(want.name, p) and matches_version(p.version, want.version or "*") for p in have)
    ]
    if not gone:
        return ()
    return (
        Problem(
            what=f"the bundle lacks {', '.join(gone)} for {target}",
            fix="make it again from this gpunode.yml: gpunode bundle create",
        ),
    )


def _named(name: str, package: Packaged) -> bool:
    """Whether that is its name; kernels' packages are also asked for as NAME-VERSION, with or without what follows."""
    if name == package.name:
        return True
    full = f"{package.name}-{package.version.partition(':')[2] or package.version}"
    return name in (full, f"{full}.{package.arch}") or full.startswith(f"{name}.")


def matches_version(version: str, pattern: str) -> bool:
    """Of an rpm neither epoch nor, where the pattern has none, release counts."""
    plain = version.partition(":")[2] or version
    return any(fnmatch.fnmatchcase(v, p) for v in (version, plain) for p in (pattern, f"{pattern}-*"))


def digest(data: bytes) -> Stored:
    return Stored(sha256=hashlib.sha256(data).hexdigest(), size=len(data))
