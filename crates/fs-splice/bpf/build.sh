#!/bin/sh
# Builds splice.bpf.o as fs-xdp's script builds its own. --check compares.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
"$here/../../fs-xdp/bpf/build.sh" "$here/splice.bpf.c" "$@"
