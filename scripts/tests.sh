#!/usr/bin/env bash
# Runs all tests, doc tests included. Clippy compiles them, so that nothing is checked a second time; its warnings are denied.
#
# The workspace's tests wait more than they compute. What computes for long, the simulator and the model, is therefore built
# (optimised) and run beside them, at the lowest priority; its output comes at the end.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# What Clippy denies is handed over as cargo itself does it.
export CLIPPY_ARGS=-Dwarnings__CLIPPY_HACKERY__
linted=(cargo --config 'build.rustc-workspace-wrapper="clippy-driver"' test --locked --no-fail-fast)
computed=(-p wallaby-sim -p wallaby-model --profile sim)
# Where whole endpoints are simulated, tokio and turmoil take the time; to optimise the library, too, takes longer than it saves.
for library in wallaby wallaby-chain; do
    computed+=(--config "profile.sim.package.$library.opt-level = 0")
done
target=${CARGO_TARGET_DIR:-target}

workspace=(--workspace --exclude wallaby-sim --exclude wallaby-model)
# Functions beside a client become WebAssembly, where the toolchain has that target.
if [ -d "$(rustc --print target-libdir --target wasm32-unknown-unknown)" ]; then
    workspace+=(--features wallaby-chain-wasm/glue)
else
    echo "tests: chaining functions beside clients are NOT tested: rustup target add wasm32-unknown-unknown" >&2
fi

compute() {
    echo "== tests: what computes for long, optimised; whole endpoints in 300 random worlds"
    "${linted[@]}" "${computed[@]}" || return
    echo "== simulator: the protocol in 10,000 random worlds"
    "$target/sim/wallaby-sim" --seeds 10000 || return
    # What is left of the time goes to the next step, whose programs take as long to build.
    scripts/instructions.sh build
}

# Many tests wait for what comes with time: on few processors more than one each of them run at once, and two programs. The runner
# is a variable, as cargo compiles all anew for one that is said by --config.
run() {
    local runner failed=0
    runner=CARGO_TARGET_$(rustc --print host-tuple | tr a-z- A-Z_)_RUNNER
    export RUST_TEST_THREADS=${RUST_TEST_THREADS:-6} WALLABY_BESIDE=$folder
    env "$runner=$PWD/scripts/beside.sh" "${linted[@]}" "${workspace[@]}" --tests || failed=1
    "${linted[@]}" "${workspace[@]}" --doc || failed=1
    scripts/beside.sh || failed=1
    return "$failed"
}

echo "== tests: compiled"
"${linted[@]}" "${workspace[@]}" --no-run

echo "== tests: run"
folder=$(mktemp -d)
mkfifo "$folder/places"
exec 3<>"$folder/places"
printf .. >&3
# Process groups of their own, so that all of them ends with this script.
set -m
(
    renice -n 19 "$BASHPID" >/dev/null
    compute
) >"$folder/computed" 2>&1 &
computing=$!
run &
running=$!
set +m
trap 'kill -- "-$computing" "-$running" 2>/dev/null || :; rm -rf "$folder"' EXIT

failed=0
wait "$running" || failed=1
wait "$computing" || failed=1
cat "$folder/computed"
exit "$failed"
