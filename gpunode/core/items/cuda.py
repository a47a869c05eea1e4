"""CUDA toolkits: packages or installers, the one that /usr/local/cuda leads to, and the PATH."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpunode.core.items.file import File, render
from gpunode.core.items.item import Found, HostCase, Item, Question, StateKind
from gpunode.core.items.package import PackageItem
from gpunode.core.items.runfile import Installed
from gpunode.core.late import dataclass
from gpunode.core.model import NodeFacts
from gpunode.core.numbers import version_tuple

CUDA_PROFILE = "/etc/profile.d/cuda.sh"


class _Alternative(StateKind):
    """`auto`, `manual PATH`, `link PATH`; gpunode writes PATH."""

    def meaning(self, value: str) -> str:
        return value.rpartition(" ")[2]

    def again(self, now: str, value: str) -> bool:
        return now == value

    def judged(self, now: str) -> bool:
        return now.startswith(("manual ", "link "))


ALTERNATIVE = _Alternative(name="alternative", by_people=True, called="/usr/local/")


@dataclass(frozen=True, kw_only=True)
class Default(Item):
    """The toolkit that /usr/local/cuda leads to."""

    NAME = "default"
    BACK = (ALTERNATIVE,)
    WANTED = "{version}"
    role: str = "cuda"
    option: str = "activate"
    version: str

    def actual(self, facts: NodeFacts) -> str:
        return facts.cuda_default

    def request(self, case: HostCase) -> Mapping[str, Any]:
        return {"alternatives": {"cuda": f"/usr/local/cuda-{self.version}"}}


def wanted(question: Question) -> Found:
    """What the solution has of it.

    A distribution's own toolkit (`versions` is empty) brings its PATH itself, and is not in /usr/local.
    """
    cuda = question.solution.cuda
    if cuda is None:
        return
    for package in cuda.packages:
        yield PackageItem(role="cuda", package=package)
    for runfile in cuda.runfiles:
        yield Installed(role="cuda", runfile=runfile)
    if not cuda.versions:
        return
    newest = max(cuda.compat, key=version_tuple, default="")  # its libcuda serves the older toolkits as well
    yield File(role="cuda", path=CUDA_PROFILE, text=render(question.templates["cuda.sh.j2"], compat=newest))
    yield Default(version=cuda.version)
