"""What the lab writes and how it reads this machine, without any node."""

from __future__ import annotations

import ipaddress
import re
import subprocess
import threading
from pathlib import Path

import pytest
import yaml

from gpunode.cli import lab as cli_lab
from gpunode.core.errors import InputError, RefusedError
from gpunode.core.spec import parse_spec
from gpunode.lab import files, images, labs, machine, molecule, network, nodes
from gpunode.lab.images import Variant
from gpunode.lab.nodes import Node

KEY = Path("/state/id_ed25519")
KNOWN = Path("/state/known_hosts")


@pytest.fixture(autouse=True)
def own_places(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_the_inventory_groups_nodes_by_lab_and_names_key_and_known_hosts():
    nodes = {"my-lab": {"my-lab-1": "10.89.0.101"}, "b": {"b-1": "10.89.0.102"}}
    text = files.inventory(nodes, {"b-1": {"sources": {}}}, key=KEY, known_hosts=KNOWN)
    options = "-o UserKnownHostsFile=/state/known_hosts -o GlobalKnownHostsFile=/dev/null -o IdentitiesOnly=yes"
    assert yaml.safe_load(text) == {
        "all": {
            "vars": {
                "ansible_user": "root",
                "ansible_ssh_private_key_file": "/state/id_ed25519",
                "ansible_ssh_common_args": options,
            },
            "children": {
                "my_lab": {"hosts": {"my-lab-1": {"ansible_host": "10.89.0.101"}}},
                "b": {"hosts": {"b-1": {"ansible_host": "10.89.0.102", "gpunode_spec": {"sources": {}}}}},
            },
        }
    }


def test_known_hosts_has_each_key_under_name_and_address():
    text = files.known_hosts([("n-1", "10.89.0.101", ["ssh-ed25519 AAA", "ecdsa-sha2-nistp256 BBB"])])
    assert text == "n-1,10.89.0.101 ssh-ed25519 AAA\nn-1,10.89.0.101 ecdsa-sha2-nistp256 BBB\n"


def test_ssh_config_checks_host_keys_strictly():
    text = files.ssh_config({"n-1": "10.89.0.101"}, key=KEY, known_hosts=KNOWN)
    assert "Host n-1\n    HostName 10.89.0.101\n" in text
    assert "    StrictHostKeyChecking yes\n" in text


def test_the_spec_it_writes_is_one_that_gpunode_reads():
    source = {"url": "http://10.89.0.10/cuda", "key": "http://10.89.0.10/k.asc", "fingerprint": "0" * 40}
    spec = parse_spec(yaml.safe_load(files.spec({"nvidia-cuda": source})))
    assert spec.sources["nvidia-cuda"].url == "http://10.89.0.10/cuda"


@pytest.mark.parametrize(
    ("variant", "name", "purge"),
    [
        (Variant(), "debian-12", ()),
        (Variant(distro="debian:13", python=False), "debian-13-no-python", ("python3*", "libpython3*")),
        (Variant(engines=("containerd",)), "debian-12-no-docker", ("docker.io", "docker-cli")),
        (Variant(engines=("docker",)), "debian-12", ()),
        (Variant(engines=()), "debian-12-no-engines", ("docker.io", "docker-cli", "containerd", "runc")),
        (Variant(real_driver=True), "debian-12-real-driver", ()),
        (Variant(distro="debian:13+forky"), "debian-13-forky", ()),
        (Variant(distro="rocky:10", python=False), "rocky-10-no-python", ()),
    ],
)
def test_a_variant_says_what_it_is_called_and_what_is_taken_out(variant, name, purge):
    assert (variant.name, variant.purge) == (name, purge)


def test_distros_of_the_same_packages_share_their_tree():
    assert [images._tree_of(d) for d in ("debian:12+non-free", "rocky:10", "fedora:43")] == [
        "debian:12",
        "rocky:8",
        "fedora:43",
    ]


@pytest.mark.parametrize("bad", [{"distro": "debian:9"}, {"engines": ("crio",)}])
def test_a_variant_that_does_not_exist_is_refused_with_those_that_do(bad):
    with pytest.raises(InputError) as error:
        Variant(**bad)
    assert "containerd, docker" in error.value.expected or "debian:12, debian:13" in error.value.expected


@pytest.mark.parametrize(
    ("listed", "urls"),
    [
        (
            "bookworm http://a.example/debian/ main\nbookworm-updates http://a.example/debian/ main\n"
            "bookworm-security http://s.example/debian-security/ main\n",
            ["http://a.example/debian/", "http://s.example/debian-security/"],
        ),
        ("noble http://u.example/ubuntu main\nnoble-security http://u.example/ubuntu main\n", []),
        ("trixie http://a.example/debian contrib\n", []),
        ("", []),
    ],
)
def test_debians_archive_is_read_from_the_machines_own_sources(listed, urls):
    assert machine._debian_urls(listed) == urls


def test_two_state_folders_share_no_podman_name(monkeypatch, tmp_path):
    def names():
        return {network.network_name(), network.repository_name(), Node(name="n-1", lab="n", address="").container}

    mine = names()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other"))
    others = names()
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "/root")
    usual = names()
    assert usual == {"gpunode-lab", "gpunode-lab-repository", "n-1"}
    assert len(mine | others | usual) == 9


def test_an_edited_spec_stays_when_the_lab_writes_its_files(tmp_path):
    printed = []
    spec = tmp_path / "gpunode.yml"
    labs._write_spec(tmp_path, "sources: {a: 1}\n", printed.append)
    labs._write_spec(tmp_path, "sources: {a: 2}\n", printed.append)
    assert (spec.read_text(), printed) == ("sources: {a: 2}\n", [])
    spec.write_text("sources: {a: 2}\ncuda: {versions: ['12.8']}\n")
    labs._write_spec(tmp_path, "sources: {a: 2}\n", printed.append)
    assert "cuda" in spec.read_text() and printed == []
    labs._write_spec(tmp_path, "sources: {a: 3}\n", printed.append)
    assert "cuda" in spec.read_text() and "stays as it is" in printed[0]
    assert (tmp_path / ".gpunode.yml").read_text() == "sources: {a: 3}\n"


def test_the_network_is_no_networks_of_molecules_own_to_remove():
    entry = nodes.platform(Node(name="n-1", lab="n", address=""))
    assert "network" not in entry and f"--network={network.network_name()}" in entry["extra_opts"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", "is not YAML"),
        ("{}", "lists no nodes"),
        ("- {distro: debian:12}", "lists no nodes"),
        ("- {name: a, gpu: [h100]}", "unknown key 'gpu'"),
    ],
)
def test_a_nodes_file_of_molecule_is_refused_with_what_is_wrong(text, message, tmp_path):
    (tmp_path / "nodes.yml").write_text(text)
    with pytest.raises(InputError, match=message):
        molecule.read_nodes(tmp_path / "nodes.yml")


def test_a_file_that_a_scenario_names_is_there():
    scenarios = Path(__file__).parents[2] / "molecule"
    named = [
        (path.parent / name).resolve()
        for path in scenarios.glob("*/*.yml")
        for name in re.findall(r"\.\./[\w./-]+", path.read_text())
    ]
    assert len(named) > 10 and not [path for path in named if not path.exists()]


def test_a_user_who_is_not_root_is_refused(monkeypatch):
    monkeypatch.setattr(machine.os, "geteuid", lambda: 1000)
    with pytest.raises(RefusedError, match="user 1000"):
        labs.up()


def test_another_processor_is_refused(monkeypatch):
    monkeypatch.setattr(machine.platform, "machine", lambda: "aarch64")
    with pytest.raises(RefusedError, match="aarch64"):
        labs.up()


def test_a_machine_without_apt_is_refused(monkeypatch):
    monkeypatch.setattr(machine.os, "geteuid", lambda: 0)
    monkeypatch.setattr(machine.shutil, "which", lambda name: None)
    with pytest.raises(RefusedError, match="no apt-get"):
        labs.up()


def test_a_full_disk_is_refused_with_what_is_needed(monkeypatch):
    monkeypatch.setattr(machine.os, "geteuid", lambda: 0)
    monkeypatch.setattr(machine.shutil, "which", lambda name: name)
    usage = type("Usage", (), {"free": 2**30})
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(RefusedError, match=r"1\.0 GiB free") as error:
        labs.up(4)
    assert error.value.expected == "8.0 GiB for 4 nodes"


@pytest.mark.parametrize(
    "wrong",
    [{"count": 0}, {"count": 21}, {"name": "Big"}, {"gpus": ("nosuch",)}, {"distro": "ubuntu:25.10"}],
)
def test_wrong_words_are_refused_before_anything_is_touched(wrong, monkeypatch):
    monkeypatch.setattr(machine.subprocess, "Popen", lambda *a, **k: pytest.fail("a command was run"))
    with pytest.raises(InputError):
        labs.up(**wrong)


def test_a_node_is_kept_as_it_was_saved():
    node = Node(name="n-1", lab="n", address="10.89.0.101", gpus=("h100",), sources={"a": {"url": "u"}}, maker=1)
    nodes.save(node)
    assert nodes.load_nodes() == [node]
    assert not node.abandoned


def test_a_lab_that_is_gone_takes_its_folder_with_it_and_no_file_of_a_person():
    folder = machine.places().state / "labs"
    (folder / "gone").mkdir(parents=True)
    (folder / "hosts.yml").write_text("a person's own\n")
    labs._write_files(print)
    assert [path.name for path in folder.iterdir()] == ["hosts.yml"]


def test_a_node_whose_maker_is_gone_counts_as_abandoned():
    assert Node(name="n-1", lab="n", address="", maker=2**22 + 1).abandoned


def test_a_change_in_any_input_makes_another_image_tag(tmp_path):
    script = tmp_path / "boot.sh"
    script.write_text("one")
    before = images.digest("base", images.contents([script]))
    script.write_text("two")
    assert images.digest("base", images.contents([script])) != before


def test_what_is_missing_is_installed_after_saying_so(monkeypatch):
    commands, printed = [], []
    monkeypatch.setattr(machine, "_installed", lambda name: name not in ("runc", "mmdebstrap"))
    monkeypatch.setattr(machine, "run", lambda *command: commands.append((list(printed), command)))
    machine.install_missing_packages(printed.append)
    assert printed == ["installing with apt-get: mmdebstrap runc"]
    assert [before for before, _ in commands] == [printed, printed]
    assert commands[1][1][-5:] == ("install", "--yes", "--no-install-recommends", "mmdebstrap", "runc")


def test_nothing_is_installed_where_all_is_there(monkeypatch):
    monkeypatch.setattr(machine, "_installed", lambda name: True)
    monkeypatch.setattr(machine, "run", lambda *command: pytest.fail("a command was run"))
    machine.install_missing_packages(print)


def test_a_suite_that_the_archive_does_not_have_is_refused_in_the_words_of_apt(monkeypatch):
    archive = machine.Archive(main="http://a.example/debian", security="http://s.example", settings="")
    printed = (
        "W: unsandboxed\nE: Failed to fetch http://a.example/debian/dists/forky/InRelease  404  Not Found\nE: Failed\n"
    )

    def run(*command, check):
        assert command[3:5] == ("download-file", "http://a.example/debian/dists/forky/InRelease")
        return subprocess.CompletedProcess(command, 100, "", printed)

    monkeypatch.setattr(machine, "run", run)
    with pytest.raises(RefusedError, match=r"the suite forky: Failed to fetch http://a\.example/\S+  404  Not Found\n"):
        images.require_suite("forky", archive)


def test_a_step_that_takes_long_says_for_how_long(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    beats, printed = threading.Semaphore(0), list[str]()

    class Beat(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            beats.release()
            return super().wait(timeout)

    monkeypatch.setattr(cli_lab, "STILL", 0.01)
    monkeypatch.setattr("gpunode.cli.progress.threading.Event", Beat)
    with cli_lab._steps() as log:
        for _ in range(3):
            assert beats.acquire(timeout=20)
        assert capsys.readouterr().err == ""
        log("fetching debian:12")
        while len(printed) < 2 and beats.acquire(timeout=20):
            printed += capsys.readouterr().err.splitlines()
    assert printed[:2] == ["fetching debian:12", "  0 s: still fetching debian:12"]


def test_a_node_has_an_address_from_the_start_which_no_other_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "ensure_network", lambda: ipaddress.IPv4Network("10.1.2.0/24"))
    one = Node(name="a-1", lab="a", address=labs._free_address([]), engines=(), gpus=())
    assert (one.address, labs._free_address([one])) == ("10.1.2.254", "10.1.2.253")


def test_a_node_that_is_up_goes_with_the_others_when_one_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C says that what was started has been removed: also nodes that were up by then."""
    saved: list[str] = []
    up = threading.Event()

    def wait_until_up(node: Node, **_: object) -> None:
        if node.name == "n-2":
            up.wait(10)
            raise KeyboardInterrupt

    def read_host_keys(node: Node) -> tuple[str, ...]:
        up.set()
        return ()

    for name, act in {
        "prepare": lambda *_: None,
        "start": lambda node: node,
        "wait_until_up": wait_until_up,
        "read_host_keys": read_host_keys,
        "save": lambda node: saved.append(node.name),
    }.items():
        monkeypatch.setattr(labs.nodes, name, act)
    monkeypatch.setattr(labs, "own_sources", lambda *_: {})
    made = [Node(name=f"n-{number}", lab="n", address="", maker=1) for number in (1, 2)]
    with pytest.raises(KeyboardInterrupt):
        labs._make_all(made, None, "")  # type: ignore[arg-type]
    assert saved == []
    up.set()
    labs._make_all(made[:1], None, "")  # type: ignore[arg-type]
    assert saved == ["n-1"]


@pytest.mark.parametrize(("beside", "goes"), [((), True), (("node1",), False)])
def test_the_server_does_not_keep_itself_by_the_label_of_its_image(
    monkeypatch: pytest.MonkeyPatch, beside: tuple[str, ...], goes: bool
) -> None:
    asked: list[tuple[str, ...]] = []

    def podman(*words: str, **_: object) -> subprocess.CompletedProcess[str]:
        asked.append(words)
        listed = "\n".join((network.repository_name(), *beside)) if words[0] == "ps" else ""
        return subprocess.CompletedProcess(words, 0, listed, "")

    monkeypatch.setattr(network, "podman", podman)
    network.remove_if_unused()
    assert (("network", "rm", network.network_name()) in asked) == goes
