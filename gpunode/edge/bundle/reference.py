"""The repositories of a reference machine, from a copy of the files that name them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gpunode.core.bundle.target import BundleTarget
from gpunode.core.bundle.upstream import Upstream, parse_sources
from gpunode.core.errors import InputError

ENDINGS = (".list", ".sources", ".repo")


def read_repositories(path: Path, target: BundleTarget) -> tuple[Upstream, ...]:
    """All repositories that a file, or the files of a folder, name; keys are looked for beside them as well.

    Raises InputError.
    """
    files = [path] if path.is_file() else sorted(p for p in path.iterdir() if p.suffix in ENDINGS)
    words = {"releasever": target.distro.partition(":")[2], "basearch": target.arch}
    found: list[Upstream] = []
    for file in files:
        text = file.read_text(encoding="utf-8")
        if path.is_file() or text.strip():
            found += (_with_key(one, file.parent) for one in parse_sources(text, str(file), words))
    if not found:
        raise InputError(
            f"{path} has no files that name repositories", expected=f"files that end in {', '.join(ENDINGS)}"
        )
    return tuple(found)


def _with_key(upstream: Upstream, folder: Path) -> Upstream:
    """A key's path is one of the reference machine: here it may lie beside the file."""
    if not upstream.key.startswith("/") or Path(upstream.key).exists():
        return upstream
    neighbours = folder / Path(upstream.key).name
    return replace(upstream, key=str(neighbours)) if neighbours.exists() else upstream
