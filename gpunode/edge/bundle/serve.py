"""A bundle served over HTTP, for as long as it is needed; any other web server does as well."""

from __future__ import annotations

import socket
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from gpunode.core.errors import GpunodeError


class _Handler(SimpleHTTPRequestHandler):
    """Files of the folder; no lists of folders, and no links that lead out of it."""

    def list_directory(self, path: object) -> None:
        self.send_error(403, "folders are not listed")

    def translate_path(self, path: str) -> str:
        found = super().translate_path(path)
        root = Path(self.directory).resolve()
        return found if Path(found).resolve().is_relative_to(root) else str(root / "not-there")

    def log_message(self, format: str, *args: object) -> None:
        """Not a line for each package."""


def server(folder: Path, address: str, port: int) -> ThreadingHTTPServer:
    """A server of the folder, bound; port 0 takes a free one.  Raises GpunodeError."""
    try:
        return ThreadingHTTPServer((address, port), partial(_Handler, directory=str(folder)))
    except OSError as error:
        raise GpunodeError(
            f"cannot serve at {address}:{port}: {error}", fix="choose another --address or --port"
        ) from error


def own_address() -> str:
    """The address of this machine that the default route leaves by, which need not lead anywhere."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
