#!/bin/sh
# bin/shardrun of a bundle: finds the folder in which it lies, says in one line where the system is too old for what is there,
# and becomes the program. No process is started on the way, so it costs a millisecond.
self=$0
while [ -L "$self" ]; do # somebody linked to it from a folder of the PATH
  link=$(readlink "$self")
  case $link in
    /*) self=$link ;;
    *) self=${self%/*}/$link ;;
  esac
done
here=${self%/*}
root=$here/..
[ -x "$root/libexec/shardrun" ] || root=$here/../lib/shardrun-bundle # where pip puts the rest

if [ ! -e /lib64/ld-linux-x86-64.so.2 ]; then
  echo "shardrun: error: this system has no glibc for x86-64 (no /lib64/ld-linux-x86-64.so.2); glibc 2.34 or later is needed" >&2
  exit 3
fi
# Up to 2.33 the file libc.so.6 was a link to one that named the version.
for libc in /lib/x86_64-linux-gnu/libc-2.*.so /lib64/libc-2.*.so; do
  if [ -e "$libc" ]; then
    version=${libc##*/libc-}
    echo "shardrun: error: this system has glibc ${version%.so}, and 2.34 or later is needed:" \
      "Debian 12, Ubuntu 22.04, RHEL or Rocky 9, Amazon Linux 2023 or newer ones have it" >&2
    exit 3
  fi
done
exec "$root/libexec/shardrun" "$@"
