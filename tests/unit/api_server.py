"""A small Kubernetes API over HTTP for the tests: real requests, a prepared store, faults on demand.

It knows lists with chunks, selectors, watches, server-side apply with field managers, merge patches, preconditions,
dry runs, access reviews, evictions and logs, for the kinds of RESOURCES.  A request that nobody prepared is answered
with 501 and remembered in `unexpected`, and the fixture that uses the server fails on it.

Simpler than the real one: lists are one field each for apply (the real one merges containers by name, for example);
there is no validation of types beyond `reject`; controllers are functions that a test adds.
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
from api_objects import RESOURCES, Object, applicable, bare, chosen, drop_at, leaves, merged, put_at

Controller = Callable[["ApiServer", str, Object], None]


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


class Refusal(Exception):
    def __init__(self, status: int, reason: str, message: str, causes: list[Object] | None = None) -> None:
        super().__init__(message)
        self.status, self.reason, self.causes = status, reason, causes or []


class ApiServer:
    """The store and its rules; `url` is where it listens."""

    def __init__(
        self, version: str = "v1.34.2", resources: dict[str, list[tuple[str, str, bool]]] | None = None
    ) -> None:
        self.version = version
        self.resources = {**RESOURCES, **(resources or {})}
        self.objects: dict[tuple[str, str, str, str], Object] = {}  # (api, plural, namespace, name)
        self.managers: dict[tuple[str, str, str, str], dict[str, set[tuple[str, ...]]]] = {}
        self.events: list[tuple[int, str, tuple[str, str, str, str], Object]] = []
        self.revision = 100
        self.changed = threading.Condition(threading.RLock())
        self.requests: list[str] = []
        self.unexpected: list[str] = []
        self.faults: list[Fault] = []
        self.denied: list[str] = []  # patterns of "VERB RESOURCE NAMESPACE" in access reviews
        self.logs: dict[str, str] = {}  # namespace/pod → its log
        self.budgets: dict[str, int] = {}  # namespace/pod → evictions that its disruption budget refuses
        self.stuck: set[str] = set()  # namespace/pod that never goes away
        self.controllers: list[Controller] = []
        self.watch_breaks = 0  # so many watches are cut after their first event
        self.token = ""
        self.reject: dict[str, str] = {}  # KIND NAME → why the server finds it invalid
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do(self) -> None:
                server.handle(self)

            do_GET = do_POST = do_PATCH = do_DELETE = do_PUT = do

            def log_message(self, *_: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, daemon=True, kwargs={"poll_interval": 0.02}).start()
        self.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}})
        self.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-system"}})

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

    # ------------------------------------------------------------ for tests

    def key(self, api: str, kind: str, namespace: str, name: str) -> tuple[str, str, str, str]:
        plural = next(p for k, p, _ in self.resources[api] if k == kind)
        return (api, plural, namespace, name)

    def put(self, item: Object, manager: str = "somebody") -> Object:
        """Store an object as somebody else made it."""
        metadata = item["metadata"]
        key = self.key(item["apiVersion"], item["kind"], metadata.get("namespace", ""), metadata["name"])
        with self.changed:
            return self._store(key, copy.deepcopy(item), manager, "ADDED" if key not in self.objects else "MODIFIED")

    def get(self, kind: str, name: str, namespace: str = "") -> Object | None:
        with self.changed:
            for (api, plural, ns, n), item in self.objects.items():
                if (ns, n) == (namespace, name) and (kind, plural) in [(k, p) for k, p, _ in self.resources[api]]:
                    return copy.deepcopy(item)
        return None

    def names(self, kind: str) -> list[str]:
        with self.changed:
            return [
                f"{ns}/{n}" if ns else n
                for (api, plural, ns, n) in self.objects
                if (kind, plural) in [(k, p) for k, p, _ in self.resources[api]]
            ]

    def edit(
        self, kind: str, name: str, namespace: str, change: Callable[[Object], None], manager: str = "other"
    ) -> None:
        """Change a stored object as somebody else would."""
        item = self.get(kind, name, namespace)
        assert item is not None, (kind, name, namespace)
        change(item)
        self.put(item, manager)

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
            return {"gitVersion": self.version, "major": "1", "minor": self.version.split(".")[1]}
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
                return self._patch(http, key, known, query, body)
            elif method == "DELETE" and not sub:
                return self._delete(key, body or {})
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

    def _review(self, body: Object) -> Object:
        asked = body["spec"]["resourceAttributes"]
        resource = asked["resource"] + (f"/{asked['subresource']}" if asked.get("subresource") else "")
        words = f"{asked['verb']} {resource} {asked.get('namespace', '')}"
        return {**body, "status": {"allowed": not any(re.search(pattern, words) for pattern in self.denied)}}

    def _existing(self, key: tuple[str, str, str, str]) -> Object:
        if key not in self.objects:
            raise Refusal(404, "NotFound", f'{key[1]} "{key[3]}" not found')
        return self.objects[key]

    # ------------------------------------------------------------ lists and watches

    def _list(self, key: tuple[str, str, str, str], kind: str, query: dict[str, str]) -> Object:
        found = [
            item
            for k, item in self.objects.items()
            if k[:2] == key[:2] and key[2] in ("", k[2]) and chosen(item, query)
        ]
        start = int(query.get("continue") or 0)
        limit = int(query.get("limit") or 0) or len(found)
        more = {"continue": str(start + limit)} if start + limit < len(found) else {}
        items = [
            {k: v for k, v in item.items() if k not in ("apiVersion", "kind")} for item in found[start : start + limit]
        ]
        metadata = {"resourceVersion": str(self.revision), **more}
        return {"kind": f"{kind}List", "apiVersion": key[0], "metadata": metadata, "items": copy.deepcopy(items)}

    def _watch(self, http: BaseHTTPRequestHandler, key: tuple[str, str, str, str], query: dict[str, str]) -> None:
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

    def _log(self, namespace: str, name: str) -> str:
        if f"{namespace}/{name}" not in self.logs:
            raise Refusal(400, "BadRequest", f'container in pod "{name}" is waiting to start')
        return self.logs[f"{namespace}/{name}"]

    # ------------------------------------------------------------ changes

    def _store(self, key: tuple[str, str, str, str], item: Object, manager: str, event: str) -> Object:
        before = self.objects.get(key)
        metadata = item["metadata"]
        if before is not None and bare(before) == bare(item):
            return before
        self.revision += 1
        metadata["resourceVersion"] = str(self.revision)
        metadata.setdefault("uid", f"uid-{self.revision}")
        changed = before is None or before.get("spec") != item.get("spec")
        metadata["generation"] = (before or {"metadata": {}})["metadata"].get("generation", 0) + int(changed)
        owned = self.managers.setdefault(key, {})
        if manager not in owned:  # somebody who does not apply owns what is there
            mine = set().union(*owned.values()) if owned else set()
            owned[manager] = set(leaves(applicable(item))) - mine
        metadata["managedFields"] = [{"manager": m, "operation": "Apply"} for m in owned]
        self.objects[key] = item
        self._event(event, key, item)
        return item

    def _event(self, event: str, key: tuple[str, str, str, str], item: Object) -> None:
        self.events.append((self.revision, event, key, copy.deepcopy(item)))
        self.changed.notify_all()
        for controller in self.controllers:
            controller(self, event, copy.deepcopy(item))

    def _patch(
        self,
        http: BaseHTTPRequestHandler,
        key: tuple[str, str, str, str],
        known: Any,
        query: dict[str, str],
        body: Object,
    ) -> Object:
        _, plural, namespace, name = key
        if known[2] and ("", namespace) != ("", "") and self.get("Namespace", namespace) is None:
            raise Refusal(404, "NotFound", f'namespaces "{namespace}" not found')
        if why := self.reject.get(f"{known[0]} {name}"):
            raise Refusal(422, "Invalid", f'{known[0]} "{name}" is invalid: {why}')
        content = http.headers.get("Content-Type", "")
        manager = query.get("fieldManager", "unknown")
        before = self.objects.get(key)
        if content == "application/apply-patch+yaml":
            item, owned = self._applied(key, body, manager, force=query["force"] == "true")
        else:
            # strategic merging differs for lists only, and kubectl's patches here have none
            assert content in ("application/merge-patch+json", "application/strategic-merge-patch+json"), content
            asked = body.get("metadata", {}).get("resourceVersion")
            if asked and asked != self._existing(key)["metadata"]["resourceVersion"]:
                raise Refusal(
                    409, "Conflict", f'Operation cannot be fulfilled on {plural} "{name}": the object has been modified'
                )
            item, owned = merged(copy.deepcopy(self._existing(key)), body), None
        if query.get("dryRun") == "All":
            return item
        if owned is not None:
            self.managers.setdefault(key, {})[manager] = owned
        return copy.deepcopy(self._store(key, item, manager, "MODIFIED" if before else "ADDED"))

    def _applied(
        self, key: tuple[str, str, str, str], body: Object, manager: str, *, force: bool
    ) -> tuple[Object, set[Any]]:
        """Server-side apply: conflicts with other managers, fields no longer applied go away."""
        live = copy.deepcopy(self.objects.get(key)) or {
            "apiVersion": body["apiVersion"], "kind": body["kind"],
            "metadata": {"name": key[3], **({"namespace": key[2]} if key[2] else {})},
        }  # fmt: skip
        uid = body["metadata"].get("uid")
        if uid and uid != live["metadata"].get("uid"):
            raise Refusal(409, "Conflict", "uid mismatch")
        wanted = leaves(applicable(body))
        present = leaves(applicable(live))
        others = {m: paths for m, paths in self.managers.get(key, {}).items() if m != manager}
        conflicts = [
            {"reason": "FieldManagerConflict", "message": f'conflict with "{m}"', "field": "." + ".".join(path)}
            for m, paths in others.items()
            for path in paths
            if path in wanted and path in present and wanted[path] != present[path]
        ]
        if conflicts and not force:
            words = ", ".join(f"{c['message']}: {c['field']}" for c in conflicts)
            raise Refusal(409, "Conflict", f"Apply failed with {len(conflicts)} conflict: {words}", conflicts)
        kept = set().union(*others.values()) if others else set()
        for path in self.managers.get(key, {}).get(manager, set()) - set(wanted) - kept:
            drop_at(live, path)
        for path, value in wanted.items():
            put_at(live, path, copy.deepcopy(value))
        if force:
            for c in conflicts:
                for paths in others.values():
                    paths.discard(tuple(c["field"][1:].split(".")))
        return live, set(wanted)

    def _delete(self, key: tuple[str, str, str, str], options: Object) -> Object:
        item = self._existing(key)
        uid = (options.get("preconditions") or {}).get("uid")
        if uid and uid != item["metadata"]["uid"]:
            raise Refusal(409, "Conflict", f"the UID in the precondition ({uid}) does not match")
        if key[1] == "namespaces" and item["metadata"].get("deletionTimestamp"):
            raise Refusal(409, "Conflict", "The system is ensuring all content is removed from this namespace.")
        if not options.get("dryRun"):
            self.gone(key)
        return {"kind": "Status", "status": "Success"}

    def gone(self, key: tuple[str, str, str, str]) -> None:
        """Delete an object, with what a namespace holds; one that is stuck only begins to go."""
        with self.changed:
            item = self.objects[key]
            if f"{key[2]}/{key[3]}" in self.stuck:
                fresh = copy.deepcopy(item)
                fresh["metadata"] |= {"deletionTimestamp": "2026-11-22T00:00:00Z", "finalizers": ["example.com/stuck"]}
                self._store(key, fresh, "kube-controller-manager", "MODIFIED")
                return
            if key[1] == "namespaces":
                for inner in [k for k in self.objects if k[2] == key[3]]:
                    self.gone(inner)
            del self.objects[key]
            self.managers.pop(key, None)
            self.revision += 1
            self._event("DELETED", key, item)

    def _evict(self, key: tuple[str, str, str, str], body: Object) -> Object:
        pod = f"{key[2]}/{key[3]}"
        uid = ((body.get("deleteOptions") or {}).get("preconditions") or {}).get("uid")
        if uid and uid != self._existing(key)["metadata"]["uid"]:
            raise Refusal(409, "Conflict", f"the UID in the precondition ({uid}) does not match")
        self._existing(key)
        if (body["apiVersion"], body["kind"]) != ("policy/v1", "Eviction"):
            raise Refusal(400, "BadRequest", f"no kind {body['kind']} of {body['apiVersion']}")
        if self.budgets.get(pod, 0):
            self.budgets[pod] -= 1
            raise Refusal(429, "TooManyRequests", "Cannot evict pod as it would violate the pod's disruption budget.")
        if not (body.get("deleteOptions") or {}).get("dryRun"):
            self.gone(key)
        return {"kind": "Status", "status": "Success"}


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
