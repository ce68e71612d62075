#!/bin/bash
# redis GET on the kernel and by the ring, in turn: two processors and one, without and with two busy loops.
# usage: redis_pairs.sh [rounds]; BIN is the folder of `fastsock` and the library (default target/release).
bin=${BIN:-target/release}
dir=$(mktemp -d)
export FASTSOCK_CONTROL=$dir/control.sock
"$bin/fastsock" up >"$dir/up" 2>&1 &
daemon=$!
trap 'kill $daemon; rm -rf "$dir"' EXIT
port=7600
label=

run() { # place, carrier, clients, requests
    port=$((port + 1))
    local -a command
    read -ra command <<<"$1"
    [ "$2" = ring ] && command+=("$bin/fastsock" run -q --)
    "${command[@]}" redis-server --port $port --save '' --appendonly no >"$dir/log" 2>&1 &
    local server=$!
    for _ in {1..50}; do redis-cli -p $port ping >"$dir/ping" 2>&1 && break; sleep 0.1; done
    timeout 30 "${command[@]}" redis-benchmark -p $port -c $3 -n $4 -t get -q 2>&1 | tr '\r' '\n' | grep 'requests per' |
        tail -1 | sed "s/^/$label, $3 clients, $2: /"
    kill $server
    wait $server 2>/dev/null
}

both() {
    for clients in 50 1; do
        run "$1" kernel $clients $((clients == 1 ? 30000 : 150000))
        run "$1" ring $clients $((clients == 1 ? 200000 : 600000))
    done
}

for ((round = 0; round < ${1:-1}; round++)); do
    label="two processors" both ""
    label="one processor" both "taskset -c 0"
    loops=()
    for _ in 1 2; do timeout 60 bash -c 'while :; do :; done' & loops+=($!); done
    label="two processors, two busy loops" both ""
    kill "${loops[@]}"
    wait "${loops[@]}" 2>/dev/null
done
