# Shared by the scripts of tests/vm: where the cache is, what a guest needs of this machine. Sourced by bash.

vm_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
vm_cache=${RINGSOCK_VM_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/ringsock-vm}
kernel_key=$(sha256sum <"$vm_dir/ingredients" | cut -c1-12)
kernel_dir=$vm_cache/kernel-$kernel_key # vmlinux, modules/, version
initrd_key=$(cat "$vm_dir/init" "$vm_dir/make_lab" "$vm_dir/ingredients" | sha256sum | cut -c1-12)
initrd=$kernel_dir/initrd-$initrd_key.cpio

unpacked_mb=1300 # what the making of a kernel directory takes at its height
kept_mb=150      # what stays

progress() { printf '# %s\n' "$*" >&2; }

# cannot REASON...: no guest here, and why; status 77 is "skipped" for automake and ./check.
cannot() {
  printf 'no guest: %s\n' "$*" >&2
  exit 77
}

require_programs() {
  local missing=() program
  for program in "$@"; do command -v "$program" >/dev/null || missing+=("$program"); done
  [ ${#missing[@]} = 0 ] || cannot "missing programs: ${missing[*]} (scripts/install-packages --check installs them)"
}
