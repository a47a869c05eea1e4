"""A mirror of the lab's package repository that can be told to misbehave, and a key whose time is over."""

from __future__ import annotations

import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

PAGE = b"<!doctype html><html><body>Log in to the network of our house</body></html>\n"
THEN = "20200102T000000!"  # when the expired key was made, for a year


class Mirror:
    """Answers on this machine's address in the lab's network with what stands at `upstream`; by default unchanged.

    `down`: every connection is closed; `pages`: every path gets a web page; `files`: other bytes by the path's end.
    Keys are served as they are, except where `files` says otherwise: a controller fetches them before all else.
    """

    def __init__(self, address: str, upstream: str) -> None:
        self.upstream, self.down, self.pages = upstream, False, False
        self.files: Mapping[str, bytes] = {}
        self.lacks: tuple[str, ...] = ()  # 404 for paths with these ends
        self.asked: list[str] = []
        mirror = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                answer = mirror.answer(self.path)
                if answer is None:
                    self.close_connection = True
                    self.connection.close()
                    return
                status, body = answer
                self.send_response(status)
                self.send_header("Content-Type", "text/html" if body == PAGE else "application/octet-stream")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(body)

            do_HEAD = do_GET  # zypper asks first whether a file is there

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer((address, 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://{address}:{self.server.server_port}"

    def answer(self, path: str) -> tuple[int, bytes] | None:
        """Status and body; None: no answer at all."""
        self.asked.append(path)
        if path.endswith(self.lacks):
            return 404, b""
        for end, body in self.files.items():
            if path.endswith(end):
                return 200, body
        if not path.endswith(".asc") or "/keys/" not in path:
            if self.down:
                return None
            if self.pages:
                return 200, PAGE
        try:
            with urllib.request.urlopen(self.upstream + path, timeout=30) as found:
                return 200, found.read()
        except urllib.error.HTTPError as error:
            return error.code, b""

    def source(self, source: Mapping[str, str]) -> dict[str, str]:
        """The same source of gpunode.yml, read by way of this mirror."""
        moved = {key: self.url + urlsplit(source[key]).path for key in ("url", "key")}
        return {**source, **moved}

    def behave(self) -> None:
        self.down, self.pages, self.files, self.lacks = False, False, {}, ()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


class ExpiredKey:
    """An OpenPGP key that was valid in 2020, with the signatures it made then."""

    def __init__(self, home: Path) -> None:
        home.mkdir(mode=0o700)
        self._gpg = ["gpg", "--homedir", str(home), "--batch", "--quiet", "--pinentry-mode", "loopback"]
        self._run(
            "--faked-system-time", THEN, "--passphrase", "", "--quick-generate-key", "old", "rsa2048", "sign", "1y"
        )
        listed = self._run("--with-colons", "--list-keys").decode()
        self.fingerprint = next(line.split(":")[9] for line in listed.splitlines() if line.startswith("fpr:"))
        self.public = self._run("--armor", "--export")

    def clearsigned(self, data: bytes) -> bytes:
        return self._run("--faked-system-time", THEN, "--clearsign", data=data)

    def signature(self, data: bytes) -> bytes:
        return self._run("--faked-system-time", THEN, "--armor", "--detach-sign", data=data)

    def _run(self, *words: str, data: bytes = b"") -> bytes:
        return subprocess.run([*self._gpg, *words], input=data, capture_output=True, check=True).stdout

    def close(self) -> None:
        subprocess.run(["gpgconf", "--homedir", self._gpg[2], "--kill", "all"], check=False)
