#!/usr/bin/env bash
# Type-checks the published crates for other systems, and with the oldest Rust that Cargo.toml states: as far as rustup can have
# the targets and that toolchain. What it cannot have is named and left out.
#
#   scripts/platforms.sh                      those that touch the system themselves: what the others depend on takes long
#   scripts/platforms.sh -p wallaby-build     with it; other crates, too
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

PATH=$PATH:${CARGO_HOME:-${HOME:-}/.cargo}/bin
published=(-p wallaby-proto -p wallaby-idl -p wallaby-macros -p wallaby-link -p wallaby -p wallaby-onc -p wallaby-tls "$@")
targets=(aarch64-apple-darwin x86_64-pc-windows-gnu)

command -v rustup >/dev/null || {
    echo "platforms: no rustup: other systems and the oldest Rust are not checked" >&2
    exit 0
}

has_target() {
    rustup target list --installed | grep -qx "$1" && return
    echo "platforms: adding the standard library for $1" >&2
    timeout 120 rustup target add "$1" >/dev/null 2>&1
}

for target in "${targets[@]}"; do
    if has_target "$target"; then
        # No program is made, so the C code of dependencies is not needed: `true` stands for a compiler of that system.
        env "CC_${target//-/_}=true" "AR_${target//-/_}=true" \
            cargo check -q --locked --target "$target" "${published[@]}"
    else
        echo "platforms: $target cannot be had, and is not checked" >&2
    fi
done

oldest=$(sed -n 's/^rust-version = "\([0-9.]*\)".*/\1/p' Cargo.toml)
if rustc --version | grep -q "^rustc $oldest\."; then
    : # every other check is made with it
elif rustup run "$oldest" rustc --version >/dev/null 2>&1; then
    rustup run "$oldest" cargo check -q --locked --target-dir "${CARGO_TARGET_DIR:-target}/oldest" "${published[@]}"
else
    echo "platforms: Rust $oldest is not installed: only clippy says what is too new for it (rustup toolchain install $oldest)" >&2
fi
