#!/usr/bin/env bash
# Changes wallaby-proto in small ways, one at a time, and runs its tests: a mutant that no test catches shows what is not
# tested. docs/mutants.md says how, and what came of it.
#
#   scripts/mutants.sh [run]         all that have not been run; at any time, what has been run is a sample of all files
#   scripts/mutants.sh alone         then those that need a build of their own, some five seconds each
#   scripts/mutants.sh again [FILE]  only what survived in FILE, the list on record if not said: after tests were added
#   scripts/mutants.sh summary       counts, and what survived
#   scripts/mutants.sh record        makes what survived, and what was not run, the list on record
#   scripts/mutants.sh only REGEX    lets cargo-mutants itself run those whose names match: each is built by itself, and all
#                                    tests run on it
#
# Results are lines of a file in target/mutants that is named after what the crate's sources are: an interrupted run goes on
# where it was, and changed sources begin anew. Set JOBS to run more than one test at a time.
set -euo pipefail
cd "$(dirname "$0")/.."

version=27.1.0
record=docs/results/mutants.tsv
folder=$(realpath -m "${CARGO_TARGET_DIR:-target}/mutants")
tools=$(realpath -m target/tools)
program=$folder/tool/debug/wallaby-mutants
PATH=$PATH:$tools/bin

usage() {
    sed -n '5,11s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
    exit 2
}

prepare() {
    if ! command -v cargo-mutants >/dev/null; then
        echo "mutants: compiling cargo-mutants $version into $tools, once" >&2
        cargo install --quiet --locked --root "$tools" --version "$version" cargo-mutants
    fi
    CARGO_TARGET_DIR=$folder/tool cargo build --quiet --locked --manifest-path mutants/Cargo.toml
}

# The sources as they are now, without what is not the project's.
copy() {
    mkdir -p "$1"
    git ls-files -z --cached --others --exclude-standard -- . ':!mutants' | xargs -0 cp --parents --target-directory "$1"
}

sources() {
    find crates/wallaby-proto -type f -print0 | sort -z | xargs -0 sha256sum | sha256sum | cut -c1-16
}

run() {
    prepare
    copy "$folder/all"
    nice -n 10 "$program" run . "$folder/all" "$1" "${JOBS:-1}" "${@:2}"
    "$program" summary "$1"
}

alone() {
    prepare
    copy "$folder/alone"
    nice -n 10 "$program" alone . "$folder/alone" "$1"
    "$program" summary "$1"
}

only() {
    prepare
    local tests=(--package wallaby-proto --lib --tests '--config=profile.dev.package."*".opt-level=2')
    local argument arguments=() status=0
    for argument in "${tests[@]}"; do
        arguments+=(--cargo-arg "$argument")
    done
    # 2: some were missed; 3: some took too long.
    env CARGO_TARGET_DIR="$folder/only.build" CARGO_INCREMENTAL=1 CARGO_PROFILE_DEV_OPT_LEVEL=1 CARGO_PROFILE_DEV_DEBUG=0 \
        WALLABY_CASES=0.05 nice -n 10 cargo mutants --package wallaby-proto --jobs 1 --baseline skip --timeout 600 \
        --no-times --colors never --output "$folder/only" "${arguments[@]}" --re "$1" -- -- \
        --skip every_small_pair_of_trees || status=$?
    case $status in
    0 | 2 | 3) ;;
    *) return "$status" ;;
    esac
}

result=$folder/$(sources).tsv
mkdir -p "$folder"
case "${1:-run}" in
run) run "$result" ;;
alone) alone "$result" ;;
again) run "${result%.tsv}-again.tsv" "${2:-$record}" ;;
summary)
    prepare
    "$program" summary "$result"
    ;;
record)
    prepare
    "$program" summary "$result" >"$record"
    ;;
only)
    [ $# = 2 ] || usage
    only "$2"
    ;;
*) usage ;;
esac
