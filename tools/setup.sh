#!/usr/bin/env bash
# tools/setup.sh GROUP...: installs what is missing of these groups of tools/packages.txt, and says so.
# tools/setup.sh --python: makes build/venv with the packages of tools/requirements.txt and, for tests, published
# vocabularies.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { echo "setup: $*"; }

# The names of a group for this distribution, one a line.
packages_of() {
  local distribution=""
  if [ -r /etc/os-release ]; then distribution=$(. /etc/os-release && echo "$ID"); fi
  awk -v group="$1" -v distribution="$distribution" \
    '$1 == group { print (distribution == "ubuntu" && NF > 2) ? $3 : $2 }' tools/packages.txt
}

missing_of() {
  local package
  for package in $(packages_of "$1"); do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q ' installed$' || echo "$package"
  done
}

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

install_packages() {
  local log
  log=$(mktemp)
  if as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@" >"$log" 2>&1; then
    rm -f "$log"
  else
    tail -n 20 "$log" >&2
    rm -f "$log"
    return 1
  fi
}

updated=""
set_up_group() {
  local group=$1 missing
  missing=$(missing_of "$group" | tr '\n' ' ')
  if [ -z "$missing" ]; then return 0; fi
  if [ "$(id -u)" != 0 ] && ! command -v sudo >/dev/null; then
    say "these packages are missing and neither root nor sudo is at hand; install them: $missing" >&2
    return 1
  fi
  if [ -z "$updated" ]; then
    say "apt-get update"
    as_root apt-get update -q >/dev/null || say "apt-get update failed; trying with the lists that are here" >&2
    updated=yes
  fi
  say "apt-get install $missing"
  # shellcheck disable=SC2086  # a list of names
  install_packages $missing
}

set_up_python() {
  local stamp
  stamp=build/venv/installed-$(sha256sum tools/requirements.txt | cut -c1-16)
  if [ ! -e "$stamp" ]; then
    say "making build/venv with the packages of tools/requirements.txt"
    rm -rf build/venv
    python3 -m venv build/venv
    build/venv/bin/python -m pip install --quiet --disable-pip-version-check -r tools/requirements.txt
    touch "$stamp"
  fi
  build/venv/bin/python tools/fetch_vocabularies.py ||
    say "could not bring published vocabularies; tests that need them will be skipped"
}

for group in "$@"; do
  if [ "$group" = --python ]; then
    set_up_python
  elif ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    say "this is neither Debian nor Ubuntu, so nothing is installed; needed: $(packages_of "$group" | tr '\n' ' ')"
  elif [ "$group" = optional ]; then
    for package in $(missing_of optional); do
      say "apt-get install $package (optional)"
      { [ -n "$updated" ] || as_root apt-get update -q >/dev/null; updated=yes; install_packages "$package"; } ||
        say "could not install $package; what needs it will be skipped"
    done
  else
    set_up_group "$group"
  fi
done
