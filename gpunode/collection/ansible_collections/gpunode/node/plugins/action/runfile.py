# Copyright the gpunode authors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)

from __future__ import annotations

from typing import ClassVar

from ansible_collections.gpunode.node.plugins.plugin_utils.node import NodeAction, Result, combined_results, result_of


class ActionModule(NodeAction):
    """Run runfile.sh: NVIDIA's installers, fetched and compared, run, or what they installed taken off."""

    ARGUMENTS: ClassVar[Result] = {
        "fetch": {"type": "list", "elements": "dict", "default": []},
        "uninstall": {"type": "list", "elements": "dict", "default": []},
        "install": {"type": "list", "elements": "dict", "default": []},
    }

    def act(self, args: Result) -> Result:
        result: Result = {}
        for mode in self.ARGUMENTS:
            for value in args[mode]:
                if not result.get("failed"):
                    result = combined_results(result, self._fetch(value) if mode == "fetch" else self._run(mode, value))
        return result

    def _run(self, mode: str, value: Result) -> Result:
        from gpunode.core.items.runfile import runfile_request

        return self.result("runfile.sh", runfile_request(mode, value, check=self.check))

    def _fetch(self, value: Result) -> Result:
        from gpunode.core.items.runfile import needs_file, runfile_request

        outcome, text = self.node("runfile.sh", runfile_request("fetch", value, check=self.check))
        if self.check or not needs_file(text):
            return result_of(outcome)
        from gpunode.edge.bundle.store import sha256_of
        from gpunode.edge.runfile import runfile_here

        here = runfile_here(value)
        folder = self._make_tmp_path()
        try:
            given = self._connection._shell.join_path(folder, value["name"])
            self._transfer_file(str(here), given)
            self._fixup_perms2([folder, given], execute=False)
            proven = value | {"sha256": sha256_of(here)}  # compared with the spec's or the vendor's
            return self.result("runfile.sh", runfile_request("fetch", proven, given=given))
        finally:
            self._remove_tmp_path(folder)
