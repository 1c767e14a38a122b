#!/usr/bin/env bash
# Looks for inputs that fail; docs/checking.md says more.
#
#   scripts/fuzz.sh TARGET|all [SECONDS]     fuzz one target, or all of them one after the other; 60 s each
#   scripts/fuzz.sh --shrink TARGET FILE     make an input that fails smaller, for a minute; writes FILE.small
#
# Works on the stable toolchain: the flags below let LLVM count which code ran, and libFuzzer (built by the crate
# libfuzzer-sys with the C++ compiler) looks for inputs that reach more. What is found goes to fuzz/found/TARGET, with
# which the next run begins, and inputs that fail to fuzz/found/failures; the corpus in the tree is only read.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
    sed -n '4,5s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
    echo "targets: $(ls fuzz/corpus | tr '\n' ' ')" >&2
    exit 2
}

action=fuzz
if [ "${1:-}" = --shrink ]; then
    action=shrink
    shift
fi
targets=("${1:-}")
[ "${targets[0]}" = all ] && mapfile -t targets < <(ls fuzz/corpus)
[ -n "${targets[0]}" ] && [ -d "fuzz/corpus/${targets[0]}" ] || usage

host=$(rustc -vV | sed -n 's/^host: //p')
folder=$(realpath -m "${CARGO_TARGET_DIR:-target}/fuzz")
flags="-C passes=sancov-module"
for flag in level=4 inline-8bit-counters pc-table trace-compares; do
    flags="$flags -C llvm-args=-sanitizer-coverage-$flag"
done
# With --target the flags are for the program alone, not for build scripts.
RUSTFLAGS="$flags --cfg fuzzing" CARGO_TARGET_DIR="$folder" \
    cargo build --quiet --release --locked --target "$host" --manifest-path fuzz/engine/Cargo.toml
engine="$folder/$host/release/wallaby-fuzz-engine"

# fuzz TARGET SECONDS
fuzz() {
    local target=$1 found=fuzz/found/$1 log=fuzz/found/$1.log
    echo "== fuzz: $target for $2 s"
    mkdir -p "$found" fuzz/found/failures
    # What is made of the golden vectors is made anew each time.
    rm -rf "$folder/seeds/$target"
    cargo run --quiet --locked -p wallaby-fuzz -- "$target" --seeds "$folder/seeds/$target" || return
    if WALLABY_FUZZ=$target "$engine" -max_total_time="$2" -timeout=30 -rss_limit_mb=1024 -max_len=4096 \
        -print_final_stats=1 -artifact_prefix="fuzz/found/failures/$target-" "$found" "fuzz/corpus/$target" "$folder/seeds/$target" \
        >"$log" 2>&1; then
        grep '^Done' "$log"
        return
    fi
    tail -n 40 "$log" >&2
    local file
    file=$(sed -n 's/.*Test unit written to //p' "$log" | tail -n 1)
    echo "fuzz: $target failed; to repeat it: cargo run -p wallaby-fuzz -- $target $file" >&2
    return 1
}

case $action in
fuzz)
    failed=0
    for target in "${targets[@]}"; do
        fuzz "$target" "${2:-60}" || failed=1
    done
    exit "$failed"
    ;;
shrink)
    [ -f "${2:-}" ] || usage
    WALLABY_FUZZ=${targets[0]} "$engine" -minimize_crash=1 -max_total_time=60 -exact_artifact_path="$2.small" "$2" \
        2>&1 | grep -E 'CRASH_MIN|panicked' || true
    ls -l "$2.small"
    ;;
esac
