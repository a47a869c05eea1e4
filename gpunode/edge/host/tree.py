"""Files of a tree, this machine's own or an image's, by the paths they have inside it."""

from __future__ import annotations

import glob
import hashlib
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from gpunode.core.content import LIMIT, check_size
from gpunode.core.errors import InputError
from gpunode.core.late import dataclass, regex

_MAGIC = regex(r"[*?\[]")


@dataclass(frozen=True, kw_only=True)
class Found:
    """One file: where it really is, and what it was when it was read."""

    place: Path  # the file itself, no link
    data: bytes
    mode: int

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()


@dataclass(frozen=True)
class Tree:
    """A folder that stands for /: links in it lead to places in it."""

    root: Path = Path("/")

    def place(self, path: str) -> Path:
        """Where an absolute path of the tree is on this machine, links followed; it need not exist.

        Raises InputError for links that go round in circles.
        """
        done: list[str] = []
        todo = list(reversed(PurePosixPath(path).parts[1:]))
        for _ in range(4096):
            if not todo:
                return self.root.joinpath(*done)
            part = todo.pop()
            if part == "..":
                done = done[:-1]
                continue
            here = self.root.joinpath(*done, part)
            try:
                target = PurePosixPath(here.readlink())
            except OSError:  # no link, or nothing there
                done.append(part)
                continue
            if target.is_absolute():
                done = []
            todo += reversed([p for p in target.parts if p != "/"])
        raise InputError(f"{path}: symbolic links that lead in a circle", fix="fix the link")

    def matching(self, pattern: str) -> Iterator[str]:
        """The paths in the tree that a path or glob names, sorted; hidden files count, as for filepath.Glob of Go."""
        if not _MAGIC.search(pattern):
            yield pattern
            return
        first = next(i for i, part in enumerate(PurePosixPath(pattern).parts) if _MAGIC.search(part))
        fixed = PurePosixPath(*PurePosixPath(pattern).parts[:first])
        rest = str(PurePosixPath(*PurePosixPath(pattern).parts[first:]))
        for found in sorted(glob.glob(rest, root_dir=self.place(str(fixed)), include_hidden=True)):  # noqa: PTH207
            path = str(fixed / found)
            if not self.place(path).is_dir():
                yield path

    def read(self, path: str) -> Found | None:
        """The file at a path of the tree, None when there is none.

        Raises InputError for what is there and is not a file that can be read.
        """
        place = self.place(path)
        try:
            kind = place.stat()
        except (FileNotFoundError, NotADirectoryError):
            if self.root.joinpath(path.lstrip("/")).is_symlink():
                raise InputError(
                    f"{path} is a symbolic link that leads nowhere ({place})",
                    expected="a file",
                    fix="remove the link, or create what it names",
                ) from None
            return None
        except OSError as error:
            raise _unreadable(path, error) from error
        if not stat.S_ISREG(kind.st_mode):
            what = "a directory" if stat.S_ISDIR(kind.st_mode) else "no regular file"
            raise InputError(f"{path} is {what}", expected="a configuration file", fix="move it away")
        try:
            with place.open("rb") as file:
                data = file.read(LIMIT + 1)
        except OSError as error:
            raise _unreadable(path, error) from error
        check_size(path, data)
        return Found(place=place, data=data, mode=stat.S_IMODE(kind.st_mode))


def _unreadable(path: str, error: OSError) -> InputError:
    fix = "run as root" if isinstance(error, PermissionError) else "look into the file system"
    return InputError(f"{path} cannot be read: {error.strerror}", expected="a file that can be read", fix=fix)
