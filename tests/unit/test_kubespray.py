"""The page's snippet for kubespray, through the lines of kubespray's own templates that decide how it is written."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from jinja2 import Environment

from gpunode.core.edits import RuntimeRequest, configure_runtime

PAGE = Path(__file__).parents[2] / "docs/cluster.md"
BINARIES = [Path(name) for name in os.environ.get("GPUNODE_CONTAINERDS", "").split(os.pathsep) if name]
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


@pytest.mark.parametrize("release", RELEASES)
def test_a_node_with_the_snippet_of_the_page_is_left_as_it_is(release: str) -> None:
    text = written(release, snippet())
    [options] = re.findall(r"runtimes\.nvidia\.options\]\n(.*)", text.decode(), re.DOTALL)
    assert tomllib.loads(options)["SystemdCgroup"] is True
    version = "1.7.27" if b"grpc.v1.cri" in text else "2.1.4"
    request = RuntimeRequest(runtime="containerd", version=version, default_runtime="keep")
    edit = configure_runtime({"/etc/containerd/config.toml": text}, request)
    assert (edit.problems, edit.changes) == ((), {})


@pytest.mark.parametrize("release", RELEASES)
def test_without_quotes_kubespray_writes_a_text(release: str) -> None:
    """So the quotes of the page are no matter of taste."""
    [runtime] = snippet()
    bare = {**runtime, "options": {**runtime["options"], "SystemdCgroup": True}}
    assert b'SystemdCgroup = "True"' in written(release, [bare])


@pytest.mark.skipif(not BINARIES, reason="GPUNODE_CONTAINERDS names no containerd")
@pytest.mark.parametrize("binary", BINARIES, ids=lambda path: path.name)
@pytest.mark.parametrize("release", [name for name in RELEASES if RELEASES[name][0] == 2])
def test_a_real_containerd_reads_both_runtimes_alike(release: str, binary: Path, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(written(release, snippet()))
    done = subprocess.run([binary, "-c", path, "config", "dump"], capture_output=True, text=True, check=True)
    runtimes = tomllib.loads(done.stdout)["plugins"]["io.containerd.grpc.v1.cri"]["containerd"]["runtimes"]
    found = {
        name: {key.lower(): value for key, value in one["options"].items() if value != ""}["systemdcgroup"]
        for name, one in runtimes.items()
    }
    assert found == {"runc": True, "nvidia": True}
