# Copyright the gpunode authors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)

from __future__ import annotations

from typing import ClassVar

from ansible_collections.gpunode.node.plugins.plugin_utils.node import NodeAction, result_of


class ActionModule(NodeAction):
    """Run commit.sh: the files of kube-scheduler or of the kubelet, in one transaction, or back again."""

    ARGUMENTS: ClassVar[dict] = {
        "scheduler": {"type": "dict", "default": {}},
        "kubelet": {"type": "dict", "default": {}},
        "config": {"type": "path", "default": ""},
    }

    def act(self, args):
        from gpunode.core.edits.commit import TRIES

        kind = next((kind for kind in ("scheduler", "kubelet") if args[kind]), "")
        if not kind:
            return {"msg": "nothing is asked for"}
        value = self._of_spec(args["config"]) | args[kind] if kind == "scheduler" else args[kind]
        for _try in range(TRIES):  # once more when somebody else wrote the same files in between
            result = self._attempt(kind, value)
            if not result.get("stale"):
                break
        return result

    def _of_spec(self, config):
        """What gpunode.yml and gpunode_spec say of where the extender answers."""
        from gpunode.core.edits.kubernetes.request import spec_values
        from gpunode.core.spec import merge_spec
        from gpunode.edge.load import load_spec_data

        return spec_values(merge_spec(load_spec_data(config) if config else {}, self.inventory_spec()))

    def _attempt(self, kind, value):
        from gpunode.core.edits.kubernetes.request import absent, component_request, records
        from gpunode.core.errors import RefusedError

        remove = absent(value)
        component, facts, texts = self._read(kind, value)
        kept = records(facts.files, component.label) if remove else {}
        edit = component.unconfigure(texts, tuple(kept.values())) if remove else component.configure(texts)
        if edit.problems:
            raise RefusedError.of(edit.problems)
        if not edit.changes:
            return {"changed": False, "msg": f"{component.name} is as it should be"}
        used = tuple(kept) if remove else None
        request = component_request(component, edit, facts.files, texts, used=used, check=self.check)
        outcome, _text = self.node("commit.sh", request)
        reasons = [f"{reason.what}: {reason.why}" for reason in edit.reasons]
        found = result_of(outcome) | {"stale": list(outcome.stale), "diff": self._diff(edit, texts)}
        return found | {"notes": [*found["notes"], *reasons]}

    def _read(self, kind, value):
        """The component, the probe of its files, and their bytes; asked again until the files name no further one."""
        from gpunode.core.edits.kubernetes.request import component_of, component_paths, read_files
        from gpunode.edge.load import load_scheduler_rules

        paths = set(component_paths(value))
        while True:
            _text, facts = self.probe(paths=paths)
            there = {path: file.data or b"" for path, file in facts.files.items()}
            component = component_of(kind, value, there, load_scheduler_rules())
            texts, wanted = read_files(component, facts.files)
            if wanted <= paths:
                return component, facts, texts
            paths |= wanted

    def _diff(self, edit, texts):
        from gpunode.core.diff import unified

        if not self._task.diff:
            return []
        found = [unified(texts.get(path), data, path) for path, data in edit.changes.items()]
        return [{"prepared": text} for text in found if text]
