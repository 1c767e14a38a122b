#!/usr/bin/env bash
# Changes wallaby-proto in small ways, one at a time, and runs its tests: a mutant that no test catches shows what is not
# tested. docs/mutants.md says what came of it.
#
#   scripts/mutants.sh [COUNT]       run the next COUNT shards that have not been run, 1 if not said; each is a sample
#   scripts/mutants.sh shard N...    run these shards, 0 to 63, also those that have been run
#   scripts/mutants.sh only REGEX    run only the mutants whose names match (and those that delete fields, as cargo-mutants
#                                    has it), into a result of their own
#   scripts/mutants.sh summary       add up all shards that have been run, and list what survived
#
# There are about 3,800 mutants, some 10 s each: all of them take a night. Every 64th mutant is a shard, so each shard is a
# sample of all files. Results are in target/mutants/results, a folder a shard; one that was interrupted is run again. They
# are of the sources as they were then: remove the folder to begin anew. Only the tests of wallaby-proto run, with a
# twentieth of their random worlds and without the longest one; what only these would catch counts as missed.
set -euo pipefail
cd "$(dirname "$0")/.."

shards=64
version=27.1.0
folder=$(realpath -m "${CARGO_TARGET_DIR:-target}/mutants")
results=$folder/results
tools=$(realpath -m target/tools)
# What cargo is told: the tests that run, and that what is not mutated is compiled to be fast.
tests=(--package wallaby-proto --lib --tests '--config=profile.dev.package."*".opt-level=2')
PATH=$PATH:$tools/bin

usage() {
    sed -n '5,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
    exit 2
}

prepare() {
    if ! command -v cargo-mutants >/dev/null; then
        echo "mutants: compiling cargo-mutants $version into $tools, once" >&2
        cargo install --quiet --locked --root "$tools" --version "$version" cargo-mutants
    fi
    # What is not mutated is compiled now, so that no mutant runs out of time for it.
    build nice -n 19 cargo test --quiet "${tests[@]}" --no-run
}

# Runs a command with what makes a build take seconds: no debug information, and a folder of its own.
build() {
    env CARGO_TARGET_DIR="$folder/build" CARGO_INCREMENTAL=1 CARGO_PROFILE_DEV_OPT_LEVEL=1 \
        CARGO_PROFILE_DEV_DEBUG=0 CARGO_PROFILE_TEST_DEBUG=0 "$@"
}

# mutate RESULT ARGUMENT...
mutate() {
    local result=$1
    shift
    rm -rf "$result"
    mkdir -p "$result"
    git rev-parse HEAD >"$result/commit"
    # Mutants that survive are no failure of this script.
    local status=0 argument arguments=()
    for argument in "${tests[@]}"; do
        arguments+=(--cargo-arg "$argument")
    done
    WALLABY_CASES=0.05 build nice -n 19 cargo mutants --package wallaby-proto --jobs 1 --baseline skip \
        --timeout 60 --build-timeout 120 --no-times --colors never --output "$result" \
        "${arguments[@]}" "$@" -- -- --skip every_small_pair_of_trees >"$result/log" 2>&1 || status=$?
    case $status in
    0 | 2 | 3) touch "$result/finished" ;; # 2: some were missed; 3: some took too long
    *)
        tail -n 20 "$result/log" >&2
        return "$status"
        ;;
    esac
    tail -n 1 "$result/log"
}

shard() {
    echo "== mutants: shard $1 of $shards"
    mutate "$results/$1" --sharding round-robin --shard "$1/$shards"
}

# What survives an interrupted run is not a sample of its shard, so only finished ones count.
finished() {
    find "$results" -mindepth 2 -maxdepth 2 -name finished -path "$results/[0-9]*" -printf '%h\n' 2>/dev/null | sort -V
}

count() {
    local kind=$1 total=0 result
    for result in $(finished); do
        total=$((total + $(wc -l <"$result/mutants.out/$kind.txt")))
    done
    echo "$total"
}

summary() {
    local caught missed timeout unviable viable
    caught=$(count caught) missed=$(count missed) timeout=$(count timeout) unviable=$(count unviable)
    viable=$((caught + missed + timeout))
    echo "shards run: $(finished | sed 's,.*/,,' | tr '\n' ' ')of $shards"
    echo "$viable viable ($unviable did not compile): $caught caught by a test, $timeout by never ending, $missed missed"
    [ "$viable" = 0 ] || awk -v good=$((caught + timeout)) -v all=$viable 'BEGIN { printf "score %.1f %%\n", 100 * good / all }'
    for result in $(finished); do
        sed "s,^,missed: ," "$result/mutants.out/missed.txt"
    done
}

case "${1:-1}" in
summary) summary ;;
only)
    [ $# = 2 ] || usage
    prepare
    mutate "$results/only" --re "$2"
    cat "$results/only/mutants.out/missed.txt"
    ;;
shard)
    shift
    prepare
    for number in "$@"; do
        shard "$number"
    done
    ;;
*[!0-9]*) usage ;;
*)
    prepare
    wanted=${1:-1}
    # Far from each other, though each of them is spread over all files.
    for ((turn = 0; turn < shards && wanted > 0; turn++)); do
        number=$((turn * 27 % shards))
        [ -e "$results/$number/finished" ] && continue
        shard "$number"
        wanted=$((wanted - 1))
    done
    summary
    ;;
esac
