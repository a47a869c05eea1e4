"""Everything rendered as files of a folder that people keep in git."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpunode.core.yaml_text import yaml_documents, yaml_text
from gpunode.kube.core.cluster import Cluster
from gpunode.kube.core.render import Rendered
from gpunode.kube.core.render.gpushare import EXTENDER
from gpunode.kube.core.render.gpushare import PLUGIN as GPUSHARE_PLUGIN

HEADER = "# Rendered by gpunode kube render; edit gpunode.yml instead.\n"
_NAME = "app.kubernetes.io/name"
_LOAD = """\
set -eu
# load IMAGE HOST…: out of this machine's docker (or podman) into the engine that the host's kubelet uses
load() {
  image=$1
  shift
  save=docker
  command -v docker >/dev/null || save=podman
  for host; do
    echo "$image → $host"
    "$save" save "$image" | ssh "$host" 'if [ -S /run/k3s/containerd/containerd.sock ]; then k3s ctr images import -
      elif [ -S /run/cri-dockerd.sock ]; then docker load
      elif [ -S /run/crio/crio.sock ]; then podman load
      else ctr -n k8s.io images import -; fi'
  done
}
# shellcheck disable=SC2086 # names of hosts, one word each
"""


def files_of(rendered: Rendered) -> dict[str, str]:
    """Path → text: NN-COMPONENT.yml in the order of applying, helm/RELEASE.yml, examples/…, nodes.sh, images.sh.

    `kubectl apply -f FOLDER` takes the files of the top level only, in the order of their names.
    """
    files: dict[str, str] = {}
    components = dict.fromkeys(item["metadata"]["labels"][_NAME] for item in rendered.objects)
    for number, component in enumerate(components):
        objects = tuple(item for item in rendered.objects if item["metadata"]["labels"][_NAME] == component)
        files[f"{number * 10:02}-{component}.yml"] = HEADER + yaml_documents(objects)
    for release in rendered.releases:
        files[f"helm/{release.name}.yml"] = f"{HEADER}# {release.command}\n{yaml_text(dict(release.values))}"
    if rendered.examples:
        files["examples/examples.yml"] = HEADER + yaml_documents(rendered.examples)
    commands = [command for request in rendered.nodes for command in request.commands]
    if commands:
        files["nodes.sh"] = f"#!/bin/sh\n{HEADER}set -eu\n" + "".join(f"{command}\n" for command in commands)
    if loads := [f"load {image} {hosts}\n" for image, hosts in local_images(rendered.cluster)]:
        files["images.sh"] = f"#!/bin/sh\n{HEADER}{_LOAD}{''.join(loads)}"
    return files


def local_images(cluster: Cluster) -> Iterator[tuple[str, str]]:
    """Images of no registry, which nobody can pull, and the hosts that need them ($CONTROL_PLANE, $NODES: unknown)."""
    for component, image in cluster.spec.images.names.items():
        host, slash, _ = image.partition("/")
        if slash and (host == "localhost" or "." in host or ":" in host):
            continue
        gpushare = component == GPUSHARE_PLUGIN
        pools = cluster.pools_of("gpushare") if gpushare else cluster.plugin_pools
        hosts = " ".join(host for pool in pools for host in pool.hosts)
        yield image, "${CONTROL_PLANE:?hosts}" if component == EXTENDER else hosts or "${NODES:?hosts}"


def rendered_data(rendered: Rendered) -> dict[str, Any]:
    """Everything as plain data, for JSON."""
    return {
        "server": str(rendered.cluster.server),
        "objects": list(rendered.objects),
        "releases": [
            {
                "name": release.name,
                "chart": release.chart.name,
                "repository": release.chart.repository,
                "version": release.chart.version,
                "namespace": release.namespace,
                "values": dict(release.values),
                "command": release.command,
            }
            for release in rendered.releases
        ],
        "examples": list(rendered.examples),
        "nodes": [
            {
                "pool": request.pool.name,
                "hosts": list(request.pool.hosts),
                "labels": request.labels,
                "taints": list(request.taints),
            }
            | ({"selector": request.pool.selector} if request.pool.selector else {})
            for request in rendered.nodes
        ],
        "notes": [{"what": note.what, "why": note.why} for note in rendered.notes],
        "problems": [{"what": problem.what, "fix": problem.fix} for problem in rendered.problems],
    }
