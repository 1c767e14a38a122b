#!/usr/bin/env bash
# Packages the published crates and builds each from its package alone, against the others' packages. Uploads nothing.
#
#   scripts/package.sh                with all checks
#   scripts/package.sh --no-verify    without building the packages; other options of cargo package, too
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

published=(wallaby-proto wallaby-idl wallaby-macros wallaby-build wallaby wallaby-link wallaby-onc wallaby-tls
    wallaby-values wallaby-chain-guest wallaby-chain-macros wallaby-chain wallaby-chain-wasm wallaby-chain-script
    wallaby-sidecar wallaby-etcd wallaby-metrics wallaby-otel)
# Each feature without the others: in the workspace they are all switched on together.
for features in "wallaby" "wallaby msgpack" "wallaby protobuf" "wallaby turmoil" "wallaby-onc" "wallaby-otel" "wallaby-idl onc" \
    "wallaby-proto serde" "wallaby-values" "wallaby-values protobuf" "wallaby-chain-wasm" "wallaby-sidecar" \
    "wallaby-etcd"; do
    read -r crate feature <<<"$features"
    cargo check --locked -q -p "$crate" --no-default-features ${feature:+--features "$feature"}
done
cargo package --locked "${published[@]/#/-p=}" "$@"
