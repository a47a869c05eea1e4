"""The request of node/activate/cdi.sh, from the value of the role option `runtime_cdi`.

Request files: `output` the path of the specification (without it that of nvidia-cdi-refresh.service), `service` and
`path` the text of our own units, written where the toolkit (before 1.18.0) brings none, `check` (1) in check mode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpunode.core.cdi import PATH, made_by_ctk, stale
from gpunode.core.items.item import Case, Item, StepKind
from gpunode.core.model import NodeFacts
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
    WANTED = "fresh"
    role: str = "runtime"
    option: str = "cdi"
    units: Mapping[str, str]  # texts of the service and the path

    def actual(self, facts: NodeFacts) -> str:
        return "; ".join(stale(made_by_ctk(facts))) or self.wanted

    def difference(self, have: str) -> str:
        return have

    @property
    def value(self) -> dict[str, Any]:
        """The value of its step."""
        return {"output": "", **self.units}


def value(case: Case, role: str, mine: Sequence[Item]) -> Any:
    """How it is made."""
    [found] = [item.value for item in mine if isinstance(item, Specification)]
    return found


STEP = StepKind(shape=SHAPE, action="cdi", argument="cdi", value=value)


def cdi_request(value: Mapping[str, Any], *, check: bool = False) -> dict[str, bytes]:
    """{output, service, path}, all texts → request files.  Raises InputError."""
    check_value("cdi", value, SHAPE)
    request = {key: f"{value[key].rstrip()}\n".encode() for key in SHAPE.keys if value.get(key)}
    return request | ({"check": b"1\n"} if check else {})
