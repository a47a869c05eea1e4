"""paramiko against a real sshd on loopback."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sshd import Sshd, free_port, keygen

from gpunode.core.errors import Exit, GpunodeError, UnreachableError
from gpunode.core.remote import program
from gpunode.edge.ssh import shell
from gpunode.edge.ssh.connection import NotServed, connect
from gpunode.edge.ssh.many import Reach, run_many
from gpunode.edge.ssh.shell import Target, local_run, parse_host


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    sshd = Sshd(tmp_path_factory.mktemp("sshd"))
    yield sshd
    sshd.stop()


@pytest.fixture
def known_hosts(server: Sshd) -> Iterator[Path]:
    """The client's known_hosts, put back as it was."""
    before = server.known_hosts.read_bytes()
    yield server.known_hosts
    server.known_hosts.write_bytes(before)


def failure(target: Target, **options: object) -> UnreachableError:
    with pytest.raises(UnreachableError) as caught, connect(target, **options) as connection:  # type: ignore[arg-type]
        connection.run("true")
    assert caught.value.exit == Exit.UNREACHABLE
    return caught.value


def test_a_program_runs_and_its_status_and_both_outputs_come_back(server: Sshd) -> None:
    with connect(server.target()) as connection:
        assert connection.run("echo out; echo err >&2; exit 3") == (3, "out\n", "err\n")


def test_a_request_travels_with_the_script(server: Sshd) -> None:
    data = bytes(range(256)) * 400
    text = program('wc -c <"$GPUNODE_IN/data"; ls "$GPUNODE_IN"; stat -c %a "$GPUNODE_IN"', {"data": data})
    with connect(server.target()) as connection:
        rc, out, _ = connection.run(text)
    assert (rc, out.split()) == (0, ["102400", "data", "700"])


def test_a_large_output_comes_back_whole(server: Sshd) -> None:
    with connect(server.target()) as connection:
        rc, out, err = connection.run(
            "head -c 5000000 /dev/zero | tr '\\0' x; head -c 300000 /dev/zero | tr '\\0' y >&2"
        )
    assert (rc, out, err) == (0, "x" * 5000000, "y" * 300000)


def test_twenty_hosts_are_asked_at_the_same_time_and_answer_in_order(server: Sshd, tmp_path: Path) -> None:
    """Each host ends only when all twenty are there."""
    targets = [server.target(name=f"node{i}") for i in range(20)]
    done: list[str] = []
    meet = f"touch {tmp_path}/$$; until [ $(ls {tmp_path} | wc -l) -ge 20 ]; do sleep 0.1; done; echo $SSH_CONNECTION"
    programs = [(target, meet) for target in targets]
    ran = run_many(programs, on_done=lambda r: done.append(r.target.name), reach=Reach(connect_timeout=60))
    assert [(r.target, r.rc, r.error) for r in ran] == [(t, 0, None) for t in targets]
    assert len({r.stdout for r in ran}) == 20
    assert sorted(done) == sorted(t.name for t in targets)


def test_one_broken_host_does_not_keep_the_others_from_answering(server: Sshd) -> None:
    dead = server.target(name="dead", port=free_port())
    ran = run_many([(dead, "echo alive"), (server.target(), "echo alive")])
    assert [r.stdout for r in ran] == ["", "alive\n"]
    assert isinstance(ran[0].error, UnreachableError)


def test_hosts_that_paramiko_cannot_serve_are_asked_over_ansibles_connection(tmp_path: Path) -> None:
    inventory = tmp_path / "hosts.ini"
    inventory.write_text("one ansible_connection=local\ntwo ansible_connection=local\n")
    programs = {"here": "echo here", "one": "echo one; echo why >&2; exit 3", "two": "echo two"}
    kinds = {"here": "local", "one": "podman", "two": "podman"}
    done: list[str] = []
    ran = run_many(
        [(Target(name=name, connection=kinds[name]), text) for name, text in programs.items()],
        reach=Reach(inventory=(str(inventory),)), on_done=lambda one: done.append(one.target.name),
    )  # fmt: skip
    assert [(one.rc, one.stdout, one.stderr, one.error) for one in ran] == [
        (0, "here\n", "", None), (3, "one\n", "why\n", None), (0, "two\n", "", None),
    ]  # fmt: skip
    assert done == ["here", "one", "two"]


def test_ansibles_own_words_come_back_when_it_fails_too() -> None:
    target = Target(name="dead", address="127.0.0.1", port=free_port(), connection="ssh, become by doas")
    [ran] = run_many([(target, "true")], reach=Reach(connect_timeout=2))
    assert isinstance(ran.error, UnreachableError)
    assert "dead: Ansible" in ran.error.what


# ---------------------------------------------------------------- host keys


def test_an_unknown_host_key_is_refused_with_its_fingerprint(server: Sshd, known_hosts: Path) -> None:
    known_hosts.write_text("")
    error = failure(server.target())
    fingerprint = subprocess.check_output(["ssh-keygen", "-lf", f"{server.host_key}.pub"], text=True).split()[1]
    assert error.what == f"node: the host key ssh-ed25519 {fingerprint} is unknown"
    assert f"[127.0.0.1]:{server.port}" in error.expected
    assert str(known_hosts) in error.expected
    assert "--accept-new-host-keys" in error.fix
    assert known_hosts.read_text() == ""


@pytest.mark.parametrize("hashed", ["yes", "no"])
def test_an_unknown_host_key_is_added_when_asked_for_and_ssh_itself_then_knows_it(
    server: Sshd, known_hosts: Path, hashed: str
) -> None:
    known_hosts.write_text("# no newline at the end")
    target = server.target(f"HashKnownHosts {hashed}")
    with connect(target, accept_new=True) as connection:
        assert connection.run("echo in")[1] == "in\n"
    lines = known_hosts.read_text().splitlines()
    assert len(lines) == 2
    assert lines[1].startswith("|1|" if hashed == "yes" else f"[127.0.0.1]:{server.port} ")
    found = subprocess.run(
        ["ssh-keygen", "-F", f"[127.0.0.1]:{server.port}", "-f", known_hosts], capture_output=True, text=True
    )
    assert server.host_public in found.stdout
    with connect(target) as connection:  # a second time without asking
        assert connection.run("echo in")[1] == "in\n"
    assert known_hosts.read_text().splitlines() == lines


def test_a_hashed_known_host_is_recognised(server: Sshd, known_hosts: Path) -> None:
    subprocess.run(["ssh-keygen", "-H", "-f", known_hosts], check=True, capture_output=True)
    assert known_hosts.read_text().startswith("|1|")
    with connect(server.target()) as connection:
        assert connection.run("true") == (0, "", "")


@pytest.mark.parametrize("accept_new", [False, True])
def test_a_changed_host_key_is_always_refused_and_the_message_says_where_the_old_one_is(
    server: Sshd, known_hosts: Path, tmp_path: Path, accept_new: bool
) -> None:
    other = Path(f"{keygen(tmp_path / 'other')}.pub").read_text().split()
    known_hosts.write_text(f"# comment\n[127.0.0.1]:{server.port} {other[0]} {other[1]}\n")
    before = known_hosts.read_text()
    error = failure(server.target("StrictHostKeyChecking accept-new"), accept_new=accept_new)
    assert "the host key has changed" in error.what
    assert f"from {known_hosts} line 2" in error.expected
    assert f"ssh-keygen -f {known_hosts} -R '[127.0.0.1]:{server.port}'" in error.fix
    assert known_hosts.read_text() == before


def test_a_revoked_host_key_is_refused(server: Sshd, known_hosts: Path) -> None:
    known_hosts.write_text(f"@revoked * {server.host_public}\n" + known_hosts.read_text())
    error = failure(server.target())
    assert f"revoked in {known_hosts} line 1" in error.what


def test_a_host_known_by_a_certificate_authority_is_left_to_ssh(server: Sshd, known_hosts: Path) -> None:
    known_hosts.write_text(f"@cert-authority * {server.host_public}\n")
    error = failure(server.target())
    assert isinstance(error, NotServed)
    assert "certificate authority" in error.what


def test_a_host_known_without_its_port_is_known_as_ssh_knows_it(server: Sshd, known_hosts: Path) -> None:
    known_hosts.write_text(f"127.0.0.1 {server.host_public}\n")
    with connect(server.target()) as connection:
        assert connection.run("true") == (0, "", "")


def test_a_host_known_by_other_keys_with_its_port_is_not_excused_by_the_entry_without(
    server: Sshd, known_hosts: Path, tmp_path: Path
) -> None:
    other = " ".join(Path(f"{keygen(tmp_path / 'other')}.pub").read_text().split()[:2])
    known_hosts.write_text(f"[127.0.0.1]:{server.port} {other}\n127.0.0.1 {server.host_public}\n")
    assert "the host key has changed" in failure(server.target()).what


def test_a_key_alias_of_ssh_config_names_the_known_host(server: Sshd, known_hosts: Path) -> None:
    known_hosts.write_text(f"alias {server.host_public}\n")
    with connect(server.target("HostKeyAlias alias")) as connection:
        assert connection.run("true") == (0, "", "")


# ---------------------------------------------------------------- getting in


def test_a_key_that_is_not_allowed_is_named_in_the_message(server: Sshd, tmp_path: Path) -> None:
    wrong = keygen(tmp_path / "wrong")
    args = ("-F", "none", "-o", f"UserKnownHostsFile={server.known_hosts}")
    error = failure(server.target(keys=(str(wrong),), ssh_args=args))
    assert f"does not let {getpass.getuser()} in" in error.what
    assert str(wrong) in error.what
    assert "ssh-copy-id" in error.fix


@pytest.mark.parametrize("by", ["variable", "ssh_config", "no one"])
def test_a_named_key_file_that_is_not_there_is_named_in_the_message(server: Sshd, tmp_path: Path, by: str) -> None:
    """Of its own key files, where nobody names one, ssh(1) passes over those that are not there, too."""
    gone, config = tmp_path / "id_ed25519", tmp_path / "config"
    config.write_text(f"UserKnownHostsFile {server.known_hosts}\nIdentityAgent none\n")
    if by == "ssh_config":
        config.write_text(config.read_text() + f"IdentityFile {gone}\n")
    target = server.target(keys=(str(gone),) if by == "variable" else (), ssh_args=("-F", str(config)))
    what = failure(target).what
    assert (f"tried: {gone} (there is no such file)" in what) == (by != "no one")
    assert ("no such file" in what) == (by != "no one")


def test_an_encrypted_key_is_said_to_be_so_and_opens_with_its_passphrase(server: Sshd, tmp_path: Path) -> None:
    allowed = server.folder / "authorized_keys"
    before = allowed.read_text()
    locked = keygen(tmp_path / "locked", passphrase="open sesame")
    allowed.write_text(Path(f"{locked}.pub").read_text())
    try:
        args = ("-F", "none", "-o", f"UserKnownHostsFile={server.known_hosts}")
        target = server.target(keys=(str(locked),), ssh_args=args)
        assert f"{locked} (encrypted: ssh-add it)" in failure(target).what
        with connect(replace(target, password="open sesame")) as connection:
            assert connection.run("true") == (0, "", "")
    finally:
        allowed.write_text(before)


def test_a_key_of_the_agent_gets_in(server: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sock = tmp_path / "agent"
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", sock], stdout=subprocess.DEVNULL)
    try:
        while not sock.exists():
            time.sleep(0.05)
        monkeypatch.setenv("SSH_AUTH_SOCK", str(sock))
        subprocess.run(["ssh-add", "-q", server.key], check=True)
        public_only = tmp_path / "user"
        shutil.copy(f"{server.key}.pub", f"{public_only}.pub")
        public_only.write_text("not a private key")
        args = ("-F", "none", "-o", f"UserKnownHostsFile={server.known_hosts}", "-o", "IdentitiesOnly=yes")
        with connect(server.target(ssh_args=args, keys=(str(public_only),))) as connection:
            assert connection.run("true") == (0, "", "")
    finally:
        agent.terminate()
        agent.wait()


# ---------------------------------------------------------------- not getting there


def test_a_closed_port_is_said_to_refuse() -> None:
    port = free_port()
    error = failure(Target(name="gone", address="127.0.0.1", port=port, ssh_args=("-F", "none")))
    assert error.what == f"gone: 127.0.0.1 port {port} refuses connections"
    assert "ansible_port" in error.fix


def test_a_name_that_does_not_resolve_is_said_to_be_so() -> None:
    error = failure(Target(name="no-such-host.invalid", ssh_args=("-F", "none")))
    assert "no-such-host.invalid port 22: the name does not resolve" in error.what


@pytest.mark.timeout(60)
def test_a_listener_that_never_answers_ends_by_the_timeout() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        target = Target(name="silent", address="127.0.0.1", port=silent.getsockname()[1], ssh_args=("-F", "none"))
        error = failure(target, timeout=1)
    assert "no SSH server talks" in error.what


def test_something_that_is_no_ssh_server_is_said_to_be_so() -> None:
    with socket.socket() as web:
        web.bind(("127.0.0.1", 0))
        web.listen()
        target = Target(name="web", address="127.0.0.1", port=web.getsockname()[1], ssh_args=("-F", "none"))
        import threading

        def answer() -> None:
            peer, _ = web.accept()
            peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            peer.close()

        threading.Thread(target=answer, daemon=True).start()
        assert "no SSH server talks" in failure(target, timeout=2).what


def test_a_mistake_in_ssh_config_is_shown(server: Sshd) -> None:
    error = failure(server.target("NoSuchKeyword yes"))
    assert "nosuchkeyword" in error.what.lower()


# ---------------------------------------------------------------- jump hosts


def test_a_jump_host_leads_to_many_nodes_and_is_logged_into_once(tmp_path: Path) -> None:
    sshd = Sshd(tmp_path, "LogLevel VERBOSE")
    try:
        target = sshd.target(
            "Host bastion", "HostName 127.0.0.1", f"Port {sshd.port}", f"User {getpass.getuser()}", "Host *"
        )
        target = replace(target, ssh_args=(*target.ssh_args, "-J", "bastion"))
        nodes = [replace(target, name=f"node{i}") for i in range(6)]
        ran = run_many([(node, "echo in") for node in nodes], reach=Reach(connect_timeout=30))
        assert [(r.stdout, r.error) for r in ran] == [("in\n", None)] * 6
        assert (tmp_path / "log").read_text().count("Accepted publickey") == 6 + 1
    finally:
        sshd.stop()


def test_a_jump_host_that_cannot_be_reached_is_named(server: Sshd) -> None:
    target = server.target()
    error = failure(replace(target, ssh_args=(*target.ssh_args, "-J", f"127.0.0.1:{free_port()}")))
    assert error.what.startswith("node: jump host 127.0.0.1: ")
    assert "refuses connections" in error.what


def test_jump_hosts_that_lead_in_a_circle_end(server: Sshd) -> None:
    circle = ("Host a", "ProxyJump b", "Host b", "ProxyJump a", "Host *", "ProxyJump a")
    error = failure(server.target(*circle), timeout=2)
    assert "jump hosts lead in a circle" in error.what


def test_a_proxy_command_runs_in_a_shell_with_its_tokens_filled_in(server: Sshd) -> None:
    relay = "python3 -c 'import socket,sys,threading,os;s=socket.create_connection((sys.argv[1],int(sys.argv[2])));"
    relay += (
        'threading.Thread(target=lambda:[s.sendall(d) for d in iter(lambda:os.read(0,65536),b"")],daemon=True).start();'
    )
    relay += '[os.write(1,d) for d in iter(lambda:s.recv(65536),b"")]\' %%h %%p'
    with connect(server.target(f"ProxyCommand {relay.replace('%%', '%')}")) as connection:
        assert connection.run("echo through") == (0, "through\n", "")


def test_a_proxy_command_that_fails_shows_its_words(server: Sshd) -> None:
    error = failure(server.target("ProxyCommand echo no way >&2; false"), timeout=5)
    assert "no way" in error.what


# ---------------------------------------------------------------- bounds


@pytest.mark.timeout(60)
def test_a_program_that_hangs_ends_by_the_timeout(server: Sshd) -> None:
    with connect(server.target()) as connection, pytest.raises(UnreachableError, match="did not end within 1 s"):
        connection.run("sleep 1000", timeout=1)


def test_a_process_left_behind_is_not_waited_for(server: Sshd) -> None:
    with connect(server.target()) as connection:
        assert connection.run("sleep 1000 & echo done", timeout=15) == (0, "done\n", "")


@pytest.mark.parametrize("way", ["ssh", "local"])
def test_endless_output_is_cut_off_with_an_error(server: Sshd, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    monkeypatch.setattr(shell, "OUTPUT_LIMIT", 1 << 20)
    monkeypatch.setattr("gpunode.edge.ssh.connection.OUTPUT_LIMIT", 1 << 20)
    target = server.target() if way == "ssh" else Target(name="here", connection="local")
    [ran] = run_many([(target, "while :; do echo xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; done")])
    assert isinstance(ran.error, GpunodeError)
    assert "more than 1 MiB" in ran.error.what


# ---------------------------------------------------------------- this machine


def test_a_program_runs_on_this_machine() -> None:
    assert local_run("echo out; echo err >&2; exit 3") == (3, "out\n", "err\n")


@pytest.mark.timeout(60)
def test_a_local_program_that_hangs_ends_with_all_its_children(tmp_path: Path) -> None:
    with pytest.raises(UnreachableError, match="did not end within 1 s"):
        local_run(f"sleep 1000 & echo $! >{tmp_path}/child; wait", timeout=1)
    stat = Path("/proc", (tmp_path / "child").read_text().strip(), "stat")
    while stat.exists() and ") Z" not in stat.read_text():
        time.sleep(0.05)


def test_root_needs_no_sudo_to_be_root(server: Sshd) -> None:
    if os.geteuid() != 0:
        pytest.skip("logs in as the current user, who must be root")
    with connect(server.target(become=True, become_password="x")) as connection:
        assert connection.run("id -un; cat") == (0, "root\n", "")


# ---------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("text", "user", "address", "port"),
    [
        ("gpu1", "", "gpu1", None),
        ("ops@gpu1:2222", "ops", "gpu1", 2222),
        ("ssh://ops@gpu1", "ops", "gpu1", None),
        ("ops@[fe80::1]:22", "ops", "fe80::1", 22),
        ("fe80::1", "", "fe80::1", None),
    ],
)
def test_a_host_is_read_as_ssh_reads_it(text: str, user: str, address: str, port: int | None) -> None:
    target = parse_host(text)
    assert (target.user, target.address, target.port) == (user, address, port)


@pytest.mark.parametrize("text", ["", "gpu1:ssh", "-oProxyCommand=x", "a b", "ops@"])
def test_what_is_no_host_is_refused(text: str) -> None:
    with pytest.raises(GpunodeError) as caught:
        parse_host(text)
    assert caught.value.exit == Exit.INPUT


def test_paramiko_comes_without_what_it_brings_for_files_that_ssh_reads_here() -> None:
    """`invoke` imports unittest and asyncio for `Match exec`: a third of the time."""
    code = "import sys, gpunode.edge.ssh.connection, paramiko; print({'asyncio', 'unittest', 'ssl'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
