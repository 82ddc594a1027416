#!/usr/bin/env bash
# tools/image_root.sh STAGED FOLDER: the files of a container image, out of an installed tree (make install DESTDIR=STAGED
# PREFIX=/usr): the program, the shared libraries it links with their loader, names of users, certificates of authorities
# and the folders it writes to. For a program with kernels for GPUs, stage build/cuda/nibble likewise.
set -euo pipefail
staged=$1 root=$2

rm -rf "$root"
mkdir -p "$root/etc/ssl/certs" "$root/var/cache/nibble" "$root/tmp"
cp -a "$staged/." "$root/"

# ldd names each library and the loader; both stay at the paths where the program looks for them.
ldd "$staged/usr/bin/nibble" | grep -oE '/[^ ]+' | sort -u | while read -r library; do
  install -D -m 755 "$(readlink -f "$library")" "$root$library"
done

echo 'nibble:x:65532:65532:nibble:/var/cache/nibble:/nonexistent' >"$root/etc/passwd"
echo 'nibble:x:65532:' >"$root/etc/group"
echo '127.0.0.1 localhost' >"$root/etc/hosts"  # an engine puts its own in place
echo 'hosts: files dns' >"$root/etc/nsswitch.conf"
if [ -e /etc/ssl/certs/ca-certificates.crt ]; then
  install -m 644 /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
fi
chmod 1777 "$root/tmp"
chown 65532:65532 "$root/var/cache/nibble"
