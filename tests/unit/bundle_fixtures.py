"""Fixtures: the site of bundle_site.py, with a key for each module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from apt_server import Server, deb, repository
from bundle_site import PARTS, Site

from gpunode.edge.openpgp import Signer, signer


@pytest.fixture(scope="module")
def key() -> Iterator[Signer]:
    with signer("a vendor") as made:
        yield made


@pytest.fixture
def site(tmp_path: Path, key: Signer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr("gpunode.edge.bundle.store.time.sleep", lambda _: None)
    monkeypatch.setattr("gpunode.edge.openpgp.KEY_KIND", "ed25519")  # made in no time
    monkeypatch.chdir(tmp_path)
    top = {"depends": ", ".join(f"{name} (= 1.20.1-1)" for name in PARTS) + ", libc6 (>= 2.30)"}
    toolkit = [deb("nvidia-container-toolkit", "1.20.1-1", **top), *(deb(name, "1.20.1-1") for name in PARTS)]
    repository(tmp_path / "www/toolkit", key, *toolkit, deb("nvidia-docker2", "2.14.0-1"))
    repository(tmp_path / "www/distribution", key, deb("libc6", "2.36-9"), deb("bash", "5.2"), deb("nvtop", "3.0"))
    server = Server(tmp_path / "www")
    (tmp_path / "key.asc").write_bytes(key.public)
    source = {"url": f"{server.url}/toolkit", "key": str(tmp_path / "key.asc"), "fingerprint": key.fingerprint}
    spec = {"driver": {"branch": "none"}, "sources": {"nvidia-container-toolkit": source}}
    (tmp_path / "spec.yml").write_text(yaml.safe_dump(spec))
    sources = f"Types: deb\nURIs: {server.url}/distribution\nSuites: /\nSigned-By: {tmp_path}/key.asc\n"
    (tmp_path / "debian.sources").write_text(sources)
    yield Site(
        server=server,
        folder=tmp_path,
        spec=tmp_path / "spec.yml",
        repositories=tmp_path / "debian.sources",
        key=key,
    )
    server.close()
