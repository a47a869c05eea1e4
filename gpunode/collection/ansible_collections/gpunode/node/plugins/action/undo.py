# Copyright the gpunode authors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from ansible_collections.gpunode.node.plugins.plugin_utils.node import (
    NodeAction,
    Request,
    Result,
    combined_results,
    result_of,
)

if TYPE_CHECKING:
    from gpunode.core.model.journal import JournalSnapshot, Scope
    from gpunode.core.undo.plan import UndoPlan
    from gpunode.core.undo.requests import Ask, UndoRequest

TRIES = 3
AGAIN = 2  # times that it is looked whether all is as it was


class ActionModule(NodeAction):
    """Undo what gpunode has changed on the node, as its journal says."""

    ARGUMENTS: ClassVar[Result] = {"what": {"type": "dict", "default": {}}}

    def act(self, args: Result) -> Result:
        from gpunode.core.undo.plan import differences, without_repeats
        from gpunode.core.undo.requests import close_request, parse_undo_request

        if not args["what"]:
            return {}
        request = parse_undo_request(args["what"])
        self._verb = request.verb
        result: Result = {} if self.check else self.recovered()
        journal, scope, back = self._back(request)
        back, done = self._settled(request, scope, back)
        result = combined_results(result, done)
        result["notes"] = [*journal.damage.notes, *result.get("notes", [])]
        if result.get("failed"):
            return result
        result["stays"] = bool(back.notes)
        if not self.check and scope.records:
            planned = back
            for _attempt in range(AGAIN):
                journal, scope, back = self._back(request, scope.to)
                if result.get("warnings") or not back.by_scripts_alone:
                    break
                result = combined_results(result, self._undo(back)[1])
            result["notes"] = [*result["notes"], *back.notes]
            different = differences(journal, scope, planned.noted | back.noted)
            if result.get("failed") or not back.nothing or different:
                return result | {"failed": True, "changed": False, "gpunode_exit": 1, **_left(back, different, result)}
            result["stays"] = bool(planned.notes or back.notes)
            keep = bool(result["stays"] or planned.theirs or back.theirs or journal.damage.partial)
            # the record of an uninstall stays open for packages that others need still
            if not request.parts and not (request.verb == "uninstall" and back.packages.kept):
                self.node("restore.sh", close_request(request, scope.to, keep=keep))
        result["notes"] = without_repeats(result["notes"])
        return result | {"msg": _message(journal, request, scope, result)}

    def _signature(self) -> Request:
        """In the journal the part is the verb: it names a rollback that was cut off, too."""
        return super()._signature() | {"part": f"{self._verb}\n".encode()}

    def _diff(self, back: UndoPlan) -> list[Result]:
        """Masked unified diffs of the files that are put back, or go."""
        from gpunode.core.undo.requests import compared, diffs

        paths = compared(back) if self._task.diff else []
        files = self.probe(paths=paths)[1].files if paths else {}
        there = {path: file.data for path, file in files.items() if file.data is not None}
        return [{"prepared": text} for text in (diffs(back, there) if paths else ())]

    def _back(self, wanted: UndoRequest, to: str | None = None) -> tuple[JournalSnapshot, Scope, UndoPlan]:
        """(journal, scope, what is to be done); the second time `to` is the run that the first one found."""
        from gpunode.core.undo.plan import plan_undo
        from gpunode.core.undo.scope import scope_of

        journal = self._read_journal()
        scope = scope_of(journal, verb=wanted.verb, parts=wanted.parts, to=wanted.to if to is None else to)
        return journal, scope, plan_undo(journal, scope)

    def _read_journal(self) -> JournalSnapshot:
        """The journal, and how the things that it names are now."""
        from gpunode.core.errors import RefusedError
        from gpunode.core.undo.journal import parse_snapshot, present_request

        request: Request = {}
        for _attempt in range(1 + TRIES):
            outcome, text = self.node("read_journal.sh", request)
            if outcome.status != "unchanged":
                raise RefusedError(outcome.message, fix=outcome.fix)
            journal = parse_snapshot(text)
            if journal.damage.problem:
                raise RefusedError.of([journal.damage.problem])
            asked, request = request, present_request(journal.records)
            if asked == request:
                return journal
        raise RefusedError("the journal grew while it was read", fix="wait for what is at work there, then run again")

    def _settled(self, wanted: UndoRequest, scope: Scope, back: UndoPlan) -> tuple[UndoPlan, Result]:
        """(what was to be done, result).  A run that was cut off may still be at work here: then it is asked again."""
        result: Result = {}
        for left in reversed(range(TRIES)):
            reported = {"notes": list(back.notes), "diff": self._diff(back)}
            stale, done = self._undo(back)
            if not stale or not left:
                break
            result = combined_results(result, {"changes": done["changes"], "changed": bool(done["changes"])})
            back = self._back(wanted, scope.to)[2]
        return back, combined_results(result, combined_results(reported, done))

    def _undo(self, back: UndoPlan) -> tuple[bool, Result]:
        """(whether a file changed since it was read, result)."""
        from gpunode.core.errors import RefusedError
        from gpunode.core.undo.requests import undo_requests

        if back.problems:
            raise RefusedError.of(back.problems)
        result: Result = {}
        stale = False
        for ask in undo_requests(back, check=self.check):
            if not result.get("failed"):
                stale, found = self._asked(ask)
                result = combined_results(result, found)
        return stale, result

    def _asked(self, ask: Ask) -> tuple[bool, Result]:
        from gpunode.core.items.activation import parse_activation

        outcome, text = self.node(ask.script, dict(ask.request))
        found = result_of(outcome)
        reboot = parse_activation(text).reboot
        if reboot:
            found["warnings"] = [f"reboot needed: {reboot}"]
            found["notes"] = [*found["notes"], *found["warnings"]]
        return bool(outcome.stale), (
            found if not found.get("failed") else found | {"msg": f"{ask.title}: {found['msg']}"}
        )


def _left(back: UndoPlan, different: Sequence[str], result: Result) -> Result:
    from gpunode.core.undo.requests import undo_requests

    to_do = ", ".join(ask.title.lower() for ask in undo_requests(back))
    left = "; ".join([*different, *([f"still to do: {to_do}"] if to_do else [])])
    fix = "reboot the node, then run it again" if result.get("warnings") else "run it again and see the log"
    return {"msg": f"done, but not all is as it was: {left}", "fix": fix}


def _message(journal: JournalSnapshot, request: UndoRequest, scope: Scope, result: Result) -> str:
    if journal.damage.partial:
        return "what can be read of the journal is undone; the node may not be as it was (see the notes)"
    if not scope.records:
        what = f" in {', '.join(request.parts)}" if request.parts else " here"
        since = f" since run {scope.to}" if scope.to else " since its last uninstall" if journal.records else ""
        return f"nothing to undo: gpunode has changed nothing{what}{since}"
    state = f"as it was after run {scope.to}" if scope.to else "as it was before gpunode"
    state = f"{', '.join(request.parts)}: {state}" if request.parts else state
    state = state if result.get("changes") else f"nothing to undo: {state}"
    return f"{state}, but for what the notes name" if result["stays"] else state
