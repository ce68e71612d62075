#!/bin/sh
# Builds peername.bpf.o as fs-xdp's script builds its own. --check compares.
set -eu
exec "$(dirname "$0")/../../fs-xdp/bpf/build.sh" "$(cd "$(dirname "$0")" && pwd)/peername.bpf.c" "$@"
