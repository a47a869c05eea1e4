"""Small signed repositories of apt behind a web server that can be told to break off."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from gpunode.edge.openpgp import Signer
from gpunode.lab.packages_deb import Deb, write_flat_repository


def deb(name: str, version: str = "1.0-1", **relations: str) -> Deb:
    """A package with a file of some size; `relations` such as depends="a (>= 1)"."""
    fields = {key.replace("_", "-").title(): value for key, value in relations.items()}
    base = {"Package": name, "Version": version, "Architecture": "amd64", "Maintainer": "x", "Description": name}
    return Deb(fields={**base, **fields})


def repository(folder: Path, key: Signer, *debs: Deb) -> Path:
    folder.mkdir(parents=True)
    write_flat_repository(folder, debs, origin="test", key=key, arch="amd64")
    return folder


class Quiet(BaseHTTPRequestHandler):
    """A handler that logs nothing."""

    def log_message(self, *_: object) -> None:
        pass


class Web:
    """A web server of this machine, until it is closed."""

    def __init__(self, handler: type[Quiet]) -> None:
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


class Server(Web):
    """Serves a folder with ranges; `cut[name]` is after how many bytes the connection breaks, once."""

    def __init__(self, folder: Path, *, ranges: bool = True) -> None:
        self.cut: dict[str, int] = {}
        self.asked: list[tuple[str, str]] = []  # (file name, Range)
        self.sent: dict[str, int] = {}
        outer = self

        class Handler(Quiet):
            def do_HEAD(self) -> None:
                self.answer(body=False)

            def do_GET(self) -> None:
                self.answer(body=True)

            def answer(self, *, body: bool) -> None:
                path = folder / self.path.lstrip("/")
                if not path.is_file():
                    self.send_error(404)
                    return
                data, wanted = path.read_bytes(), self.headers.get("Range", "") if ranges else ""
                start = int(wanted.removeprefix("bytes=").rstrip("-") or 0)
                outer.asked.append((path.name, wanted))
                self.send_response(206 if wanted else 200)
                self.send_header("Content-Length", str(len(data) - start))
                self.send_header("ETag", f'"{path.stat().st_mtime_ns}"')
                self.end_headers()
                if body:
                    part = data[start : outer.cut.pop(path.name, len(data))]
                    outer.sent[path.name] = outer.sent.get(path.name, 0) + len(part)
                    self.wfile.write(part)
                self.close_connection = True

        super().__init__(Handler)
