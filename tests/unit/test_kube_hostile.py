"""What answers in place of an API server, by real requests: no end, no pace, no depth, other types, other packing."""

from __future__ import annotations

import gzip
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from api_server import ApiServer
from fuzz_targets import ODD
from kube_cluster import node, quick

from gpunode.core.errors import GpunodeError, UnreachableError
from gpunode.kube.core.owned import ObjectKey
from gpunode.kube.edge import client
from gpunode.kube.edge.client import Api
from gpunode.kube.edge.kubeconfig import connect

pytest_plugins = ("kube_fixtures",)
Send = Callable[[bytes], None]
OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


class Raw:
    """A server that answers every request with what `answer` sends, for as long as somebody listens."""

    def __init__(self, answer: Callable[[Send, str], None]) -> None:
        self.sent = 0
        self._answer = answer
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._one, args=(peer,), daemon=True).start()

    def _one(self, peer: socket.socket) -> None:
        def send(data: bytes) -> None:
            peer.sendall(data)
            self.sent += len(data)

        with peer:
            try:
                asked = peer.recv(65536).decode(errors="replace").split("\r\n")[0]
                self._answer(send, asked)
            except OSError:
                pass

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def raw(tmp_path: Path) -> Iterator[Callable[[Callable[[Send, str], None]], tuple[Raw, Api]]]:
    made: list[Raw] = []

    def start(answer: Callable[[Send, str], None]) -> tuple[Raw, Api]:
        server = Raw(answer)
        made.append(server)
        config = {"apiVersion": "v1", "kind": "Config", "current-context": "c",
                  "clusters": [{"name": "c", "cluster": {"server": server.url}}],
                  "users": [{"name": "u", "user": {}}],
                  "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]}  # fmt: skip
        (tmp_path / "kubeconfig").write_text(json.dumps(config))
        return server, quick(connect(str(tmp_path / "kubeconfig"), timeout=2))

    yield start
    for server in made:
        server.close()


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def endless(send: Send, _: str) -> None:
    send(OK + b"Transfer-Encoding: chunked\r\n\r\n")
    while True:
        send(chunk(b'{"items": [' + b" " * 65536))


def dripping(send: Send, _: str) -> None:
    send(OK + b"Content-Length: 1000000\r\n\r\n")
    while True:
        send(b" ")
        time.sleep(0.02)


@pytest.mark.parametrize("ask", ["items", "find", "log"])
@pytest.mark.parametrize("answer", [endless, dripping])
def test_an_answer_without_an_end_is_given_up(ask: str, answer: Any, raw: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MOST", 1 << 20, raising=False)
    monkeypatch.setattr(client, "LONGEST", 0.5, raising=False)
    server, api = raw(answer)
    begun = time.monotonic()
    with pytest.raises(UnreachableError, match="has no end"):
        api.log("a", "b") if ask == "log" else getattr(api, ask)("/api/v1/nodes/a")
    assert time.monotonic() - begun < 10 and server.sent < 20 << 20


def test_an_answer_that_was_packed_unasked_is_not_unpacked(raw: Any) -> None:
    bomb = gzip.compress(b" " * (50 << 20))

    def answer(send: Send, _: str) -> None:
        send(OK + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(bomb) + bomb)

    _, api = raw(answer)
    with pytest.raises(UnreachableError, match="not JSON"):
        api.version()


def test_a_list_that_always_goes_on_ends(raw: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MOST_PARTS", 20, raising=False)
    parts = iter(range(10**9))

    def answer(send: Send, _: str) -> None:
        text = json.dumps(
            {"kind": "NodeList", "apiVersion": "v1", "items": [], "metadata": {"continue": f"{next(parts)}"}}
        )
        send(OK + b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(text) + text.encode())

    _, api = raw(answer)
    with pytest.raises(GpunodeError, match="has no end: 20 parts, and more"):
        api.items("/api/v1/nodes")
    assert next(parts) < 30


@pytest.mark.parametrize("rest", [b" " * 65536, b" "])
def test_a_watch_of_one_line_without_an_end_is_over(rest: bytes, raw: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MOST_EVENT", 1 << 20, raising=False)

    def answer(send: Send, _: str) -> None:
        send(OK + b"Transfer-Encoding: chunked\r\n\r\n")
        while True:
            send(chunk(rest))
            time.sleep(0 if len(rest) > 1 else 0.02)

    server, api = raw(answer)
    begun = time.monotonic()
    assert list(api.events("/api/v1/nodes", {"watch": "true", "timeoutSeconds": "-4"})) == []
    assert time.monotonic() - begun < 10 and server.sent < 20 << 20


def test_events_in_pieces_are_whole(raw: Any) -> None:
    line = json.dumps({"type": "ADDED", "object": node("gpu1")}).encode() + b"\n"

    def answer(send: Send, _: str) -> None:
        send(OK + b"Transfer-Encoding: chunked\r\n\r\n")
        for at in range(0, 3 * len(line), 7):
            send(chunk((line * 3)[at : at + 7]))
        send(b"0\r\n\r\n")

    _, api = raw(answer)
    found = list(api.events("/api/v1/nodes", {"watch": "true", "timeoutSeconds": "5"}))
    assert [event["object"]["metadata"]["name"] for event in found] == ["gpu1"] * 3


@pytest.mark.parametrize("levels", [client.DEEPEST + 10 if hasattr(client, "DEEPEST") else 110, 900, 100_000])
def test_an_object_deeper_than_any_is_no_object(levels: int, raw: Any) -> None:
    text = '{"kind": "Node", "metadata": {"name": "a", "deep": ' + "[" * levels + "]" * levels + "}}"

    def answer(send: Send, _: str) -> None:
        send(OK + b"Content-Length: %d\r\n\r\n" % len(text) + text.encode())

    _, api = raw(answer)
    with pytest.raises(UnreachableError, match="not JSON"):
        api.find("/api/v1/nodes/a")


@pytest.mark.parametrize("odd", [*ODD, {"metadata": {"name": "../../x", "uid": "u", "resourceVersion": "1"}}], ids=str)
def test_an_odd_object_in_a_list_leaves_the_others(server: ApiServer, api: Api, odd: Any) -> None:
    """Served as it is: the store does not know what is a node."""
    server.put(node("gpu1"))
    real = server._list
    server._list = lambda *given: {**real(*given), "items": [odd, *real(*given)["items"]]}  # type: ignore[method-assign]
    left: list[GpunodeError] = []
    try:
        found = api.items("/api/v1/nodes", odd=left)
    except GpunodeError as error:
        assert "answers with what is no Kubernetes object" in error.what
    else:
        assert "gpu1" in {item["metadata"]["name"] for item in found} and len(found) + len(left) == 2


@pytest.mark.parametrize("name", ["../../api/v1/secrets/x", "a?watch=true", "a\r\nX: y", "a#b", "é", "%2e%2e/x"])
def test_a_name_stays_one_part_of_a_path(server: ApiServer, api: Api, name: str) -> None:
    assert api.find(api.path(ObjectKey("v1", "ConfigMap", "default", name))) is None
    assert server.requests[-1] == f"GET /api/v1/namespaces/default/configmaps/{name}"


@pytest.mark.parametrize("key", [("default", ".."), ("..", "a"), (".", "a"), ("", "")], ids=str)
def test_a_name_that_means_another_place_is_refused(server: ApiServer, api: Api, key: tuple[str, str]) -> None:
    """An inventory in the cluster is written by whoever may write that ConfigMap; gpunode may delete more than that."""
    path = api.path(ObjectKey("v1", "ConfigMap", *key))
    before = list(server.requests)
    for ask in (api.find, api.items):
        with pytest.raises(GpunodeError, match="is no path of the API"):
            ask(path)
    with pytest.raises(GpunodeError, match="is no path of the API"):
        api.delete(ObjectKey("v1", "ConfigMap", *key))
    assert server.requests == before
