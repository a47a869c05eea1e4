# Copyright the gpunode authors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)

from __future__ import annotations

from typing import ClassVar

from ansible_collections.gpunode.node.plugins.plugin_utils.node import NodeAction, combined_results, result_of


class ActionModule(NodeAction):
    """Run commit.sh: files in one transaction, or the configuration of each engine in one of its own."""

    ARGUMENTS: ClassVar[dict] = {
        "files": {"type": "list", "elements": "dict", "default": []},
        "runtimes": {"type": "list", "elements": "dict", "default": []},
        "toolkit": {"type": "dict", "default": {}},
        "recover": {"type": "bool", "default": False},
    }

    def act(self, args):
        from gpunode.core.items.package import packages_request
        from gpunode.core.items.runfile import runfile_request

        result = {}
        if args["recover"]:
            result = self._files([])
            requests = {"packages.sh": packages_request({}), "runfile.sh": runfile_request("recover")}
            for name, request in requests.items():
                if not result.get("failed"):
                    outcome, _text = self.node(name, request | ({"check": b"1\n"} if self.check else {}))
                    result = combined_results(result, result_of(outcome))
        if args["files"] and not result.get("failed"):
            result = combined_results(result, self._files(args["files"]))
        for value in args["runtimes"]:
            if not result.get("failed"):
                result = combined_results(result, self._again(self._attempt, value))
        if args["toolkit"] and not result.get("failed"):
            result = combined_results(result, self._again(self._toolkit, args["toolkit"]))
        return result

    def _files(self, files):
        from gpunode.core.edits.commit import commit_request, file_changes

        changes = file_changes(files)
        diff = self._diff({change.path: change.data for change in changes}) if files else []
        outcome, _text = self.node("commit.sh", commit_request(changes, check=self.check))
        return result_of(outcome) | {"diff": diff}

    def _again(self, attempt, value):
        """One edit; read and made anew when somebody else wrote the same files in between."""
        from gpunode.core.edits.commit import TRIES

        for _try in range(TRIES):
            result = attempt(value)
            if not result.get("stale"):
                break
        return result

    def _toolkit(self, settings):
        from gpunode.core.errors import RefusedError
        from gpunode.core.items.toolkit import config_edit, toolkit_request, toolkit_settings

        _text, facts = self.probe("files")
        edit = config_edit(facts, toolkit_settings(settings))
        if edit.problems:
            raise RefusedError.of(edit.problems)
        if not edit.changes:
            return {"msg": "the container toolkit is configured"}
        outcome, _text = self.node("commit.sh", toolkit_request(facts, edit, check=self.check))
        return result_of(outcome) | {"diff": self._diff(edit.changes, facts), "stale": list(outcome.stale)}

    def _attempt(self, value):
        from gpunode.core.edits import SECTIONS, edit_runtime
        from gpunode.core.edits.commit import edit_request
        from gpunode.core.errors import RefusedError, StaleError
        from gpunode.core.items.activation import activate_request
        from gpunode.core.items.engine import changed_files, runtime_wish

        _text, facts = self.probe(*SECTIONS)
        wish = runtime_wish(value)
        stale = changed_files(value.get("expect") or {}, facts)
        if stale:
            raise StaleError(f"changed since the plan was made: {', '.join(stale)}", fix="make the plan again")
        if facts.runtime(wish.runtime) is None:
            if self.check:
                text = f"{wish.runtime} is not installed yet; its configuration would get the nvidia runtime"
                return {"changed": True, "msg": text, "changes": [text]}
            raise RefusedError(f"{wish.runtime} is not installed", fix=f"set runtimes.{wish.runtime}.manage to install")
        edit = edit_runtime(facts, wish)
        if edit.problems:
            raise RefusedError.of(edit.problems)
        if edit.changes:
            outcome, _text = self.node("commit.sh", edit_request(facts, wish, edit, check=self.check))
            found = {"diff": self._diff(edit.changes, facts), "stale": list(outcome.stale)}
            return result_of(outcome) | found
        if value.get("restart"):  # the configuration is right, what the engine starts from it is new
            request = activate_request({"restart": [facts.runtime(wish.runtime).unit]}, check=self.check)
            return result_of(self.node("activate.sh", request)[0])
        return {"msg": f"{wish.runtime} is configured"}

    def _diff(self, changes, facts=None):
        """Masked unified diffs of what changes; the probe is asked for what was there, unless `facts` have it."""
        from gpunode.core.diff import unified

        if not self._task.diff:
            return []
        facts = facts or self.probe("files")[1]
        before = {path: facts.files[path].data if path in facts.files else None for path in changes}
        texts = [unified(before[path], after, path) for path, after in changes.items()]
        return [{"prepared": text} for text in texts if text]
