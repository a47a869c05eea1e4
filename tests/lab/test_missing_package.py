"""An index that names a package which its archive does not have: refused before anything is changed, then done.

Real apt, dnf, zypper and pacman judge it, on a mirror that answers 404 for the files of packages.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from mirror import Mirror

pytestmark = [pytest.mark.lab, pytest.mark.extended, pytest.mark.timeout(1800)]

LISTED = {
    "debian:12": "dpkg-query -W -f '${db:Status-Abbrev} ${Package} ${Version}\\n'",
    "rocky:9": "rpm -qa | grep -v ^gpg-pubkey | sort",
    "fedora:43": "rpm -qa | grep -v ^gpg-pubkey | sort",
    "sles:15": "rpm -qa | grep -v ^gpg-pubkey | sort",
    "arch": "pacman -Q",
}
FILES = (".deb", ".rpm", ".pkg.tar.gz", ".pkg.tar.xz", ".pkg.tar.zst")
SERVERS = "/etc/pacman.d/mirrorlist"
INTENTS = """grep -c '"op":"packages","phase":"intent"' /var/lib/gpunode/journal.jsonl || true"""


@pytest.mark.parametrize("distro", LISTED)
def test_a_package_that_its_archive_lacks_is_named_with_the_ways_on_and_nothing_is_changed(
    distro: str, lab_up: Any, run_gpunode: Any, tmp_path: Path
) -> None:
    lab = lab_up(distro=distro, engines=("containerd",), name=f"t-missing-{distro.replace(':', '')}")

    def printed(command: str) -> str:
        return str(lab.run(lab.nodes[0], command).stdout)

    sources = yaml.safe_load(lab.spec.read_text())["sources"] or {}
    url = sources["nvidia-cuda"]["url"] if distro != "arch" else printed(f"sed -n 's/^Server = //p' {SERVERS}")
    upstream = "/".join(url.strip().split("/")[:3])
    network, _, _ = upstream.removeprefix("http://").rpartition(".")
    mirror = Mirror(f"{network}.1", upstream)
    spec = {"driver": {"branch": "none"}, "runtimes": {"containerd": {"manage": "ignore"}}}
    if distro == "arch":  # it has the toolkit itself
        printed(f"sed -i 's|{upstream}|{mirror.url}|' {SERVERS}")
    else:
        sources["nvidia-container-toolkit"] = mirror.source(sources["nvidia-container-toolkit"])
    (tmp_path / "gpunode.yml").write_text(yaml.safe_dump({"sources": sources} | spec))

    def provision(exit: int) -> dict[str, Any]:
        done = run_gpunode(
            "provision", "-i", lab.inventory, "-c", tmp_path / "gpunode.yml", "--yes", "--format", "json", exit=exit
        )
        [host] = json.loads(done.stdout)["hosts"]
        return dict(host)

    try:
        before = printed(LISTED[distro])
        mirror.lacks = FILES
        host = provision(1)
        message = f"{host['message']} {host['fix']}"
        for words in (
            "lists a package that it does not have",
            "nvidia-container",
            "nothing was changed",
            "another mirror",
            "hold",
        ):
            assert words in message, message
        assert printed(LISTED[distro]) == before
        assert printed(INTENTS).strip() in ("", "0"), "a transaction was begun"
        mirror.behave()
        mirror.asked.clear()
        provision(0)
        files = Counter(path for path in mirror.asked if path.endswith(FILES))
        assert files and set(files.values()) == {1}, f"fetched twice: {files}"
    finally:
        mirror.close()
        lab.down()
