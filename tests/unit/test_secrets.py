"""Secrets of a spec, planted in every key that can have one: they reach the node, and are written down nowhere."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from gpunode.core.errors import Exit, GpunodeError, InputError, RefusedError
from gpunode.core.facts import facts_hash, masked_hash, parse_probe, shown_facts
from gpunode.core.items.engine import changed_files
from gpunode.core.model import ConfigFile, NodeFacts
from gpunode.core.plan import class_key
from gpunode.core.plan.since import state_of
from gpunode.core.plan.steps import role_variables
from gpunode.core.report.text import Detail, plan_data, plan_text
from gpunode.core.secrets import Secrets, Vaulted, is_recorded, open_recorded, seal_spec
from gpunode.core.spec import parse_spec
from gpunode.edge import saved
from gpunode.edge.ansible.runner import HostRun, run_playbook
from gpunode.edge.desired import DesiredState, with_secrets
from gpunode.edge.detect import Targets
from gpunode.edge.fleet import workflow
from gpunode.edge.fleet.driver import RunOptions
from gpunode.edge.fleet.provision import provision
from gpunode.edge.fleet.runs import Runs
from gpunode.edge.secrets import handed_over, received
from gpunode.edge.ssh.shell import Target

CASES = Path(__file__).parents[1] / "cases" / "probes"
FRESH = CASES / "debian12-h100-fresh" / "probe.txt"
CANARY = "C4n4ryPw"  # in every secret below
SECRET_SPEC: dict[str, Any] = {
    "proxy": f"http://me:{CANARY}1@proxy.lan:3128",
    "sources": {
        "nvidia-cuda": {
            "url": f"https://u:{CANARY}2@mirror.lan/{{dir}}/{{arch}}/?token={CANARY}3",
            "key": f"https://u:{CANARY}4@mirror.lan/key.asc",
            "fingerprint": "AB" * 20,
        }
    },
    "cuda": {
        "versions": ["12.8"],
        "method": "runfile",
        "runfiles": {"12.8": {"url": f"https://{CANARY}5@mirror.lan/{{version}}.run", "sha256": "ab" * 32}},
    },
}
ALL = {"proxy", "sources.nvidia-cuda.url", "sources.nvidia-cuda.key", "cuda.runfiles.12.8.url"}


def holds(folder: Path) -> list[str]:
    """Files below the folder that have a canary."""
    return [str(path) for path in folder.rglob("*") if path.is_file() and CANARY.encode() in path.read_bytes()]


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """No key is fetched; the specs that keys were asked for with."""
    asked: list[Any] = []
    monkeypatch.setattr("gpunode.edge.load.resolve_key", lambda _repository, spec: asked.append(spec) or b"a key\n")
    return asked


# ---------------------------------------------------------------- references


def test_every_key_that_may_have_a_secret_gets_a_reference_and_opens_to_what_it_was() -> None:
    sealed, secrets = seal_spec(SECRET_SPEC)
    assert CANARY not in json.dumps(sealed) and CANARY not in repr(secrets)
    assert {
        reference[len("secret(gpunode_spec.") :].partition(")")[0].partition(",")[0] for reference in secrets.values
    } == ALL
    assert sealed["proxy"] == "http://secret(gpunode_spec.proxy)@proxy.lan:3128"
    assert secrets.open_data(sealed) == SECRET_SPEC
    assert secrets.open_spec(parse_spec(sealed)) == parse_spec(SECRET_SPEC)


def test_a_url_out_of_a_vault_is_a_secret_as_a_whole_but_for_its_placeholders() -> None:
    data = {"sources": {"nvidia-cuda": {"url": Vaulted("https://hidden.lan/a/{dir}/b/{arch}/")}}}
    sealed, secrets = seal_spec(data)
    url = sealed["sources"]["nvidia-cuda"]["url"]
    assert "hidden" not in url and "{dir}" in url and "{arch}" in url
    assert secrets.open(url) == data["sources"]["nvidia-cuda"]["url"]
    filled = url.replace("{dir}", "debian12").replace("{arch}", "x86_64")
    there = NodeFacts(files={"/a": ConfigFile(path="/a", data=b"URIs: https://hidden.lan/a/debian12/b/x86_64/\n")})
    assert secrets.seal_facts(there).files["/a"].data == f"URIs: {filled}\n".encode()


@pytest.mark.parametrize(
    "data",
    [
        {"driver": {"branch": Vaulted("580")}},
        {"verify": {"image": Vaulted("registry.lan/busybox")}},
        {"kubernetes": {"gpushare": {"extender_url": f"http://me:{CANARY}@x/"}}},
        {"sources": {"nvidia-cuda": {"key": Vaulted("/root/key.asc")}}},
    ],
)
def test_a_secret_in_a_key_that_plans_show_is_refused_without_its_value(data: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="is a secret") as caught:
        seal_spec(data)
    assert CANARY not in str(caught.value)


def test_a_reference_opens_only_at_its_own_key_and_never_without_its_secret() -> None:
    _, secrets = seal_spec(SECRET_SPEC)
    elsewhere = {"verify": {"image": "secret(gpunode_spec.proxy)"}}
    assert open_recorded(elsewhere, secrets) == elsewhere
    with pytest.raises(RefusedError, match=r"gpunode_spec\.proxy is not set here"):
        Secrets().open("http://secret(gpunode_spec.proxy)@proxy.lan")
    with pytest.raises(InputError, match="proxy refers to a secret that is not known here"):
        DesiredState({"proxy": "http://secret(gpunode_spec.proxy)@proxy.lan"}).spec()


PASSWORD = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="@/<>\"'{}?"), min_size=4)


@given(PASSWORD.filter(lambda user: ":" not in user), PASSWORD)
def test_any_user_and_password_is_sealed_in_any_text_and_opens_again(user: str, password: str) -> None:
    proxy = f"http://{user}:{password}@h:1"
    sealed, secrets = seal_spec({"proxy": proxy})
    assert secrets.open(sealed["proxy"]) == proxy
    assert secrets._referred(f"x {proxy} y") == f"x {sealed['proxy']} y"
    assert password not in secrets.seal(f"cannot reach {proxy}: nonnumeric port: '{password}@h'").replace(
        "secret(gpunode_spec.proxy)", ""
    )


# ---------------------------------------------------------------- plans


def planned(spec: dict[str, Any], over: dict[str, Any] | None = None, facts: NodeFacts | None = None) -> Any:
    return DesiredState(spec).plan("gpu1", facts or parse_probe(FRESH.read_text()), over)


@pytest.mark.parametrize("where", ["gpunode.yml", "inventory"])
def test_a_plan_refers_to_secrets_and_what_the_controller_fetches_itself_has_them(keys: list[Any], where: str) -> None:
    found = planned(SECRET_SPEC) if where == "gpunode.yml" else planned({}, SECRET_SPEC)
    assert {s.id for s in found.plan.steps} >= {"driver.sources", "driver.packages", "cuda.runfile"}
    written = json.dumps([plan_data(found.plan), role_variables(found.plan)]) + plan_text(
        found.plan, detail=Detail(why=True, sources=True, diff=True)
    )
    assert CANARY not in written + repr(found)
    assert "secret(gpunode_spec.proxy)" in written
    assert keys and all(spec == parse_spec(SECRET_SPEC) for spec in keys)


def config_file(path: str, text: str) -> ConfigFile:
    data = text.encode()
    return ConfigFile(path=path, data=data, sha256=hashlib.sha256(data).hexdigest(), size=len(data))


def test_another_secret_on_the_node_is_found_and_the_right_one_is_not(keys: list[Any]) -> None:
    facts = parse_probe(FRESH.read_text())
    secrets = seal_spec(SECRET_SPEC)[1]
    [sources] = [s for s in planned(SECRET_SPEC).plan.steps if s.id == "driver.sources"]
    ours = "/etc/apt/sources.list.d/gpunode-nvidia-cuda.sources"
    modes = {file["path"]: file["mode"] for file in sources.value}
    assert modes.pop(ours) == "0600" and set(modes.values()) == {"0644"}
    files = {file["path"]: config_file(file["path"], secrets.open(file["content"])) for file in sources.value}
    files[ours] = replace(files[ours], mode=0o600)
    done = replace(facts, files={**facts.files, **files})

    def to_write(spec: dict[str, Any]) -> set[str]:
        steps = planned(spec, facts=done).plan.steps
        return {file["path"] for step in steps if step.id == "driver.sources" for file in step.value}

    assert ours in files and ours not in to_write(SECRET_SPEC)
    other = json.loads(json.dumps(SECRET_SPEC).replace(f"{CANARY}2", f"{CANARY}9"))
    assert ours in to_write(other)


def test_hosts_with_other_passwords_share_a_play(keys: list[Any]) -> None:
    other = json.loads(json.dumps(SECRET_SPEC).replace(CANARY, "0ther"))
    assert class_key(planned({}, SECRET_SPEC).plan) == class_key(planned({}, other).plan)


def test_no_hash_in_a_plan_or_a_state_changes_with_the_secret(keys: list[Any]) -> None:
    facts = parse_probe(FRESH.read_text())

    def kept(password: str) -> Any:
        spec = json.loads(json.dumps(SECRET_SPEC).replace(CANARY, password))
        text = f"URIs: https://u:{password}2@mirror.lan/debian12/\n"
        file = config_file("/etc/apt/sources.list.d/x.sources", text)
        found = planned(spec, facts=replace(facts, files={**facts.files, file.path: file}))
        return plan_data(found.plan), state_of(found.facts), facts_hash(found.facts)

    assert kept("short") == kept("another-one")


ON_THE_NODE = {  # a person's own secrets, which no gpunode.yml has: path, text
    "/etc/docker/daemon.json": '{"log-driver": "splunk", "log-opts": {"splunk-token": "PW"}, "runtimes": {}}',
    "/etc/containerd/config.toml": 'version = 2\n[plugins."io.containerd.grpc.v1.cri".registry.configs."r".auth]\n'
    '  username = "me"\n  password = "PW"\n',
    "/etc/apt/apt.conf.d/95proxy": 'Acquire::http::Proxy "http://me:PW@proxy.lan:3128";\n',
    "/etc/apt/sources.list.d/x.sources": "URIs: https://u:PW@mirror.lan/\n",
}


def with_files(facts: NodeFacts, password: str, more: str = "") -> NodeFacts:
    """A node whose engines read files with a person's secrets."""
    files = {path: config_file(path, text.replace("PW", password) + more) for path, text in ON_THE_NODE.items()}
    flags = (f"--label=token={password}",)
    error = f'[r.auth]\n  password = "{password}"\n'
    runtimes = tuple(
        replace(r, flags=flags, effective_error="" if r.name in ("docker", "containerd") else error)
        for r in facts.runtimes  # what its own daemon refuses is refused
    )
    return replace(facts, runtimes=runtimes, files={**facts.files, **files})


def kept_of(facts: NodeFacts) -> str:
    """All that leaves the controller's memory of a node's files: plan, playbook, state of a run, shown facts."""
    found = planned({"sources": {"nvidia-cuda": {"url": "https://mirror.lan"}}}, facts=facts)
    edits = [step for step in found.plan.steps if step.id == "runtime.edits"]
    assert edits and all(value["expect"] for step in edits for value in step.value)
    assert set(tuple(ON_THE_NODE)[:2]) <= set(found.plan.files)
    data = plan_data(found.plan)
    return json.dumps([data, role_variables(found.plan), state_of(facts), facts_hash(facts), shown_facts(facts)])


def test_no_hash_of_a_nodes_file_lets_anybody_try_passwords(keys: list[Any]) -> None:
    facts = parse_probe((CASES / "debian12-stock-engines" / "probe.txt").read_text())
    assert facts.runtimes
    kept = kept_of(with_files(facts, "first-one"))
    assert kept == kept_of(with_files(facts, "another"))
    assert kept != kept_of(with_files(facts, "first-one", more=" \n")), "a file that changed is still found"


def test_hosts_that_differ_where_a_secret_is_suspected_have_plans_of_their_own(keys: list[Any]) -> None:
    facts, planner = parse_probe((CASES / "debian12-stock-engines" / "probe.txt").read_text()), DesiredState({})

    def edits(setting: str) -> Any:
        text = f'# password = "\nversion = 2\n{setting}\n# "\n'  # all between the quotes is taken for a secret
        file = config_file("/etc/containerd/config.toml", text)
        plan = planner.plan("gpu1", replace(facts, files={**facts.files, file.path: file})).plan
        return plan.problems, [step.value for step in plan.steps if step.id == "runtime.edits"]

    good, bad = edits("imports = []"), edits("imports = 1")
    assert good[1] and bad != good


def test_a_file_changed_since_the_plan_only_where_more_than_its_secret_did(keys: list[Any]) -> None:
    facts = with_files(NodeFacts(), "first-one")
    expect = {path: masked_hash(file) for path, file in facts.files.items()}
    assert all(expect[path] != file.sha256 for path, file in facts.files.items())
    assert changed_files(expect, with_files(NodeFacts(), "another")) == []
    assert changed_files(expect, with_files(NodeFacts(), "another", more=" ")) == list(ON_THE_NODE)
    assert changed_files(expect, NodeFacts()) == list(ON_THE_NODE)
    plain = config_file("/a", "no secret\n")
    assert masked_hash(plain) == plain.sha256


# ---------------------------------------------------------------- what is written


def host_plans(desired: DesiredState, over: dict[str, Any]) -> list[workflow.HostPlan]:
    [found] = workflow.detect(Targets(probes=(FRESH,)))
    return [workflow.plan_one(replace(found, spec=over), desired)]


@pytest.mark.parametrize(("spec", "over"), [(SECRET_SPEC, {}), ({}, SECRET_SPEC)], ids=["gpunode.yml", "inventory"])
def test_no_plan_folder_has_a_secret(
    keys: list[Any], tmp_path: Path, spec: dict[str, Any], over: dict[str, Any]
) -> None:
    desired = DesiredState(spec)
    hosts = host_plans(desired, over)
    inventory = tmp_path / "hosts.yml"
    inventory.write_text("all: {hosts: {gpu1: {}}}\n")
    where = Targets(inventory=(str(inventory),))
    workflow.write_plan(tmp_path / "plan", hosts, where, desired)
    assert holds(tmp_path / "plan") == []
    assert "secret(gpunode_spec.proxy)" in (tmp_path / "plan" / "playbook.yml").read_text()
    recorded = saved.load_plan(tmp_path / "plan")
    assert with_secrets(recorded.spec, SECRET_SPEC) == spec


def test_no_output_of_the_command_line_has_a_secret(keys: list[Any], tmp_path: Path) -> None:
    from gpunode.cli.main import cli

    config, folder = tmp_path / "gpunode.yml", tmp_path / "out"
    config.write_text(json.dumps(SECRET_SPEC))
    for words in (
        ["plan", "--diff"],
        ["plan", "--format", "json"],
        ["plan", "-o", str(folder)],
    ):
        done = CliRunner().invoke(cli, [*words, "--probe", str(FRESH), "-c", str(config)])
        assert "debian12-h100-fresh" in done.output and CANARY not in done.output, words
    for source in (["--plan", str(folder)], ["--from", str(FRESH.parent), "-c", str(config)]):
        for kind in ("text", "json", "html", "junit"):
            assert CANARY not in CliRunner().invoke(cli, ["report", *source, "--format", kind]).output
    assert holds(folder) == []


@pytest.mark.parametrize(
    "bad",
    [
        {"driver": {"runfile": {"url": f"ftp://me:{CANARY}@mirror.lan/x.run"}}},
        {"proxy": [f"http://me:{CANARY}@proxy.lan"]},
        {"driver": f"http://me:{CANARY}@proxy.lan"},
        {"reboot": f"http://me:{CANARY}@proxy.lan"},
    ],
)
def test_no_message_about_a_wrong_spec_has_a_password(bad: dict[str, Any]) -> None:
    with pytest.raises(GpunodeError) as caught:
        parse_spec(bad)
    assert CANARY not in f"{caught.value} {caught.value!r}"


# ---------------------------------------------------------------- runs


def test_secrets_are_handed_over_in_memory_and_gone_afterwards() -> None:
    secrets = seal_spec(SECRET_SPEC)[1]
    with handed_over(secrets) as (_option, word):
        assert CANARY not in word
        path = word.partition("=")[2]
        reader = "import sys; from gpunode.edge.secrets import received; print(dict(received(sys.argv[1]).values))"
        read = subprocess.run([sys.executable, "-c", reader, path], capture_output=True, text=True, check=True)
        assert read.stdout == f"{dict(secrets.values)}\n"
    with pytest.raises(InputError):
        received(path)
    with handed_over(Secrets()) as words:
        assert words == []


TASKS = [
    {"gpunode.node.packages": {"packages": {"install": [], "remove": ["no-such-package"], "proxy": "PROXY"}}},
    {"gpunode.node.edit_file": {"files": [{"path": "/nonexistent/x.sources", "content": "URIs: URL\n"}]}},
    {"gpunode.node.runfile": {"fetch": [
        {"kind": "cuda", "name": "x.run", "version": "12.8", "urls": ["RUNFILE"], "sha256": "ab" * 32, "proxy": "PROXY"}
    ]}},
    {"gpunode.node.preflight": {"expect": {"distro": "PROXY", "arch": "", "kernel": "", "gpus": []}}},
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("verbosity", ["", "-v", "-vvv"])
@pytest.mark.parametrize("origin", ["handed over", "vault", "nowhere"])
def test_no_event_output_or_artifact_of_ansible_has_a_secret(tmp_path: Path, verbosity: str, origin: str) -> None:
    """The real ansible-runner on this machine in check mode; AWX keeps the same events."""
    sealed, secrets = seal_spec(SECRET_SPEC)
    references = {
        "PROXY": sealed["proxy"],
        "URL": sealed["sources"]["nvidia-cuda"]["url"],
        "RUNFILE": sealed["cuda"]["runfiles"]["12.8"]["url"],
    }
    text = json.dumps(TASKS)
    for name, reference in references.items():
        text = text.replace(f'"{name}"', f'"{reference}"').replace(f" {name}\\n", f" {reference}\\n")
    tasks = [{**task, "check_mode": True, "diff": True, "ignore_errors": True} for task in json.loads(text)]
    plan = {"gpunode.node.plan": {}, "register": "node_plan", "ignore_errors": True}
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "play.yml").write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": [*tasks, plan]}]))
    inventory, words = inventory_of(tmp_path, SECRET_SPEC if origin == "vault" else {})
    seen: list[Any] = []
    with handed_over(secrets if origin == "handed over" else Secrets()) as more:
        hosts = run_playbook(
            folder, "play.yml", inventory=[inventory], arguments=[*filter(None, [verbosity]), *words, *more],
            on_event=lambda event: seen.append(event),
        )  # fmt: skip
    ended = [event for event in seen if event.kind != "started"]
    assert len(ended) == len(TASKS) + 1
    failed = [event.message for event in ended if event.kind == "failed"]
    lost = [message for message in failed if "is not set here: the plan refers to it" in message]
    assert len(lost) == (len(TASKS) if origin == "nowhere" else 0), failed
    assert origin == "nowhere" or any(event.result.get("diff") for event in ended)
    assert holds(folder) == [] and CANARY not in repr(seen) + repr(hosts)


def inventory_of(folder: Path, spec: dict[str, Any]) -> tuple[str, list[str]]:
    """This machine as the only host, its gpunode_spec in a vault; with the words that open it."""
    password, variables = folder / "password", folder / "inventory" / "host_vars" / "localhost.yml"
    password.write_text("open\n")
    variables.parent.mkdir(parents=True)
    connection = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    (folder / "inventory" / "hosts.json").write_text(json.dumps({"all": {"hosts": {"localhost": connection}}}))
    lines = ["---\n"]
    if spec:
        flat = {"vault_" + name.replace(".", "_").replace("-", "_"): url for name, url in urls(spec)}
        for name, url in flat.items():
            vault = [sys.executable, "-m", "ansible", "vault", "encrypt_string", "--vault-password-file", str(password)]
            done = subprocess.run([*vault, "--name", name, url], capture_output=True, text=True, check=True)
            lines.append(done.stdout)
        named = json.dumps(spec)
        for name, url in flat.items():
            named = named.replace(json.dumps(url), json.dumps(f"{{{{ {name} }}}}"))
        lines.append(f"gpunode_spec: {named}\n")
    variables.write_text("".join(lines))
    return str(folder / "inventory"), [f"--vault-password-file={password}"] if spec else []


def urls(spec: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "proxy", spec["proxy"]
    yield "runfile", spec["cuda"]["runfiles"]["12.8"]["url"]


def modes(folder: Path) -> list[str]:
    """What others than the owner may read or enter below the folder."""
    return [f"{path} {path.lstat().st_mode & 0o777:o}" for path in folder.rglob("*") if path.lstat().st_mode & 0o077]


def local_plan(desired: DesiredState, over: dict[str, Any]) -> list[workflow.HostPlan]:
    """This machine with the facts of another one: the plan has steps, and preflight stops the first of them."""
    [found] = host_plans(desired, over)
    target = Target(name="localhost", connection="local")
    return [workflow.plan_one(replace(found.detected, host="localhost", target=target, spec=over), desired)]


@pytest.mark.slow
@pytest.mark.parametrize("origin", ["gpunode.yml", "inventory"])
def test_a_run_leaves_no_secret_and_nothing_that_others_can_read(keys: list[Any], tmp_path: Path, origin: str) -> None:
    over = SECRET_SPEC if origin == "inventory" else {}
    desired = DesiredState({} if over else SECRET_SPEC)
    inventory, words = inventory_of(tmp_path, over)
    where = Targets(inventory=(inventory,), vault_password_files=tuple(word.partition("=")[2] for word in words))
    before = os.umask(0o022)
    try:
        options = RunOptions(check=True, diff=True, arguments=("-vvv",))
        [result] = provision(local_plan(desired, over), where, desired, options=options)
    finally:
        os.umask(before)
    state = tmp_path / "state"
    logs = "".join(path.read_text() for path in state.rglob("hosts/localhost.log"))
    assert "not the node the plan was made for" in result.message, logs
    assert list(state.rglob("job_events/*")) and list(state.rglob("hosts/localhost.log"))
    assert (holds(state), modes(state / "gpunode")) == ([], [])


def test_the_record_of_a_run_has_no_secret_and_resumes_with_those_of_gpunode_yml(
    keys: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desired = DesiredState(SECRET_SPEC)
    asked: list[Any] = []

    def played(_folder: Path, _playbook: str, **more: Any) -> dict[str, HostRun]:
        [word] = [word for word in more["arguments"] if word.startswith("gpunode_secrets=")]
        asked.append(dict(received(word.partition("=")[2]).values))
        return {"localhost": HostRun(exit=Exit.FAILED, message="played")}

    monkeypatch.setattr("gpunode.edge.fleet.driver.run_playbook", played)
    before = os.umask(0o022)
    try:
        provision(local_plan(desired, {}), Targets(local=True), desired)
        journal = Runs()
        recorded = journal.get("last").request["spec"]
        assert (holds(tmp_path / "state"), modes(tmp_path / "state" / "gpunode")) == ([], [])
    finally:
        os.umask(before)
    journal.close()
    assert asked == [dict(desired.secrets.values)]
    assert is_recorded(recorded) and with_secrets(recorded, SECRET_SPEC) == SECRET_SPEC
