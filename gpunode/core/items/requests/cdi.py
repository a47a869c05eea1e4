"""The request of node/activate/cdi.sh, from the value of the role option `runtime_cdi`.

Request files: `output` the path of the specification (without it that of nvidia-cdi-refresh.service), `service` and
`path` the text of our own units, written where the toolkit (before 1.18.0) brings none, `check` (1) in check mode.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpunode.core.errors import InputError

_KEYS = ("output", "service", "path")


def cdi_request(value: Mapping[str, Any], *, check: bool = False) -> dict[str, bytes]:
    """{output, service, path}, all texts → request files.  Raises InputError."""
    for key, text in value.items():
        if key not in _KEYS or not isinstance(text, str):
            raise InputError(f"cdi: {key} is {text!r}", expected=f"texts under {', '.join(_KEYS)}")
    output = value.get("output", "")
    if output and not (output.startswith("/") and output.isprintable() and output.endswith((".yaml", ".json"))):
        raise InputError(f"cdi: output is {output!r}", expected="an absolute path that ends in .yaml or .json")
    request = {key: f"{value[key].rstrip()}\n".encode() for key in _KEYS if value.get(key)}
    return request | ({"check": b"1\n"} if check else {})
