#!/usr/bin/env bash
# Looks for hours' worth of trouble in an hour: what the tests do briefly, done long, one part after the other.
#
#   scripts/soak.sh                  all parts
#   scripts/soak.sh --list           what parts there are
#   scripts/soak.sh PART...          these; a name ending in - stands for all that begin so (fuzz-)
#
# Each part says when it begins and how it ends, and writes to target/soak/PART.log. All parts run, whatever becomes of
# those before; what they came to stands at the end, and the exit status is 1 if one of them failed.
# SOAK_SEEDS, SOAK_FUZZ_SECONDS, SOAK_CHAOS_SECONDS, SOAK_TIMES and SOAK_CALLS make them shorter or longer.
set -uo pipefail
cd "$(dirname "$0")/.."

logs=${CARGO_TARGET_DIR:-target}/soak
parts=(simulator calm model-messages model-faults model-abort)
for target in fuzz/corpus/*/; do
    parts+=("fuzz-$(basename "$target")")
done
for transport in tcp udp unix shm; do
    parts+=("chaos-$transport")
done
for transport in tcp udp unix shm; do
    parts+=("hostile-$transport")
done
parts+=(detect-tcp detect-unix detect-shm detect-udp loss-64 loss-4 functions)

# program CRATE ARGUMENTS...: the same build for all, optimised, with assertions.
program() {
    cargo run --quiet --locked --profile sim -p "wallaby-$1" -- "${@:2}"
}

# run PART: its commands, and nothing else.
run() {
    case $1 in
    simulator) program sim --seeds "${SOAK_SEEDS:-100000}" ;;
    calm) program sim --kind calm --seeds "${SOAK_SEEDS:-20000}" ;;
    model-messages) program model --messages 5 ;;
    model-faults) program model --messages 4 --faults 2 ;;
    model-abort) program model --messages 4 --abort ;;
    fuzz-*) scripts/fuzz.sh "${1#fuzz-}" "${SOAK_FUZZ_SECONDS:-60}" ;;
    chaos-tcp | chaos-udp) program chaos run --transport "${1#chaos-}" --seconds "${SOAK_CHAOS_SECONDS:-600}" ;;
    chaos-*) program chaos run --transport "${1#chaos-}" --seconds "${SOAK_CHAOS_SECONDS:-180}" ;;
    hostile-*) program chaos hostile --transport "${1#hostile-}" --seconds "${SOAK_CHAOS_SECONDS:-600}" ;;
    detect-*) program chaos detect --transport "${1#detect-}" --times "${SOAK_TIMES:-100}" ;;
    loss-64) program chaos loss --calls "${SOAK_CALLS:-100000}" ;;
    loss-4) program chaos loss --calls "${SOAK_CALLS:-100000}" --workers 4 ;;
    functions)
        cargo test --quiet --locked --profile sim -p wallaby-chain-script -p wallaby-chain-wasm --test all -- \
            --ignored very_many_
        ;;
    esac
}

# chosen NAME...: the parts of these names, in their order above.
chosen() {
    local name part found
    for name in "$@"; do
        found=0
        for part in "${parts[@]}"; do
            if [ "$part" = "$name" ] || { [ "${name%-}" != "$name" ] && [ "${part#"$name"}" != "$part" ]; }; then
                echo "$part"
                found=1
            fi
        done
        if [ "$found" = 0 ]; then
            echo "soak: there is no part $name; there are: ${parts[*]}" >&2
            return 2
        fi
    done
}

case "${1:-}" in
--list)
    printf '%s\n' "${parts[@]}"
    exit
    ;;
--*)
    sed -n '4,6s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
    exit 2
    ;;
esac
if [ $# -gt 0 ]; then
    names=$(chosen "$@") || exit 2
    mapfile -t parts <<<"$names"
fi

mkdir -p "$logs"
failed=()
verdicts=()
number=0
for part in "${parts[@]}"; do
    number=$((number + 1))
    echo "== soak $number of ${#parts[@]}: $part, from $(date +%H:%M:%S) on (${#failed[@]} failed so far)"
    begun=$SECONDS
    if run "$part" >"$logs/$part.log" 2>&1; then
        verdict=held
    else
        verdict="FAILED, see $logs/$part.log"
        failed+=("$part")
        tail -n 20 "$logs/$part.log"
    fi
    verdicts+=("$(printf '%-16s %5d s  %s' "$part" $((SECONDS - begun)) "$verdict")")
    echo "   ${verdicts[-1]}"
done

echo "== soak: what it came to, after $((SECONDS / 60)) minutes"
printf '%s\n' "${verdicts[@]}"
if [ ${#failed[@]} -gt 0 ]; then
    echo "soak: ${#failed[@]} of ${#parts[@]} parts FAILED: ${failed[*]}; again: scripts/soak.sh ${failed[*]}"
    exit 1
fi
echo "soak: all ${#parts[@]} parts held"
