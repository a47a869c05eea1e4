"""containerd's configuration as releases of kubespray write it, with the runtimes that the page gives to it.

Only the lines of its templates are here that decide how options of a runtime are written.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment

PAGE = Path(__file__).parents[1] / "docs/cluster.md"
# of roles/container-engine/containerd/templates/config.toml.j2 and config-v1.toml.j2: the same from 2.24 to 2.31
OPTIONS = """\
{% for runtime in [containerd_runc_runtime] + containerd_additional_runtimes %}
[plugins."PLUGIN".containerd.runtimes.{{ runtime.name }}]
runtime_type = "{{ runtime.type }}"
ENGINE
[plugins."PLUGIN".containerd.runtimes.{{ runtime.name }}.options]
{% for key, value in runtime.options.items() %}
{% if value | string != "true" and value | string != "false" %}
{{ key }} = "{{ value }}"
{% else %}
{{ key }} = {{ value }}
{% endif %}
{% endfor %}
{% endfor %}
"""
OLD = 'runtime_engine = "{{ runtime.engine }}"\nruntime_root = "{{ runtime.root }}"'
# release → version of the file, plugin, what else a runtime has, how runc's options are spelled
RELEASES = {
    "2.24": (2, "io.containerd.grpc.v1.cri", OLD, "systemdCgroup", "binaryName"),
    "2.27": (2, "io.containerd.grpc.v1.cri", OLD, "systemdCgroup", "binaryName"),
    "2.28": (3, "io.containerd.cri.v1.runtime", OLD, "SystemdCgroup", "BinaryName"),
    "2.31": (3, "io.containerd.cri.v1.runtime", "", "SystemdCgroup", "BinaryName"),
    "2.31 with containerd 1": (2, "io.containerd.grpc.v1.cri", OLD, "SystemdCgroup", "BinaryName"),
}


def snippet() -> Any:
    [text] = [text for text in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL) if "additional_" in text]
    return yaml.safe_load(text)["containerd_additional_runtimes"]


def written(release: str, runtimes: Any) -> bytes:
    """The configuration as kubespray writes it."""
    version, plugin, engine, systemd, binary = RELEASES[release]
    runc = {"name": "runc", "type": "io.containerd.runc.v2", "engine": "", "root": ""}
    runc["options"] = {systemd: "true", binary: "/usr/local/bin/runc"}  # type: ignore[assignment]
    template = Environment(trim_blocks=True, autoescape=False).from_string(
        OPTIONS.replace("PLUGIN", plugin).replace("ENGINE", engine)
    )
    head = f'version = {version}\n[plugins."{plugin}".containerd]\ndefault_runtime_name = "runc"\n'
    return (head + template.render(containerd_runc_runtime=runc, containerd_additional_runtimes=runtimes)).encode()
