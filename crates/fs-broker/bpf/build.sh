#!/bin/sh
# Builds both objects as fs-xdp's script builds its own. --check compares.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
for name in share end; do
    "$here/../../fs-xdp/bpf/build.sh" "$here/$name.bpf.c" "$@"
done
