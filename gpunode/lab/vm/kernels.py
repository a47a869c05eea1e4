"""Which kernel Ubuntu's archive has NVIDIA's signed modules for: during an update its index is ahead of its files."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping

from gpunode.core.errors import GpunodeError
from gpunode.lab.packages_ubuntu import Stanza


def choose(
    index: Mapping[str, Stanza], there: Callable[[str], bool], meta: str = "linux-image-generic"
) -> tuple[str, list[str]]:
    """The newest kernel of a metapackage's line that has all files of its modules, and the newer ones' numbers.

    `there` says whether the archive has a file.  Raises GpunodeError where it has those of no kernel.
    """
    line = re.sub(r"linux-image-([\d.]+)-\d+-generic.*", r"\1", index[meta]["Depends"])
    part = re.compile(
        rf"linux-(?:(?:modules|objects)-nvidia-\d+-server-open|signatures-nvidia)-({re.escape(line)}-\d+)-generic"
    )
    files: dict[str, list[str]] = {}
    for name, stanza in index.items():
        if match := part.fullmatch(name):
            files.setdefault(match[1], []).append(stanza["Filename"])
    lacking: list[str] = []
    for kernel in sorted(files, key=lambda name: -int(name.rpartition("-")[2])):
        if all(map(there, files[kernel])):
            return f"{kernel}-generic", lacking
        lacking.append(kernel)
    raise GpunodeError("Ubuntu's archive has the files of NVIDIA's modules for no kernel; is it a whole mirror?")


def is_there(url: str) -> bool:
    """Whether a server has that file."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=60):  # noqa: S310 # as named
            return True
    except urllib.error.HTTPError as error:
        if error.code != 404:
            raise
        return False


def preferences(lacking: list[str]) -> str:
    """apt's, which pass by those kernels and the metapackages that bring them; empty where none lacks a file."""
    return "\n".join(f"Package: linux-*\nPin: version {kernel}.*\nPin-Priority: -1\n" for kernel in lacking)
