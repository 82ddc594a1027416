#!/usr/bin/env bash
# tools/make_deb.sh: build/deb/nibble_VERSION_ARCH.deb of build/release/nibble, by dpkg-deb alone: one program, one model
# and a few texts need no more. Its man pages and completions are made of the program's own help and tables.
#   DEB_VERSION=1.2.3~test1   another version than the program's
#   PROGRAM=PATH        another program, such as build/cuda/nibble
set -euo pipefail
cd "$(dirname "$0")/.."
export LC_ALL=C.UTF-8
umask 022

binary=${PROGRAM:-build/release/nibble}
version=${DEB_VERSION:-$("$binary" --version | awk 'NR == 1 { print $2 }')}
architecture=$(dpkg --print-architecture)
# The same tree gives the same package.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || stat -c %Y CHANGELOG.md)}
export SOURCE_DATE_EPOCH
maintainer=${DEB_MAINTAINER:-nibble developers <nibble@packages.invalid>}

root=build/deb/root
rm -rf "$root"
mkdir -p "$root/DEBIAN"

put() { install -D -m "$1" "$2" "$root/$3"; }
pack() { gzip -9n >"$root/$1"; }

install -D -m 755 "$binary" "$root/usr/bin/nibble"
strip --strip-unneeded --remove-section=.comment --remove-section=.note "$root/usr/bin/nibble"
for file in models/demo/*; do put 644 "$file" "usr/share/nibble/models/demo/$(basename "$file")"; done
put 644 packaging/nibble.service usr/lib/systemd/system/nibble.service
put 644 packaging/nibble.conf etc/nibble/nibble.conf

doc=usr/share/doc/nibble
put 644 packaging/deb/copyright "$doc/copyright"
for file in README.md SECURITY.md; do put 644 "$file" "$doc/$file"; done
find docs -maxdepth 1 -name '*.md' | sort | while read -r file; do put 644 "$file" "$doc/$file"; done
pack "$doc/NEWS.gz" <CHANGELOG.md
{
  printf 'nibble (%s) unstable; urgency=medium\n\n  * See NEWS.gz for what changed for users.\n\n' "$version"
  printf ' -- %s  %s\n' "$maintainer" "$(date -uR -d "@$SOURCE_DATE_EPOCH")"
} | pack "$doc/changelog.gz"
put 644 packaging/deb/lintian-overrides usr/share/lintian/overrides/nibble

mkdir -p "$root/usr/share/man/man1" "$root/usr/share/bash-completion/completions" \
  "$root/usr/share/zsh/vendor-completions" "$root/usr/share/fish/vendor_completions.d"
python3 tools/make_man.py --program "$binary" --date "@$SOURCE_DATE_EPOCH" "$root/usr/share/man/man1"
gzip -9n "$root"/usr/share/man/man1/*
"$binary" completions bash >"$root/usr/share/bash-completion/completions/nibble"
"$binary" completions zsh >"$root/usr/share/zsh/vendor-completions/_nibble"
"$binary" completions fish >"$root/usr/share/fish/vendor_completions.d/nibble.fish"

# Which glibc the program asks for. dpkg-shlibdeps reads a source package's files and never changes them.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/debian"
printf 'Source: nibble\n\nPackage: nibble\nArchitecture: any\n' >"$work/debian/control"
depends=$(cd "$work" && dpkg-shlibdeps -O "$OLDPWD/$root/usr/bin/nibble" 2>/dev/null | sed -n 's/^shlibs:Depends=//p')

cat >"$root/DEBIAN/control" <<CONTROL
Package: nibble
Version: $version
Architecture: $architecture
Maintainer: $maintainer
Installed-Size: $(du -sk --exclude=DEBIAN "$root" | cut -f1)
Depends: ${depends:+$depends, }passwd
Recommends: ca-certificates
Section: science
Priority: optional
Description: serves mixture-of-experts language models over OpenAI's API
 nibble is one program that runs mixture-of-experts language models from 4-bit
 weights, on CPUs and on NVIDIA's Hopper GPUs: over OpenAI's HTTP API with a
 page to talk on, in the terminal, and in batches. A small model that tells
 stories comes with it.
CONTROL
echo /etc/nibble/nibble.conf >"$root/DEBIAN/conffiles"
for script in postinst prerm postrm; do install -m 755 "packaging/deb/$script" "$root/DEBIAN/$script"; done
(cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"
chmod 644 "$root"/DEBIAN/{control,conffiles,md5sums}

find "$root" -newermt "@$SOURCE_DATE_EPOCH" -print0 | xargs -0r touch -h -d "@$SOURCE_DATE_EPOCH"
package=build/deb/nibble_${version}_$architecture.deb
dpkg-deb --root-owner-group -Zxz --build "$root" "$package" >/dev/null
echo "$package: $(du -k "$package" | cut -f1) KiB, for $(sed -n 's/^Depends: //p' "$root/DEBIAN/control")"
