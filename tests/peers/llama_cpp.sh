#!/bin/bash
# Runs a program of llama.cpp, as Debian packages it from forky on: llama_cpp.sh PROGRAM [WORDS...]. The packages are unpacked once into
# build/peers/llama.cpp, which becomes the program's root, in a mount namespace of its own; it begins in the caller's working
# directory, and sees nothing else of this system. Needs root, and Debian's archive the first time.
set -euo pipefail
[ $# -ge 1 ] || { sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "$0" >&2; exit 2; }
peers=$(cd "$(dirname "$0")/../.." && pwd)/build/peers
root=$peers/llama.cpp

# As on a system that has nothing yet, so that libc and all comes with it.
unpack() {
  local lists=$peers/llama.cpp.lists
  rm -rf "$root.part"
  mkdir -p "$root.part"/{proc,dev,tmp,here} "$lists"/{lists,cache/archives}/partial
  : >"$lists/status"
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] ${DEBIAN_MIRROR:-http://deb.debian.org/debian} forky main" >"$lists/sources.list"
  local apt=(apt-get -q -o "Dir::Etc::sourcelist=$lists/sources.list" -o Dir::Etc::sourceparts=/dev/null -o "Dir::State=$lists"
    -o "Dir::State::status=$lists/status" -o "Dir::Cache=$lists/cache" -o APT::Sandbox::User=root)
  "${apt[@]}" update
  "${apt[@]}" install -y --no-install-recommends --download-only llama.cpp
  for package in "$lists"/cache/archives/*.deb; do dpkg -x "$package" "$root.part"; done
  for folder in bin lib lib64 sbin; do [ -e "$root.part/$folder" ] || ln -s "usr/$folder" "$root.part/$folder"; done
  mv "$root.part" "$root"
}

[ -d "$root" ] || unpack >&2
# shellcheck disable=SC2016  # the inner shell's words
exec unshare --mount sh -c '
  root=$1 && shift &&
  mount --bind . "$root/here" && mount --bind /proc "$root/proc" && mount --rbind /dev "$root/dev" &&
  exec unshare --root="$root" --wd=/here "$@"' sh "$root" "$@"
