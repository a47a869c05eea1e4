"""What goes into a bundle beside packages: charts, the list of images, wheels."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import yaml
from apt_server import Quiet, Web
from bundle_site import NEEDS_GPG, Site, names

from gpunode.core.knowledge.kubernetes import Chart
from gpunode.edge import load
from gpunode.edge.bundle.extras import CONTENT

pytest.importorskip("solv")
pytest_plugins = ("bundle_fixtures",)
pytestmark = NEEDS_GPG


CHART = b"a chart"
DIGEST = f"sha256:{hashlib.sha256(CHART).hexdigest()}"


def with_chart(site: Site, monkeypatch: pytest.MonkeyPatch, name: str, repository: str) -> Chart:
    """The knowledge has the chart at another place."""
    known = load.load_kube_knowledge()
    chart = replace(known.charts[name], repository=repository)
    monkeypatch.setattr(load, "load_kube_knowledge", lambda: replace(known, charts={**known.charts, name: chart}))
    return chart


def request(site: Site, **more: Any) -> None:
    """More in the spec of the site."""
    site.spec.write_text(yaml.safe_dump(yaml.safe_load(site.spec.read_text()) | more))


def test_charts_of_the_cluster_go_along(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    chart = with_chart(site, monkeypatch, "nvidia-device-plugin", f"{site.server.url}/charts")
    (site.folder / "www/charts").mkdir()
    (site.folder / "www/charts/p.tgz").write_bytes(CHART)
    entry = {"version": chart.version, "urls": ["p.tgz"], "digest": DIGEST.removeprefix("sha256:")}
    (site.folder / "www/charts/index.yaml").write_text(yaml.safe_dump({"entries": {chart.name: [entry]}}))
    request(site, kubernetes={"install": "helm", "server_version": "1.34", "node_feature_discovery": True})
    site.create("--cluster")
    manifest = site.manifest()
    assert manifest["charts"] == [f"charts/{chart.name}-{chart.version}.tgz"]
    assert (site.bundle / manifest["charts"][0]).read_bytes() == CHART
    document = json.loads((site.bundle / "bundle.spdx.json").read_text())
    [package] = [p for p in document["packages"] if p["packageFileName"] == manifest["charts"][0]]
    assert (package["name"], package["versionInfo"]) == (chart.name, chart.version)
    (site.folder / "www/charts/p.tgz").write_bytes(b"another chart")
    assert "not what the index" in site.create("--cluster", exit=1)


class Registry(Web):
    """A registry with one chart, which answers nobody without the token that it gives to everybody."""

    def __init__(self, path: str, version: str) -> None:
        layers = [{"mediaType": CONTENT, "digest": DIGEST}, {"mediaType": "text/provenance", "digest": "sha256:0"}]
        self.files = {
            f"/v2/{path}/manifests/{version}": json.dumps({"layers": layers}).encode(),
            f"/v2/{path}/blobs/{DIGEST}": CHART,
        }
        outer = self

        class Handler(Quiet):
            def do_GET(self) -> None:
                if self.path == f"/token?service=s&scope=repository%3A{path.replace('/', '%2F')}%3Apull":
                    self.answer(200, json.dumps({"token": "free"}).encode())
                elif self.headers.get("Authorization") != "Bearer free":
                    realm = f'Bearer realm="{outer.url}/token",service="s",scope="repository:{path}:pull"'
                    self.answer(401, b"", {"WWW-Authenticate": realm})
                else:
                    self.answer(200 if self.path in outer.files else 404, outer.files.get(self.path, b""))

            def answer(self, code: int, body: bytes, headers: Mapping[str, str] = {}) -> None:
                self.send_response(code)
                for name, value in {**headers, "Content-Length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

        super().__init__(Handler)


def test_charts_of_a_registry_go_along(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    version = load.load_kube_knowledge().charts["dra-driver-nvidia-gpu"].version
    registry = Registry("charts/dra-driver-nvidia-gpu", version)
    address = registry.url.removeprefix("http://")
    chart = with_chart(site, monkeypatch, "dra-driver-nvidia-gpu", f"oci://{address}/charts")
    request(site, kubernetes={"install": "helm", "server_version": "1.34"}, sharing={"strategy": "dra"})
    site.create("--cluster")
    assert (site.bundle / f"charts/{chart.name}-{version}.tgz").read_bytes() == CHART
    registry.files = {path: data.replace(b"a chart", b"other") for path, data in registry.files.items()}
    assert "not what" in site.create("--cluster", exit=1)
    registry.files = {}
    assert f"has no {chart.name} {version}" in site.create("--cluster", exit=1)
    registry.close()


def test_the_images_of_the_cluster_are_listed_where_they_come_from(site: Site) -> None:
    kubernetes = {"server_version": "1.34", "images": {"registry": "registry.lan/gpu"}}
    request(site, kubernetes=kubernetes, sharing={"strategy": "gpushare"}, verify={"image": "busybox:1.37"})
    site.create("--cluster")
    images = site.manifest()["images"]
    assert (site.bundle / "images.txt").read_text().split() == images
    assert {"k8s-gpushare-plugin", "k8s-gpushare-schd-extender", "cuda-sample", "busybox"} == {
        image.rpartition("/")[2].partition(":")[0] for image in images
    }
    assert not [image for image in images if image.startswith("registry.lan")]
    listed = yaml.safe_load((site.bundle / "images.yml").read_text())
    assert listed["docker.io"] == {"images": {"library/busybox": ["1.37"]}}
    assert len(images) == sum(len(tags) for registry in listed.values() for tags in registry["images"].values())


def test_the_tools_of_an_acceptance_go_along(site: Site) -> None:
    request(site, accept={"packages": ["nvtop"], "image": "nvcr.io/nvidia/pytorch:25.10-py3"})
    site.create()
    assert "nvtop" in names(site)["distribution"]
    assert site.manifest()["images"] == ["nvcr.io/nvidia/pytorch:25.10-py3"]
    assert (site.bundle / "images.txt").read_text() == "nvcr.io/nvidia/pytorch:25.10-py3\n"


def test_wheels_go_along_with_what_they_need(site: Site) -> None:
    info = "demo-1.0.dist-info"
    files = {
        "demo.py": "",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
    }
    wheel = site.folder / "demo-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    site.create("--wheels", wheel)
    assert site.manifest()["wheels"] == ["wheels/demo-1.0-py3-none-any.whl"]
    document = json.loads((site.bundle / "bundle.spdx.json").read_text())
    purls = [p["externalRefs"][0]["referenceLocator"] for p in document["packages"]]
    assert "pkg:pypi/demo@1.0" in purls
    assert "not available" in site.create("--wheels", site.folder / "no-such.whl", exit=1)
