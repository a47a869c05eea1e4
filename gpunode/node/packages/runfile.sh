#!/bin/sh
# NVIDIA's self-extracting installers: fetch one and compare its checksum, run it, or take off what it installed.
# Request and output: core/items/runfile.py.  Runs behind common.sh and dkms.sh.
# shellcheck disable=SC2154  # variables of the parts before it

kind=$(word kind) name=$(word name) release=$(word version) modules=$(word modules)
STORE=$GPUNODE_STATE/runfile # root's alone: what lies there is what runs
file=$STORE/$name
TOOLKIT=/usr/local/cuda-$release
INSTALLER_LOG=/var/log/nvidia-installer.log

fail() {
  [ -z "${begun:-}" ] || journal runfile failed ",\"message\":$(json_text "$1")"
  load_again
  show_log
  finish failed "$1" "${2:-}"
}

# ---------------------------------------------------------------- what is there

# driver_version: of the driver that nvidia-installer put there; the first line of its own record
driver_version() { head -n 1 /var/lib/nvidia/log 2>/dev/null; }

# other_flavour: whether a kernel has modules of the flavour that is not wanted
other_flavour() {
  [ -n "$modules" ] || return 1
  for tree in /lib/modules/*; do
    case $(modinfo -k "${tree##*/}" -F license nvidia 2>/dev/null) in
      *MIT*) [ "$modules" = open ] || return 0 ;;
      NVIDIA) [ "$modules" = proprietary ] || return 0 ;;
    esac
  done
  return 1
}

is_there() {
  case $kind in
    driver) [ "$(driver_version)" = "$release" ] && ! other_flavour ;;
    cuda) "$TOOLKIT/bin/nvcc" --version 2>/dev/null | grep -q "release $release," ;;
  esac
}

# owner FILE: the package that has it, nothing where none has
owner() {
  if have dpkg; then
    dpkg -S "$1" 2>/dev/null | sed 's/: .*//; q'
  elif have rpm; then
    rpm -qf --qf '%{NAME}\n' "$1" 2>/dev/null | grep -v 'not owned' | head -n 1
  elif have pacman; then
    pacman -Qqo "$1" 2>/dev/null
  fi
}

# packaged: the package that a driver is from, for the installer would write over its files
packaged() {
  for library in /usr/lib/*/libnvidia-ml.so.1 /usr/lib64/libnvidia-ml.so.1 /usr/lib/libnvidia-ml.so.1 /usr/lib/*/nvidia/*/libnvidia-ml.so.1; do
    [ ! -e "$library" ] || owner "$library"
  done | head -n 1
}

# ---------------------------------------------------------------- fetch

# quoted TEXT: as curl's and wget's own files have it; both read them line by line
quoted() { printf '"%s"\n' "$(printf '%s' "$1" | sed 's/[\\"]/\\&/g')"; }

# get URL FILE: proxy and URL may have a password, and arguments are public: they go by a file, or the environment.  What
# is asked of https is not fetched by a redirect to http.
get() (
  umask 077
  proxy=$(word proxy)
  case $1 in https:*) only='=https' ;; *) only='=http,https' ;; esac
  if have curl; then
    {
      printf 'url = ' && quoted "$1"
      [ -z "$proxy" ] || { printf 'proxy = ' && quoted "$proxy"; }
    } >"$GPUNODE_IN/.curl"
    curl -fsSL --proto "$only" --proto-redir "$only" --connect-timeout 20 --retry 2 --speed-time 60 --speed-limit 1000 \
      -K "$GPUNODE_IN/.curl" -o "$2" 2>"$GPUNODE_IN/.get"
  else
    [ -z "$proxy" ] || export http_proxy="$proxy" https_proxy="$proxy"
    wget -T 60 -O "$2" "$1" 2>"$GPUNODE_IN/.get" # busybox's has no option that leaves errors alone
  fi
)

# can_get: whether this node can fetch the file.  wget follows a redirect from https to http, so a checksum is not asked
# of it; and it takes URLs as arguments, so none with a password.
can_get() {
  have curl || { have wget && [ -n "$sum" ] && ! requested urls | grep -q '://[^/]*@'; }
}

# published URL: the checksum next to the file, as «HASH  NAME»; the server's certificate is all that proves it
published() {
  case $1 in https:*) ;; *) echo "no checksum over http: set sha256 of the runfile in gpunode.yml" >"$GPUNODE_IN/.get" && return 1 ;; esac
  get "$1.sha256sum" "$GPUNODE_IN/.sum" || return
  grep -oE '^[0-9a-f]{64}' "$GPUNODE_IN/.sum" | head -n 1
}

# sound FILE: an installer with the checksum that is wanted, else why not
sound() {
  is=$(hash_of "$1")
  [ "$is" != "$sum" ] || return 0
  case $(head -c 200 "$1" | tr -d '\000' | tr 'A-Z\n' 'a-z ') in
    *'<html'* | *'<!doctype'* | *'<?xml'*) echo "is a web page, not an installer" ;;
    '#!'*) echo "has the SHA-256 $is, and $sum is expected ($(wc -c <"$1") bytes)" ;;
    *) echo "is no installer: it has $(wc -c <"$1") bytes, and the SHA-256 $is" ;;
  esac
}

# keep FILE ORIGIN: puts a file that is sound where install finds it
keep() {
  why=$(sound "$1")
  [ -z "$why" ] || { rm -f "$file.part" && finish refused "$name from $2 $why" "correct its URL, path or sha256 in gpunode.yml; nothing was changed"; }
  { mv "$1" "$file" && printf '%s\n' "$sum" >"$file.sha256"; } || fail "cannot write $file" "make room on the file system of /var"
}

fetch() {
  is_there && finish unchanged "$name is installed"
  sum=$(word sha256)
  if [ -e "$file" ]; then
    [ -n "$sum" ] || sum=$(cat "$file.sha256" 2>/dev/null)
    [ "$(hash_of "$file")" != "$sum" ] || finish unchanged "$name is here"
  fi
  given=$(word given)
  if [ -z "$given" ] && { [ -z "$(requested urls)" ] || ! can_get; }; then
    say need "$name"
    ! checking || changed package "$name" "fetch $name"
    finish changed "$name comes from the machine that runs gpunode"
  fi
  checking && changed package "$name" "fetch $name" && finish changed "$name would be fetched"
  need_root
  lock
  (umask 077 && mkdir -p "$STORE") || fail "cannot write $STORE" "make room on the file system of /var"
  if [ -n "$given" ]; then
    attempt cp "$given" "$file.part" || fail "cannot write $file.part: $why" "make room on the file system of /var"
    keep "$file.part" "the machine that runs gpunode"
  else
    download
  fi
  changed package "$name" "fetched $name"
  finish changed "$name is here, and its checksum is right"
}

download() {
  local expected url
  requested urls >"$GPUNODE_IN/.urls"
  expected=$sum
  while read -r url; do
    sum=$expected
    [ -n "$sum" ] || sum=$(published "$url")
    [ -n "$sum" ] && get "$url" "$file.part" && keep "$file.part" "$url" && return
    [ -n "$sum" ] || url=$url.sha256sum
    why="$url: $(last_words "$GPUNODE_IN/.get")"
    printf '%s\n' "$why" >>"$log"
  done <"$GPUNODE_IN/.urls"
  rm -f "$file.part"
  fail "$name cannot be fetched: $why" "check its URL, the network and the proxy from the node; nothing was changed"
}

# ---------------------------------------------------------------- install

# clear_the_way: installers before 545.23.06 refuse while a driver is loaded, those before 550.40.07 while nouveau is
clear_the_way() {
  local module
  requested options | grep -qx -e '--no-nouveau-check' || unload nouveau
  ! requested options | grep -qx -e '--allow-installation-with-running-driver' && [ -d /sys/module/nvidia ] || return 0
  # shellcheck disable=SC2086 # words by design
  pause $GPU_UNITS
  set_aside_driver
  for module in $(down_to nvidia); do unload "$module"; done
}

# unload MODULE: or gives up, and leaves all as it was
unload() {
  [ -d "/sys/module/$1" ] || return 0
  [ -n "${carried:-}" ] || prior module "$1" loaded absent
  take_module "$1" && changed module "$1" "unloaded $1" && return
  load_again
  finish refused "$name cannot be installed while the module $1 is loaded" \
    "stop what uses the GPU, or boot without it (modprobe.blacklist=$1), then run again; newer drivers do not need that"
}

# load_again: what was loaded upon the old driver, GDRCopy's and others' modules too, and the services that were stopped
load_again() {
  local module
  for module in ${carried:-}; do
    is_module "$module" || { bring_module "$module" && changed module "$module" "loaded $module"; } || [ "$module" != nvidia ] || break
  done
  carried=''
  bring_back
  resume
}

# kernel_option: the installer builds for the running kernel, and without that one's headers for the newest that has some
kernel_option() {
  [ ! -e "/lib/modules/$(uname -r)/build" ] || return 0
  kernels_with_headers | sort -V | tail -n 1 | sed 's/^/--kernel-name=/'
}

# run_file OPTION…: unpacked next to itself, where there is room and programs may run
run_file() {
  (umask 077 && mkdir -p "$STORE/tmp")
  TMPDIR=$STORE/tmp sh "$file" "$@" >>"$log" 2>&1 </dev/null 9>&-
  status=$?
  rm -rf "$STORE/tmp"
  return "$status"
}

# installer_error FILE…: what the kernel, the installer and the compiler said, at the end of the log; the sentence that tells most
installer_error() {
  local path sentence
  dmesg 2>/dev/null | grep -iE 'nvidia|nvrm|nouveau' | tail -n 10 | sed 's/^/kernel: /' >>"$log"
  cat "$log" "$@" 2>/dev/null | grep -v -e '^ *$' -e '^kernel: ' -e 'Installation has failed' >"$GPUNODE_IN/.errors"
  for path in "$@"; do [ ! -e "$path" ] || tail -n 20 "$path" >>"$log"; done
  sentence=$(grep -E '(^|[ :])error: ' "$GPUNODE_IN/.errors" | head -n 1) # the compiler's first
  [ -n "$sentence" ] || sentence=$(grep -iE '(^| )error[: ]|\[ERROR\]|Error!' "$GPUNODE_IN/.errors" | tail -n 1)
  [ -n "$sentence" ] || sentence=$(tail -n 1 "$GPUNODE_IN/.errors")
  printf '%s' "$sentence" | cut -c 1-300
}

install_driver() {
  held=$(packaged)
  [ -z "$held" ] || finish refused "the package $held has the driver's files, and $name would write over them" "remove the driver's packages first, or set driver.method to packages"
  clear_the_way
  was=$(driver_version)
  prior runfile driver "${was:-absent}" "$release"
  journal runfile intent ",\"name\":$(json_text "$name"),\"version\":\"$release\",\"from\":$(json_text "$was")"
  begun=1
  # shellcheck disable=SC2046 # words of an installer, which hold no space
  { run_file $(requested options) $(kernel_option) && is_there; } ||
    fail "$name failed: $(installer_error "$INSTALLER_LOG" "/var/lib/dkms/nvidia/$release/build/make.log")" "see the log; $INSTALLER_LOG on the node has the whole of it"
  changed package driver "installed driver $release${was:+ in place of $was}"
}

install_cuda() {
  prior runfile "cuda-$release" absent "$release"
  journal runfile intent ",\"name\":$(json_text "$name"),\"version\":\"$release\""
  begun=1
  # shellcheck disable=SC2046
  { run_file $(requested options) && is_there; } || fail "$name failed: $(installer_error /var/log/cuda-installer.log)" "see the log; /var/log/cuda-installer.log on the node has the whole of it"
  changed package cuda "installed CUDA $release in $TOOLKIT"
}

install_() {
  there=
  ! is_there || there=1
  if [ -n "$there" ] && { [ "$kind" != driver ] || [ -z "$(dkms_missing)" ]; }; then finish unchanged "$name is installed"; fi
  checking && changed package "$name" "${there:+build the modules of }${there:-run }$name" && finish changed "$name would be run"
  need_root
  lock
  if [ -z "$there" ]; then
    [ -e "$file" ] || finish refused "$name is not on the node" "run the step that fetches it first (preflight_fetch)"
    sum=$(cat "$file.sha256" 2>/dev/null)
    why=$(sound "$file")
    [ -z "$why" ] || finish refused "$file $why" "remove it, and run again"
    "install_$kind"
  fi
  [ "$kind" != driver ] || dkms_build
  [ -z "${built:-}" ] || changed module nvidia "built $(tr '\n' ';' <"$GPUNODE_IN/.unbuilt")"
  [ -z "${begun:-}" ] || journal runfile 'done' ",\"name\":$(json_text "$name"),\"version\":\"$release\""
  load_again
  rm -f "$file" "$file.sha256"
  finish changed "$name is installed"
}

# ---------------------------------------------------------------- uninstall

uninstall() {
  case $kind in
    driver) was=$(driver_version) tool=$(command -v nvidia-uninstall || command -v nvidia-installer) ;;
    cuda) was=$release tool=$TOOLKIT/bin/cuda-uninstaller && [ -x "$tool" ] || was='' ;;
  esac
  [ -n "$was" ] || [ "$kind" != driver ] || [ -z "$tool" ] || was=unknown
  [ -n "$was" ] || finish unchanged "no runfile's $kind is installed"
  [ -n "$tool" ] || finish refused "driver $was is from a runfile, and nvidia-uninstall is gone" "run its installer again with --uninstall: NVIDIA-Linux-*-$was.run --uninstall"
  checking && changed package "$kind" "take off the $kind $was that a runfile installed" && finish changed "the $kind $was would be taken off"
  need_root
  lock
  journal runfile intent ",\"remove\":\"$was\",\"kind\":\"$kind\""
  begun=1
  "take_off_$kind"
  journal runfile 'done' ",\"remove\":\"$was\",\"kind\":\"$kind\""
  changed package "$kind" "took off the $kind $was that a runfile installed"
  finish changed "the $kind $was is off"
}

take_off_driver() {
  case $tool in
    *nvidia-installer) set -- "$tool" --uninstall --silent ;;
    *) set -- "$tool" --silent ;;
  esac
  "$@" >>"$log" 2>&1 </dev/null 9>&- && [ -z "$(driver_version)" ] ||
    fail "nvidia-uninstall failed: $(installer_error /var/log/nvidia-uninstall.log "$INSTALLER_LOG")" "see the log; /var/log/nvidia-uninstall.log on the node has the whole of it"
  dkms status 2>/dev/null | dkms_states | awk -v version="$was" '$2 == version { print $1 "/" $2 }' | sort -u | while read -r left; do
    dkms remove "$left" --all >>"$log" 2>&1 </dev/null 9>&- || say note "DKMS keeps $left"
  done
}

take_off_cuda() {
  "$tool" --silent >>"$log" 2>&1 </dev/null 9>&- || fail "cuda-uninstaller failed: $(installer_error /var/log/cuda-uninstaller.log)" "see the log"
  [ ! -x "$TOOLKIT/bin/nvcc" ] || fail "cuda-uninstaller left $TOOLKIT/bin/nvcc" "see the log"
}

# ---------------------------------------------------------------- main

# close: an installer that was killed has no outcome in the journal; what it left is seen and fixed by the next run
close() {
  # shellcheck disable=SC2034 # by journal
  for journal_id in $(unfinished runfile); do journal runfile failed ',"message":"interrupted"'; done
}

recover() {
  [ -n "$(unfinished runfile)" ] || finish unchanged "no installer was interrupted"
  checking && changed journal runfile "close what an interrupted installer left in the journal" && finish changed "an interrupted installer is known"
  need_root
  lock
  close
  rm -rf "$STORE/tmp"
  changed journal runfile "closed what an interrupted installer left in the journal"
  finish changed "an interrupted installer is closed in the journal"
}

case $(word mode) in
  fetch) fetch ;;
  install) install_ ;;
  uninstall) uninstall ;;
  recover) recover ;;
  *) finish refused "mode $(word mode)" "fetch, install, uninstall or recover" ;;
esac
