"""The API of a Kubernetes cluster: how it is asked, asked again, and what its refusals mean.

Paths and plain data go in and come out; the connection comes from the package kubernetes (kube/edge/kubeconfig.py).
"""

from __future__ import annotations

import copy
import itertools
import json
import math
import re
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

from gpunode.core.errors import GpunodeError, InterruptedByUser, UnreachableError
from gpunode.core.late import dataclass, regex
from gpunode.core.plain import mapping, mappings
from gpunode.core.printable import printable, shortened
from gpunode.kube.core.api_error import ApiError, ConflictError, DeniedError
from gpunode.kube.core.cluster import Object
from gpunode.kube.core.owned import MANAGER, ObjectKey
from gpunode.kube.core.shape import LIST, RESOURCES, REVIEW, VERSION, checked, checked_object

CHUNK = 500  # objects of one answer to a list
MOST = 64 << 20  # bytes of one answer: 500 objects, each of them far larger than those of real clusters
MOST_LISTED = 1 << 30  # bytes of all parts of a list: 150,000 pods, the most that a cluster is made for, have less
MOST_PARTS = 2000  # parts of a list
MOST_EVENT = 8 << 20  # bytes of one event of a watch: etcd keeps no object above 1.5 MiB
LONGEST = 300.0  # seconds that one answer may come in for
DEEPEST = 100  # levels of an object: a pod has 15
ATTEMPTS = 6
FIRST_ATTEMPTS = 2  # at a server that has never answered: it is likely the wrong one, and said at once
LOST_UPDATES = 5  # in a row, after which another program is fighting for the object
MAX_PAUSE = 30.0  # seconds between two attempts, whatever Retry-After says
WATCH = 60  # seconds after which a watch is begun again
PATIENT_PAUSE = 5.0  # seconds, at most, between two looks for a server that went away
PATIENT_WATCH = 1  # second after which a user who interrupts is noticed while a watch is open
_SLICE = 0.2  # seconds of a pause after which an interrupt is noticed
AGAIN = frozenset({429, 500, 502, 503, 504})
Found = TypeVar("Found")
_DATE = regex(r"[A-Z][a-z]{2}, [0-3]\d [A-Z][a-z]{2} 20\d\d [0-2]\d:[0-5]\d:[0-5]\d GMT\Z")
_PATH = regex(r"(?:/(?!\.{1,2}(?:/|\Z))[A-Za-z0-9._~:@!$&'()*+,;=%-]+)+")


@dataclass(frozen=True, kw_only=True)
class Resource:
    """A kind as the server serves it."""

    base: str  # /api/v1 or /apis/GROUP/VERSION
    group: str
    plural: str
    namespaced: bool


@dataclass(frozen=True, kw_only=True)
class Retry:
    """When a request is sent again: after an HTTP status of `statuses`, and after a lost update."""

    statuses: frozenset[int] = AGAIN
    lost_update: bool = True


class Api:
    """One cluster.  `server` is its URL, `context` the name of the kubeconfig's context ("" in a pod)."""

    def __init__(
        self,
        client: Any,
        *,
        context: str = "",
        timeout: float = 30,
        headers: Sequence[tuple[str, str]] = (),
        pause: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._timeout = timeout
        self._headers = headers
        self.pause = pause
        self.clock = clock
        self.context = context
        self.server = str(client.configuration.host).rstrip("/")
        self._served: dict[str, dict[str, Resource]] = {}
        self._bytes = 0  # of all answers
        self._date = ""  # of the last answer
        self.answered = False  # whether the server ever did: one that never did is likely the wrong one
        self._until = -math.inf  # until then a server that went away is waited for
        self._watch = WATCH
        self._notify: Callable[[str], None] = lambda text: None

    def patient(self, seconds: float, *, stopped: Callable[[], bool], notify: Callable[[str], None]) -> Api:
        """The same cluster, for work that takes long: a server that goes away is waited for, `seconds` from now.

        What it is asked ends soon after `stopped`, with InterruptedByUser.
        """
        other = copy.copy(self)

        def pause(wanted: float) -> None:
            left = wanted
            while left > 0 and not stopped():
                self.pause(min(left, _SLICE))
                left -= _SLICE
            if stopped():
                raise InterruptedByUser("interrupted", fix="gpunode runs resume")

        other.pause = pause
        other._until = self.clock() + seconds
        other._watch = PATIENT_WATCH
        other._notify = notify
        return other

    @property
    def now(self) -> datetime:
        """The time by the server's clock, as those of its objects; by this machine's where it says none."""
        with suppress(ValueError):
            if _DATE.match(self._date):
                return parsedate_to_datetime(self._date)
        return datetime.now(UTC)

    # ------------------------------------------------------------ asking

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content: str = "application/json",
        retry: Retry | None = None,
    ) -> Any:
        """The answer's JSON.  Tries again what may pass: what `retry` names, and a broken connection.

        Every request that is sent here may be sent twice: applying, merging and deleting say how things shall be.
        Raises ApiError and UnreachableError.
        """
        pause, rule = 0.5, retry or Retry()
        for attempt in itertools.count(1):
            try:
                return self._once(method, path, query, body, content)
            except (ApiError, UnreachableError) as error:
                most = ATTEMPTS if self.answered else FIRST_ATTEMPTS
                waits = self.answered and isinstance(error, UnreachableError) and self.clock() < self._until
                if not _may_pass(error, rule) or (attempt >= most and not waits):
                    raise
                if waits and attempt == 2:
                    self._notify(f"{error.what} (it is waited for)")
                asked = getattr(error, "retry_after", 0.0)
                longest = PATIENT_PAUSE if waits else MAX_PAUSE
            self.pause(min(max(pause, asked), longest))
            pause *= 2
        raise AssertionError("unreachable: the last attempt returns or raises")

    def live(self, key: ObjectKey) -> Object | None:
        """The object, None when there is none, or the server does not serve its kind."""
        return self.find(self.path(key)) if self.resource(key.api, key.kind) else None

    def find(self, path: str) -> Object | None:
        """The object at this path, None when there is none."""
        found = self._find(path)
        return None if found is None else checked_object(found, _plural(path, -2), self.server)

    def _find(self, path: str) -> Any:
        try:
            return self.request("GET", path)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def items(self, path: str, *, odd: list[GpunodeError] | None = None, **query: str) -> list[Object]:
        """All objects of a list, in chunks; from the start again when the server forgot where we were (410).

        With `odd`, objects of wrong types are left out, and added there as errors that name them; else they raise.
        """
        for _ in range(3):
            try:
                pages = list(self._pages(path, query))
                break
            except ApiError as error:
                if error.status != 410:
                    raise
        else:
            pages = [self._list(path, query)]
        return [item for page in pages for item in self._typed(page, path, odd)]

    def _pages(self, path: str, query: Mapping[str, str]) -> Iterator[Object]:
        more, tokens, before = "", set[str](), self._bytes
        while more not in tokens and len(tokens) < MOST_PARTS and self._bytes - before < MOST_LISTED:
            tokens.add(more)
            answer = self._list(path, {**query, "limit": str(CHUNK), **({"continue": more} if more else {})})
            yield answer
            more = answer.get("metadata", {}).get("continue", "")
            if not more:
                return
        raise GpunodeError(
            f"{self.server}: the list {path} has no end: "
            + ("the server names the same next part again" if more in tokens else f"{len(tokens)} parts, and more"),
            expected="the API server of a Kubernetes cluster",
            fix="look at the server of the kubeconfig, and at proxies between",
        )

    def _list(self, path: str, query: Mapping[str, str]) -> Object:
        return checked(self.request("GET", path, query=query), LIST, self.server)

    def _typed(self, listing: Object, path: str, odd: list[GpunodeError] | None) -> Iterator[Object]:
        """The objects of a list, each with the kind that only the list has said."""
        kind = {"apiVersion": listing.get("apiVersion", ""), "kind": listing.get("kind", "").removesuffix("List")}
        plural = _plural(path, -1)
        for item in listing.get("items", []):
            try:
                yield checked_object({**kind, **item}, plural, self.server)
            except GpunodeError as error:
                if odd is None:
                    raise
                odd.append(GpunodeError(f"{_named(item, plural)}: {error.what}", fix=error.fix))

    def _once(self, method: str, path: str, query: Mapping[str, str] | None, body: Any, content: str) -> Any:
        text, headers = self._answer(method, path, query, body, content)
        data = _json(text)
        if data is None:
            raise UnreachableError(
                f"{self.server} answers {method} {path} with {headers.get('Content-Type', 'no type')}, not JSON",
                expected="the API server of a Kubernetes cluster",
                fix="look at the server of the kubeconfig, and at proxies (NO_PROXY)",
            )
        return data

    def _answer(
        self, method: str, path: str, query: Mapping[str, str] | None, body: Any = None, content: str = ""
    ) -> tuple[bytes, Any]:
        """The bytes and the headers of an answer.  Raises GpunodeError where it is a refusal, or none comes."""
        import urllib3.exceptions

        try:
            with self._send(method, path, query, body, content, self._timeout) as answer:
                text, status, headers = self._whole(answer, f"{method} {path}"), answer.status, answer.headers
        except urllib3.exceptions.HTTPError as error:
            raise self._unreachable(error) from error
        self.answered, self._date = True, headers.get("Date", "")
        if status >= 400:
            raise _refusal(method, path, status, _json(text), text, headers)
        return text, headers

    def _whole(self, answer: Any, what: str) -> bytes:
        """The bytes of an answer, as they came: one that was packed unasked is no answer to us.

        Raises UnreachableError for one that is too long, or takes too long.
        """
        parts, size, until = [], 0, self.clock() + LONGEST
        while part := answer.read1(1 << 16, decode_content=False):
            parts.append(part)
            size += len(part)
            if size > MOST or self.clock() > until:
                raise UnreachableError(
                    f"{self.server}: the answer to {what} has no end: {size} bytes so far",
                    expected=f"at most {MOST} bytes within {LONGEST:g} s",
                    fix="look at the server of the kubeconfig, and at proxies between",
                )
        self._bytes += size
        return b"".join(parts)

    def _send(
        self, method: str, path: str, query: Mapping[str, str] | None, body: Any, content: str, timeout: float
    ) -> Any:
        import urllib3

        if not _PATH.fullmatch(path):
            raise GpunodeError(
                f"{printable(path)[:200]} is no path of the API",
                expected="names without /, and none that is . or ..",
                fix="look who wrote that name: an object of the cluster, its inventory, or gpunode.yml",
            )
        headers = urllib3.HTTPHeaderDict({"Accept": "application/json", "User-Agent": "gpunode"})
        for name, value in self._headers:
            headers.add(name, value)
        for setting in self._client.configuration.auth_settings().values():
            if setting and setting["in"] == "header" and setting["value"]:
                headers[setting["key"]] = setting["value"]
        if body is not None:
            headers["Content-Type"] = content
        return self._client.rest_client.pool_manager.request(
            method,
            f"{self.server}{path}" + (f"?{urlencode(query)}" if query else ""),
            body=None if body is None else json.dumps(body),
            headers=headers,
            timeout=urllib3.Timeout(connect=min(timeout, 10), read=timeout),
            retries=False,
            preload_content=False,
        )

    def _unreachable(self, error: Exception) -> UnreachableError:
        import urllib3.exceptions

        where = f"{self.server}" + (f" (context {self.context})" if self.context else "")
        if isinstance(error, urllib3.exceptions.SSLError):
            return UnreachableError(
                f"no trusted connection to {where}: {error}",
                expected="a certificate that the kubeconfig's authority signed",
                fix="look at certificate-authority-data and server of the kubeconfig",
            )
        if isinstance(error, urllib3.exceptions.ReadTimeoutError):
            return UnreachableError(f"{where} did not answer in {self._timeout:g} s", fix="look at the API server")
        return UnreachableError(
            f"no connection to {where}: {error}", fix="is it the right context (--context), and is the server up?"
        )

    # ------------------------------------------------------------ kinds and paths

    def version(self) -> str:
        """gitVersion, such as v1.34.2+k3s1.

        One that is configured to behave as an older release (--emulated-version, from 1.31 on) serves that one's APIs.
        """
        stated = checked(self.request("GET", "/version"), VERSION, self.server)
        version, minor = str(stated.get("gitVersion", "")), str(stated.get("emulationMinor") or "")
        emulated = f"v{stated.get('emulationMajor', 1)}.{minor}"
        return version if not minor or re.match(rf"{emulated}(\D|\Z)", version) else f"{emulated}.0"

    def served(self, base: str) -> list[Object]:
        """What the server says of each resource of an API, [] where it does not serve it."""
        listed: list[Object] = checked(self._find(base) or {}, RESOURCES, self.server).get("resources", [])
        return listed

    def resource(self, api: str, kind: str) -> Resource | None:
        """How the server serves a kind, None when it does not."""
        if api not in self._served:
            base = f"/apis/{api}" if "/" in api else f"/api/{api}"
            listed = self.served(base)
            self._served[api] = {
                item["kind"]: Resource(
                    base=base,
                    group=api.rpartition("/")[0],
                    plural=item["name"],
                    namespaced=item["namespaced"],
                )
                for item in listed
                if "/" not in item["name"]
            }
        return self._served[api].get(kind)

    def resource_of(self, key: ObjectKey) -> Resource:
        """How the server serves the object's kind.  Raises GpunodeError when it does not."""
        if resource := self.resource(key.api, key.kind):
            return resource
        raise GpunodeError(f"the server does not serve {key.api} {key.kind}", fix="kubectl api-resources")

    def path(self, key: ObjectKey) -> str:
        """The object's path.  Raises GpunodeError when the server does not serve its kind."""
        resource = self.resource_of(key)
        place = f"/namespaces/{segment(key.namespace)}" if resource.namespaced else ""
        return f"{resource.base}{place}/{resource.plural}/{segment(key.name)}"

    # ------------------------------------------------------------ changing

    def apply(self, key: ObjectKey, body: Object, *, force: bool, dry_run: bool = False) -> Object:
        """Server-side apply as `gpunode`: the object as it is afterwards.  `force` takes fields from other managers.

        https://kubernetes.io/docs/reference/using-api/server-side-apply/
        """
        query = {"fieldManager": MANAGER, "force": str(force).lower(), **({"dryRun": "All"} if dry_run else {})}
        found = self.request("PATCH", self.path(key), query=query, body=body, content="application/apply-patch+yaml")
        return checked_object(found, _plural(self.path(key), -2), self.server)

    def merge(self, key: ObjectKey, patch: Object) -> Object:
        """JSON merge patch; with metadata.resourceVersion in it, one that fails on a lost update."""
        patched: Object = self.request(
            "PATCH",
            self.path(key),
            query={"fieldManager": MANAGER},
            body=patch,
            content="application/merge-patch+json",
            retry=Retry(lost_update=False),
        )
        return patched

    def change(self, key: ObjectKey, patch: Callable[[Object], Object | None]) -> Object | None:
        """Merge what `patch` makes of the object, again where another program wrote in between.

        Gives the object as it is then; None: it is not there.  A patch of None changes nothing.
        """
        for attempt in itertools.count(1):
            live = self.live(key)
            wanted = patch(live) if live else None
            if live is None or wanted is None:
                break
            version = {"resourceVersion": live["metadata"]["resourceVersion"]}
            try:
                return self.merge(key, {**wanted, "metadata": {**wanted.get("metadata", {}), **version}})
            except ConflictError:
                if attempt == LOST_UPDATES:
                    raise
        return live

    def delete(self, key: ObjectKey, *, uid: str = "") -> bool:
        """Delete it and, in the background, what it owns; with `uid` only that very object.  False: it was gone."""
        body: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        body |= {"preconditions": {"uid": uid}} if uid else {}
        try:
            self.request("DELETE", self.path(key), body=body)
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        return True

    def allowed(self, *, verb: str, group: str, resource: str, namespace: str) -> bool:
        """Whether we may do that (SelfSubjectAccessReview)."""
        attributes = {"verb": verb, "group": group, "resource": resource, "namespace": namespace}
        plain, _, sub = resource.partition("/")
        attributes |= {"resource": plain, "subresource": sub} if sub else {}
        answer = self.request(
            "POST",
            "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
            body={
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SelfSubjectAccessReview",
                "spec": {"resourceAttributes": {k: v for k, v in attributes.items() if v}},
            },
        )
        return bool(checked(answer, REVIEW, self.server).get("status", {}).get("allowed"))

    # ------------------------------------------------------------ waiting

    def follow(self, key: ObjectKey, until: Callable[[Object | None], Found | None], seconds: float) -> Found | None:
        """Show the object to `until` now and whenever it changes (None: it is not there); its first answer, or None.

        A list, then a watch from there on; a watch that ends, breaks or is too old is begun again, one that is not
        allowed replaced by asking.
        """
        deadline = self.clock() + seconds
        folder, _, name = self.path(key).rpartition("/")
        chosen = {"fieldSelector": f"metadata.name={name}"}
        while True:
            listing = self._list(folder, chosen)
            outcome = until(next(iter(self._typed(listing, folder, None)), None))
            left = deadline - self.clock()
            if outcome is not None or left <= 0:
                return outcome
            watch = {
                **chosen,
                "watch": "true",
                "resourceVersion": listing.get("metadata", {}).get("resourceVersion", ""),
                "timeoutSeconds": str(max(1, min(self._watch, math.ceil(left)))),
            }
            for event in self.events(folder, watch):
                gone = event["type"] == "DELETED"
                live = None if gone else checked_object(event.get("object"), _plural(folder, -1), self.server)
                outcome = until(live)
                if outcome is not None:
                    return outcome
                if self.clock() >= deadline:
                    break
            self.pause(min(1.0, max(0.0, deadline - self.clock())))

    def events(self, folder: str, query: Mapping[str, str]) -> Iterator[Object]:
        """The events of a watch until it ends, for whatever reason."""
        import urllib3.exceptions

        try:
            seconds = float(query["timeoutSeconds"]) + 5
            until = self.clock() + seconds
            with self._send("GET", folder, query, None, "", seconds) as answer:
                if answer.status != 200:
                    return
                for line in _lines(answer, lambda: self.clock() > until):
                    event = _json(line)
                    if not isinstance(event, dict) or event.get("type") not in ("ADDED", "MODIFIED", "DELETED"):
                        return
                    yield event
        except urllib3.exceptions.HTTPError:
            return  # the caller lists again

    def log(self, namespace: str, pod: str, *, lines: int = 200) -> str:
        """The last lines of a pod's log."""
        path = f"/api/v1/namespaces/{segment(namespace)}/pods/{segment(pod)}/log"
        return self._answer("GET", path, {"tailLines": str(lines)})[0].decode(errors="replace")


# ---------------------------------------------------------------- what an answer means


def _may_pass(error: GpunodeError, retry: Retry) -> bool:
    if not isinstance(error, ApiError):
        return not error.expected  # what is no API server, or not trusted, stays so
    lost = error.status == 409 and error.reason in ("Conflict", "AlreadyExists") and not error.causes
    return error.status in retry.statuses or (retry.lost_update and lost)


def _named(item: Mapping[str, Any], plural: str) -> str:
    """An object that may be of any form, for a message."""
    names = [mapping(item, "metadata").get(key) for key in ("namespace", "name")]
    return f"{plural} {'/'.join(shortened(name, 60) for name in names if name) or '(without a name)'}"


def segment(name: str) -> str:
    """A name as one part of a path, whatever is in it."""
    return quote(name, safe="")


def _plural(path: str, at: int) -> str:
    """A word of a path, by its place from the end."""
    return ["", "", *path.rstrip("/").split("/")][at]


def _lines(answer: Any, late: Callable[[], bool]) -> Iterator[bytes]:
    """The lines of a watch, until it ends, is late, or a line is longer than any event."""
    parts: list[bytes] = []
    size = 0
    while not late() and size <= MOST_EVENT and (part := answer.read1(1 << 16, decode_content=False)):
        first, *lines = part.split(b"\n")
        parts.append(first)
        size += len(first)
        for line in lines:
            yield b"".join(parts)
            parts, size = [line], len(line)


def _json(text: bytes) -> Any:
    """The value, None for what is no JSON, or deeper than every reader of it may go."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return None if _deeper(found, DEEPEST) else found


def _deeper(value: Any, levels: int) -> bool:
    level = [value]
    for _ in range(levels):
        level = [
            inner
            for one in level
            if isinstance(one, dict | list)
            for inner in (one.values() if isinstance(one, dict) else one)
        ]
        if not level:
            return False
    return True


def _refusal(method: str, path: str, status: int, data: Any, text: bytes, headers: Any) -> ApiError:
    """The Status object that the API answers with, as our error."""
    status_object, causes = mapping(data), mappings(mapping(data, "details"), "causes")
    message = str(status_object.get("message") or "") or text.decode(errors="replace").strip().partition("\n")[0][:200]
    message = printable(message)[:2000] or "no reason given"
    fix = {
        401: "the kubeconfig's credentials are wrong or have expired: log in again",
        403: "ask for that right, or use another context (--context)",
    }.get(status, "")
    retry_after = str(headers.get("Retry-After", ""))
    kind = {403: DeniedError, 409: ConflictError}.get(status, ApiError)
    return kind(
        f"the API server refuses {method} {path}: {message} ({status})",
        status=status,
        reason=str(status_object.get("reason", "")),
        causes=tuple(str(c.get("reason", "")) for c in causes),
        texts=(message, *(printable(str(c["message"]))[:500] for c in causes if c.get("message"))),
        retry_after=float(retry_after) if re.fullmatch("[0-9]{1,6}", retry_after) else 0.0,
        fix=fix,
    )


def verify_as_kubectl(client: Any) -> Any:
    """Verify certificates as kubectl does.

    Python 3.13 refuses a server whose certificate has no Authority Key Identifier; those of many clusters have none.

    https://docs.python.org/3/library/ssl.html#ssl.create_default_context
    """
    from urllib3.util.ssl_ import create_urllib3_context

    settings = client.rest_client.pool_manager.connection_pool_kw
    context = create_urllib3_context(cert_reqs=settings["cert_reqs"])
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    settings["ssl_context"] = context
    return client
