"""The wheel's collection gets the changelog, which lies at the top level, and Galaxy's manifest of its files."""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

COLLECTION = "ansible_collections/gpunode/node"
INFO = (
    *("namespace", "name", "version", "authors", "readme", "tags", "description", "license", "license_file"),
    *("dependencies", "repository", "documentation", "homepage", "issues"),
)


class CollectionFiles(BuildHookInterface):
    made: tempfile.TemporaryDirectory[str] | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version != "standard":
            return
        source = Path(self.root, "gpunode/collection", COLLECTION)
        included = [Path(file.path) for file in self.build_config.builder.recurse_included_files()]
        files = {str(path.relative_to(source)): path for path in included if path.is_relative_to(source)}
        files["CHANGELOG.md"] = Path(self.root, "CHANGELOG.md")
        self.made = tempfile.TemporaryDirectory()
        texts = manifests((source / "galaxy.yml").read_text(encoding="utf-8"), files)
        for name, text in texts.items():
            Path(self.made.name, name).write_bytes(text)
        given = {**{name: Path(self.made.name, name) for name in texts}, "CHANGELOG.md": files["CHANGELOG.md"]}
        build_data["force_include"] |= {str(path): f"{COLLECTION}/{name}" for name, path in given.items()}

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if self.made:
            self.made.cleanup()


def manifests(galaxy: str, files: dict[str, Path]) -> dict[str, bytes]:
    """MANIFEST.json and FILES.json as `ansible-galaxy collection build` writes them: `collection verify` reads them."""
    found = dict(re.findall(r"^(\w+): ?(.*(?:\n  - .*)*)", galaxy, re.MULTILINE))
    info = {key: _value(found[key]) if key in found else None for key in INFO}
    folders = {str(parent) for name in files for parent in Path(name).parents}
    folders |= {str(Path(name).parent / "__pycache__") for name in files if name.endswith(".py")}  # made by pip
    rows = [_row(name) for name in folders]
    rows += [_row(name, path.read_bytes()) for name, path in files.items()]
    listed = json.dumps({"files": sorted(rows, key=lambda row: str(row["name"])), "format": 1}, indent=1).encode()
    manifest = {"collection_info": info, "file_manifest_file": _row("FILES.json", listed), "format": 1}
    return {"MANIFEST.json": json.dumps(manifest, indent=1).encode(), "FILES.json": listed}


def _value(text: str) -> str | list[str] | dict[str, str]:
    """One value of galaxy.yml, which has texts, lists and one empty mapping: a build has no reader of YAML."""
    if text == "{}":
        return {}
    if text.startswith("["):
        return [word.strip() for word in text.strip("[]").split(",")]
    items = re.findall(r"^  - (.*)", text, re.MULTILINE)
    return items or text


def _row(name: str, data: bytes | None = None) -> dict[str, object]:
    chksum = None if data is None else hashlib.sha256(data).hexdigest()
    kind = {"ftype": "dir", "chksum_type": None} if data is None else {"ftype": "file", "chksum_type": "sha256"}
    return {"name": name, **kind, "chksum_sha256": chksum, "format": 1}
