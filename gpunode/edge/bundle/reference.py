"""The repositories of a reference machine, from a copy of the files that name them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from gpunode.core.bundle.target import BundleTarget
from gpunode.core.bundle.upstream import ARCH_KEYRING, Upstream, parse_sources
from gpunode.core.errors import InputError
from gpunode.core.openpgp import fingerprints

ENDINGS = (".list", ".sources", ".repo")
PACMAN = "pacman.conf"
DEBIANS_KEYRINGS = Path("/usr/share/keyrings")  # Debian's package archlinux-keyring


def read_repositories(path: Path, target: BundleTarget) -> tuple[Upstream, ...]:
    """All repositories that a file, or the files of a folder, name; keys are looked for beside them as well.

    Raises InputError.
    """
    files = [path] if path.is_file() else sorted(p for p in path.iterdir() if p.suffix in ENDINGS or p.name == PACMAN)
    words = {"releasever": target.distro.partition(":")[2], "basearch": target.arch}
    found: list[Upstream] = []
    for file in files:
        text = _with_includes(file)
        if path.is_file() or text.strip():
            found += (_with_key(one, file.parent) for one in parse_sources(text, str(file), words))
    if not found:
        raise InputError(
            f"{path} has no files that name repositories",
            expected=f"{PACMAN}, or files that end in {', '.join(ENDINGS)}",
        )
    return tuple(found)


def _with_includes(file: Path) -> str:
    """The text; of pacman.conf with the files in it that its repositories include, from there or from beside it."""

    def included(match: re.Match[str]) -> str:
        there, neighbours = Path(match[1]), file.parent / Path(match[1]).name
        found = neighbours if neighbours.is_file() else there
        return found.read_text(encoding="utf-8") if found.is_file() else ""

    text = file.read_text(encoding="utf-8")
    if file.suffix != ".conf":
        return text
    return re.sub(r"^[ \t]*Include[ \t]*=[ \t]*(\S+).*$", included, text, flags=re.M)


def _with_key(upstream: Upstream, folder: Path) -> Upstream:
    """A key's path is one of the reference machine: here it may lie beside the file."""
    if upstream.key == ARCH_KEYRING:
        return _with_keyring(upstream, folder)
    if not upstream.key.startswith("/") or Path(upstream.key).exists():
        return upstream
    neighbours = folder / Path(upstream.key).name
    return replace(upstream, key=str(neighbours)) if neighbours.exists() else upstream


def _with_keyring(upstream: Upstream, folder: Path) -> Upstream:
    """The keys of Arch's packagers, but for those that archlinux-revoked names."""
    name = Path(ARCH_KEYRING).name
    places = (folder / name, Path(ARCH_KEYRING), DEBIANS_KEYRINGS / name)
    keyring = next((path for path in places if path.is_file()), None)
    if keyring is None:
        raise InputError(
            f"{name} is not there: the keys by which Arch's packages are signed",
            expected=f"next to {PACMAN}, or at {ARCH_KEYRING}",
            fix="copy it from the same machine, with archlinux-revoked; or apt-get install archlinux-keyring here",
        )
    revoked = keyring.with_name("archlinux-revoked")
    gone = set(revoked.read_text(encoding="utf-8").split()) if revoked.is_file() else set()
    trusted = tuple(one for one in fingerprints(keyring.read_bytes()) if one not in gone)
    if not trusted:
        raise InputError(f"every key in {keyring} is revoked", fix="copy a newer keyring from the reference machine")
    return replace(upstream, key=str(keyring), fingerprints=trusted)
