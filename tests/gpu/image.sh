#!/bin/sh
# image.sh NAME: an image of gpu-add with the C library that it needs, and busybox, for ctr and for pods.
set -e
work=$(mktemp -d)
cd "$work"
libraries=lib/x86_64-linux-gnu
mkdir -p root/bin root/etc root/tmp root/lib64 root/usr/lib root/usr/local/bin root/$libraries image
cp /bin/busybox root/bin/busybox
ln -s busybox root/bin/sh
cp /usr/local/bin/gpu-add root/usr/local/bin/
cp -L /lib64/ld-linux-x86-64.so.2 root/lib64/
for name in libc.so.6 libdl.so.2 libm.so.6 libpthread.so.0 librt.so.1; do cp -L "/$libraries/$name" root/$libraries/; done
ln -s ../../$libraries root/usr/$libraries
tar -C root -cf image/layer.tar .
layer=$(sha256sum <image/layer.tar | cut -d ' ' -f 1)
cat >image/config.json <<JSON
{"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": ["sha256:$layer"]},
 "config": {"Env": ["PATH=/bin", "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all"],
            "Entrypoint": ["/usr/local/bin/gpu-add"]}}
JSON
printf '[{"Config": "config.json", "RepoTags": ["%s"], "Layers": ["layer.tar"]}]' "$1" >image/manifest.json
tar -C image -cf image.tar layer.tar config.json manifest.json
ctr images import image.tar
ctr -n k8s.io images import image.tar
cd /
rm -rf "$work"
