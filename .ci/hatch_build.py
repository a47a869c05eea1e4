"""The wheel's collection gets what lies at the top level: roles, playbooks, licence and changelog."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CollectionFolders(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "standard":
            for name in ("playbooks", "roles", "LICENSE", "CHANGELOG.md"):
                build_data["force_include"][str(Path(self.root, name))] = f"ansible_collections/gpunode/node/{name}"
