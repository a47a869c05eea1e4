"""A small Kubernetes API over HTTP for the tests: real requests, a prepared store, faults on demand.

It knows lists with chunks, selectors, watches, server-side apply with field managers, merge patches, preconditions,
dry runs, access reviews, evictions and logs, for the kinds of RESOURCES.  A request that nobody prepared is answered
with 501 and remembered in `unexpected`, and the fixture that uses the server fails on it.

What it holds, and the rules of it, are api_store.py.
"""

from __future__ import annotations

import copy
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import yaml
from api_objects import Object, chosen
from api_store import ApiStore, Place, Refusal


@dataclass
class Fault:
    """What happens to the next `times` requests whose "METHOD PATH" this pattern finds."""

    pattern: str
    status: int = 0  # 0: the connection is cut
    reason: str = ""
    message: str = "injected"
    headers: dict[str, str] = field(default_factory=dict)
    times: int = 1
    after: bool = False  # do what was asked first, then fail: the answer is lost
    delay: float = 0.0


class ApiServer(ApiStore):
    """The store, served; `url` is where it listens."""

    def __init__(
        self, version: str = "v1.34.2", resources: dict[str, list[tuple[str, str, bool]]] | None = None
    ) -> None:
        super().__init__(resources)
        self.version = version
        self.requests: list[str] = []
        self.unexpected: list[str] = []
        self.faults: list[Fault] = []
        self.watch_breaks = 0  # so many watches are cut after their first event
        self.token = ""
        self.date = ""  # what its clock says, in place of this machine's
        self.emulated = ""  # the minor release that it behaves as
        self.acted_as: list[tuple[str, str]] = []  # headers of impersonation of the latest request
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do(self) -> None:
                server.handle(self)

            def date_time_string(self, timestamp: float | None = None) -> str:
                return server.date or super().date_time_string(timestamp)

            do_GET = do_POST = do_PATCH = do_DELETE = do_PUT = do

            def log_message(self, *_: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, daemon=True, kwargs={"poll_interval": 0.02}).start()

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()

    def kubeconfig(self, path: Path, *, context: str = "here") -> Path:
        user = {"token": self.token} if self.token else {}
        path.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": context,
                    "clusters": [{"name": "c", "cluster": {"server": self.url}}],
                    "users": [{"name": "u", "user": user}],
                    "contexts": [{"name": context, "context": {"cluster": "c", "user": "u"}}],
                }
            )
        )
        return path

    def later(self, seconds: float, work: Callable[[], None]) -> None:
        timer = threading.Timer(seconds, work)
        timer.daemon = True
        timer.start()

    # ------------------------------------------------------------ one request

    def handle(self, http: BaseHTTPRequestHandler) -> None:
        split = urlsplit(http.path)
        line = f"{http.command} {unquote(split.path)}"
        query = dict(parse_qsl(split.query))
        length = int(http.headers.get("Content-Length") or 0)
        body = json.loads(http.rfile.read(length)) if length else None
        with self.changed:
            self.acted_as = [(key, value) for key, value in http.headers.items() if key.startswith("Impersonate-")]
            self.requests.append(line + (f"?{split.query}" if split.query else ""))
            fault = next((f for f in self.faults if f.times and re.search(f.pattern, self.requests[-1])), None)
            if fault:
                fault.times -= 1
        if fault:
            time.sleep(fault.delay)
            if not fault.after and (fault.status or not fault.delay):
                self._fail(http, fault)
                return
        try:
            if self.token and http.headers.get("Authorization") != f"Bearer {self.token}":
                raise Refusal(401, "Unauthorized", "Unauthorized")
            answer = self.route(http, split.path, query, body)
        except Refusal as refusal:
            self._send(http, refusal.status, _status(refusal))
            return
        except Exception as error:
            self.unexpected.append(f"{line}: {error!r}")
            raise
        if answer is None:
            return  # a watch wrote by itself
        if fault and fault.after:
            self._fail(http, fault)
            return
        self._send(http, 200, answer)

    def _fail(self, http: BaseHTTPRequestHandler, fault: Fault) -> None:
        if not fault.status:
            http.close_connection = True
            http.connection.shutdown(2)
            return
        self._send(http, fault.status, _status(Refusal(fault.status, fault.reason, fault.message)), fault.headers)

    def _send(
        self, http: BaseHTTPRequestHandler, status: int, answer: Object | str, headers: dict[str, str] | None = None
    ) -> None:
        if isinstance(answer, dict) and "kind" in answer:  # it stands first, and an item of a list has none
            answer = {"kind": answer["kind"], **answer}
        data = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
        kind = "text/plain" if isinstance(answer, str) else "application/json"
        http.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(data)), **(headers or {})}.items():
            http.send_header(name, value)
        http.end_headers()
        http.wfile.write(data)

    def route(self, http: BaseHTTPRequestHandler, path: str, query: dict[str, str], body: Any) -> Object | str | None:
        method = http.command
        if path == "/version":
            emulated = {"emulationMajor": "1", "emulationMinor": self.emulated} if self.emulated else {}
            return {"gitVersion": self.version, "major": "1", "minor": self.version.split(".")[1], **emulated}
        if path == "/api":
            return {"kind": "APIVersions", "versions": ["v1"]}
        if path == "/apis":
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": self._groups()}
        if path == "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews":
            return self._review(body)
        found = re.fullmatch(r"/api/(v1)(/.*)?|/apis/([^/]+/[^/]+)(/.*)?", path)
        api = (found[1] or found[3]) if found else ""
        rest = ((found[2] or found[4]) if found else "") or ""
        if found and api not in self.resources and not rest:
            raise Refusal(404, "NotFound", "the server could not find the requested resource")
        if found and not rest:
            listed = [{"kind": k, "name": p, "namespaced": n} for k, p, n in self.resources[api]]
            subs = [
                {"kind": "Eviction", "name": "pods/eviction", "namespaced": True, "group": "policy", "version": "v1"}
            ]
            return {"kind": "APIResourceList", "groupVersion": api, "resources": listed + (subs if api == "v1" else [])}
        parts = [unquote(part) for part in rest.split("/")[1:]]
        namespace = ""
        if len(parts) > 2 and parts[0] == "namespaces":
            namespace, parts = parts[1], parts[2:]
        known = next((r for r in self.resources.get(api, []) if parts and r[1] == parts[0]), None)
        if known is None:
            return self._unprepared(method, path)
        name, sub = ([*parts, "", ""])[1:3]
        key = (api, parts[0], namespace, name)
        with self.changed:
            if method == "GET" and not name and query.get("watch") == "true":
                pass
            elif method == "GET" and not name:
                return self._list(key, known[0], query)
            elif method == "GET" and sub == "log":
                return self._log(namespace, name)
            elif method == "GET" and not sub:
                return copy.deepcopy(self._existing(key))
            elif method == "PATCH" and not sub:
                return self._patch(http.headers.get("Content-Type", ""), key, known, query, body)
            elif method == "DELETE" and not sub:
                return self._delete(key, body or {})
            elif method == "POST" and key[1] == "events" and not name:
                body["metadata"]["name"] = f"{body['metadata'].pop('generateName')}{len(self.requests)}"
                return self.put({**body, "metadata": {**body["metadata"], "namespace": namespace}})
            elif method == "POST" and sub == "eviction":
                return self._evict(key, body)
            else:
                return self._unprepared(method, path)
        self._watch(http, key, query)
        return None

    def _groups(self) -> list[Object]:
        found: dict[str, list[Object]] = {}
        for api in self.resources:
            group, slash, version = api.rpartition("/")
            if slash:
                found.setdefault(group, []).append({"groupVersion": api, "version": version})
        return [{"name": name, "versions": all_, "preferredVersion": all_[0]} for name, all_ in found.items()]

    def _unprepared(self, method: str, path: str) -> Object:
        self.unexpected.append(f"{method} {path}")
        raise Refusal(501, "NotImplemented", f"nobody prepared {method} {path}")

    # ------------------------------------------------------------ lists and watches

    def _watch(self, http: BaseHTTPRequestHandler, key: Place, query: dict[str, str]) -> None:
        http.send_response(200)
        http.send_header("Content-Type", "application/json")
        http.send_header("Transfer-Encoding", "chunked")
        http.end_headers()
        http.close_connection = True

        def write(data: bytes) -> None:
            http.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            http.wfile.flush()

        seen = int(query["resourceVersion"])
        deadline = time.monotonic() + float(query.get("timeoutSeconds", "60"))
        try:
            while time.monotonic() < deadline:
                with self.changed:
                    self.changed.wait_for(lambda seen=seen: self.revision > seen, timeout=0.1)
                    fresh = [e for e in self.events if e[0] > seen]
                    seen = self.revision
                for _, kind, at, item in fresh:
                    if at[:2] == key[:2] and key[2] in ("", at[2]) and chosen(item, query):
                        if self.watch_breaks:
                            self.watch_breaks -= 1
                            http.connection.shutdown(2)
                            return
                        write(json.dumps({"type": kind, "object": item}).encode() + b"\n")
            write(b"")
        except OSError:
            pass


# ---------------------------------------------------------------- helpers


def _status(refusal: Refusal) -> Object:
    details = {"causes": refusal.causes} if refusal.causes else {}
    return {
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": refusal.status, "reason": refusal.reason,
        "message": str(refusal), "details": details,
    }  # fmt: skip


# ---------------------------------------------------------------- controllers


def workloads_become_ready(server: ApiServer, event: str, item: Object) -> None:
    """Every workload is ready as soon as it is there, on one node."""
    if event == "DELETED" or item["kind"] not in ("DaemonSet", "Deployment", "StatefulSet"):
        return
    wanted = 1 if item["kind"] == "DaemonSet" else item["spec"].get("replicas", 1)
    status = {
        "observedGeneration": item["metadata"]["generation"], "desiredNumberScheduled": wanted,
        "updatedNumberScheduled": wanted, "numberAvailable": wanted, "replicas": wanted, "updatedReplicas": wanted,
        "availableReplicas": wanted,
    }  # fmt: skip
    if item.get("status") != status:
        server.put({**item, "status": status}, "kube-controller-manager")


def items_of(server: ApiServer, kind: str) -> Iterator[Object]:
    for name in server.names(kind):
        namespace, _, bare = name.rpartition("/")
        found = server.get(kind, bare, namespace)
        if found:
            yield found
