#!/usr/bin/env bash
# Prints what the protocol core costs per call, as a Markdown table: instructions by callgrind, nanoseconds by clock.
#
# `cost SCENARIO CALLS` (crates/wallaby-proto/examples/cost.rs) makes that many calls and prints nanoseconds per call;
# `cost --list` names the scenarios. Instructions are the difference of two runs, so that start-up counts for nothing;
# they repeat exactly for one build, while the nanoseconds are those of this machine.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

few=1000
many=3000
timed=1000000

cargo build --release --locked -q -p wallaby-proto --example cost
cost=${CARGO_TARGET_DIR:-target}/release/examples/cost

# instructions SCENARIO CALLS
instructions() {
    local log
    log=$(valgrind --tool=callgrind --callgrind-out-file=/dev/null "$cost" "$1" "$2" 2>&1 >/dev/null) || {
        printf '%s\n' "$log" >&2
        return 1
    }
    awk '$2 == "Collected" { print $4 }' <<<"$log"
}

printf '| call | instructions | ns |\n|---|---:|---:|\n'
scenarios=$("$cost" --list)
while read -r scenario; do
    first=$(instructions "$scenario" "$few")
    second=$(instructions "$scenario" "$many")
    nanoseconds=$("$cost" "$scenario" "$timed")
    printf '| %s | %d | %s |\n' "$scenario" "$(((second - first) / (many - few)))" "$nanoseconds"
done <<<"$scenarios"
