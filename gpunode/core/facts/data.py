"""NodeFacts ↔ plain data for JSON and YAML; bytes are base64 there."""

from __future__ import annotations

import base64
import functools
from typing import TYPE_CHECKING, Any, cast

from gpunode.core.errors import InputError
from gpunode.core.model import NodeFacts

if TYPE_CHECKING:
    from cattrs import Converter


@functools.cache
def _converter(*, brief: bool = False) -> Converter:
    # cattrs costs a third of a second to import: only where facts really become data
    from cattrs.preconf.json import make_converter

    converter = make_converter(omit_if_default=brief)
    converter.register_unstructure_hook(bytes, lambda data: base64.b64encode(data).decode())
    converter.register_structure_hook(bytes, lambda text, _: base64.b64decode(text, validate=True))
    return converter


def facts_to_data(facts: NodeFacts, *, brief: bool = False) -> dict[str, Any]:
    """Facts as dict, list, str, int, bool and None only; `brief` leaves out what has its default value."""
    return cast(dict[str, Any], _converter(brief=brief).unstructure(facts, NodeFacts))


def facts_from_data(data: Any) -> NodeFacts:
    """The inverse of facts_to_data; missing keys get their defaults.  Raises InputError."""
    try:
        return _converter().structure(data, NodeFacts)
    except Exception as error:
        raise InputError(
            f"these are no facts: {error}", expected="what gpunode detect --format json printed for one host"
        ) from error
