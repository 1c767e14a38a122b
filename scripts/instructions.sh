#!/usr/bin/env bash
# Counts the instructions of calls (callgrind), and the cache lines of code and data that they touch (lackey), and compares them
# with those on record: a guard against slow decay that does not depend on what else the machine does.
#
#   scripts/instructions.sh check    fails if a call takes 3 % more than recorded; says so if it takes 3 % less. Over UDP
#                                    it is 10 %: how many datagrams leave for acknowledgements alone depends on the time. So it is
#                                    for cache lines, as calls now and then do more than others, and for many calls at a time in
#                                    memory: so is how often timers are looked at
#   scripts/instructions.sh build    builds what is counted, and counts nothing
#   scripts/instructions.sh record   writes scripts/instructions.tsv anew: after a change that is worth its price, or a gain
#
# Counts are those of one compiler: with another than the record's nothing can be compared, and `check` says so.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

record=scripts/instructions.tsv
few=1000
many=3000
margin=3 # percent
loose_margin=10 # where the order in which threads come differs from run to run

case ${1-} in
build | check | record) ;;
*)
    echo "usage: scripts/instructions.sh build | check | record" >&2
    exit 2
    ;;
esac

say() { printf 'instructions: %s\n' "$*" >&2; }

compiler=$(rustc -V)
if [ "$1" != record ]; then
    recorded=$(sed -n 's/^# //p' "$record" | head -n 1)
    if [ "$compiler" != "$recorded" ]; then
        say "SKIPPED: this is $compiler, the record is by $recorded"
        exit 0
    fi
fi
if ! scripts/setup.sh callgrind; then
    if [ "$1" = record ]; then exit 1; fi
    say "SKIPPED: there is no valgrind here"
    exit 0
fi

cargo build --profile counted --locked -q -p wallaby-proto --example cost -p wallaby --example hot_path \
    --example fan_out_path --example polling_path
[ "$1" != build ] || exit 0
examples=${CARGO_TARGET_DIR:-target}/counted/examples
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# instructions PROGRAM ARGUMENTS..., where CALLS stands for their number: instructions per call, start-up left out
instructions() {
    local counts=() calls log
    for calls in "$few" "$many"; do
        log=$(valgrind --tool=callgrind --callgrind-out-file=/dev/null "${@/CALLS/$calls}" 2>&1 >/dev/null) || {
            printf '%s\n' "$log" >&2
            return 1
        }
        counts+=("$(awk '$2 == "Collected" { print $4 }' <<<"$log")")
    done
    echo $(((counts[1] - counts[0]) / (many - few)))
}

# row NAME PROGRAM ARGUMENTS...: a count that could not be made ends the script, and is no gain
row() {
    local name=$1 count
    shift
    count=$(instructions "$@") || return
    printf '%s\t%d\n' "$name" "$count"
}

# hot_path NAME TRANSPORT SERVERS [TASKS]: somebody else may have the ports that were drawn, so there are three attempts
hot_path() {
    local name=$1 transport=$2 servers=$3 tasks=${4-} address attempt
    for attempt in 1 2 3; do
        case $transport in
        unix) address="unix://$folder/socket" ;;
        mem) address="mem://hot" ;;
        *) address="$transport://127.0.0.1:$((2000 + RANDOM % 1000))" ;; # the server's number is one more digit
        esac
        if row "$name" "$examples/hot_path" CALLS "$servers" "$address" ${tasks:+"$tasks"}; then
            return
        fi
        say "$name: attempt $attempt failed"
    done
    return 1
}

# lines NAME PROGRAM ARGUMENTS...: the distinct cache lines, of 64 bytes, of one call in steady state. Each call leaves a trace of the
# same length, so any part of that length is one call's; eight are looked at.
lines() {
    local name=$1 calls lengths=()
    shift
    for calls in 20 40; do
        valgrind --tool=lackey --trace-mem=yes "${@/CALLS/$calls}" 2>&1 >/dev/null | grep -E '^(I | [LSM] )' >"$folder/trace"
        lengths+=("$(wc -l <"$folder/trace")")
    done
    awk -v name="$name" -v from="${lengths[0]}" -v length_of_one="$(((lengths[1] - lengths[0]) / 20))" '
        NR <= from { next }
        NR > from + 8 * length_of_one { exit }
        {
            split($2, at, ",")
            digits = length(at[1])
            # Of the last two hexadecimal digits the first two bits belong to the number of the line.
            line = substr(at[1], 1, digits - 2) int((index("0123456789abcdef", substr(at[1], digits - 1, 1)) - 1) / 4)
            part = int((NR - from - 1) / length_of_one)
            count[$1 == "I"] += !seen[$1 == "I", part, line]++
        }
        END { printf "%s, lines of code\t%d\n%s, lines of data\t%d\n", name, count[1] / 8, name, count[0] / 8 }
    ' "$folder/trace"
}

measure_streams() {
    local scenario transport servers
    while read -r scenario; do
        row "core: $scenario" "$examples/cost" "$scenario" CALLS
    done < <("$examples/cost" --list)
    for transport in mem unix tcp; do
        three_of "$transport"
    done
    for servers in 1 2; do
        lines "mem: $servers in a row" "$examples/hot_path" CALLS "$servers" mem://hot
    done
}

measure_others() {
    local servers
    three_of udp
    # Of ten servers, a third of the calls says as much.
    few=300 many=1000 row "unix: fan-out to ten" "$examples/fan_out_path" CALLS dpc 10 "unix://$folder/fan-out"
    few=300 many=1000 row "unix: ten calls instead" "$examples/fan_out_path" CALLS rpc 10 "unix://$folder/calls"
    for servers in 1 2; do
        row "udp polling: $servers in a row" "$examples/polling_path" CALLS udp "$servers"
    done
    row "udp polling: 50 at a time" "$examples/polling_path" CALLS udp 1 50
    for servers in 1 2; do
        row "shm polling: $servers in a row" "$examples/polling_path" CALLS shm "$servers"
    done
    row "shm polling: 50 at a time" "$examples/polling_path" CALLS shm 1 50
}

three_of() {
    local transport=$1 servers
    for servers in 1 2; do
        hot_path "$transport: $servers in a row" "$transport" "$servers"
    done
    hot_path "$transport: 50 at a time" "$transport" 1 50
}

# Two at a time: valgrind has one processor.
measure() {
    measure_others >"$folder/others" &
    local others=$!
    measure_streams
    wait "$others"
    cat "$folder/others"
}

if [ "$1" = record ]; then
    measure >"$folder/record"
    { printf '# %s\n# call\tinstructions\n' "$compiler" && cat "$folder/record"; } >"$record"
    cat "$record"
    exit
fi

measure | awk -F '\t' -v common="$margin" -v loose="$loose_margin" -v record="$record" '
    BEGIN { while ((getline line < record) > 0) if (line !~ /^#/) { split(line, field, "\t"); known[field[1]] = field[2] } }
    !($1 in known) { printf "%-28s %7d  not on record\n", $1, $2; failed = 1; next }
    {
        change = 100 * ($2 - known[$1]) / known[$1]
        margin = $1 ~ /^udp|^mem: [25]|, lines of / ? loose : common
        verdict = ""
        if (change > margin) { verdict = "  MORE THAN ALLOWED"; failed = 1 }
        if (change < -margin) verdict = "  a gain: record it"
        printf "%-28s %7d  %+5.1f %%%s\n", $1, $2, change, verdict
    }
    END {
        if (failed) print "instructions: if that is worth it, write them anew: make instructions ARGS=record" > "/dev/stderr"
        exit failed
    }'
