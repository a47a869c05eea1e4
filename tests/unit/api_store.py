"""What the tests' small Kubernetes API holds, and the rules by which it changes; no HTTP.

Simpler than the real one: lists are one field each for apply (the real one merges containers by name, for example);
there is no validation of types beyond `reject`; controllers are functions that a test adds.
"""

from __future__ import annotations

import copy
import re
import threading
from collections.abc import Callable
from typing import Any

from api_objects import RESOURCES, Object, applicable, bare, chosen, drop_at, leaves, merged, put_at, with_alias

Place = tuple[str, str, str, str]  # (api, plural, namespace, name)


class Refusal(Exception):
    def __init__(self, status: int, reason: str, message: str, causes: list[Object] | None = None) -> None:
        super().__init__(message)
        self.status, self.reason, self.causes = status, reason, causes or []


class ApiStore:
    """The objects, who manages their fields, and what happened to them."""

    def __init__(self, resources: dict[str, list[tuple[str, str, bool]]] | None = None) -> None:
        self.resources = {**RESOURCES, **(resources or {})}
        self.objects: dict[Place, Object] = {}
        self.managers: dict[Place, dict[str, set[tuple[str, ...]]]] = {}
        self.events: list[tuple[int, str, Place, Object]] = []
        self.revision = 100
        self.changed = threading.Condition(threading.RLock())
        self.denied: list[str] = []  # patterns of "VERB RESOURCE NAMESPACE" in access reviews
        self.logs: dict[str, str] = {}  # namespace/pod → its log
        self.budgets: dict[str, int] = {}  # namespace/pod → evictions that its disruption budget refuses
        self.stuck: set[str] = set()  # namespace/pod that never goes away
        self.controllers: list[Callable[[Any, str, Object], None]] = []
        self.drop: Callable[[Object], None] = lambda _item: None  # takes out what a feature gate that is off drops
        self.reject: dict[str, str] = {}  # KIND NAME → why the server finds it invalid
        self.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}})
        self.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-system"}})

    # ------------------------------------------------------------ for tests

    def key(self, api: str, kind: str, namespace: str, name: str) -> Place:
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

    # ------------------------------------------------------------ looking

    def _existing(self, key: Place) -> Object:
        if key not in self.objects:
            raise Refusal(404, "NotFound", f'{key[1]} "{key[3]}" not found')
        return self.objects[key]

    def _list(self, key: Place, kind: str, query: dict[str, str]) -> Object:
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

    def _log(self, namespace: str, name: str) -> str:
        if f"{namespace}/{name}" not in self.logs:
            raise Refusal(400, "BadRequest", f'container in pod "{name}" is waiting to start')
        return self.logs[f"{namespace}/{name}"]

    def _review(self, body: Object) -> Object:
        asked = body["spec"]["resourceAttributes"]
        resource = asked["resource"] + (f"/{asked['subresource']}" if asked.get("subresource") else "")
        words = f"{asked['verb']} {resource} {asked.get('namespace', '')}"
        return {**body, "status": {"allowed": not any(re.search(pattern, words) for pattern in self.denied)}}

    # ------------------------------------------------------------ changes

    def _store(self, key: Place, item: Object, manager: str, event: str) -> Object:
        before = self.objects.get(key)
        metadata = item["metadata"]
        with_alias(((item.get("spec") or {}).get("template") or {}).get("spec") or {})
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

    def _event(self, event: str, key: Place, item: Object) -> None:
        self.events.append((self.revision, event, key, copy.deepcopy(item)))
        self.changed.notify_all()
        for controller in self.controllers:
            controller(self, event, copy.deepcopy(item))

    def _patch(self, content: str, key: Place, known: Any, query: dict[str, str], body: Object) -> Object:
        _, plural, namespace, name = key
        if known[2] and ("", namespace) != ("", "") and self.get("Namespace", namespace) is None:
            raise Refusal(404, "NotFound", f'namespaces "{namespace}" not found')
        if why := self.reject.get(f"{known[0]} {name}"):
            raise Refusal(422, "Invalid", f'{known[0]} "{name}" is invalid: {why}')
        manager = query.get("fieldManager", "unknown")
        before = self.objects.get(key)
        if content == "application/apply-patch+yaml":
            body = copy.deepcopy(body)
            self.drop(body)
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

    def _applied(self, key: Place, body: Object, manager: str, *, force: bool) -> tuple[Object, set[Any]]:
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

    def _delete(self, key: Place, options: Object) -> Object:
        item = self._existing(key)
        uid = (options.get("preconditions") or {}).get("uid")
        if uid and uid != item["metadata"]["uid"]:
            raise Refusal(409, "Conflict", f"the UID in the precondition ({uid}) does not match")
        if key[1] == "namespaces" and item["metadata"].get("deletionTimestamp"):
            raise Refusal(409, "Conflict", "The system is ensuring all content is removed from this namespace.")
        if not options.get("dryRun"):
            self.gone(key)
        return {"kind": "Status", "status": "Success"}

    def gone(self, key: Place) -> None:
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

    def _evict(self, key: Place, body: Object) -> Object:
        pod = f"{key[2]}/{key[3]}"
        uid = ((body.get("deleteOptions") or {}).get("preconditions") or {}).get("uid")
        if uid and uid != self._existing(key)["metadata"]["uid"]:
            raise Refusal(409, "Conflict", f"the UID in the precondition ({uid}) does not match")
        self._existing(key)
        if (body["apiVersion"], body["kind"]) != ("policy/v1", "Eviction"):
            raise Refusal(400, "BadRequest", f"no kind {body['kind']} of {body['apiVersion']}")
        if self.budgets.get(pod, 0):
            self.budgets[pod] -= not (body.get("deleteOptions") or {}).get("dryRun")
            causes = [
                {
                    "reason": "DisruptionBudget",
                    "message": "The disruption budget calm needs 2 healthy pods and has 2 currently",
                }
            ]
            said = "Cannot evict pod as it would violate the pod's disruption budget."
            raise Refusal(429, "TooManyRequests", said, causes)
        if not (body.get("deleteOptions") or {}).get("dryRun"):
            self.gone(key)
        return {"kind": "Status", "status": "Success"}
