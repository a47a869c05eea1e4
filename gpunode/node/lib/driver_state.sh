# shellcheck shell=sh
# Which driver of NVIDIA's is loaded, and whether it is the installed one.  Put before activate.sh and read_journal.sh.

module_version() { cat /sys/module/nvidia/version 2>/dev/null; }

# the version that user space was built for: the suffix of libnvidia-ml.so
userspace_version() {
  for library in /usr/lib/*/libnvidia-ml.so.*.* /usr/lib64/libnvidia-ml.so.*.* /usr/lib/libnvidia-ml.so.*.* /usr/lib/*/nvidia/*/libnvidia-ml.so.*.*; do
    [ -e "$library" ] && printf '%s\n' "${library##*libnvidia-ml.so.}" && return
  done
}

# Whether the loaded driver is of the other flavour than the one that is installed: both have the same version.
other_flavour() {
  case $(modinfo -F license nvidia 2>/dev/null) in
    *GPL*) ! grep -q 'Open Kernel Module' /proc/driver/nvidia/version 2>/dev/null ;;
    NVIDIA) grep -qs 'Open Kernel Module' /proc/driver/nvidia/version ;;
    *) return 1 ;;
  esac
}

# as_installed VERSION: whether what is loaded is the installed driver, of that version; of any where none is named
as_installed() {
  { [ -z "$1" ] || [ "$(module_version)" = "$1" ]; } && ! other_flavour
}
