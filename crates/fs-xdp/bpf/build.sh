#!/bin/sh
# Builds steer.bpf.o (what the crate embeds) from steer.bpf.c; given another source, that one's object next to it. --check
# builds elsewhere and compares, without changing anything: `make test` runs that. `llvm-objdump -d --no-show-raw-insn steer.bpf.o` prints the instructions.
#
# The result depends on the compiler's version, so the version is fixed here (Debian 12's default). Debug sections
# are stripped; BTF stays, because map definitions live in it. No path of the building machine gets in.
set -eu
source=$(cd "$(dirname "$0")" && pwd)/steer.bpf.c
case "${1:-}" in *.bpf.c)
    source=$1
    shift
    ;;
esac
cd "$(dirname "$source")"
name=$(basename "$source" .c)

CLANG_MAJOR=14
clang=$(command -v "clang-$CLANG_MAJOR" || command -v clang || true)
strip=$(command -v "llvm-strip-$CLANG_MAJOR" || command -v llvm-strip || true)
if [ -z "$clang" ] || [ -z "$strip" ]; then
    echo "build.sh: needs clang and llvm (Debian 12: apt-get install clang llvm libbpf-dev)" >&2
    exit 2
fi
if ! "$clang" --version | head -n 1 | grep -q "version $CLANG_MAJOR\."; then
    echo "build.sh: needs clang $CLANG_MAJOR for a reproducible object; this is $("$clang" --version | head -n 1)" >&2
    exit 2
fi

out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
multiarch=$("$clang" -print-multiarch 2>/dev/null || true)
[ -n "$multiarch" ] || multiarch=$(uname -m)-linux-gnu
"$clang" -target bpf -mcpu=v2 -O2 -g -Wall -Wextra -Werror -I"/usr/include/$multiarch" \
    -ffile-prefix-map="$PWD"=. -fdebug-compilation-dir=. -c "$name.c" -o "$out/$name.o"
"$strip" --strip-debug "$out/$name.o"

if [ "${1:-}" = --check ]; then
    cmp "$out/$name.o" "$name.o" || {
        echo "build.sh: $name.o is not what $name.c compiles to: run bpf/build.sh" >&2
        exit 1
    }
    echo "bpf: $name.o matches its source"
else
    cp "$out/$name.o" .
    echo "bpf: $name.o has $(wc -c < "$name.o") bytes"
fi
