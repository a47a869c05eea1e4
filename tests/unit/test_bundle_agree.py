"""A bundle that is signed and whole, and whose index names other packages than its manifest: made by somebody."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bundle_site import NEEDS_GPG, Site, gpunode

from gpunode.core.bundle.manifest import Manifest, Packaged, Stored, TargetPart
from gpunode.edge.bundle.agree import disagreements
from gpunode.edge.bundle.rpm import rpm_repository
from gpunode.edge.bundle.verify import Folder
from gpunode.edge.openpgp import signer

pytest.importorskip("solv")
pytest_plugins = ("bundle_fixtures",)
pytestmark = NEEDS_GPG


def signed_again(bundle: Path) -> None:
    """With a new key: whoever makes a bundle signs it."""
    manifest = json.loads((bundle / "manifest.json").read_text())
    with signer("somebody") as key:
        (bundle / "keys/bundle.asc").write_bytes(key.public)
        for path in manifest["files"]:
            data = (bundle / path).read_bytes()
            manifest["files"][path] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
        manifest["fingerprint"] = key.fingerprint
        data = json.dumps(manifest).encode()
        (bundle / "manifest.json").write_bytes(data)
        (bundle / "manifest.json.asc").write_bytes(key.signature(data))


def rewritten(path: Path, change: Callable[[str], str]) -> None:
    packed = path.suffix == ".gz"
    data = path.read_bytes()
    text = change((gzip.decompress(data) if packed else data).decode())
    path.unlink()
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())


CHANGES: dict[str, tuple[Callable[[str], str], str]] = {
    "another version": (lambda text: text.replace("Version: 1.20.1-1", "Version: 1.99-1", 1), "1.99-1"),
    "another file": (lambda text: re.sub(r"SHA256: \w+", f"SHA256: {'0' * 64}", text, count=1), "names"),
    "one more": (
        lambda text: f"{text.strip()}\n\n{text.split(chr(10) * 2)[0].replace('Package: ', 'Package: x')}\n",
        "names x",
    ),
    "one less": (lambda text: text.split("\n\n", 1)[1], "has not"),
    "a place elsewhere": (lambda text: re.sub(r"Filename: \S+", "Filename: ./../../evil.deb", text, count=1), "names"),
    "no index": (lambda text: "garbage", "stanza"),
    "a bomb": (lambda text: "\n" * (600 << 20), "longer than"),
}


@pytest.mark.parametrize(
    ("name", "form"),
    [
        (name, form)
        for name in CHANGES
        for form in ("Packages", "Packages.gz")
        if (name, form) != ("a bomb", "Packages")
    ],
)
def test_an_index_that_does_not_fit_its_manifest_is_found(name: str, form: str, site: Site) -> None:
    site.create()
    assert "whole" in gpunode("bundle", "verify", site.bundle)
    change, says = CHANGES[name]
    rewritten(site.part / form, change)
    signed_again(site.bundle)
    printed = gpunode("bundle", "verify", site.bundle, exit=1)
    assert "NOT whole" in printed and says in printed, printed


def test_an_index_that_the_manifest_does_not_name_is_not_believed(site: Site) -> None:
    site.create()
    manifest = site.manifest()
    del manifest["files"][next(path for path in manifest["files"] if path.endswith("container-toolkit/Packages.gz"))]
    (site.bundle / "manifest.json").write_text(json.dumps(manifest))
    signed_again(site.bundle)
    assert "is not among the files of the manifest" in gpunode("bundle", "verify", site.bundle, exit=1)


def of(tmp_path: Path, family: str, files: dict[str, bytes], *packages: Packaged) -> list[str]:
    stored = {}
    for path, data in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(data)
        stored[path] = Stored(sha256=hashlib.sha256(data).hexdigest(), size=len(data))
    part = TargetPart(family=family, gpus=(), asked=(), base="", base_names=(), repositories={"cuda": packages})
    manifest = Manifest(gpunode="0", created="", fingerprint="", targets={"t": part}, files=stored)
    return list(disagreements(Folder(tmp_path), manifest))


def package(**more: Any) -> Packaged:
    base = {
        "name": "driver",
        "version": "3:595.1-1",
        "arch": "x86_64",
        "file": "repos/t/cuda/driver-595.1-1.x86_64.rpm",
    }
    return Packaged(**{**base, "sha256": "1" * 64, "size": 7, "url": "", "checked": "", **more})


def test_lists_of_rpm_are_compared_as_well(tmp_path: Path) -> None:
    from test_bundle_rpm import Made, lists

    [listed] = lists(Made("driver", "595.1-1", "3")).packages
    with signer("somebody") as key:
        made = rpm_repository([listed], "", key)
    files = {f"repos/t/cuda/{path}": data for path, data in made.items()}
    right = package(sha256=listed.sha256)
    assert of(tmp_path, "rhel", files, right) == []
    [more, less] = of(tmp_path, "rhel", files, replace(right, version="3:580.1-1"))
    assert "its index names driver 3:595.1-1 x86_64" in more and "its index has not driver 3:580.1-1" in less

    assert of(tmp_path, "arch", files, right) == ["t: this gpunode has no bundles for arch"]
