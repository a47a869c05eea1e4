"""How a missing extra is installed where this gpunode runs: by pip or pipx, from an index or from a checkout."""

from __future__ import annotations

import json
import shlex
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import unquote, urlsplit


def install_command(extra: str = "") -> str:
    """The command that adds an extra of gpunode to this installation, or what gpunode itself needs."""
    source, editable = _source()
    wanted = ("-e " if editable else "") + shlex.quote(f"{source}[{extra}]" if extra else source)
    if (Path(sys.prefix) / "pipx_metadata.json").exists():
        return f"pipx install --force {wanted}"
    return f"pip install {wanted}"


def _source() -> tuple[str, bool]:
    """gpunode, or the folder that it was installed from; whether that folder is used as it is."""
    try:
        text = distribution("gpunode").read_text("direct_url.json")
    except PackageNotFoundError:
        return "gpunode", False
    origin = json.loads(text) if text else {}
    url = urlsplit(origin.get("url", ""))
    folder = unquote(url.path)
    if url.scheme != "file" or not Path(folder).is_dir():
        return "gpunode", False
    return folder, bool(origin.get("dir_info", {}).get("editable"))
