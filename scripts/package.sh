#!/usr/bin/env bash
# Checks the features of the published crates, packages these, and builds each from its package alone, against the others'
# packages. Uploads nothing. Published is what does not say `publish = false`, as cargo itself sees it.
#
#   scripts/package.sh                with all checks
#   scripts/package.sh --no-verify    without building the packages; other options of cargo publish, too
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

scripts/features.sh
cargo publish --workspace --dry-run --locked "$@"
