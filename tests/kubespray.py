"""containerd's configuration as releases of kubespray write it, with the runtimes that the page gives to it.

Templates and defaults are kubespray's own (Apache License 2.0, github.com/kubernetes-sigs/kubespray,
roles/container-engine/containerd of each tag), and Ansible renders them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs/cluster.md"
FOLDER = TESTS / "cases/kubespray"
# what the templates take from other roles of kubespray: its defaults there
OTHERS = {
    "bin_dir": "/usr/local/bin",
    "containerd_cfg_dir": "/etc/containerd",
    "containerd_use_systemd_cgroup": True,
    "enable_cdi": False,
    "gvisor_enabled": False,
    "kata_containers_enabled": False,
    "nri_enabled": False,
    "pod_infra_image_repo": "registry.k8s.io/pause",
    "pod_infra_image_tag": "3.9",
}
# release → its template, and a version of containerd (2.31's template for containerd 1 asks for what its runc has not)
RELEASES = {
    "2.24.0": ("config.toml.j2", "1.7.11"),
    "2.27.0": ("config.toml.j2", "1.7.24"),
    "2.28.0": ("config-v1.toml.j2", "1.7.27"),
    "2.28.0, containerd 2": ("config.toml.j2", "2.0.5"),
    "2.31.0": ("config.toml.j2", "2.2.1"),
}
RUNC = "/usr/local/bin/runc"


def snippet() -> Any:
    [text] = [text for text in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL) if "additional_" in text]
    return yaml.safe_load(text)["containerd_additional_runtimes"]


def written(release: str, runtimes: Any) -> bytes:
    """The configuration as kubespray writes it."""
    template, version = RELEASES[release]
    folder, loader = FOLDER / release.partition(",")[0], DataLoader()
    defaults = loader.load_from_file(str(folder / "defaults.yml"), trusted_as_template=True)
    own = {"containerd_additional_runtimes": runtimes, "containerd_version": version}
    templar = Templar(loader=loader, variables={**OTHERS, **defaults, **own})
    text = templar.template(trust_as_template((folder / template).read_text()))
    return str(text).encode()
