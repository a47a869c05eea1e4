# shellcheck shell=sh
# The kernel's settings, its command line in the boot entries, and its initramfs.  Put before activate.sh, probe.sh, read_journal.sh and restore.sh.

GRUB_CFG=/boot/grub/grub.cfg

# setting_place KEY: its file; where a dot is the first separator, dots and slashes mean each other (sysctl.d(5))
setting_place() {
  case ${1%%/*} in
    *.*) printf '/proc/sys/%s\n' "$(printf '%s' "$1" | tr ./ /.)" ;;
    *) printf '/proc/sys/%s\n' "$1" ;;
  esac
}

# setting KEY: its value, with blanks between its words
setting() {
  local value
  # by cat: read takes one byte after the other, and /proc/sys answers the first alone
  value=$(cat "$(setting_place "$1")" 2>/dev/null) || return 1
  printf '%s\n' "$value" | tr '\t' ' '
}

# loader: what writes the boot entries
loader() {
  if have update-grub && [ -d /etc/default ]; then echo update-grub; elif have grubby; then echo grubby; fi
}

# boot_arguments COMMAND…: the arguments of the entry that boots next; grubby is run by the command, such as `within 5`
boot_arguments() {
  case $(loader) in
    update-grub) sed -n 's/^[[:space:]]*linux[a-z]*[[:space:]]//p' "$GRUB_CFG" 2>/dev/null | head -n 1 ;;
    grubby) "$@" grubby --info=DEFAULT 2>/dev/null </dev/null | sed -n 's/^args="\(.*\)"/\1/p' ;;
  esac | tr ' ' '\n' | grep '='
}

# argument NAME: the last NAME=VALUE of that entry, which counts, or absent
argument() {
  local word
  word=$(boot_arguments command | grep "^$1=" | tail -n 1)
  echo "${word:-absent}"
}

# has_argument WORD ARGUMENT…: whether one is the word, or has its value among others: iommu=pt,strict says iommu=pt
has_argument() {
  local word one
  word=$1
  shift
  for one in "$@"; do
    case ${one%%=*}=,${one#*=}, in "${word%%=*}"=*",${word#*=},"*) return 0 ;; esac
  done
  return 1
}

# set_argument NAME NAME=VALUE|absent FORMER: by grubby; update-grub takes it from the file that says so
set_argument() {
  case $(loader):$2 in
    grubby:absent) grubby --update-kernel=ALL --remove-args="$3" ;;
    grubby:*) grubby --update-kernel=ALL --args="$2" ;;
    *) update-grub ;;
  esac </dev/null 9>&-
}

# initramfs_command: what makes those of all kernels again; nothing where no tool for it is there
initramfs_command() {
  if have update-initramfs; then
    echo update-initramfs -u -k all
  elif have dracut; then
    echo dracut --regenerate-all --force
  elif have mkinitcpio; then
    echo mkinitcpio -P
  fi
}
