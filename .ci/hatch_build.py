"""The wheel's collection gets the changelog, which lies at the top level."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CollectionFiles(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "standard":
            name = "CHANGELOG.md"
            build_data["force_include"][str(Path(self.root, name))] = f"ansible_collections/gpunode/node/{name}"
