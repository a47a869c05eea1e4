# Copyright the gpunode authors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from ansible_collections.gpunode.node.plugins.plugin_utils.node import NodeAction, Result

if TYPE_CHECKING:
    from gpunode.core.edits.target import EditTarget
    from gpunode.core.model import ConfigFile


class ActionModule(NodeAction):
    """Run commit.sh: the files of kube-scheduler or of the kubelet, in one transaction, or back again."""

    ARGUMENTS: ClassVar[Result] = {
        "scheduler": {"type": "dict", "default": {}},
        "kubelet": {"type": "dict", "default": {}},
        "config": {"type": "path", "default": ""},
    }

    def act(self, args: Result) -> Result:
        from gpunode.core.edits.kubernetes.request import spec_values

        kind = next((kind for kind in ("scheduler", "kubelet") if args[kind]), "")
        if not kind:
            return {"msg": "nothing is asked for"}
        value = args[kind]
        if kind == "scheduler":  # gpunode.yml and gpunode_spec say where the extender answers
            value = spec_values(self.whole_spec(args["config"])) | value
        return self.again(self._attempt, kind, value)

    def _attempt(self, kind: str, value: Result) -> Result:
        from gpunode.core.edits.kubernetes.request import absent, records
        from gpunode.core.edits.target import probed_files, texts

        remove = absent(value)
        target, files = self._read(kind, value)
        kept = records(files, target.label) if remove else {}
        named = {path for one in kept.values() for path in one}
        seen = probed_files(files, lambda there: (*target.files(there), *named))
        edit = target.unconfigure(texts(seen), tuple(kept.values())) if remove else target.configure(texts(seen))
        result = self.commit(target, edit, seen, used=tuple(kept) if remove else None)
        reasons = [f"{reason.what}: {reason.why}" for reason in edit.reasons] if edit.changes else []
        return result | {"notes": [*result["notes"], *reasons]} if reasons else result

    def _read(self, kind: str, value: Result) -> tuple[EditTarget, Mapping[str, ConfigFile]]:
        """What is asked, and the probe of the files; asked again until the files name no further one."""
        from gpunode.core.edits.kubernetes.request import component_paths, component_target, records
        from gpunode.edge.load import load_scheduler_rules

        paths = set(component_paths(value))
        sections = ("kubernetes",) if kind == "kubelet" and not value.get("server_version") else ()
        while True:
            _text, facts = self.probe(*sections, paths=paths)
            there = {path: file.data or b"" for path, file in facts.files.items()}
            if sections:
                value = value | {"server_version": facts.kubernetes.kubelet}
            target = component_target(kind, value, there, load_scheduler_rules())
            named = {path for one in records(facts.files, target.label).values() for path in one}
            wanted = {*target.files(there), *named}
            if wanted <= paths:
                return target, facts.files
            paths |= wanted
