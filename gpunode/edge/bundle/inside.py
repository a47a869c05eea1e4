"""What a package file says of itself: a mirror may offer an old package, rightly signed, under a new version's name."""

from __future__ import annotations

import re
import tarfile
from io import BytesIO
from pathlib import Path

from gpunode.core.bundle.deb import Deb
from gpunode.core.errors import RefusedError
from gpunode.edge.bundle.unpack import ending_of, unpacked

MOST_CONTROL = 16 << 20  # bytes of a deb's control.tar, packed and not
MOST_MEMBERS = 20  # files of control.tar before control


def check_inside(package: Deb, file: Path) -> None:
    """Raises RefusedError where the file is another package, version or architecture than its list says."""
    try:
        found = _of_deb(file, package.url)
    except (OSError, ValueError, EOFError, tarfile.TarError) as error:
        raise RefusedError(f"{package.url} is no package: {error}", fix="use another mirror") from error
    refuse_other(found, (package.name, package.version, package.arch), package.url)


def refuse_other(found: tuple[str, str, str], listed: tuple[str, str, str], where: str) -> None:
    """Raises RefusedError where name, version and architecture of a file are not those that its list says."""
    if found != listed:
        raise RefusedError(
            f"{where}: the file is {' '.join(found)[:200]}, and its list calls it {' '.join(listed)[:200]}",
            expected="the package that the list names",
            fix="use another mirror: this one offers other packages under these names",
        )


def _of_deb(file: Path, where: str) -> tuple[str, str, str]:
    """From control in control.tar.*, the second member of the ar archive (deb(5))."""
    with file.open("rb") as archive:
        if archive.read(8) != b"!<arch>\n":
            raise ValueError("it is no archive of ar")
        while head := archive.read(60):
            name, size = head[:16].decode("ascii", "replace").strip(" /"), int(head[48:58])
            if name.startswith("control.tar"):
                data = archive.read(min(size, MOST_CONTROL))
                plain = unpacked(data, ending_of(data), f"{where}: {name}", MOST_CONTROL)
                with tarfile.open(fileobj=BytesIO(plain)) as tar:
                    control = _control(tar)
                    return _field(control, "Package"), _field(control, "Version"), _field(control, "Architecture")
            archive.seek(size + size % 2, 1)
    raise ValueError("it has no control.tar")


def _control(tar: tarfile.TarFile) -> str:
    for number, member in enumerate(tar):
        if member.name.removeprefix("./") == "control" and member.isfile() and member.size <= MOST_CONTROL:
            file = tar.extractfile(member)
            return file.read().decode("utf-8", "replace") if file else ""
        if number > MOST_MEMBERS:
            break
    raise ValueError("it has no control where that belongs")


def _field(control: str, name: str) -> str:
    found = re.search(rf"^{name}:[ \t]*(\S+)", control, re.M)
    return found[1] if found else ""
