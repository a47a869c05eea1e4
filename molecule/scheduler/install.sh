#!/bin/sh
# Stand-ins for a kubelet and a kube-scheduler 1.34 on a node that has neither, nor curl.
set -e
mkdir -p /etc/kubernetes/manifests /run/standin /var/log/pods
openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=kube-scheduler \
  -keyout /etc/kubernetes/standin.key -out /etc/kubernetes/standin.crt 2>/dev/null

# The kubelet: a process for each file in the folder of manifests, anew when the file differs or the process has ended;
# it says of each start which file it was for, and whether the file of --config was there.
cat >/usr/local/sbin/kubelet <<'SCRIPT'
#!/bin/sh
pods=/run/standin logs=/var/log/pods/kube-system_kube-scheduler-molecule_0/kube-scheduler
mkdir -p $pods $logs
stop() { # NAME
  [ -e "$pods/$1.pid" ] || return 0
  while kill -TERM "-$(cat "$pods/$1.pid")" 2>/dev/null; do sleep 0.1; done
}
start() { # FILE
  name=${1##*/}
  set -- "$1" $(sed -n 's/^ *- "*\(--[^ "]*\)"*$/\1/p' "$1")
  shift
  there='no config'
  for flag; do
    case $flag in --config=*) if [ -s "${flag#*=}" ]; then there='config there'; else there='config missing'; fi ;; esac
  done
  echo "$name: $there" >>/var/log/standin-starts
  rm -f "$pods/$name.pid"
  setsid sh -c 'echo $$ >"$0"; exec kube-scheduler "$@"' "$pods/$name.pid" "$@" 2>&1 |
    sed -u 's/^/2026-01-01T00:00:00Z stderr F /' >>$logs/0.log &
  until [ -s "$pods/$name.pid" ]; do sleep 0.1; done
}
while :; do
  for file in /etc/kubernetes/manifests/*; do
    [ -e "$file" ] || continue
    name=${file##*/} now=$(sha256sum <"$file")
    if [ "$now" != "$(cat "$pods/$name.sum" 2>/dev/null)" ]; then
      stop "$name"
      echo "$now" >"$pods/$name.sum"
      start "$file"
    elif ! kill -0 "$(cat "$pods/$name.pid" 2>/dev/null)" 2>/dev/null; then
      start "$file"
    fi
  done
  sleep 1
done
SCRIPT

# kube-scheduler: takes the flags of a stock manifest and --config, refuses others and a configuration that is not v1;
# answers on https://127.0.0.1:10259/healthz.  A rule of the house may forbid extenders.
cat >/usr/local/bin/kube-scheduler <<'SCRIPT'
#!/bin/sh
die() {
  echo "E0101 00:00:00.000000 1 run.go:72] \"command failed\" err=\"$*\"" >&2
  exit 1
}
for flag; do
  case $flag in
    --authentication-kubeconfig=* | --authorization-kubeconfig=* | --bind-address=* | --kubeconfig=* | --leader-elect=*) ;;
    --config=*)
      config=${flag#*=}
      [ -s "$config" ] || die "open $config: no such file or directory"
      grep -qx 'apiVersion: kubescheduler.config.k8s.io/v1' "$config" || die "no kind \"KubeSchedulerConfiguration\" is registered"
      [ ! -e /etc/no-extenders ] || die "house rule: no extenders here"
      ;;
    *) die "unknown flag: ${flag%%=*}" ;;
  esac
done
mkdir -p /run/standin/www
echo ok >/run/standin/www/healthz
cd /run/standin/www || exit 1
openssl s_server -quiet -accept 127.0.0.1:10259 -WWW -key /etc/kubernetes/standin.key -cert /etc/kubernetes/standin.crt &
wait
SCRIPT

# curl, as far as a health check uses it
cat >/usr/local/bin/curl <<'SCRIPT'
#!/bin/sh
for url; do :; done
place=${url#https://}
printf 'GET /%s HTTP/1.0\r\n\r\n' "${place#*/}" | timeout 5 openssl s_client -quiet -connect "${place%%/*}" 2>/dev/null |
  grep -q '^HTTP/1.0 200'
SCRIPT
chmod 755 /usr/local/sbin/kubelet /usr/local/bin/kube-scheduler /usr/local/bin/curl
printf '[Service]\nExecStart=/usr/local/sbin/kubelet\n' >/etc/systemd/system/kubelet.service
systemctl daemon-reload
systemctl restart kubelet
