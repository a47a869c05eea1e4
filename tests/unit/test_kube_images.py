"""The images of a cluster: all that its objects, charts and proofs run, in the form that skopeo reads."""

from __future__ import annotations

from typing import Any

import pytest
from kube_cases import CASES

from gpunode.core.spec import parse_spec
from gpunode.edge.bundle.extras import by_registry
from gpunode.edge.load import load_kube_knowledge
from gpunode.kube.core import Rendered, cluster_of, render
from gpunode.kube.core.images import images_of

KNOWN = load_kube_knowledge()


def rendered(kubernetes: dict[str, Any], **sharing: Any) -> Rendered:
    data = {"kubernetes": {"server_version": "1.34", **kubernetes}, "sharing": sharing}
    return render(cluster_of({"": parse_spec(data)}, "", KNOWN))


def components(found: Rendered) -> set[str]:
    """The components whose images are listed; what is listed and no component's, as it stands."""
    names = {image: component for component, image in KNOWN.images.items()}
    return {names.get(image, image) for image in images_of(found)}


# gpu-feature-discovery and mps-control-daemon live in the device plugin's image: the last of a kind names it
PLUGIN = "mps-control-daemon"


@pytest.mark.parametrize(
    ("kubernetes", "sharing", "wanted"),
    [
        ({}, {}, {PLUGIN}),
        ({"monitoring": {"enabled": True}}, {}, {PLUGIN, "dcgm-exporter"}),
        ({"node_feature_discovery": True}, {}, {PLUGIN, "node-feature-discovery"}),
        ({"install": "helm"}, {}, {PLUGIN}),
        ({"install": "helm", "monitoring": {"enabled": True}}, {}, {PLUGIN, "dcgm-exporter"}),
        ({"install": "helm", "node_feature_discovery": True}, {}, {PLUGIN, "node-feature-discovery"}),
        ({}, {"strategy": "dra"}, {"dra-driver"}),
        ({}, {"strategy": "gpushare"}, {"gpushare-extender", "gpushare-device-plugin"}),
        ({"install": "operator", "monitoring": {"enabled": True}}, {}, {"gpu-operator", PLUGIN, "dcgm-exporter"}),
        (
            {"install": "operator", "node_feature_discovery": True},
            {"strategy": "dra"},
            {"gpu-operator", "dra-driver", "node-feature-discovery", PLUGIN},
        ),
    ],
)
def test_every_component_that_runs_has_its_image_in_the_list(
    kubernetes: dict[str, Any], sharing: dict[str, Any], wanted: set[str]
) -> None:
    assert components(rendered(kubernetes, **sharing)) == wanted | {"cuda-sample"}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.folder.name)
def test_what_a_recorded_cluster_names_is_in_its_list(case: Any) -> None:
    """Whatever stands behind `image:` in what kube render writes, but for what a chart names in parts."""
    found = case.render()
    listed = set(images_of(found))
    assert listed and all(":" in image.rpartition("/")[2] or "@" in image for image in listed)
    for item in found.objects:
        spec = item.get("spec", {}).get("template", {}).get("spec", {})
        assert {c["image"] for c in (*spec.get("containers", ()), *spec.get("initContainers", ()))} <= listed


def test_behind_a_private_registry_nothing_comes_from_elsewhere() -> None:
    """So the operator, its validator and Node Feature Discovery come from there too."""
    more = {"node_feature_discovery": True, "monitoring": {"enabled": True}, "images": {"registry": "registry.lan/a"}}
    for install in ("manifest", "helm", "operator"):
        found = rendered({"install": install, **more})
        assert found.problems == ()
        assert {image.partition("/")[0] for image in images_of(found)} == {"registry.lan"}
    [release] = found.releases
    for key in ("operator", "validator", "devicePlugin", "gfd", "dcgmExporter"):
        assert release.values[key]["repository"].startswith("registry.lan/a/")
    assert release.values["node-feature-discovery"]["image"]["repository"].startswith("registry.lan/a/nfd/")
    assert release.values["operator"]["version"] == release.chart.version


def test_the_operator_is_the_one_of_its_chart() -> None:
    assert KNOWN.images["gpu-operator"].endswith(f":{KNOWN.charts['gpu-operator'].version}")


def test_an_image_of_ones_own_is_listed_in_place_of_the_known_one() -> None:
    mine = {"nvidia-device-plugin": "lab.lan:5000/plugin@sha256:" + "0" * 64}
    found = rendered({"images": {"names": mine}, "feature_discovery": False})
    assert set(images_of(found)) == {mine["nvidia-device-plugin"], KNOWN.images["cuda-sample"]}


@pytest.mark.parametrize("tag", ["", ":v1.2.3"])
@pytest.mark.parametrize(
    ("kubernetes", "sharing"),
    [
        ({"install": "manifest", "monitoring": {"enabled": True}, "node_feature_discovery": True}, {}),
        ({"install": "helm", "monitoring": {"enabled": True}, "node_feature_discovery": True}, {}),
        ({"install": "operator", "monitoring": {"enabled": True}, "node_feature_discovery": True}, {}),
        ({}, {"strategy": "dra"}),
        ({"install": "manifest"}, {"strategy": "mps", "replicas": 4}),
        ({}, {"strategy": "gpushare"}),
    ],
    ids=str,
)
def test_images_named_by_digest_reach_the_cluster_as_they_are_named(
    tag: str, kubernetes: dict[str, Any], sharing: dict[str, Any]
) -> None:
    mine = {
        name: f"lab.lan:5000/gpu/{name}{tag}@sha256:{number:064x}" for number, name in enumerate(sorted(KNOWN.images))
    }
    found = rendered({**kubernetes, "images": {"names": mine, "registry": "other.lan"}}, **sharing)
    assert found.problems == ()
    listed = images_of(found)
    assert listed and set(listed) <= set(mine.values())
    for release in found.releases:
        for part in release.values.values():
            if isinstance(part, dict) and "version" in part and "image" in part:
                assert f"{part['repository']}/{part['image']}:{part['version']}" in mine.values()


def test_a_machines_own_images_may_be_named_by_digest() -> None:
    image = "lab.lan:5000/a/b:v1@sha256:" + "0" * 64
    spec = parse_spec({"verify": {"image": image}, "accept": {"image": image}})
    assert spec.verify.image == spec.accept.image == image


@pytest.mark.parametrize(
    ("image", "wanted"),
    [
        ("nvcr.io/nvidia/k8s/dcgm-exporter:4.6.0", ("nvcr.io", "nvidia/k8s/dcgm-exporter", "4.6.0")),
        ("lab.lan:5000/plugin", ("lab.lan:5000", "plugin", "latest")),
        ("localhost/plugin:1", ("localhost", "plugin", "1")),
        ("busybox", ("docker.io", "library/busybox", "latest")),
        ("prom/node-exporter:v1", ("docker.io", "prom/node-exporter", "v1")),
        ("nvcr.io/a/b@sha256:00", ("nvcr.io", "a/b", "sha256:00")),
        ("lab.lan:5000/a/b:v1@sha256:00", ("lab.lan:5000", "a/b", "sha256:00")),
    ],
)
def test_an_image_is_taken_apart_as_docker_does(image: str, wanted: tuple[str, str, str]) -> None:
    registry, name, version = wanted
    assert by_registry([image]) == {registry: {"images": {name: [version]}}}


def test_two_tags_of_one_repository_stand_together() -> None:
    assert by_registry(["a.io/b:1", "a.io/b:2"]) == {"a.io": {"images": {"b": ["1", "2"]}}}
