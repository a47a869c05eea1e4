"""gpunode.yml's `sources`: other places for package repositories."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from gpunode.core.errors import InputError
from gpunode.core.late import dataclass
from gpunode.core.spec.option import check_places, check_text, option

# The repository of all that a node needs beside NVIDIA's: where it is named, the node's own ones are not asked.
DISTRIBUTION = "distribution"
PLACEHOLDERS = ("dir", "arch", "distro", "machine")


@dataclass(frozen=True, kw_only=True)
class SourceSpec:
    """Another place for a package repository: a mirror, or a local copy."""

    url: str = option(
        "",
        "URL of the repository, in place of the vendor's; {dir} and {arch} are NVIDIA's words (ubuntu2404, sbsa), "
        "{distro} and {machine} are ubuntu-24.04 and aarch64",
    )
    key: str = option("", "signing key: URL, path on this machine, or the armored text itself")
    fingerprint: str = option("", "40 hex digits the key must have; needed when the key is not the vendor's")
    signs: Literal["auto", "packages", "metadata"] = option(
        "auto", "what an rpm repository's key signs: packages, metadata, or auto (as the vendor's own does)"
    )


def check_sources(sources: Mapping[str, SourceSpec]) -> None:
    """Raises InputError for fingerprints and addresses that cannot be."""
    for name, source in sources.items():
        check_text(f"sources.{name}.fingerprint", source.fingerprint, r"( *[0-9A-Fa-f]){40} *|", "40 hex digits")
        check_places(f"sources.{name}.url", source.url, PLACEHOLDERS)
    own = sources.get(DISTRIBUTION)
    if own and not (own.url and own.key and own.fingerprint):
        raise InputError.of(
            f"sources.{DISTRIBUTION}",
            "lacks " + " and ".join(key for key in ("url", "key", "fingerprint") if not getattr(own, key)),
            expected="url, key and fingerprint: gpunode knows no such source",
        )


def filled_in(url: str, words: Mapping[str, str]) -> str:
    """The URL with the words for its placeholders.

    >>> filled_in("http://mirror/{dir}/{arch}/", {"dir": "debian12", "arch": "x86_64"})
    'http://mirror/debian12/x86_64/'
    """
    for word, value in words.items():
        url = url.replace(f"{{{word}}}", value)
    return url
