#!/usr/bin/env bash
# tools/bare_root.sh [option]... [-- COMMAND]: what a stranger with a fresh system sees. As root, makes a bare root of a
# Debian suite by debootstrap, copies the tree into it as a clone would have it, and runs the README's command there.
#
#   --suite bookworm|trixie   the system (trixie)
#   --compiler g++-13         another compiler, by the name of its package; clang-19 likewise
#   --root FOLDER             keep the root there and use it again; without it, it is made anew and removed
#   --bind FOLDER             a folder of this machine that is to be there too, such as a compiler's cache (repeatable)
#   COMMAND                   by default: make demo
#
# The package mirror, its keys and apt's settings are this machine's own. Exit code: the command's.
set -euo pipefail
tree=$(cd "$(dirname "$0")/.." && pwd)

usage() { sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"; }
fail() {
  echo "bare_root: $*" >&2
  exit 1
}

suite=trixie compiler="" root="" kept="" binds=() command=(make demo)
while [ $# -gt 0 ]; do
  case $1 in
    --suite) suite=$2 && shift 2 ;;
    --compiler) compiler=$2 && shift 2 ;;
    --root) root=$2 kept=yes && shift 2 ;;
    --bind) binds+=("$2") && shift 2 ;;
    --) shift && command=("$@") && break ;;
    --help) usage && exit 0 ;;
    *) fail "unknown option $1; --help lists those there are" ;;
  esac
done
[ "$(id -u)" = 0 ] || fail "debootstrap and chroot need root; run this as root"
command -v debootstrap >/dev/null || fail "debootstrap is missing; apt-get install debootstrap"

# The mirror that apt has Debian itself from.
mirror=$(apt-get indextargets --format '$(ORIGIN) $(LABEL) $(REPO_URI)' 'Created-By: Packages' 2>/dev/null |
  awk '$1 == "Debian" && $2 == "Debian" { print $3; exit }')
[ -n "$mirror" ] || fail "apt knows no mirror of Debian; run apt-get update, or add one to /etc/apt"

if [ -z "$root" ]; then root=$(mktemp -d /tmp/bare_root.XXXXXX); fi
mkdir -p "$root"
clean() { [ -n "$kept" ] || rm -rf --one-file-system "$root"; }
trap clean EXIT

if [ ! -e "$root/etc/debian_version" ]; then
  echo "bare_root: debootstrap $suite"
  log=$(mktemp)
  debootstrap --variant=minbase "$suite" "$root" "$mirror" >"$log" 2>&1 || { tail -n 20 "$log" >&2 && fail "debootstrap failed"; }
  rm -f "$log"
fi
for file in /etc/resolv.conf /etc/hosts; do if [ -e "$file" ]; then cp -L "$file" "$root$file"; fi; done
if [ -d /etc/apt/apt.conf.d ]; then
  # What a proxy or a mirror asks for; nothing that runs programs of this machine.
  apt-config dump --format '%f "%v";%n' | grep -E '^Acquire::(Check|https?::|Retries)' >"$root/etc/apt/apt.conf.d/90host" || true
fi

# A clone of what is committed, with what is changed here over it.
rm -rf "$root/src"
git -c advice.detachedHead=false clone --quiet --no-hardlinks "$tree" "$root/src"
(cd "$tree" && git ls-files -z --cached --others --exclude-standard --deduplicate |
  while IFS= read -r -d '' file; do [ ! -e "$file" ] || printf '%s\0' "$file"; done |
  tar --create --null --files-from=- --file=-) | tar --extract --directory="$root/src" --file=-
(cd "$tree" && git ls-files -z --deleted) | (cd "$root/src" && xargs -0r rm -f)

variables=(HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb LC_ALL=C.UTF-8
  DEBIAN_FRONTEND=noninteractive)
for name in http_proxy https_proxy no_proxy CCACHE_DIR CMAKE_CXX_COMPILER_LAUNCHER; do
  if [ -n "${!name:-}" ]; then variables+=("$name=${!name}"); fi
done
packages="git make"
if [ -n "$compiler" ]; then
  packages+=" $compiler"
  variables+=("CXX=${compiler/clang-/clang++-}")
fi

# A clang brings no C++ library; it takes g++'s, which the build's packages have.
inside='
set -e
cd /
apt-get update -q >/dev/null
apt-get install -y -q --no-install-recommends $PACKAGES >/dev/null 2>&1
git config --global --add safe.directory /src
cd /src
exec "$@"'

# Mounts live in a namespace of their own, and end with it.
unshare --mount --pid --fork --kill-child --propagation private bash -c '
  set -e
  root=$1 && shift
  binds=$1 && shift
  mount -t proc proc "$root/proc"
  mount -t sysfs -o ro sysfs "$root/sys" 2>/dev/null || true
  mount -t tmpfs -o mode=755 tmpfs "$root/dev"
  for device in null zero full random urandom tty; do
    touch "$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
  done
  mkdir -p "$root/dev/shm" "$root/dev/pts"
  mount -t tmpfs tmpfs "$root/dev/shm"
  mount -t devpts -o newinstance,ptmxmode=666 devpts "$root/dev/pts"
  ln -s pts/ptmx "$root/dev/ptmx"
  ln -s /proc/self/fd "$root/dev/fd"
  printf "%s" "$binds" | while IFS= read -r folder; do
    [ -n "$folder" ] || continue
    mkdir -p "$root$folder"
    mount --bind "$folder" "$root$folder"
  done
  ip link set lo up 2>/dev/null || true
  exec chroot "$root" "$@"
' bare_root "$root" "$(printf '%s\n' "${binds[@]}")"$'\n' env -i "${variables[@]}" PACKAGES="$packages" bash -c "$inside" bash "${command[@]}"
