"""Two runs of one controller: on the same host, or within one budget, the second one is refused, whatever both are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from fleet_world import CONVERGED, KINDS, Offline

from gpunode.core.errors import RefusedError
from gpunode.core.model import Changed, HostResult, Kubernetes
from gpunode.edge.ansible.runner import Event, HostRun
from gpunode.edge.detect import Detected, Targets
from gpunode.edge.fleet import driver, undo
from gpunode.edge.fleet import provision as fleet
from gpunode.edge.fleet.driver import RunOptions
from gpunode.edge.fleet.runs import Runs
from gpunode.edge.fleet.workflow import plan_one

VERBS = ("provision", "uninstall")


class Site:
    """An inventory of a and b; `during` is called while a play runs on a host."""

    def __init__(self, patch: pytest.MonkeyPatch, folder: Path, spec: dict[str, Any]) -> None:
        patch.setenv("XDG_STATE_HOME", str(folder))
        self.desired, self.plays = Offline(spec), list[str]()
        self.during: Callable[[], None] = lambda: None
        self.inventory = folder / "hosts.yml"
        self.inventory.write_text(yaml.safe_dump({"all": {"hosts": {"a": {}, "b": {}}}}))
        patch.setattr(driver, "run_playbook", self.play)
        patch.setattr(driver, "give_back", lambda *_, **__: None)
        patch.setattr(fleet, "probe", self.probe)
        patch.setattr(undo, "probe", self.probe)

    def play(self, _: Path, __: str, *, arguments: Sequence[str], on_event: Any, **___: Any) -> dict[str, HostRun]:
        hosts = Path(arguments[arguments.index("--limit") + 1].removeprefix("@")).read_text().split()
        self.plays += hosts
        during, self.during = self.during, lambda: None
        during()
        for host in hosts:
            on_event(Event(host=host, kind="changed", task=undo.TASK, message="as it was"))
        return {host: HostRun(changed=[Changed(text="removed x")]) for host in hosts}

    def probe(self, hosts: Sequence[Detected], _: Targets) -> list[Detected]:
        return [replace(one, facts=replace(CONVERGED, hostname=one.host)) for one in hosts]

    def run(self, verb: str, host: str) -> list[HostResult]:
        where = Targets(inventory=(str(self.inventory),), limit=host)
        if verb == "uninstall":
            return undo.undo(where, {"verb": "uninstall"}, desired=self.desired)
        found = Detected(host=host, facts=replace(KINDS["fresh"], hostname=host))
        return fleet.provision([plan_one(found, self.desired)], where, self.desired)


@pytest.mark.parametrize("second", VERBS)
@pytest.mark.parametrize("first", VERBS)
@pytest.mark.parametrize(
    ("spec", "host", "refusal"),
    [
        ({}, "a", "^a is used by run"),
        ({"rollout": {"max_unavailable": 1}}, "b", "^a, of the same pool, is used by run"),
        ({}, "b", ""),
    ],
)
def test_a_run_that_shares_a_host_or_a_budget_with_a_running_one_is_refused(
    first: str,
    second: str,
    spec: dict[str, Any],
    host: str,
    refusal: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    site, ends = Site(monkeypatch, tmp_path, spec), list[bool]()

    def during() -> None:
        if not refusal:
            ends.extend(result.ok for result in site.run(second, host))
            return
        with pytest.raises(RefusedError, match=refusal):
            site.run(second, host)
        ends.append(False)

    site.during = during
    [result] = site.run(first, "a")
    assert result.ok and ends == [not refusal]
    assert site.plays == (["a"] if refusal else ["a", "b"])
    runs = [(run.verb, run.status, {row.state for row in Runs().hosts(run.name)}) for run in Runs().latest()]
    assert runs == [(verb, "done", {"done"}) for verb in ((first,) if refusal else (second, first))]


@pytest.mark.parametrize("when", ["disruptive", "always"])
@pytest.mark.parametrize("steps", [False, True])
def test_the_cluster_is_a_precondition_only_of_hosts_that_have_steps(
    when: str, steps: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One that an earlier run did not measure is measured, which takes no drain and no kubeconfig."""
    site = Site(monkeypatch, tmp_path, {"rollout": {"accept": "quick", "drain": {"when": when}}})
    monkeypatch.setattr(fleet, "all_unfinished", lambda: {"a": "earlier"})
    monkeypatch.setattr(
        "gpunode.edge.accept.run.measure", lambda hosts, *_: {one.host: HostResult(host=one.host) for one in hosts}
    )
    facts = replace(KINDS["fresh"], kubernetes=Kubernetes(kubelet="v1.34.1"))
    host = plan_one(Detected(host="a", facts=facts), site.desired)
    assert host.planned and host.planned.plan.steps
    if not steps:
        host = replace(host, planned=replace(host.planned, plan=replace(host.planned.plan, steps=())))
    asked = list[bool]()

    def cluster() -> Any:
        asked.append(True)
        raise RefusedError("no kubeconfig")

    where = Targets(inventory=(str(site.inventory),))
    [result] = fleet.provision([host], where, site.desired, options=RunOptions(cluster=cluster))
    assert (result.outcome, bool(asked)) == (("refused", True) if steps else ("ok", False)), result.message
