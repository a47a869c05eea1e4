"""What goes into a bundle beside packages: charts, the list of images, wheels."""

from __future__ import annotations

import hashlib
import json
import zipfile

import pytest
import yaml
from bundle_site import NEEDS_GPG, Site

pytest.importorskip("solv")
pytest_plugins = ("bundle_fixtures",)
pytestmark = NEEDS_GPG


def test_charts_of_the_cluster_go_along(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from gpunode.edge import load

    known = load.load_kube_knowledge()
    chart = known.charts["nvidia-device-plugin"]
    data = b"a chart"
    (site.folder / "www/charts").mkdir()
    (site.folder / "www/charts/p.tgz").write_bytes(data)
    digest = hashlib.sha256(data).hexdigest()
    entry = {"version": chart.version, "urls": ["p.tgz"], "digest": digest}
    (site.folder / "www/charts/index.yaml").write_text(yaml.safe_dump({"entries": {chart.name: [entry]}}))
    here = {**known.charts, chart.name: replace(chart, repository=f"{site.server.url}/charts")}
    monkeypatch.setattr(load, "load_kube_knowledge", lambda: replace(known, charts=here))
    more = {"kubernetes": {"install": "helm", "server_version": "1.34", "node_feature_discovery": True}}
    more |= {"sharing": {"strategy": "time-slicing", "replicas": 2}}
    site.spec.write_text(yaml.safe_dump(yaml.safe_load(site.spec.read_text()) | more))
    site.create("--cluster")
    manifest = site.manifest()
    assert manifest["charts"] == [f"charts/{chart.name}-{chart.version}.tgz"]
    assert (site.bundle / manifest["charts"][0]).read_bytes() == data
    (site.folder / "www/charts/p.tgz").write_bytes(b"another chart")
    assert "not what the index" in site.create("--cluster", exit=1)


def test_a_chart_of_a_registry_is_named_and_left_to_helm(site: Site) -> None:
    more = {"kubernetes": {"install": "helm", "server_version": "1.34"}, "sharing": {"strategy": "dra"}}
    site.spec.write_text(yaml.safe_dump(yaml.safe_load(site.spec.read_text()) | more))
    assert "helm pull oci://registry.k8s.io/dra-driver-nvidia/charts/" in site.create("--cluster")
    assert site.manifest()["charts"] == []


def test_the_images_of_the_cluster_are_listed(site: Site) -> None:
    more = {"kubernetes": {"server_version": "1.34"}, "sharing": {"strategy": "gpushare"}}
    site.spec.write_text(yaml.safe_dump(yaml.safe_load(site.spec.read_text()) | more))
    site.create("--cluster")
    images = site.manifest()["images"]
    assert (site.bundle / "images.txt").read_text().split() == images
    assert any("gpushare" in image for image in images)


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
    assert "cannot be had" in site.create("--wheels", site.folder / "no-such.whl", exit=1)
