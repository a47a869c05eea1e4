"""Whether the indexes in a bundle, by which nodes install, name the packages that its manifest names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from gpunode.core.bundle.deb import Deb, parse_packages
from gpunode.core.bundle.manifest import Manifest, Packaged
from gpunode.core.bundle.rpm import Rpm, parse_primary, parse_repomd
from gpunode.core.bundle.target import MANAGERS
from gpunode.core.errors import GpunodeError
from gpunode.core.untrusted import SIZE
from gpunode.edge.bundle.unpack import ending_of, unpacked
from gpunode.edge.bundle.verify import Place

_SOME = 3  # packages that a line names


def disagreements(place: Place, manifest: Manifest) -> Iterator[str]:
    """A line for each difference between an index and the manifest's packages; the files were compared before."""
    for target, part in manifest.targets.items():
        if part.family not in MANAGERS:
            yield f"{target}: this gpunode has no bundles for {part.family}"
            continue
        for name, packages in part.repositories.items():
            for folder in {str(PurePosixPath(package.file).parent) for package in packages}:
                try:
                    for index in _indexes(place, manifest, MANAGERS[part.family], folder, name):
                        yield from _compared(f"{target}: {name}", index, packages)
                except GpunodeError as error:
                    yield f"{target}: {name}: {error.what}"


def _compared(where: str, index: Sequence[Deb | Rpm], packages: Sequence[Packaged]) -> Iterator[str]:
    listed = {(one.name, one.version, one.arch, one.sha256, one.file_name) for one in index}
    known = {(one.name, one.version, one.arch, one.sha256, PurePosixPath(one.file).name) for one in packages}
    for words, rest in (("its index names", listed - known), ("its index has not", known - listed)):
        if rest:
            some = ", ".join(" ".join(one[:3]) for one in sorted(rest)[:_SOME])
            yield f"{where}: {words} {some}{' …' if len(rest) > _SOME else ''}, other than the manifest says"


def _indexes(place: Place, manifest: Manifest, manager: str, folder: str, name: str) -> Iterator[Sequence[Deb | Rpm]]:
    """The index in each form that there is: a node takes one of them."""

    def read(path: str) -> bytes:
        stored = manifest.files.get(path)
        if stored is None or stored.size > SIZE:
            raise GpunodeError(f"its index {path[:200]} is not among the files of the manifest")
        with place.open(path) as file:
            data = file.read(stored.size)
        return unpacked(data, ending_of(data), path)

    if manager == "apt":
        for path in (f"{folder}/Packages", f"{folder}/Packages.gz"):
            text = read(path).decode("utf-8", "replace")
            yield list(parse_packages(text, repository=name, base=folder))
    else:
        primary = parse_repomd(read(f"{folder}/repodata/repomd.xml").decode("utf-8", "replace"), folder)["primary"]
        text = read(f"{folder}/{primary.href}").decode("utf-8", "replace")
        yield list(parse_primary(text, "", repository=name, base=folder, origin=""))
