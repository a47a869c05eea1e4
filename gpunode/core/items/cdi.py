"""The request of node/activate/cdi.sh, from the value of the role option `runtime_cdi`.

Request files: `output` the path of the specification (without it that of nvidia-cdi-refresh.service), `service` and
`path` the text of our own units, written where the toolkit (before 1.18.0) brings none, `check` (1) in check mode.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpunode.core.engines import BY_CDI, RuntimeName
from gpunode.core.facts.cdi import FOLDERS, PATH, made_by_ctk, of_others, stale, too_old
from gpunode.core.items.activation import ACTIVE, ENABLED
from gpunode.core.items.file import FILES, File
from gpunode.core.items.item import HostCase, Item, StepKind
from gpunode.core.items.package import CDI
from gpunode.core.late import dataclass
from gpunode.core.model import NodeFacts, Reason
from gpunode.core.numbers import version_tuple
from gpunode.core.remote import as_flags
from gpunode.core.validation import check_value, mapping, text

SHAPE = mapping(
    "How the CDI specification is made, by nvidia-ctk, and kept up to date.",
    output=text("Its path; empty means that of nvidia-cdi-refresh.service.", r"/[^\x00-\x1f\x7f]*\.(yaml|json)"),
    service=text("Text of the unit that makes it, for toolkits before 1.18.0, which bring none."),
    path=text("Text of the unit that starts that service after a new driver or toolkit."),
)


@dataclass(frozen=True, kw_only=True)
class Specification(Item):
    """The CDI specification, as new as the driver and the toolkit that it is made for."""

    NAME = PATH
    BACK = (FILES, CDI, ACTIVE, ENABLED)
    WANTED = "fresh"
    IN_WORDS = True
    FIRST_BOOT = "cdi"
    role: str = "runtime"
    option: str = "cdi"
    units: Mapping[str, str]  # texts of the service and the path
    engines: tuple[RuntimeName, ...] = BY_CDI  # that read it

    def actual(self, facts: NodeFacts) -> str:
        return "; ".join(stale(made_by_ctk(facts), self.engines)) or self.wanted

    def alone(self, facts: NodeFacts) -> tuple[str, str]:
        """Of a file in the folder where nobody renews one; cdi.sh renews what has the name that nvidia-ctk gives it."""
        own = [spec.path for spec in made_by_ctk(facts).cdi.specs if spec.path.startswith(f"{FOLDERS[0]}/")]
        return f"Make the CDI specification, and renew {own[0]}, which nothing renews by itself" if own else "", ""

    def request(self, case: HostCase) -> Mapping[str, Any]:
        return {"output": "", **self.units}


SETTINGS = "/etc/nvidia-container-toolkit/nvidia-cdi-refresh.env"  # of nvidia-cdi-refresh.service, and of cdi.sh
_FLAGS, _NO_GROUPS = "NVIDIA_CTK_CDI_GENERATE_FEATURE_FLAGS", "no-additional-gids-for-device-nodes"
_WRITES_0_7 = (1, 19, 1)  # nvidia-container-toolkit issues 1860, 1865 and 1940
_ISSUE = "https://github.com/NVIDIA/nvidia-container-toolkit/issues/1860"


def settings(facts: NodeFacts, toolkit: str, engines: Sequence[RuntimeName]) -> Iterator[File]:
    """What nvidia-ctk has to leave out for an engine that cannot read CDI 0.7.0; `toolkit` "" is the newest."""
    found = facts.files.get(SETTINGS)
    text = (found.data or b"").decode("utf-8", "replace") if found else ""
    old = too_old(facts, engines)
    if old and (not toolkit or version_tuple(toolkit) >= _WRITES_0_7):
        why = (
            f"{' and '.join(old)} cannot read CDI 0.7.0, which nvidia-ctk writes from 1.19.1 on: additional groups of "
            "the devices are left out; users in containers who are not root reach only devices that are open to all"
        )
        reason = Reason(what="CDI specification", why=why, source=_ISSUE)
        yield File(role="runtime", path=SETTINGS, text=without_groups(text), reasons=(reason,))
    elif text and text == without_groups(""):
        yield File(role="runtime", path=SETTINGS, text=None)


def without_groups(text: str) -> str:
    """The settings with the feature flag that leaves additional groups out; everything else stays.

    >>> without_groups("NVIDIA_CTK_DEBUG=1\\n")
    'NVIDIA_CTK_DEBUG=1\\nNVIDIA_CTK_CDI_GENERATE_FEATURE_FLAGS=no-additional-gids-for-device-nodes\\n'
    """
    lines = text.splitlines()
    for number, line in enumerate(lines):
        key, _, flags = line.partition("=")
        if key.strip() == _FLAGS:
            every = [flag for flag in flags.strip().strip("\"'").split(",") if flag]
            if _NO_GROUPS not in every:
                lines[number] = f"{_FLAGS}={','.join([*every, _NO_GROUPS])}"
            return "\n".join(lines) + "\n"
    return "\n".join([*lines, f"{_FLAGS}={_NO_GROUPS}"]) + "\n"


STEP = StepKind(shape=SHAPE, action="cdi", argument="cdi")


def cdi_warnings(facts: NodeFacts) -> Iterator[str]:
    """Specifications that do not fit, and that are left as they are."""
    if reasons := of_others(facts):
        yield f"{'; '.join(reasons)}; nvidia-ctk did not make that file: remove it, or renew it with what made it"


def cdi_request(value: Mapping[str, Any], *, check: bool = False) -> dict[str, bytes]:
    """{output, service, path}, all texts → request files.  Raises InputError."""
    check_value("cdi", value, SHAPE)
    request = {key: f"{value[key].rstrip()}\n".encode() for key in SHAPE.keys if value.get(key)}
    return request | as_flags(check=check)
