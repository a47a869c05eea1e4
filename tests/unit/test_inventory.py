"""Inventories as people write them, read by Ansible's own classes."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

import pytest

from gpunode.core.errors import InputError
from gpunode.edge.ansible.inventory import InventoryHost, inventory_vars, load_inventory
from gpunode.edge.ssh.shell import Target

VAULT = (sys.executable, "-m", "ansible", "vault")
DEFAULT_SSH_ARGS = ("-C", "-o", "ControlMaster=auto", "-o", "ControlPersist=60s")


@pytest.fixture(autouse=True)
def away_from_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No group_vars and no ansible.cfg of the folder that the tests run in."""
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")


def tree(folder: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return folder


def by_name(hosts: tuple[InventoryHost, ...]) -> dict[str, InventoryHost]:
    return {host.name: host for host in hosts}


def test_an_ini_inventory_gives_hosts_in_order_with_groups_and_how_to_reach_them(tmp_path: Path) -> None:
    tree(
        tmp_path,
        {
            "hosts.ini": """\
            [workers]
            gpu2 ansible_host=10.0.0.2 ansible_port=2222 ansible_user=ops ansible_ssh_private_key_file=/keys/id
            gpu[3:4]
            [control]
            head ansible_connection=local
            [cluster:children]
            workers
            control
            """
        },
    )
    hosts = load_inventory([str(tmp_path / "hosts.ini")])
    assert [h.name for h in hosts] == ["gpu2", "gpu3", "gpu4", "head"]
    assert hosts[0].target == Target(
        name="gpu2",
        address="10.0.0.2",
        port=2222,
        user="ops",
        keys=("/keys/id",),
        ssh_args=DEFAULT_SSH_ARGS,
    )
    assert hosts[1].target == Target(name="gpu3", address="gpu3", ssh_args=DEFAULT_SSH_ARGS)
    assert hosts[3].target.connection == "local"
    assert sorted(hosts[0].groups) == ["cluster", "workers"]
    assert {h.name: h.spec for h in hosts} == {"gpu2": {}, "gpu3": {}, "gpu4": {}, "head": {}}


def test_the_spec_merges_key_by_key_from_all_over_parent_and_child_to_the_host(tmp_path: Path) -> None:
    tree(
        tmp_path,
        {
            "hosts.yml": """\
            all:
              children:
                region:
                  children:
                    pool:
                      hosts: {gpu1: {}, gpu2: {}}
                other:
                  hosts: {gpu3: {}}
            """,
            "group_vars/all.yml": """\
            gpunode_spec:
              driver: {branch: "570", flavour: proprietary, hold: false}
              cuda: {versions: ["12.8", "12.9"]}
              reboot: never
            """,
            "group_vars/region.yml": "gpunode_spec: {driver: {branch: '575', flavour: open}}\n",
            "group_vars/pool/spec.yml": "gpunode_spec: {driver: {branch: '580'}, proxy: 'http://pool:3128'}\n",
            "host_vars/gpu1.yml": "gpunode_spec: {cuda: {versions: ['13.0']}, reboot: always}\n",
        },
    )
    specs = {h.name: h.spec for h in load_inventory([str(tmp_path / "hosts.yml")])}
    assert specs["gpu1"] == {
        "driver": {"branch": "580", "flavour": "open", "hold": False},
        "cuda": {"versions": ["13.0"]},  # a list is one value: it replaces
        "reboot": "always",
        "proxy": "http://pool:3128",
    }
    assert specs["gpu2"] == {
        "driver": {"branch": "580", "flavour": "open", "hold": False},
        "cuda": {"versions": ["12.8", "12.9"]},
        "reboot": "never",
        "proxy": "http://pool:3128",
    }
    assert specs["gpu3"]["driver"] == {"branch": "570", "flavour": "proprietary", "hold": False}


def test_the_group_priority_of_ansible_decides_between_siblings(tmp_path: Path) -> None:
    tree(
        tmp_path,
        {
            "hosts.yml": """\
            all:
              children:
                zeta: {hosts: {gpu1: {}}, vars: {gpunode_spec: {reboot: never, proxy: "http://z"}}}
                alpha:
                  hosts: {gpu1: {}}
                  vars: {ansible_group_priority: 10, gpunode_spec: {reboot: always}}
            """
        },
    )
    [host] = load_inventory([str(tmp_path / "hosts.yml")])
    assert host.spec == {"reboot": "always", "proxy": "http://z"}


def test_other_variables_keep_ansibles_way_to_replace(tmp_path: Path) -> None:
    tree(
        tmp_path,
        {
            "hosts.yml": """\
            all:
              vars: {where: {user: wrong, host: "10.9.9.9"}}
              hosts:
                gpu1:
                  where: {host: "10.0.0.1"}
                  ansible_host: "{{ where.host }}"
                  ansible_user: "{{ where.user | default('right') }}"
            """
        },
    )
    [host] = load_inventory([str(tmp_path / "hosts.yml")])
    assert (host.target.address, host.target.user) == ("10.0.0.1", "right")


def test_templates_are_filled_in_wherever_they_stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree(
        tmp_path,
        {
            "hosts.yml": """\
            all:
              hosts:
                bastion: {ansible_host: 192.0.2.1, ansible_port: 2200}
                gpu1: {number: 7}
              vars:
                ansible_host: "10.0.0.{{ number }}"
                ansible_user: "{{ lookup('env', 'GPU_USER') }}"
                branch: 580
                gpunode_spec:
                  driver: {branch: "{{ branch }}", hold: "{{ 1 == 1 }}"}
                  cuda: {versions: "{{ ['12.8', '13.0'] }}"}
                ansible_ssh_common_args: >-
                  -o ProxyJump={{ hostvars['bastion'].ansible_host }}:{{ hostvars.bastion.ansible_port }}
            """
        },
    )
    monkeypatch.setenv("GPU_USER", "ops")
    host = by_name(load_inventory([str(tmp_path / "hosts.yml")], limit="gpu1"))["gpu1"]
    assert (host.target.address, host.target.user) == ("10.0.0.7", "ops")
    assert host.target.ssh_args == (*DEFAULT_SSH_ARGS, "-o", "ProxyJump=192.0.2.1:2200")
    assert host.spec["cuda"] == {"versions": ["12.8", "13.0"]}
    assert host.spec["driver"] == {"branch": "580", "hold": True} or host.spec["driver"] == {
        "branch": 580,
        "hold": True,
    }
    assert {type(v) for v in (host.target.user, *host.target.ssh_args, host.spec["cuda"]["versions"][0])} == {str}


@pytest.mark.slow
def test_a_vault_file_and_a_vaulted_value_are_opened(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("sesame\n")
    tree(
        tmp_path,
        {
            "hosts.ini": "[pool]\ngpu1\n",
            "group_vars/pool/secret.yml": "ansible_become_password: hunter2\n",
            "group_vars/pool/main.yml": "ansible_become: true\nansible_user: ops\n",
        },
    )
    subprocess.run(
        [*VAULT, "encrypt", "--vault-password-file", password, tmp_path / "group_vars/pool/secret.yml"],
        check=True,
        capture_output=True,
    )
    inline = subprocess.run(
        [*VAULT, "encrypt_string", "--vault-password-file", password, "http://me:pw@proxy", "--name", "the_proxy"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    (tmp_path / "group_vars/pool/proxy.yml").write_text(f'{inline}gpunode_spec: {{proxy: "{{{{ the_proxy }}}}"}}\n')
    assert "hunter2" not in (tmp_path / "group_vars/pool/secret.yml").read_text()
    [host] = load_inventory([str(tmp_path / "hosts.ini")], vault_password_files=[str(password)])
    assert (host.target.become, host.target.become_password, host.target.user) == (True, "hunter2", "ops")
    assert host.spec == {"proxy": "http://me:pw@proxy"}
    assert "hunter2" not in repr(host)


@pytest.mark.slow
def test_a_vault_without_its_password_is_an_error_that_says_so(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("sesame\n")
    tree(tmp_path, {"hosts.ini": "gpu1\n", "group_vars/all.yml": "ansible_user: ops\n"})
    subprocess.run(
        [*VAULT, "encrypt", "--vault-password-file", password, tmp_path / "group_vars/all.yml"],
        check=True,
        capture_output=True,
    )
    with pytest.raises(InputError, match="vault"):
        load_inventory([str(tmp_path / "hosts.ini")])


def test_become_and_its_user_come_from_variables(tmp_path: Path) -> None:
    tree(
        tmp_path,
        {
            "hosts.yml": """\
            all:
              hosts:
                a: {ansible_become: "yes", ansible_become_user: gpuadmin, ansible_become_pass: pw}
                b: {ansible_become: "{{ false }}"}
                c: {ansible_become: true, ansible_become_method: doas}
                d: {ansible_become: true, ansible_become_method: ansible.builtin.sudo}
            """
        },
    )
    found = by_name(load_inventory([str(tmp_path / "hosts.yml")]))
    a, b, c, d = (found[name].target for name in "abcd")
    assert (a.become, a.become_user, a.become_password, a.connection) == (True, "gpuadmin", "pw", "ssh")
    assert (b.become, b.connection) == (False, "ssh")
    assert c.connection == "ssh, become by doas"
    assert (d.become, d.become_user, d.connection) == (True, "root", "ssh")


@pytest.mark.parametrize(
    ("variables", "connection"),
    [
        ({"ansible_connection": "ansible.builtin.ssh"}, "ssh"),
        ({"ansible_connection": "smart"}, "ssh"),
        ({"ansible_connection": "local"}, "local"),
        ({"ansible_connection": "containers.podman.podman"}, "containers.podman.podman"),
        ({"ansible_ssh_executable": "/opt/ssh"}, "ssh with ssh_executable"),
        ({"ansible_host_key_checking": False}, "ssh"),
    ],
)
def test_the_connection_says_whether_paramiko_can_serve_the_host(
    tmp_path: Path, variables: dict[str, object], connection: str
) -> None:
    import json

    (tmp_path / "hosts.json").write_text(json.dumps({"all": {"hosts": {"gpu1": variables}}}))
    [host] = load_inventory([str(tmp_path / "hosts.json")])
    assert host.target.connection == connection
    assert host.target.check_host_key is ("ansible_host_key_checking" not in variables)


def test_limit_takes_ansibles_patterns_and_several_inventories_add_up(tmp_path: Path) -> None:
    tree(tmp_path, {"a.ini": "[pool]\ngpu[1:3]\n", "b.ini": "[extra]\nbig\n"})
    sources = [str(tmp_path / "a.ini"), str(tmp_path / "b.ini"), "one.example,two.example,"]

    def names(limit: str) -> list[str]:
        return [h.name for h in load_inventory(sources, limit=limit)]

    assert names("") == ["one.example", "two.example", "gpu1", "gpu2", "gpu3", "big"]  # as `ansible --list-hosts`
    assert names("pool:!gpu2") == ["gpu1", "gpu3"]
    assert names("two*") == ["two.example"]


def test_an_inventory_folder_with_an_executable_source_is_read(tmp_path: Path) -> None:
    tree(
        tmp_path,
        {
            "inv/static.ini": "gpu1\n",
            "inv/dynamic.py": f"""\
            #!{sys.executable}
            print('{{"pool": {{"hosts": ["gpu9"]}}, "_meta": {{"hostvars": {{"gpu9": {{"ansible_port": 99}}}}}}}}')
            """,
            "inv/group_vars/all.yml": "ansible_user: ops\n",
        },
    )
    (tmp_path / "inv/dynamic.py").chmod(0o755)
    found = by_name(load_inventory([str(tmp_path / "inv")]))
    assert sorted(found) == ["gpu1", "gpu9"]
    assert (found["gpu9"].target.port, found["gpu9"].target.user) == (99, "ops")


def test_group_vars_of_the_current_folder_do_not_leak_in(tmp_path: Path) -> None:
    tree(tmp_path, {"inv/hosts.ini": "gpu1\n", "cwd/group_vars/all.yml": "ansible_user: stranger\n"})
    [host] = load_inventory([str(tmp_path / "inv/hosts.ini")])
    assert host.target.user == ""


TWO = "train: {hosts: {gpu-1: , gpu-2: }}\n"


@pytest.mark.parametrize(
    ("limit", "hosts"),
    [("gpu-*9", 0), ("~gpu.3", 0), ("gpu-*:!~.*2", 1), ("train[0]", 1), ("all:&train", 2)],
)
def test_a_limit_that_is_a_pattern_may_match_nothing_of_its_own(limit: str, hosts: int, tmp_path: Path) -> None:
    tree(tmp_path, {"hosts.yml": TWO})
    given = limit if hosts else f"{limit},gpu-1,gpu-2"
    assert len(load_inventory([str(tmp_path / "hosts.yml")], limit=given)) == (hosts or 2)


def test_a_file_with_a_comma_behind_it_is_no_list_of_hosts(tmp_path: Path) -> None:
    tree(tmp_path, {"hosts.yml": TWO})
    with pytest.raises(InputError, match="drop the comma"):
        load_inventory([f"{tmp_path}/hosts.yml,"])


@pytest.mark.parametrize(
    ("files", "limit", "says"),
    [
        ({}, "", "does not exist"),
        ({"hosts.yml": "all: {hosts: [\n"}, "", "hosts.yml:2:1: "),
        ({"hosts.yml": "all:\n  hosts:\n    a: {x: y\n    b:\n"}, "", r"hosts.yml:4:6: .*\n  4 \|     b:"),
        ({"hosts.yml": "gpus:\n  gpu1: {}\n"}, "", r"hosts.yml:2:3: the group gpus has the key 'gpu1'"),
        ({"hosts.yml": "a: &a [1]\nb: [*a, *a\n"}, "", "hosts.yml:3:1: "),
        (
            {"hosts.yml": "all: {hosts: {gpu1: {ansible_host: '{{ nowhere }}'}}}\n"},
            "",
            "host gpu1.*'nowhere' is undefined",
        ),
        ({"hosts.yml": "all: {hosts: {gpu1: {}}}\n"}, "gpu2", "matches --limit gpu2"),
        ({"hosts.yml": TWO}, "all:!gpu_1", "matches --limit gpu_1.*did you mean 'gpu-1'"),
        ({"hosts.yml": TWO}, "gpu-1,gpu-9", "matches --limit gpu-9"),
        ({"hosts.yml": TWO}, "gpu-1:&traim", "matches --limit traim.*did you mean 'train'"),
        ({"hosts.yml": TWO}, "@failed", "--limit @failed: there is no file failed"),
        ({"hosts.yml": TWO, "group_vars/train.yml": "a: 1\n  b: : c\n"}, "", r"^\S+/group_vars/train.yml:2:6: YAML"),
        ({"hosts.yml": "all: {hosts: {}}\n"}, "", "no host of inventory"),
        (
            {"hosts.yml": "all: {hosts: {gpu1: {gpunode_spec: [a]}}}\n"},
            "",
            r"gpunode_spec is no mapping: .*a.*, in \S+/hosts.yml:1:36.*each key on a line",
        ),
    ],
)
def test_a_broken_inventory_is_one_clear_error(tmp_path: Path, files: dict[str, str], limit: str, says: str) -> None:
    tree(tmp_path, files)
    with pytest.raises(InputError, match=f"(?s){says}") as caught:
        load_inventory([str(tmp_path / "hosts.yml")], limit=limit)
    assert caught.value.fix or caught.value.expected


def test_the_variables_of_a_target_lead_back_to_the_same_target(tmp_path: Path) -> None:
    import json

    target = Target(
        name="gpu1",
        address="10.0.0.1",
        port=2222,
        user="ops",
        keys=("/keys/id",),
        ssh_args=("-F", "/etc/my config"),
        become=True,
        become_password="pw",
    )
    (tmp_path / "hosts.json").write_text(json.dumps({"all": {"hosts": {"gpu1": inventory_vars(target)}}}))
    [host] = load_inventory([str(tmp_path / "hosts.json")])
    assert host.target == Target(**{**vars(target), "ssh_args": (*DEFAULT_SSH_ARGS, *target.ssh_args)})


def test_an_inventory_of_the_current_folder_has_the_variables_next_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree(
        tmp_path,
        {
            "hosts.yml": "all: {hosts: {gpu1: {}}}\n",
            "host_vars/gpu1.yml": "ansible_host: 10.0.0.1\n",
            "group_vars/all.yml": "gpunode_spec: {reboot: never}\n",
        },
    )
    monkeypatch.chdir(tmp_path)
    (host,) = load_inventory(["hosts.yml"])
    assert (host.target.address, host.spec) == ("10.0.0.1", {"reboot": "never"})
