#!/bin/sh
# Containers for the tests of engines, from an image that holds nothing but the node's own busybox.
#   pod.sh image                                    gives it to containerd and, where it runs, to Docker
#   pod.sh run HANDLER COMMAND [NAME=VALUE …]       a pod of containerd's: prints what its container said, removes it
#   pod.sh keep HANDLER COMMAND [NAME=VALUE …]      one that stays: prints the ids of the pod and its container
# HANDLER '' is the default one.
set -eu
IMAGE=localhost/gpunode-test:1

image() {
    mkdir -p root/bin
    cp /bin/busybox root/bin/
    ln -s busybox root/bin/sh
    tar -C root -cf layer.tar .
    layer=$(sha256sum <layer.tar | cut -d ' ' -f 1)
    printf '{"architecture":"amd64","os":"linux","config":{},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' "$layer" >config.json
    echo "[{\"Config\":\"config.json\",\"RepoTags\":[\"$IMAGE\"],\"Layers\":[\"layer.tar\"]}]" >manifest.json
    tar -cf image.tar layer.tar config.json manifest.json
    ctr -n k8s.io images import image.tar >/dev/null
    ! systemctl --quiet is-active docker || docker load --quiet --input image.tar >/dev/null
}

# describe COMMAND [NAME=VALUE …]: pod.json and container.json, as crictl takes them
describe() {
    name=t-$$
    cat >pod.json <<POD
{"metadata": {"name": "$name", "namespace": "default", "uid": "$name", "attempt": 1}, "log_directory": "$work/logs",
 "linux": {"security_context": {"namespace_options": {"network": 2}}}}
POD
    command=$1
    shift
    variables=''
    for pair; do variables="$variables, {\"key\": \"${pair%%=*}\", \"value\": \"${pair#*=}\"}"; done
    cat >container.json <<CONTAINER
{"metadata": {"name": "$name"}, "image": {"image": "$IMAGE"}, "log_path": "t.log",
 "command": ["/bin/sh", "-c", "$command"], "envs": [${variables#, }]}
CONTAINER
}

# start HANDLER: sets $pod and $container
start() {
    pod=$(crictl runp ${1:+"--runtime=$1"} pod.json)
    container=$(crictl create "$pod" container.json pod.json) || { crictl rmp -f "$pod" >/dev/null && exit 1; }
    crictl start "$container" >/dev/null || { crictl rmp -f "$pod" >/dev/null && exit 1; }
}

run() {
    handler=$1
    shift
    describe "$@"
    start "$handler"
    tries=0
    until crictl inspect "$container" | grep -q CONTAINER_EXITED || [ "$tries" -ge 100 ]; do
        tries=$((tries + 1))
        sleep 0.1
    done
    crictl logs "$container"
    crictl rmp -f "$pod" >/dev/null
}

keep() {
    handler=$1
    shift
    describe "$@"
    start "$handler"
    echo "$pod $container"
}

work=$(mktemp -d)
cd "$work"
mkdir logs
verb=$1
shift
"$verb" "$@"
[ "$verb" = keep ] || rm -rf "$work"
