"""Report ↔ JSON, and the JSON Schema of it, both made from the dataclasses of the model."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal

from gpunode.core.report.model import ProbeSummary, Report
from gpunode.core.untrusted import structured

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_SIMPLE = {str: "string", int: "integer", float: "number", bool: "boolean", types.NoneType: "null"}


def report_data(report: Report) -> dict[str, Any]:
    """What `--format json` prints."""
    return dataclasses.asdict(report)


def seen_from(data: Mapping[str, Any]) -> ProbeSummary:
    """The inverse of asdict(ProbeSummary).  Raises InputError."""
    what = "what gpunode has found out about a host"
    return structured(data, ProbeSummary, what, "make the plan again with this gpunode")


def schema_of(kind: type = Report, title: str = "gpunode report") -> dict[str, Any]:
    """The JSON Schema of a dataclass's data."""
    parts: dict[str, Any] = {}
    reference = _of(kind, parts)
    return {"$schema": DIALECT, "title": title, **reference, "$defs": dict(sorted(parts.items()))}


def _of(hint: Any, parts: dict[str, Any]) -> dict[str, Any]:
    """The schema of a type; of dataclasses a reference into `parts`, where they are described once."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        if hint.__name__ not in parts:
            parts[hint.__name__] = {}  # of a type that holds itself there is a reference at once
            parts[hint.__name__] = _object(hint, parts)
        return {"$ref": f"#/$defs/{hint.__name__}"}
    if origin is Literal:
        return {"enum": list(args)}
    if origin is types.UnionType:
        return {"anyOf": [_of(arg, parts) for arg in args]}
    if origin is tuple:
        return {"type": "array", "items": _of(args[0], parts)}
    if origin is Mapping:
        return {"type": "object", "additionalProperties": _of(args[1], parts)}
    return {"type": _SIMPLE[hint]}


def _object(kind: type, parts: dict[str, Any]) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    doc = kind.__doc__ or ""
    return {
        "type": "object",
        **({} if doc.startswith(f"{kind.__name__}(") else {"description": " ".join(doc.split())}),
        "properties": {name: _of(hint, parts) for name, hint in hints.items()},
        "required": list(hints),
        "additionalProperties": False,
    }
