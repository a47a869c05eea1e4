"""How a cluster is found and asked: kubeconfigs, contexts, a pod's account, and one clear message for what is wrong."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from api_server import ApiServer, Fault
from kube_cluster import node, quick

from gpunode.core.errors import GpunodeError, InputError, UnreachableError
from gpunode.kube.core.api_error import ApiError
from gpunode.kube.edge.client import Api
from gpunode.kube.edge.kubeconfig import connect

pytest_plugins = ("kube_fixtures",)


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No kubeconfig but those that a test makes."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"):
        monkeypatch.delenv(name, raising=False)


# ---------------------------------------------------------------- finding it


def test_without_any_kubeconfig_it_says_where_it_looked(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        connect()
    assert caught.value.what == f"there is no kubeconfig {tmp_path}/.kube/config"
    assert "export KUBECONFIG=/etc/kubernetes/admin.conf" in caught.value.fix


def test_the_default_place_the_variable_and_the_option_in_that_order(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".kube").mkdir()
    server.kubeconfig(tmp_path / ".kube/config", context="home")
    assert connect().context == "home"
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path / "variable", context="variable")))
    assert connect().context == "variable"
    assert connect(str(server.kubeconfig(tmp_path / "option", context="option"))).context == "option"


def test_several_files_are_merged_and_missing_ones_skipped(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = server.kubeconfig(tmp_path / "one", context="one"), server.kubeconfig(tmp_path / "two", context="two")
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path}/none{os.pathsep}{one}{os.pathsep}{two}")
    assert (connect().context, connect(context="two").version()) == ("one", "v1.34.2")


def test_an_unknown_context_is_reported_with_the_known_ones(server: ApiServer, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        connect(str(server.kubeconfig(tmp_path / "k", context="prod")), "prd")
    assert caught.value.what == f"the kubeconfig {tmp_path}/k has no context 'prd'"
    assert caught.value.expected == "one of prod"


BROKEN = {
    "no YAML": "{",
    "empty": "",
    "a list": "- a\n",
    "no current context": yaml.safe_dump({"clusters": [], "contexts": [], "users": []}),
    "a context without its cluster": yaml.safe_dump(
        {
            "current-context": "x",
            "contexts": [{"name": "x", "context": {"cluster": "gone", "user": "u"}}],
            "clusters": [],
            "users": [{"name": "u", "user": {}}],
        }
    ),
    "a certificate file that is not there": yaml.safe_dump(
        {
            "current-context": "x",
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": "https://h", "certificate-authority": "/nowhere/ca"}}],
            "users": [{"name": "u", "user": {}}],
        }
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_kubeconfig_that_cannot_be_used_is_an_input_error(case: str, tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(BROKEN[case])
    with pytest.raises(InputError, match=f"the kubeconfig {path} cannot be used: "):
        connect(str(path))


def test_a_pod_uses_its_own_account(server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kubernetes.config import incluster_config

    (tmp_path / "token").write_text("secret-token")
    (tmp_path / "ca.crt").write_text("certificate")
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    with pytest.raises(InputError, match="there is no kubeconfig"):
        connect(str(tmp_path / "asked-for"))
    api = connect()
    assert (api.server, api.context) == ("https://10.96.0.1:443", "")


# ---------------------------------------------------------------- asking it


def closed_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def config_for(url: str, path: Path, **cluster: Any) -> str:
    path.write_text(
        yaml.safe_dump(
            {
                "current-context": "prod",
                "contexts": [{"name": "prod", "context": {"cluster": "c", "user": "u"}}],
                "clusters": [{"name": "c", "cluster": {"server": url, **cluster}}],
                "users": [{"name": "u", "user": {}}],
            }
        )
    )
    return str(path)


def test_a_server_that_is_not_there_is_unreachable_and_soon_reported(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{closed_port()}"
    api = quick(connect(config_for(url, tmp_path / "k")))
    with pytest.raises(UnreachableError) as caught:
        api.version()
    assert caught.value.what.startswith(f"no connection to {url} (context prod): ")
    assert len(api.pauses) == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("verb", ["version", "nodes", "apply"])
def test_a_closed_port_is_reported_within_two_seconds_whatever_is_asked_first(verb: str, tmp_path: Path) -> None:
    api = quick(connect(config_for(f"http://127.0.0.1:{closed_port()}", tmp_path / "k")))
    asked = {
        "version": api.version,
        "nodes": lambda: api.items("/api/v1/nodes"),
        "apply": lambda: api.request("PATCH", "/api/v1/namespaces/x", body={}),
    }
    with pytest.raises(UnreachableError):
        asked[verb]()
    assert sum(api.pauses) <= 2  # type: ignore[attr-defined]


def test_a_server_that_has_answered_is_waited_for_when_its_port_is_closed(server: ApiServer, tmp_path: Path) -> None:
    """It restarts."""
    api = quick(connect(str(server.kubeconfig(tmp_path / "k"))))
    api.version()
    api.server = f"http://127.0.0.1:{closed_port()}"
    with pytest.raises(UnreachableError):
        api.items("/api/v1/nodes")
    assert sum(api.pauses) > 10  # type: ignore[attr-defined]


def test_a_server_that_does_not_answer_is_reported_with_the_seconds(server: ApiServer, tmp_path: Path) -> None:
    server.faults.append(Fault("version", 0, delay=1.0, times=2))
    api = quick(connect(str(server.kubeconfig(tmp_path / "k")), timeout=0.2))
    with pytest.raises(UnreachableError, match=r"did not answer in 0.2 s"):
        api.version()


def test_what_is_no_api_server_is_reported_and_not_asked_again(tmp_path: Path) -> None:
    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<html>please log in</html>")

        def log_message(self, *_: Any) -> None:
            pass

    web = HTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=web.serve_forever, daemon=True).start()
    try:
        api = quick(connect(config_for(f"http://127.0.0.1:{web.server_port}", tmp_path / "k")))
        with pytest.raises(UnreachableError, match="answers GET /version with text/html, not JSON"):
            api.version()
        assert api.pauses == []  # type: ignore[attr-defined]
    finally:
        web.shutdown()
        web.server_close()


def test_wrong_credentials_are_reported_as_such(server: ApiServer, tmp_path: Path) -> None:
    config = server.kubeconfig(tmp_path / "k")
    server.token = "right"
    with pytest.raises(ApiError) as caught:
        quick(connect(str(config))).version()
    assert (caught.value.status, caught.value.exit) == (401, 4)
    assert "log in again" in caught.value.fix
    assert quick(connect(str(server.kubeconfig(tmp_path / "k2")))).version() == "v1.34.2"


def test_a_server_that_behaves_as_an_older_release_is_taken_for_that_one(server: ApiServer, api: Api) -> None:
    server.version, server.emulated = "v1.36.2", "36"
    assert api.version() == "v1.36.2"
    server.emulated = "3"
    assert api.version() == "v1.3.0"
    server.emulated = "33"
    assert api.version() == "v1.33.0"


def test_a_user_who_acts_as_another_one_does_so_here_too(server: ApiServer, tmp_path: Path) -> None:
    extra = {"scopes": ["view"], "example.com/why": ["test"]}
    user = {"as": "ada", "as-uid": "7", "as-groups": ["ops", "gpu"], "as-user-extra": extra}
    path = Path(config_for(server.url, tmp_path / "k"))
    config = yaml.safe_load(path.read_text())
    other = tmp_path / "users"  # a further file of $KUBECONFIG
    other.write_text(yaml.safe_dump({"users": [{"name": "u", "user": user}]}))
    path.write_text(yaml.safe_dump(config | {"users": []}))
    quick(connect(f"{path}:{other}")).version()
    assert server.acted_as == [
        ("Impersonate-User", "ada"), ("Impersonate-Uid", "7"),
        ("Impersonate-Group", "ops"), ("Impersonate-Group", "gpu"),
        ("Impersonate-Extra-example.com%2Fwhy", "test"), ("Impersonate-Extra-scopes", "view"),
    ]  # fmt: skip
    quick(connect(str(server.kubeconfig(tmp_path / "k2")))).version()
    assert server.acted_as == []


def test_a_failure_that_lasts_ends_with_the_servers_words(server: ApiServer, api: Api) -> None:
    server.faults.append(Fault("nodes", 503, "ServiceUnavailable", "etcd has no leader", times=99))
    with pytest.raises(ApiError, match=r"etcd has no leader \(503\)"):
        api.items("/api/v1/nodes")
    assert api.pauses == [0.5, 1.0, 2.0, 4.0, 8.0]  # type: ignore[attr-defined]


def test_a_long_list_begins_again_when_the_server_forgot_it(server: ApiServer, api: Api) -> None:
    for i in range(700):
        server.put(node(f"n{i}"))
    server.faults.append(Fault("continue=500", 410, "Expired", "the provided continue parameter is too old"))
    assert len(api.items("/api/v1/nodes")) == 700


def test_a_conflict_of_field_managers_is_not_tried_again(server: ApiServer, api: Api) -> None:
    from gpunode.kube.core.marks import node_key

    server.put(node("n1", labels={"gpu": "false"}), "kubelet")
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "labels": {"gpu": "true"}}}
    with pytest.raises(ApiError) as caught:
        api.apply(node_key("n1"), body, force=False)
    assert caught.value.causes == ("FieldManagerConflict",)
    assert api.pauses == []  # type: ignore[attr-defined]


def test_a_kind_that_is_not_served_is_reported_by_name(api: Api) -> None:
    from gpunode.kube.core.owned import ObjectKey

    with pytest.raises(GpunodeError, match=r"the server does not serve example\.com/v1 Thing"):
        api.path(ObjectKey("example.com/v1", "Thing", "", "x"))


# ---------------------------------------------------------------- the command

# options, the server's version, the exit code, and words of the one message
WRONG: dict[str, tuple[list[str], str, int, str]] = {
    "no kubeconfig": (["--kubeconfig", "/nowhere/config"], "v1.34.2", 2, "there is no kubeconfig /nowhere/config"),
    "wrong context": (["--context", "prod"], "v1.34.2", 2, "has no context 'prod'"),
    "a server that is too old": ([], "v1.10.1", 5, "kubernetes 1.10 is older than 1.28, the oldest"),
}


@pytest.mark.parametrize(
    ("case", "form"),
    [*((case, "text") for case in WRONG), ("wrong context", "json"), ("a server that is too old", "json")],
)
def test_bad_input_is_one_clear_message(case: str, form: str, server: ApiServer, tmp_path: Path) -> None:
    options, version, code, says = WRONG[case]
    server.version = version
    environment = {**os.environ, "KUBECONFIG": str(server.kubeconfig(tmp_path / "k")), "HOME": str(tmp_path)}
    ran = subprocess.run(
        [sys.executable, "-m", "gpunode", "kube", "apply", "--format", form, *options],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == code, ran.stderr
    if form == "json":
        data = json.loads(ran.stdout)
        (found,) = [data["error"]] if data.get("error") else data["problems"]
        assert says in found["what"] and found["fix"]
    else:
        assert ran.stderr.count("error: ") == 1
        assert says in ran.stderr and "Traceback" not in ran.stderr
    assert [r for r in server.requests if r.startswith("PATCH")] == []


@pytest.mark.parametrize("way", ["fails", "missing", "empty"])
def test_a_credential_plugin_that_gives_nothing_is_no_login(server: ApiServer, tmp_path: Path, way: str) -> None:
    """It ended as «forbidden: User system:anonymous», with the fix to ask for a right."""
    plugin = tmp_path / "login"
    body = "echo 'the SSO session has expired' >&2; exit 1" if way == "fails" else "echo '{}'"
    if way != "missing":
        plugin.write_text(f"#!/bin/sh\n{body}\n")
        plugin.chmod(0o755)
    path = server.kubeconfig(tmp_path / "kubeconfig")
    data = yaml.safe_load(path.read_text())
    run = {"apiVersion": "client.authentication.k8s.io/v1", "command": str(plugin), "interactiveMode": "Never"}
    data["users"][0]["user"] = {"exec": run}
    path.write_text(yaml.safe_dump(data))
    with pytest.raises(UnreachableError) as caught:
        connect(str(path))
    assert f"no login to the cluster: {plugin} of the kubeconfig: " in caught.value.what
    assert ("the SSO session has expired" in caught.value.what) is (way == "fails")


def test_a_version_that_an_overloaded_server_refuses_is_asked_for_again(server: ApiServer, tmp_path: Path) -> None:
    server.faults.append(Fault("version", 500, "InternalError", "etcdserver: leader changed", times=4))
    assert quick(connect(str(server.kubeconfig(tmp_path / "k")))).version()
