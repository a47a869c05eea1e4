#!/bin/sh
# cluster.sh VERSION: a cluster of this one node, of the programs in /opt/kubernetes and the files in /opt/cluster.
# 77: this kernel has not what its pods need.
set -e
for kind in veth bridge; do
    peer=
    [ "$kind" = bridge ] || peer="peer name trial1"
    # shellcheck disable=SC2086 # words
    ip link add trial0 type "$kind" $peer || { echo "this kernel makes no $kind: pods have no network"; exit 77; }
    [ "$kind" = veth ] || ip link delete trial0
    [ "$kind" = bridge ] || { ip link set trial0 name node0 && ip link set trial1 name node1; }
done
ip address add 10.99.0.1/24 dev node0
ip link set node0 up
ip link set node1 up
ip route replace default dev node0 # by which the API server chooses its address
[ -e /dev/kmsg ] || { : >/dev/kmsg && mount --bind /dev/null /dev/kmsg; }
cp -a /opt/cluster/. /
rm -f /var/lib/gpunode-lab-containerd # containerd's file is a new one
systemctl daemon-reload
systemctl restart containerd
for archive in /srv/kubernetes/images/*.tar; do ctr -n k8s.io images import "$archive" >/dev/null; done
systemctl start etcd kube-apiserver kube-controller-manager
until kubectl get --raw=/readyz >/dev/null 2>&1; do sleep 1; done
systemctl start kube-proxy kubelet
until kubectl get node/gpu-node >/dev/null 2>&1; do sleep 1; done
kubectl wait --for=condition=Ready node/gpu-node --timeout=120s >/dev/null
kubeadm init phase control-plane scheduler --kubernetes-version "$1" --cert-dir /run/none >/dev/null
ip route delete default # else what asks for the internet waits, in place of an error
kubectl get nodes --no-headers
