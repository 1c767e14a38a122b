#!/usr/bin/env bash
# Checks each published crate without features and with each of its features alone, warnings denied: in the workspace all of them
# are on. Fails after the last, so that all that is wrong is seen.
#
#   scripts/features.sh            all published crates
#   scripts/features.sh CRATE...   these
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

failed=0
for manifest in $(grep -L '^publish = false' crates/*/Cargo.toml); do
    crate=${manifest#crates/} crate=${crate%/*}
    [ $# -eq 0 ] || [[ " $* " = *" $crate "* ]] || continue
    for feature in '' $(sed -n '/^\[features\]/,/^\[/s/^\([a-z][a-z-]*\) = .*/\1/p' "$manifest"); do
        echo "== $crate ${feature:+with }${feature:-without features}"
        cargo clippy --locked -q -p "$crate" --no-default-features ${feature:+--features "$feature"} -- -D warnings || failed=1
    done
done
exit "$failed"
