"""`kube verify` on healthy and broken states of a real cluster: no false alarm, nothing missed.

Each state is made, judged and undone.  Not made: a GPU that its device plugin reports as unhealthy (the lab's NVML has
no events).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster import FOLDER, GPU, REASON, SAMPLE, Cluster, failed, pod, wait_for

from gpunode.core.model import ENDS

pytestmark = [pytest.mark.lab, pytest.mark.skipif(not FOLDER, reason=REASON), pytest.mark.timeout(2400)]

NAME = "t-states"
FIRST, NODE = f"{NAME}-1", f"{NAME}-2"
TREE = (Path(__file__).parent / "tree.sh").read_text()
OF_PODS = ("./var/lib/kubelet", "./var/lib/cni")
SPEC = {"kubernetes": {}, "runtimes": {"containerd": {"default_runtime": "runc"}}}
PLUGIN = ("-n", "gpunode", "daemonset", "nvidia-device-plugin")
ADMISSION = "admissionregistration.k8s.io/v1"


@pytest.fixture(scope="module")
def bare(cluster_up: Callable[..., Cluster]) -> tuple[Cluster, set[str]]:
    """A cluster, and the tree of a node of it that gpunode has not seen yet."""
    found = cluster_up(2, name=NAME)
    return found, tree(found)


@pytest.fixture(scope="module")
def cluster(bare: tuple[Cluster, set[str]]) -> Cluster:
    found, _ = bare
    found.gpunode("provision", "-i", found.lab.inventory, "-c", found.spec(SPEC), "--yes")
    return found


@pytest.fixture
def healthy(cluster: Cluster) -> Cluster:
    cluster.kube("apply", cluster.spec(SPEC))
    return cluster


# ---------------------------------------------------------------- healthy states


@contextmanager
def idle(cluster: Cluster) -> Iterator[None]:
    yield


@contextmanager
def full_and_cordoned(cluster: Cluster) -> Iterator[None]:
    cluster.apply({**pod("all", {GPU: 2}), "spec": {**pod("all", {GPU: 2})["spec"], "nodeName": FIRST}})
    cluster.kubectl("cordon", NODE)
    wait_for(lambda: cluster.get("pod", "all")["status"]["phase"] == "Running")
    yield
    cluster.kubectl("uncordon", NODE)
    cluster.kubectl("delete", "pod", "all", "--force", "--grace-period=0")


@contextmanager
def a_taint_of_its_own(cluster: Cluster) -> Iterator[None]:
    cluster.kubectl("taint", "node", NODE, "dedicated=ml:NoSchedule")
    yield
    cluster.kubectl("taint", "node", NODE, "dedicated-")


def mirrored(cluster: Cluster) -> None:
    """The nodes have NVIDIA's images under the names of a registry of one's own, too."""
    tag = "ctr -n k8s.io images ls -q | grep ^nvcr.io/ | while read -r i; do "
    for name in (FIRST, NODE):
        cluster.lab.run(name, f"{tag} ctr -n k8s.io images tag --force $i mirror.lan/${{i#*/}}; done")


@contextmanager
def images_rewritten_by_a_policy(cluster: Cluster) -> Iterator[None]:
    """As a mirror of a registry is enforced."""
    if "MutatingAdmissionPolicy" not in cluster.kubectl("get", f"--raw=/apis/{ADMISSION}"):
        pytest.skip(f"this server has no MutatingAdmissionPolicy of {ADMISSION}")
    mirrored(cluster)
    image = "object.spec.template.spec.containers[0].image"
    path, value = "/spec/template/spec/containers/0/image", f'{image}.replace("nvcr.io/", "mirror.lan/")'
    patch = f'JSONPatch{{op: "replace", path: "{path}", value: {value}}}'
    rule = {
        "apiGroups": ["apps"],
        "apiVersions": ["v1"],
        "operations": ["CREATE", "UPDATE"],
        "resources": ["daemonsets"],
    }
    ours = {"matchLabels": {"app.kubernetes.io/part-of": "gpunode"}}
    cluster.apply(
        {"apiVersion": ADMISSION, "kind": "MutatingAdmissionPolicy", "metadata": {"name": "mirror"},
         "spec": {"failurePolicy": "Fail", "reinvocationPolicy": "Never",
                  "matchConstraints": {"resourceRules": [rule], "objectSelector": ours},
                  "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": f"[{patch}]"}}]}},
        {"apiVersion": ADMISSION, "kind": "MutatingAdmissionPolicyBinding", "metadata": {"name": "mirror"},
         "spec": {"policyName": "mirror"}},
    )  # fmt: skip

    def rewritten() -> bool:
        cluster.kube("apply", cluster.spec(SPEC))
        containers = cluster.get(*PLUGIN)["spec"]["template"]["spec"]["containers"]
        return str(containers[0]["image"]).startswith("mirror.lan/")

    wait_for(rewritten)
    yield
    cluster.kubectl("delete", "mutatingadmissionpolicybinding,mutatingadmissionpolicy", "mirror")
    cluster.kubectl("-n", "gpunode", "delete", "daemonset", "--all")


@contextmanager
def just_applied(cluster: Cluster) -> Iterator[None]:
    spec = cluster.spec(SPEC)
    cluster.kube("remove", spec)
    cluster.kube("apply", spec, "--no-wait")
    yield


@contextmanager
def marks_of_others(cluster: Cluster) -> Iterator[None]:
    """Labels and annotations that another program puts on objects of gpunode's and on its nodes."""
    for what in (("node", NODE), PLUGIN, ("namespace", "gpunode")):
        cluster.kubectl("label", *what, "example.com/cost-centre=7")
        cluster.kubectl("annotate", *what, "example.com/seen=yes")
    yield
    for what in (("node", NODE), PLUGIN, ("namespace", "gpunode")):
        cluster.kubectl("label", *what, "example.com/cost-centre-")
        cluster.kubectl("annotate", *what, "example.com/seen-")


@contextmanager
def pods_that_have_ended(cluster: Cluster) -> Iterator[None]:
    """One well and one badly, each with both GPUs of a node: they hold none any more."""
    for name, command in (("well", "exit 0"), ("badly", "exit 1")):
        one = pod(name, {GPU: 2})
        one["spec"] |= {"restartPolicy": "Never", "nodeName": NODE}
        one["spec"]["containers"][0]["command"] = ["sh", "-c", command]
        cluster.apply(one)
        wait_for(lambda name=name: cluster.get("pod", name)["status"]["phase"] in ("Succeeded", "Failed"))
    yield
    cluster.kubectl("delete", "pod", "well", "badly")


@contextmanager
def others_in_the_namespace(cluster: Cluster) -> Iterator[None]:
    cluster.kubectl("-n", "gpunode", "create", "configmap", "notes", "--from-literal=a=b")
    cluster.kubectl("-n", "gpunode", "create", "deployment", "theirs", f"--image={SAMPLE}", "--replicas=0")
    yield
    cluster.kubectl("-n", "gpunode", "delete", "deployment/theirs", "configmap/notes")


# ---------------------------------------------------------------- broken states


@contextmanager
def an_image_that_is_gone(cluster: Cluster) -> Iterator[None]:
    """The plugin's is on no disk of the node, and the node reaches no registry."""
    image = cluster.get(*PLUGIN)["spec"]["template"]["spec"]["containers"][0]["image"]
    ctr = "ctr -n k8s.io images"
    cluster.lab.run(NODE, f"{ctr} tag --force {image} kept.lan/plugin:1 && {ctr} rm {image}")
    cluster.kubectl("-n", "gpunode", "delete", "pod", "--field-selector", f"spec.nodeName={NODE}")
    stuck = ("-n", "gpunode", "pods", "--field-selector", f"spec.nodeName={NODE}")
    wait_for(lambda: "ImagePull" in json.dumps(cluster.get(*stuck)))
    yield
    cluster.lab.run(NODE, f"{ctr} tag --force kept.lan/plugin:1 {image}; {ctr} rm kept.lan/plugin:1")
    cluster.kubectl("-n", "gpunode", "delete", "pod", "--field-selector", f"spec.nodeName={NODE}")


@contextmanager
def denied_by_a_policy(cluster: Cluster) -> Iterator[None]:
    kind = "ValidatingAdmissionPolicy"
    if f'"{kind}"' not in cluster.kubectl("get", f"--raw=/apis/{ADMISSION}"):
        pytest.skip(f"this server has no {kind} of {ADMISSION}")
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    cluster.apply(
        {"apiVersion": ADMISSION, "kind": kind, "metadata": {"name": "friday"},
         "spec": {"matchConstraints": {"resourceRules": [rule]},
                  "validations": [{"expression": "false", "message": "no pods on Fridays"}]}},
        {"apiVersion": ADMISSION, "kind": f"{kind}Binding", "metadata": {"name": "friday"},
         "spec": {"policyName": "friday", "validationActions": ["Deny"],
                  "matchResources": {"namespaceSelector": {
                      "matchLabels": {"kubernetes.io/metadata.name": "gpunode"}}}}},
    )  # fmt: skip
    try_it = ("-n", "gpunode", "run", "try", f"--image={SAMPLE}", "--dry-run=server")
    wait_for(lambda: "no pods on Fridays" in cluster.kubectl(*try_it, check=False))
    cluster.kubectl("-n", "gpunode", "delete", "pod", "--field-selector", f"spec.nodeName={NODE}")
    yield
    cluster.kubectl("delete", "validatingadmissionpolicybinding,validatingadmissionpolicy", "friday")


@contextmanager
def a_changed_configuration(cluster: Cluster) -> Iterator[None]:
    names = cluster.get("-n", "gpunode", "configmaps", "-l", "app.kubernetes.io/part-of=gpunode")["items"]
    name, key = names[0]["metadata"]["name"], next(iter(names[0]["data"]))
    cluster.kubectl("-n", "gpunode", "patch", "configmap", name, "-p", json.dumps({"data": {key: "version: v1"}}))
    yield
    cluster.kubectl("-n", "gpunode", "delete", "configmap", name)


@contextmanager
def no_runtime_class(cluster: Cluster) -> Iterator[None]:
    cluster.kubectl("delete", "runtimeclass", "nvidia")
    yield


@contextmanager
def every_node_is_tainted(cluster: Cluster) -> Iterator[None]:
    """And what runs there has to go, with the device plugin."""
    cluster.kubectl("taint", "node", FIRST, NODE, "dedicated=ml:NoExecute")
    wait_for(lambda: not plugin_pods(cluster))
    wait_for(lambda: set(cluster.allocatable(GPU).values()) == {"0"})  # the kubelets have noticed
    yield
    cluster.kubectl("taint", "node", FIRST, NODE, "dedicated-")


@contextmanager
def a_quota(cluster: Cluster) -> Iterator[None]:
    count = len(cluster.get("-n", "gpunode", "pods")["items"]) - 1
    cluster.kubectl("-n", "gpunode", "create", "quota", "few", f"--hard=pods={count}")
    cluster.kubectl("-n", "gpunode", "delete", "pod", "--field-selector", f"spec.nodeName={NODE}")
    yield
    cluster.kubectl("-n", "gpunode", "delete", "quota", "few")


@contextmanager
def pod_security(cluster: Cluster) -> Iterator[None]:
    label = "pod-security.kubernetes.io/enforce"
    cluster.kubectl("label", "namespace", "gpunode", "--overwrite", f"{label}=restricted")
    cluster.kubectl("-n", "gpunode", "delete", "pod", "--field-selector", f"spec.nodeName={NODE}")
    yield
    cluster.kubectl("label", "namespace", "gpunode", "--overwrite", f"{label}=privileged")


@contextmanager
def a_foreign_node_selector(cluster: Cluster) -> Iterator[None]:
    patch = {"spec": {"template": {"spec": {"nodeSelector": {"disk": "ssd"}}}}}
    cluster.kubectl("patch", *PLUGIN, "--type=merge", "-p", json.dumps(patch))
    yield
    cluster.kubectl("delete", *PLUGIN)


@contextmanager
def no_runtime(cluster: Cluster) -> Iterator[None]:
    """The engine of one node lost the nvidia runtime; it tells of its runtimes from containerd 2.0 on alone."""
    files = "grep -rl 'runtimes.{0}' /etc/containerd"
    rename = f"{files} | xargs sed -i s/runtimes.{{0}}/runtimes.{{1}}/; systemctl restart containerd"
    cluster.lab.run(NODE, rename.format("nvidia", "other"))
    yield
    cluster.lab.run(NODE, rename.format("other", "nvidia"))


@contextmanager
def no_plugin(cluster: Cluster) -> Iterator[None]:
    cluster.kubectl("delete", *PLUGIN)
    wait_for(lambda: set(cluster.allocatable(GPU).values()) == {"0"}, 150)
    yield


@contextmanager
def a_dead_kubelet(cluster: Cluster) -> Iterator[None]:
    cluster.lab.run(NODE, "systemctl stop kubelet")
    wait_for(lambda: cluster.ready()[NODE] != "True", 120)
    yield
    cluster.lab.run(NODE, "systemctl start kubelet")
    wait_for(lambda: cluster.ready()[NODE] == "True")


@contextmanager
def a_former_name(cluster: Cluster) -> Iterator[None]:
    """What a kubelet that got another name leaves behind: a node that nobody renews."""
    wait_for(lambda: cluster.allocatable(GPU)[NODE] == "2")
    now = cluster.get("node", NODE)
    cluster.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "former"}})
    kept = {key: now["status"][key] for key in ("addresses", "capacity", "allocatable", "nodeInfo")}
    unknown = [{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": "no lease"}]
    status = json.dumps({"status": {**kept, "conditions": unknown}})
    cluster.kubectl("patch", "node", "former", "--subresource=status", "--type=merge", "-p", status)
    yield
    cluster.kubectl("delete", "node", "former")
    pending = ("delete", "pods", "--field-selector=spec.nodeName=")  # 1.28 makes some for it, and leaves them there
    cluster.kubectl("-n", "gpunode", *pending)


State = Callable[[Cluster], AbstractContextManager[None]]
STATES: list[tuple[State, Mapping[str, str], bool]] = [  # what is found, and whether it takes pods to find it
    (idle, {}, True),
    (full_and_cordoned, {}, True),
    (a_taint_of_its_own, {}, True),
    (images_rewritten_by_a_policy, {}, True),
    (just_applied, {}, True),
    (marks_of_others, {}, False),
    (pods_that_have_ended, {}, True),
    (others_in_the_namespace, {}, False),
    (an_image_that_is_gone, {"kube.ready": "image"}, False),
    (denied_by_a_policy, {"kube.ready": "no pods on Fridays"}, False),
    (a_changed_configuration, {"kube.drift": "device-plugin-config: differs"}, False),
    (no_runtime_class, {"kube.drift": "it is gone"}, False),
    (every_node_is_tainted, {"kube.gpus": "does not tolerate its taint dedicated=ml:NoExecute"}, False),
    (a_quota, {"kube.ready": "exceeded quota"}, False),
    (pod_security, {"kube.ready": "violates PodSecurity", "kube.drift": "enforce"}, False),
    (a_foreign_node_selector, {"kube.drift": "kubectl-patch at"}, False),
    (no_runtime, {"kube.vectoradd": 'no runtime for "nvidia"', "kube.which-gpu": 'no runtime for "nvidia"'}, True),
    (no_plugin, {"kube.drift": "it is gone", "kube.gpus": GPU}, False),
    (a_dead_kubelet, {"kube.node": "is not Ready"}, False),
    (a_former_name, {"kube.node": "node former: the node is not Ready"}, False),
]
FOLLOWS = {"kube.gpus", "kube.pool", "kube.ready"}  # what may be found besides: GPUs and pods go, sooner or later


@pytest.mark.parametrize(("state", "expected", "smoke"), STATES, ids=[row[0].__name__ for row in STATES])
def test_a_healthy_state_raises_no_alarm_and_a_broken_one_is_found(
    state: State, expected: Mapping[str, str], smoke: bool, healthy: Cluster
) -> None:
    patience = 20 if expected else 60  # what is broken stays so
    with state(healthy):
        found = healthy.checks("verify", healthy.spec(SPEC), *(["--smoke", "--timeout", patience] if smoke else []))
    wrong = {name: text for checks in found.values() for name, status, text in checks if status in ENDS}
    assert set(expected) <= set(wrong) <= set(expected) | (FOLLOWS if expected else set()), found
    for name, text in expected.items():
        assert text in wrong[name], wrong


def plugin_pods(cluster: Cluster) -> dict[str, str]:
    """Node → image of the device plugin's pod on it."""
    pods = cluster.get("-n", "gpunode", "pods", "-l", "app.kubernetes.io/name=nvidia-device-plugin")["items"]
    return {item["spec"]["nodeName"]: item["spec"]["containers"][0]["image"] for item in pods}


def test_a_pool_is_the_nodes_that_it_names_and_a_label_taken_off_is_found(healthy: Cluster) -> None:
    spec = healthy.spec({**SPEC, "kubernetes": {"pools": {"p": {"nodes": f"kubernetes.io/hostname in ({FIRST})"}}}})
    healthy.kube("apply", spec)
    wait_for(lambda: set(plugin_pods(healthy)) == {FIRST})
    assert failed(healthy.checks("verify", spec)) == []
    label = "nvidia.com/device-plugin.config"
    healthy.kubectl("label", "node", FIRST, f"{label}-")
    wait_for(lambda: not plugin_pods(healthy))
    lost = {name: text for name, status, text in healthy.checks("verify", spec)["cluster"] if status in ENDS}
    assert lost["kube.drift"] == f"node {FIRST}: the label {label} is nothing, not p"
    assert f"Node {FIRST}: changed" in healthy.kube("apply", spec).stdout
    wait_for(lambda: set(plugin_pods(healthy)) == {FIRST})
    assert failed(healthy.checks("verify", spec)) == []


# Debian's registry on a node, for those who have a password; it has NVIDIA's images, the engine has not.  containerd
# takes plain HTTP of a registry that is called localhost.
REGISTRY = """
set -e
apt-get update -qq && apt-get install -qq --no-install-recommends docker-registry apache2-utils >/dev/null
htpasswd -Bbc /etc/docker/registry/users me open-sesame
cat >/etc/docker/registry/config.yml <<EOF
version: 0.1
storage: {filesystem: {rootdirectory: /var/lib/docker-registry}}
http: {addr: "localhost:5000"}
auth: {htpasswd: {realm: lab, path: /etc/docker/registry/users}}
EOF
systemctl restart docker-registry
timeout 30 bash -c 'until true </dev/tcp/localhost/5000; do sleep 0.3; done' 2>/dev/null
ctr -n k8s.io images ls -q | grep ^nvcr.io/ >/root/images
while read -r i; do
    new=localhost:5000/${i#*/}
    ctr -n k8s.io images tag --force "$i" "$new" >/dev/null
    ctr -n k8s.io images push --plain-http --user me:open-sesame "$new" >/dev/null
    ctr -n k8s.io images rm --sync "$new" "$i" >/dev/null
done </root/images
"""
BACK = """
while read -r i; do
    ctr -n k8s.io images pull --plain-http --user me:open-sesame "localhost:5000/${i#*/}" >/dev/null
    ctr -n k8s.io images tag --force "localhost:5000/${i#*/}" "$i"
done </root/images
systemctl stop docker-registry
# from 1.35 on the kubelet remembers by the image's id that it came by a Secret, and gives it to no pod without
rm -rf /var/lib/kubelet/image_manager
systemctl restart kubelet
"""


@pytest.fixture
def registry(healthy: Cluster) -> Iterator[Cluster]:
    """On the first node alone: the tree of the other one is compared."""

    def there(script: str) -> None:
        done = healthy.lab.run(FIRST, script)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"

    there(REGISTRY)
    yield healthy
    there(BACK)


def test_images_come_from_a_registry_of_ones_own_by_its_password(registry: Cluster) -> None:
    images = {"registry": "localhost:5000", "pull_secrets": ["mirror"]}
    pools = {"p": {"nodes": f"kubernetes.io/hostname in ({FIRST})"}}
    spec = registry.spec({**SPEC, "kubernetes": {"images": images, "pools": pools}})
    registry.kube("apply", spec, "--no-wait")
    wait_for(lambda: "401" in registry.kubectl("-n", "gpunode", "get", "pods", "-o", "json"), 180)
    assert "401 Unauthorized" in json.dumps(registry.checks("verify", spec))
    secret = ("create", "secret", "docker-registry", "mirror", "--docker-server=localhost:5000")
    registry.kubectl("-n", "gpunode", *secret, "--docker-username=me", "--docker-password=open-sesame")
    registry.kube("apply", spec)
    assert {node: image.partition("/")[0] for node, image in plugin_pods(registry).items()} == {FIRST: "localhost:5000"}
    assert failed(registry.checks("verify", spec, "--smoke", "--timeout", 120)) == []


def test_an_account_that_may_only_read_is_enough(healthy: Cluster, tmp_path: Path) -> None:
    group = "rbac.authorization.k8s.io"
    rule = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list", "watch"]}
    healthy.apply(
        {"apiVersion": f"{group}/v1", "kind": "ClusterRole", "metadata": {"name": "reader"}, "rules": [rule]},
        {"apiVersion": f"{group}/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "reader"},
         "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "reader"},
         "subjects": [{"apiGroup": group, "kind": "User", "name": "rita"}]},
    )  # fmt: skip
    kubeconfig: dict[str, Any] = yaml.safe_load(healthy.lab.kubeconfig.read_text())
    kubeconfig["users"][0]["user"]["as"] = "rita"
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(kubeconfig))
    healthy.kube("verify", healthy.spec(SPEC), "--kubeconfig", path)
    healthy.kube("verify", healthy.spec(SPEC), "--kubeconfig", path, "--smoke", exit=5)


def tree(cluster: Cluster) -> set[str]:
    return {line for line in cluster.lab.run(NODE, TREE).stdout.splitlines() if not line.startswith(OF_PODS)}


def test_after_remove_and_uninstall_a_node_of_a_cluster_is_what_it_was(
    bare: tuple[Cluster, set[str]], healthy: Cluster
) -> None:
    """But for the empty folder that the kubelet made for GPU Feature Discovery."""
    healthy.kube("remove", healthy.spec(SPEC))
    healthy.gpunode("uninstall", "-i", healthy.lab.inventory, "--limit", NODE, "--yes")
    features = "./etc/kubernetes/node-feature-discovery"
    assert {line.split(" ")[0] for line in tree(healthy) ^ bare[1]} == {features, f"{features}/features.d"}
