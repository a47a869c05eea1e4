#!/bin/sh
# pods.sh COUNT IMAGE: so many pods at one time, each with one nvidia.com/gpu, which add on it again and again; prints
# what they said, and how many ran side by side.
set -eu
for n in $(seq "$1"); do
    cat <<YAML
---
apiVersion: v1
kind: Pod
metadata: {name: trial-$n, labels: {trial: pods}}
spec:
  restartPolicy: Never
  runtimeClassName: nvidia
  containers:
    - name: add
      image: $2
      imagePullPolicy: Never
      command: [sh, -c, "for n in 1 2 3 4 5 6 7 8; do gpu-add || exit; busybox sleep 1; done"]
      env: [{name: PATH, value: "/bin:/usr/local/bin"}]
      resources: {limits: {nvidia.com/gpu: 1}}
YAML
done | kubectl apply -f - >/dev/null
trap 'kubectl delete pod -l trial=pods --grace-period=1 >/dev/null' EXIT
most=0
for _ in $(seq 90); do
    phases=$(kubectl get pods -l trial=pods -o 'jsonpath={.items[*].status.phase}')
    now=$(printf '%s\n' "$phases" | tr ' ' '\n' | grep -c Running || :)
    [ "$now" -le "$most" ] || most=$now
    case $phases in *Running* | *Pending*) sleep 1 ;; *) break ;; esac
done
kubectl get pods -l trial=pods --no-headers
kubectl describe pods -l trial=pods | sed -n '/^Events:/,$p' | grep Warning | tail -n 3 || :
kubectl logs -l trial=pods --tail=1 --prefix
case $phases in *Failed* | *Pending* | *Running*) exit 1 ;; esac
echo "$most side by side"
