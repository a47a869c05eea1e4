"""The configuration that is written makes kube-scheduler ask gpushare's extender as that expects: URL, verbs, bodies.

The extender is a stand-in with the exchanges of tests/cases/extender, in the keys of k8s.io/kube-scheduler/extender/v1,
which fails on every request that nobody prepared; kube-scheduler's side follows pkg/scheduler/extender.go: URL, verb,
which pods, nodes by name or whole, who binds.
"""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from edit_cases import case as case_of

from gpunode.core.edits.kubernetes.scheduler import SchedulerRequest, scheduler_target
from gpunode.edge.load import load_scheduler_rules

ROOT = Path(__file__).parents[1]
EXCHANGES = {path.stem: json.loads(path.read_text()) for path in (ROOT / "cases/extender").glob("*.json")}
MANIFEST = "/etc/kubernetes/manifests/kube-scheduler.yaml"
RULES = load_scheduler_rules()


class Extender(HTTPServer):
    """Answers the exchanges at gpushare's routes; anything else is a 404, and remembered."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.unprepared: list[str] = []
        self.asked: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/gpushare-scheduler"


class Handler(BaseHTTPRequestHandler):
    server: Extender

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(self.path)
        for one in EXCHANGES.values():
            if self.path == f"/gpushare-scheduler/{one['verb']}" and body == one["sent"]:
                answer = json.dumps(one["answered"]).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)
                return
        self.server.unprepared.append(f"{self.path} {json.dumps(body)[:200]}")
        self.send_error(404)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def extender() -> Iterator[Extender]:
    server = Extender()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    assert server.unprepared == []


class Scheduler:
    """What kube-scheduler does with the extenders of a configuration."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.extenders = [{key.lower(): value for key, value in one.items()} for one in config["extenders"]]

    def interested(self, extender: Mapping[str, Any], pod: Mapping[str, Any]) -> bool:
        managed = {one["name"] for one in extender.get("managedresources", [])}
        asked = {name for one in pod["spec"]["containers"] for name in one["resources"]["requests"]}
        return not managed or bool(managed & asked)

    def schedule(self, pod: Mapping[str, Any], nodes: list[str]) -> tuple[list[str], str]:
        """The nodes that are left, and what binding to the first of them answered; "" where kube-scheduler binds."""
        for extender in self.extenders:
            if not self.interested(extender, pod):
                continue
            if extender.get("filterverb"):
                cached = extender.get("nodecachecapable", False)
                whole = None if cached else {"items": [{"metadata": {"name": node}} for node in nodes]}
                args = {"Pod": pod, "Nodes": whole, "NodeNames": nodes if cached else None}
                nodes = self._send(extender, "filterverb", args)["NodeNames"]
            if extender.get("prioritizeverb") and nodes:
                self._send(extender, "prioritizeverb", {"Pod": pod, "Nodes": None, "NodeNames": nodes})
            if extender.get("bindverb") and nodes:
                name, space, uid = (pod["metadata"][key] for key in ("name", "namespace", "uid"))
                args = {"PodName": name, "PodNamespace": space, "PodUID": uid, "Node": nodes[0]}
                return nodes, f"bound{self._send(extender, 'bindverb', args)['Error']}"
        return nodes, ""

    def _send(self, extender: Mapping[str, Any], verb: str, args: Mapping[str, Any]) -> dict[str, Any]:
        url = f"{extender['urlprefix'].rstrip('/')}/{extender[verb]}"
        assert url.startswith("https:") is bool(extender.get("enablehttps"))
        request = urllib.request.Request(url, json.dumps(args).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=5) as answer:
            found: dict[str, Any] = json.load(answer)
            return found


def scheduler(version: str, url: str) -> Scheduler:
    """kube-scheduler with what configure writes for a release's stock manifest."""
    files = case_of("scheduler", f"kubeadm-{version}").before
    request = SchedulerRequest(server_version=version, manifest=MANIFEST, extender_url=url)
    edit = scheduler_target(request, RULES).configure(files)
    assert edit.problems == ()
    config = next(data for path, data in edit.changes.items() if path != MANIFEST)
    return Scheduler(yaml.safe_load(config or b""))


VERSIONS = [f"1.{minor}" for minor in range(28, 37)]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_pod_with_gpu_memory_is_filtered_and_bound_by_the_extender(version: str, extender: Extender) -> None:
    sent = EXCHANGES["filter-fits"]["sent"]
    assert scheduler(version, extender.url).schedule(sent["Pod"], sent["NodeNames"]) == (["gpu-1"], "bound")
    assert extender.asked == ["/gpushare-scheduler/filter", "/gpushare-scheduler/bind"]


@pytest.mark.parametrize("version", ["1.28", "1.36"])
def test_a_request_larger_than_a_card_fits_nowhere_and_nothing_is_bound(version: str, extender: Extender) -> None:
    sent = EXCHANGES["filter-larger-than-a-card"]["sent"]
    assert scheduler(version, extender.url).schedule(sent["Pod"], sent["NodeNames"]) == ([], "")
    assert extender.asked == ["/gpushare-scheduler/filter"]


def test_other_pods_are_none_of_its_business(extender: Extender) -> None:
    pod = {"metadata": {"name": "web"}, "spec": {"containers": [{"resources": {"requests": {"cpu": "1"}}}]}}
    assert scheduler("1.34", extender.url).schedule(pod, ["a", "b"]) == (["a", "b"], "")
    assert extender.asked == []


def test_a_trailing_slash_of_the_url_makes_no_other_route(extender: Extender) -> None:
    sent = EXCHANGES["filter-fits"]["sent"]
    assert scheduler("1.34", f"{extender.url}/").schedule(sent["Pod"], sent["NodeNames"]) == (["gpu-1"], "bound")


def test_the_stub_refuses_what_nobody_prepared() -> None:
    server = Extender()
    threading.Thread(target=server.handle_request, daemon=True).start()
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(urllib.request.Request(f"{server.url}/prioritize", b"{}"), timeout=5)
    server.server_close()
    assert server.unprepared == ["/gpushare-scheduler/prioritize {}"]
