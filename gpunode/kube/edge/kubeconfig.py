"""The cluster that kubectl would talk to: kubeconfigs and contexts, or the account of the pod that we run in.

The package kubernetes reads them and opens the connection: certificates, tokens, exec plugins.
"""

from __future__ import annotations

import contextlib
import logging
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from gpunode.core.errors import InputError, UnreachableError
from gpunode.core.untrusted import load_yaml
from gpunode.edge.extras import install_command
from gpunode.kube.edge.client import Api, verify_as_kubectl


def connect(kubeconfig: str = "", context: str = "", *, timeout: float = 30) -> Api:
    """The cluster that kubectl would talk to: --kubeconfig, $KUBECONFIG, ~/.kube/config, else that of this pod."""
    config: Any  # untyped
    try:
        from kubernetes import client, config
        from kubernetes.config import ConfigException
    except ImportError as error:
        raise InputError(
            f"the package kubernetes is not installed: {error}", fix=install_command("kubernetes")
        ) from error
    import yaml

    configuration = client.Configuration()
    paths = kubeconfig or os.environ.get("KUBECONFIG", "") or str(Path("~/.kube/config").expanduser())
    if not any(Path(path).expanduser().exists() for path in paths.split(os.pathsep) if path):
        if kubeconfig or context or not os.environ.get("KUBERNETES_SERVICE_HOST"):
            raise InputError(
                f"there is no kubeconfig {paths}",
                expected="--kubeconfig FILE, $KUBECONFIG, or ~/.kube/config",
                fix="on a control-plane node: export KUBECONFIG=/etc/kubernetes/admin.conf",
            )
        try:
            config.load_incluster_config(client_configuration=configuration)
        except ConfigException as error:
            raise InputError(f"this pod's account cannot be used: {error}", fix="give the pod a service account") from (
                error
            )
        return Api(verify_as_kubectl(client.ApiClient(configuration)), timeout=timeout)
    try:
        context = context or _current_context(paths)
        contexts, _ = config.list_kube_config_contexts(config_file=paths)
        names = [item["name"] for item in contexts]
        if context and context not in names:
            raise InputError(
                f"the kubeconfig {paths} has no context {context!r}",
                expected=f"one of {', '.join(names)}",
                fix="kubectl config get-contexts",
            )
        with _heard() as heard:
            config.load_kube_config(config_file=paths, context=context, client_configuration=configuration)
        user = next((item["context"].get("user", "") for item in contexts if item["name"] == context), "")
        _check_login(_user(paths, user), configuration, heard)
        headers = tuple(_impersonated(paths, user))
    except (ConfigException, yaml.YAMLError, OSError, ValueError, KeyError, TypeError) as error:
        text = str(error) or type(error).__name__
        raise InputError(
            f"the kubeconfig {paths} cannot be used: {text.splitlines()[0]}",
            expected="a kubeconfig with a current context, its cluster and its user",
            fix="kubectl config view; kubectl config get-contexts",
        ) from error
    if not configuration.verify_ssl:  # insecure-skip-tls-verify: kubectl says nothing either
        warnings.filterwarnings("ignore", message="Unverified HTTPS request")
    return Api(verify_as_kubectl(client.ApiClient(configuration)), context=context, timeout=timeout, headers=headers)


@contextlib.contextmanager
def _heard() -> Iterator[list[str]]:
    """What the Python client has to say of a credential plugin: it logs that, and goes on as nobody."""
    heard: list[str] = []
    root = logging.getLogger()
    known, handler = root.handlers[:], logging.Handler(logging.ERROR)
    handler.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    root.handlers[:] = [handler]
    try:
        yield heard
    finally:
        root.handlers[:] = known


def _check_login(stated: Mapping[str, Any], configuration: Any, heard: Sequence[str]) -> None:
    """Raises UnreachableError where a credential plugin gave no credentials: an expired login of EKS, GKE or AKS."""
    plugin = stated.get("exec")
    if not isinstance(plugin, Mapping) or configuration.api_key or configuration.cert_file:
        return
    text = "; ".join(" ".join(line.split()) for line in heard) or "it gave no token and no certificate"
    raise UnreachableError(
        f"no login to the cluster: {plugin.get('command')} of the kubeconfig: {text}",
        expected="credentials from that program",
        fix="run it as the kubeconfig does, or log in again (aws, gcloud, az, tsh …)",
    )


def _user(paths: str, user: str) -> Mapping[str, Any]:
    """What the kubeconfig says of a user."""
    kube_config: Any  # untyped
    from kubernetes.config import kube_config

    found = kube_config.KubeConfigMerger(paths).config["users"].get_with_name(user, safe=True) if user else None
    return (found.value.get("user") if found else None) or {}


def _impersonated(paths: str, user: str) -> Iterator[tuple[str, str]]:
    """The headers of a user who acts as another one, which the Python client passes over: `as`, `as-groups` …

    https://kubernetes.io/docs/reference/access-authn-authz/authentication/#user-impersonation
    """
    settings = _user(paths, user)
    for key, header in (("as", "Impersonate-User"), ("as-uid", "Impersonate-Uid")):
        if settings.get(key):
            yield header, str(settings[key])
    for group in settings.get("as-groups") or ():
        yield "Impersonate-Group", str(group)
    for name, values in (settings.get("as-user-extra") or {}).items():
        for value in values:
            yield f"Impersonate-Extra-{quote(name, safe='')}", str(value)


def _current_context(paths: str) -> str:
    """That of the first file which names one, as kubectl takes it; the Python client takes the last.

    https://kubernetes.io/docs/concepts/configuration/organize-cluster-access-kubeconfig/#merging-kubeconfig-files
    """
    for path in filter(None, paths.split(os.pathsep)):
        file = Path(path).expanduser()
        try:
            data = load_yaml(file.read_text(encoding="utf-8"), path) if file.exists() else None
        except InputError as error:
            raise ValueError(error.what) from None
        if isinstance(data, dict) and data.get("current-context"):
            return str(data["current-context"])
    raise ValueError("it has no current-context")
