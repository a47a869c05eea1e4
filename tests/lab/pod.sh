#!/bin/sh
# Runs one pod of the handler nvidia that asks for GPU 1, and prints what its container said.
set -e
work=$(mktemp -d)
cd "$work"
mkdir -p root/bin logs
cp /bin/busybox root/bin/
ln -s busybox root/bin/sh
tar -C root -cf layer.tar .
layer=$(sha256sum <layer.tar | cut -d ' ' -f 1)
printf '{"architecture":"amd64","os":"linux","config":{},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' "$layer" >config.json
echo '[{"Config":"config.json","RepoTags":["localhost/gpunode-test:1"],"Layers":["layer.tar"]}]' >manifest.json
tar -cf image.tar layer.tar config.json manifest.json
ctr -n k8s.io images import image.tar >/dev/null
grep -q runtimes.nvidia /etc/containerd/config.toml || cat >>/etc/containerd/config.toml <<'TOML'
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
BinaryName = "/usr/bin/nvidia-container-runtime"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
TOML
systemctl restart containerd
cat >pod.json <<POD
{"metadata": {"name": "t", "namespace": "default", "uid": "t-$$", "attempt": 1}, "log_directory": "$work/logs",
 "linux": {"security_context": {"namespace_options": {"network": 2}}}}
POD
cat >container.json <<'CONTAINER'
{"metadata": {"name": "t"}, "image": {"image": "localhost/gpunode-test:1"}, "log_path": "t.log",
 "command": ["/bin/sh", "-c", "echo /dev/nvidia*"], "envs": [{"key": "NVIDIA_VISIBLE_DEVICES", "value": "1"}]}
CONTAINER
pod=$(crictl runp --runtime=nvidia pod.json)
container=$(crictl create "$pod" container.json pod.json)
crictl start "$container" >/dev/null
tries=0
until crictl inspect "$container" | grep -q CONTAINER_EXITED || [ "$tries" -ge 50 ]; do
    tries=$((tries + 1))
    sleep 0.2
done
crictl logs "$container"
crictl rmp -f "$pod" >/dev/null
rm -rf "$work"
