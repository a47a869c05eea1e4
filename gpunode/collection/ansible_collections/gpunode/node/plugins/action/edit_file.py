# Copyright the gpunode authors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar

from ansible_collections.gpunode.node.plugins.plugin_utils.node import (
    NodeAction,
    Request,
    Result,
    combined_results,
    not_yet,
)

if TYPE_CHECKING:
    from gpunode.core.edits.target import RuntimeRequest
    from gpunode.core.model import NodeFacts


class ActionModule(NodeAction):
    """Run commit.sh: files in one transaction, or the configuration of each engine in one of its own."""

    _facts: NodeFacts | None = None  # of all engines at once: each transaction compares what it rests on
    _left: dict[str, tuple[str, str]] | None = None

    ARGUMENTS: ClassVar[Result] = {
        "files": {"type": "list", "elements": "dict", "default": []},
        "runtimes": {"type": "list", "elements": "dict", "default": []},
        "toolkit": {"type": "dict", "default": {}},
        "recover": {"type": "bool", "default": False},
        "expect": {"type": "dict", "default": {}},
    }

    def act(self, args: Result) -> Result:
        result = self.recovered() if args["recover"] else {}
        if args["files"] and not result.get("failed"):
            result = combined_results(result, self._files(args["files"]))
        expect = args["expect"].get("files") or {}  # of a generated play, whose values are those of many hosts
        if args["runtimes"] and not result.get("failed"):
            values = [{"expect": expect.get(one.get("runtime"), {}), **one} for one in args["runtimes"]]
            result = combined_results(result, self._engines(values))
        if args["toolkit"] and not result.get("failed"):
            result = combined_results(result, self.again(self._toolkit, args["toolkit"]))
        return result

    def _engines(self, values: Sequence[Result]) -> Result:
        """One after the other; that containerd, which no other one stops, stays up is proven while the others start."""
        from gpunode.core.edits.commit import side_by_side

        result: Result = {}
        settling: list[str] = []
        try:
            for number, value in enumerate(values, 1):
                if not result.get("failed"):
                    later = value["runtime"] == "containerd" and number < len(values)
                    one = self.again(self._attempt, value, side_by_side(settling, later=later))
                    settling += one.pop("settling", ())
                    engines = [*result.get("engines", ()), *[value["runtime"]] * bool(one.get("changed"))]
                    result = combined_results(result, one) | {"engines": engines}
        finally:  # also where the next one could not be asked
            proof = self.result("commit.sh", side_by_side(settling)) if settling else {}
        return combined_results(result, proof) if proof.get("failed") else result

    def _files(self, files: Sequence[Result]) -> Result:
        from gpunode.core.edits.commit import commit_request, file_changes

        changes = file_changes(files)
        diff = []
        if self._task.diff:
            found = self.probe("files")[1].files
            diff = self.diff({change.path: change.data for change in changes}, found)
        return self.result("commit.sh", commit_request(changes, check=self.check)) | {"diff": diff}

    def _overwritten(self, changes: Iterable[str], facts: NodeFacts) -> list[str]:
        """A warning for each file that an earlier edit has left otherwise: two roles that write it would never end."""
        if self._left is None:
            self._left = self._edits()
        left = self._left
        return [
            f"{path}: changed, not by gpunode, since its edit at {left[path][1]}, and it is edited again: have "
            "that role or tool write the nvidia runtime, too (docs/ansible.md, on a role that writes the same file)"
            for path in changes
            if path in left and path in facts.files and facts.files[path].sha256 != left[path][0]
        ]

    def _edits(self) -> dict[str, tuple[str, str]]:
        """Of each file that gpunode has edited the hash that it had then, and when that was."""
        from gpunode.core.errors import InputError
        from gpunode.core.undo.journal import parse_snapshot

        try:
            records = parse_snapshot(self.send("read_journal.sh", {})[0]).records
        except InputError:  # a warning that cannot be given is no reason to leave an engine as it is
            return {}
        return {
            file["path"]: (file["after"], record.at)
            for record in records
            if record.op == "files" and record.phase in ("intent", "done")
            for file in record.more.get("files", ())
        }

    def _toolkit(self, settings: Result) -> Result:
        from gpunode.core.edits.engines.toolkit import toolkit_target
        from gpunode.core.edits.target import probed_files, texts
        from gpunode.core.items.toolkit import toolkit_settings

        _text, facts = self.probe("files")
        target = toolkit_target(toolkit_settings(settings))
        seen = probed_files(facts.files, target.files)
        return self.commit(target, target.configure(texts(seen)), seen)

    def _attempt(self, value: Result, more: Request) -> Result:
        from gpunode.core.edits import SECTIONS, completed, runtime_target
        from gpunode.core.edits.target import probed_files, texts
        from gpunode.core.errors import RefusedError, StaleError
        from gpunode.core.items.activation import activate_request
        from gpunode.core.items.engine import changed_files, runtime_request

        facts = self._facts = self._facts or self.probe(*SECTIONS, "toolkit")[1]
        request = runtime_request(value)
        runtime = facts.runtime(request.runtime)
        if runtime is None:
            if self.check:
                return not_yet(
                    f"{request.runtime} is not installed yet; its configuration would get the nvidia runtime"
                )
            raise RefusedError(
                f"{request.runtime} is not installed", fix=f"set runtimes.{request.runtime}.manage to install"
            )
        target = runtime_target(completed(request, runtime), facts)
        seen = probed_files(facts.files, target.files)
        edit = target.configure(texts(seen))
        warnings = [] if self.check else _without_toolkit(request, facts)
        warnings += self._overwritten(edit.changes, facts) if edit.changes else []
        warned = {"warnings": warnings} if warnings else {}
        changed = changed_files(value.get("expect") or {}, facts)
        if changed and (edit.changes or edit.problems):
            raise StaleError(f"changed since the plan was made: {', '.join(changed)}", fix="make the plan again")
        if edit.changes or edit.problems or changed or not value.get("restart"):  # changed, and right: by a run before
            result = self.commit(target, edit, seen, more=more) | warned
            if result.get("stale"):
                self._facts = None
            return result
        # the configuration is right, what the engine starts from it is new
        return self.result("activate.sh", activate_request({"restart": [runtime.unit]}, check=self.check)) | warned


def _without_toolkit(request: RuntimeRequest, facts: NodeFacts) -> list[str]:
    """The warning that the runtime is not on the node: a role that is used alone may have left the toolkit out."""
    from gpunode.core.engines import BY_CDI

    if facts.toolkit or request.runtime in BY_CDI or request.path != type(request).path:
        return []
    harm = "no container starts" if request.default_runtime == "nvidia" else "no container of that runtime starts"
    text = f"{request.runtime} has the runtime {request.path}, and no NVIDIA Container Toolkit was found"
    return [f"{text}: {harm} until the role toolkit installs it"]
