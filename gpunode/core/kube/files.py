"""Everything rendered as files of a folder that people keep in git."""

from __future__ import annotations

from typing import Any

from gpunode.core.kube.render import Rendered, yaml_documents, yaml_text

HEADER = "# Rendered by gpunode kube render; edit gpunode.yml instead.\n"
_NAME = "app.kubernetes.io/name"


def files_of(rendered: Rendered) -> dict[str, str]:
    """Path → text: NN-COMPONENT.yml in the order of applying, helm/RELEASE.yml, examples/…, nodes.sh.

    `kubectl apply -f FOLDER` takes the files of the top level only, in the order of their names.
    """
    found: dict[str, str] = {}
    components = dict.fromkeys(item["metadata"]["labels"][_NAME] for item in rendered.objects)
    for number, component in enumerate(components):
        objects = tuple(item for item in rendered.objects if item["metadata"]["labels"][_NAME] == component)
        found[f"{number * 10:02}-{component}.yml"] = HEADER + yaml_documents(objects)
    for release in rendered.releases:
        found[f"helm/{release.name}.yml"] = f"{HEADER}# {release.command}\n{yaml_text(dict(release.values))}"
    if rendered.examples:
        found["examples/examples.yml"] = HEADER + yaml_documents(rendered.examples)
    commands = [command for wish in rendered.nodes for command in wish.commands]
    if commands:
        found["nodes.sh"] = f"#!/bin/sh\n{HEADER}set -eu\n" + "".join(f"{command}\n" for command in commands)
    return found


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
            {"pool": wish.pool, "hosts": list(wish.hosts), "labels": wish.labels, "taints": list(wish.taints)}
            for wish in rendered.nodes
        ],
        "notes": [{"what": note.what, "why": note.why} for note in rendered.notes],
        "problems": [{"what": problem.what, "fix": problem.fix} for problem in rendered.problems],
    }
