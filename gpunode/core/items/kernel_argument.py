"""Arguments of the kernel's command line, written by the distribution's own tool and read from /proc/cmdline after it.

Debian and Ubuntu: a file of our own in /etc/default/grub.d, then update-grub.  Red Hat's family: grubby, which writes
every boot entry and those of kernels to come; a file of our own says which arguments are gpunode's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gpunode.core.grammar import ARGUMENT_WORD
from gpunode.core.items.file import File
from gpunode.core.items.item import ABSENT, PRESENT, Found, HostCase, Item, Question, StateKind
from gpunode.core.late import dataclass
from gpunode.core.model import NodeFacts, Tuning

FILES = {"update-grub": "/etc/default/grub.d/90-gpunode.cfg", "grubby": "/etc/gpunode/kernel-arguments"}
_HEAD = "# written by gpunode: arguments of the kernel's command line\n"
_IN_FORCE = "in force, and at every boot"


@dataclass(frozen=True, kw_only=True)
class KernelArgument(Item):
    """An argument that the running kernel and the entry that boots next have; or one that was gpunode's and goes."""

    NAME = "kernel argument {word}"
    BACK = (StateKind(name="argument", by_people=True, theirs=True, called="the kernel argument "),)
    ENDS = "boot"
    ASKED_BY = "tuning"
    role: str = "driver"
    option: str = "activate"
    word: str
    goes: bool = False

    @property
    def wanted(self) -> str:
        return ABSENT if self.goes else _IN_FORCE

    def actual(self, facts: NodeFacts) -> str:
        if self.goes:  # the running kernel keeps it until the next boot
            return "at the next boot, too" if self.word in facts.tuning.next_arguments else ABSENT
        now, later = given(self.word, facts.tuning.arguments), given(self.word, facts.tuning.next_arguments)
        return _IN_FORCE if now and later else "after a reboot" if later else "until the next boot" if now else ABSENT

    def request(self, case: HostCase) -> Mapping[str, Any]:
        return {"arguments": {self.word: ABSENT if self.goes else PRESENT}}


def given(word: str, arguments: Iterable[str]) -> bool:
    """Whether one of them says it, also among other values.

    >>> given("iommu=pt", ["iommu=pt,strict"]), given("iommu=pt", ["iommu=nopt"])
    (True, False)
    """
    name, _, value = word.partition("=")
    pairs = (one.partition("=") for one in arguments)
    return any(name == key and value in values.split(",") for key, _, values in pairs)


def wanted(question: Question) -> Found:
    """The file and the arguments; those of a file that says others go."""
    tuning, facts = question.solution.tuning, question.facts
    words, path = tuning.arguments, FILES.get(facts.tuning.loader, "")
    before = _of_file(facts, path)
    if not path or not (words or before):
        return
    yield File(role="driver", path=path, text=_text(words, before, facts.tuning))
    yield from (KernelArgument(word=word) for word in words)
    yield from (KernelArgument(word=word, goes=True) for word in before if word not in words)


def _text(words: Sequence[str], before: Sequence[str], tuning: Tuning) -> str | None:
    """The file; grubby has an argument once, and one that somebody else has set does not become gpunode's."""
    if tuning.loader == "grubby":
        line = " ".join(word for word in words if word in before or not given(word, tuning.next_arguments))
    else:
        line = f'GRUB_CMDLINE_LINUX_DEFAULT="$GRUB_CMDLINE_LINUX_DEFAULT {" ".join(words)}"' if words else ""
    return f"{_HEAD}{line}\n" if line else None


def _of_file(facts: NodeFacts, path: str) -> list[str]:
    """The arguments that our file names."""
    file = facts.files.get(path)
    lines = (file.data or b"").decode(errors="replace").splitlines() if file else []
    return re.findall(rf"(?<![\w$\"]){ARGUMENT_WORD.pattern}", lines[-1] if lines else "", re.ASCII)
