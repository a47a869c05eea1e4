"""Which kernel Ubuntu's archive has NVIDIA's signed modules for: during an update its index is ahead of its files."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping

from gpunode.core.errors import GpunodeError
from gpunode.lab.packages_ubuntu import Stanza

Index = Mapping[str, Stanza]


def choose(index: Index, there: Callable[[str], bool]) -> tuple[str, list[str]]:
    """The newest kernel of the release's own line that has all files of its modules, and the newer ones' numbers.

    `there` says whether the archive has a file.  Raises GpunodeError where it has those of no kernel.
    """
    newest = re.search(r"linux-image-([\d.]+)-\d+-generic", index["linux-image-generic"]["Depends"])
    line = re.escape(newest[1]) if newest else r"[\d.]+"
    part = re.compile(rf"linux-(?:(?:modules|objects)-nvidia-\d+-server-open|signatures-nvidia)-({line}-(\d+))-generic")
    files: dict[tuple[int, str], list[str]] = {}
    for name, stanza in index.items():
        if match := part.fullmatch(name):
            files.setdefault((int(match[2]), match[1]), []).append(stanza["Filename"])
    lacking: list[str] = []
    for _, kernel in sorted(files, reverse=True):
        if all(map(there, files[int(kernel.rpartition("-")[2]), kernel])):
            return f"{kernel}-generic", lacking
        lacking.append(kernel)
    raise GpunodeError("Ubuntu's archive has the files of NVIDIA's modules for no kernel; is it a whole mirror?")


def asks(archive: str) -> Callable[[str], bool]:
    """Whether the archive at that URL has a file."""

    def there(name: str) -> bool:
        request = urllib.request.Request(f"{archive}/{name}", method="HEAD")  # noqa: S310 # the archive that was named
        try:
            with urllib.request.urlopen(request, timeout=60):  # noqa: S310 # the same
                return True
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise
            return False

    return there


def preferences(lacking: list[str]) -> str:
    """apt's, which pass by those kernels and the metapackages that bring them; empty where none lacks a file."""
    pin = "Explanation: the archive lists these, and has not all of their files\nPackage: linux-*\nPin: version {}.*\n"
    return "\n".join(pin.format(kernel) + "Pin-Priority: -1\n" for kernel in lacking)
