"""The bill of materials of a bundle: SPDX 2.3 as JSON (spdx.github.io/spdx-spec/v2.3)."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

from gpunode.core.bundle.manifest import Manifest, Packaged
from gpunode.core.late import regex

_KIND = {"debian": "deb/debian", "ubuntu": "deb/ubuntu", "rhel": "rpm", "suse": "rpm"}

_DOWNLOAD = regex(r"(https?|ftp|sftp)://")


def sbom(manifest: Manifest) -> bytes:
    """Every package once, with its checksum, where it was fetched, and its package URL (purl)."""
    packages = {p["SPDXID"]: p for p in _packages(manifest)}
    digest = hashlib.sha256("\n".join(sorted(packages)).encode()).hexdigest()[:32]
    name = f"gpunode-bundle-{manifest.fingerprint[-16:]}"
    document: Mapping[str, Any] = {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": name,
        "documentNamespace": f"https://spdx.org/spdxdocs/{name}-{digest}",
        "creationInfo": {"created": manifest.created, "creators": [f"Tool: gpunode-{manifest.gpunode}"]},
        "packages": list(packages.values()),
        "relationships": [
            {"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES", "relatedSpdxElement": one}
            for one in packages
        ],
    }
    return (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode()


def _packages(manifest: Manifest) -> Iterator[dict[str, Any]]:
    for target, part in sorted(manifest.targets.items()):
        for packages in part.repositories.values():
            for package in packages:
                yield _package(package, _purl(package, part.family, target))
    for wheel in manifest.wheels:
        name, version = wheel.rpartition("/")[2].split("-")[:2]
        yield _package(_other(manifest, wheel, name, version), f"pkg:pypi/{name.lower().replace('_', '-')}@{version}")
    for chart in manifest.charts:
        name, version = re.split(r"-(?=v?\d)", chart.rpartition("/")[2].removesuffix(".tgz"), maxsplit=1)
        yield _package(_other(manifest, chart, name, version), f"pkg:generic/{name}@{quote(version, safe='')}")


def _other(manifest: Manifest, path: str, name: str, version: str) -> Packaged:
    """A file of the bundle that no package manager knows."""
    stored = manifest.files[path]
    return Packaged(
        name=name, version=version, arch="", file=path, sha256=stored.sha256, size=stored.size, url="", checked=""
    )


def _package(package: Packaged, purl: str) -> dict[str, Any]:
    return {
        "SPDXID": f"SPDXRef-{re.sub(r'[^A-Za-z0-9.-]', '-', package.name)}-{package.sha256[:16]}",
        "name": package.name,
        "versionInfo": package.version,
        "packageFileName": package.file,
        # clause 7.7 knows no file: addresses, which would mean nothing elsewhere either
        "downloadLocation": package.url if _DOWNLOAD.match(package.url) else "NOASSERTION",
        "filesAnalyzed": False,
        "licenseConcluded": "NOASSERTION",
        "licenseDeclared": "NOASSERTION",
        "copyrightText": "NOASSERTION",
        "checksums": [{"algorithm": "SHA256", "checksumValue": package.sha256}],
        "externalRefs": [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": purl}],
    }


def _purl(package: Packaged, family: str, target: str) -> str:
    distro = target.partition("/")[0].replace(":", "-")
    kind = _KIND.get(family, "generic")
    kind = f"rpm/{distro.partition('-')[0]}" if kind == "rpm" else kind
    version = quote(package.version, safe="")
    return f"pkg:{kind}/{quote(package.name, safe='')}@{version}?arch={package.arch}&distro={distro}"
