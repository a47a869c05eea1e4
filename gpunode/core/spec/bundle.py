"""gpunode.yml's `bundle`: which bundle the nodes use, written by gpunode itself."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpunode.core.errors import InputError
from gpunode.core.spec.option import option


@dataclass(frozen=True, kw_only=True)
class BundleSpec:
    """A bundle as `gpunode bundle sources` names it; plan and provision compare it before anything is touched."""

    url: str = option("", "where the bundle is: URL, or file:// of a folder that this machine has, too")
    path: str = option("", "the bundle's folder on the machine that runs gpunode, where url is one of the nodes alone")
    sha256: str = option("", "SHA-256 of its manifest.json")


def check_bundle(bundle: BundleSpec, where: str) -> None:
    """Raises InputError."""
    if (bundle.url or bundle.path or bundle.sha256) and not re.fullmatch(r"[0-9a-f]{64}", bundle.sha256):
        raise InputError(
            f"{where}: bundle.sha256 is {bundle.sha256!r}",
            expected="64 hex digits: the SHA-256 of the bundle's manifest.json",
            fix="gpunode bundle sources DIR --url URL writes this part of the file",
        )
