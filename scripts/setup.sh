#!/usr/bin/env bash
# Installs what a fresh Debian machine with a Rust toolchain still lacks. Silent when nothing is missing.
#
#   scripts/setup.sh build       a C linker, which rustc calls to link (gcc, libc6-dev)
#   scripts/setup.sh test        build, the toolchain's rustfmt and clippy, and as far as they can be had its WebAssembly target,
#                                what ONC RPC is compared with (rpcgen and libtirpc; rpcbind and nfs-ganesha are only unpacked,
#                                below the build output), and a server of gRPC, which Go builds there
#   scripts/setup.sh fuzz        build, and a C++ compiler, which builds libFuzzer
#   scripts/setup.sh peers       test, and what Wallaby's peers are built with and run by, as far as it can be had
#   scripts/setup.sh chaos       test, and what makes network namespaces (iproute2, util-linux)
#   scripts/setup.sh callgrind   build, and valgrind
#   scripts/setup.sh mutants     build, git and cargo-mutants (compiled from source, once)
#   scripts/setup.sh audit       build, git and cargo-deny (compiled from source: about three minutes on two cores, once)
set -euo pipefail

# A shell that rustup has not yet been added to still finds the toolchain.
PATH=$PATH:${CARGO_HOME:-${HOME:-}/.cargo}/bin

say() { printf 'setup: %s\n' "$*" >&2; }

fail() {
    say "$@"
    exit 1
}

have() { command -v "$1" >/dev/null 2>&1; }

as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    else
        sudo "$@"
    fi
}

# apt_install WHY PACKAGE...
apt_install() {
    local why=$1
    shift
    have apt-get || fail "$why: please install the equivalent of the Debian packages '$*' and try again"
    if [ "$(id -u)" -ne 0 ] && ! have sudo; then
        fail "$why: please run as root: apt-get update && apt-get install -y $*"
    fi
    local sudo=
    [ "$(id -u)" -eq 0 ] || sudo='sudo '
    say "$why: running '${sudo}apt-get install $*'"
    local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300)
    local log
    log=$(mktemp)
    # Package lists of other repositories may be unreachable; what counts is whether the install succeeds.
    if ! { as_root "${apt[@]}" update || true; as_root "${apt[@]}" install -y --no-install-recommends "$@"; } \
        >"$log" 2>&1 </dev/null; then
        cat "$log" >&2
        rm -f "$log"
        fail "apt-get could not install $*; see the lines above"
    fi
    rm -f "$log"
}

# A `cc` alone is not enough: without the C library's start files it cannot link a program.
can_link() {
    have cc || return 1
    local folder status=0
    folder=$(mktemp -d)
    printf 'int main(void) { return 0; }\n' >"$folder/main.c"
    cc "$folder/main.c" -o "$folder/main" >/dev/null 2>&1 || status=1
    rm -rf "$folder"
    return "$status"
}

need_cargo() {
    have cargo || fail "no cargo in PATH: install a Rust toolchain first, from https://rustup.rs"
}

need_linker() {
    can_link || apt_install "no working C linker" gcc libc6-dev
}

# need_component COMMAND COMPONENT
need_component() {
    cargo "$1" --version >/dev/null 2>&1 && return
    have rustup || fail "cargo $1 is missing: please add it to your Rust toolchain and try again"
    say "cargo $1 is missing; adding the toolchain component $2"
    rustup component add "$2" || fail "rustup could not add $2; with network access: rustup component add $2"
}

# need_target TARGET WHY: of the toolchain. Without it tests leave something out, and say so.
need_target() {
    [ -d "$(rustc --print target-libdir --target "$1")" ] && return
    say "no standard library for $1, $2; adding it"
    have rustup && timeout 120 rustup target add "$1" >/dev/null 2>&1 || say "going on without it"
}

need_valgrind() {
    have valgrind || apt_install "no valgrind" valgrind libc6-dbg
}

need_cxx() {
    have c++ || apt_install "no C++ compiler" g++
}

has_capnp() { have capnp; }
has_nats() { have nats-server; }
has_onc() { have pkg-config && pkg-config --exists libtirpc; }
has_thrift() {
    have thrift && have pkg-config && pkg-config --exists thrift || return 1
    echo '#include <boost/numeric/conversion/cast.hpp>' | c++ -E -x c++ - >/dev/null 2>&1
}

# need_peer NAME CHECK PACKAGE... A peer that can't be had is left out of the benchmarks, which say so: no failure.
need_peer() {
    local name=$1 check=$2
    shift 2
    "$check" || (apt_install "$name is not installed" "$@") || say "going on without $name"
}

need_peers() {
    PATH=$PATH:/usr/sbin:${HOME:-}/go/bin
    need_peer "Cap'n Proto" has_capnp capnproto
    need_peer NATS has_nats nats-server
    need_peer "ONC RPC" has_onc pkg-config libtirpc-dev
    need_peer Thrift has_thrift pkg-config thrift-compiler libthrift-dev libboost-dev
}

# unpack NAME PROGRAM PACKAGE...: Debian's packages, which it names, below the build output: installed, their servers would be started.
unpack() {
    local name=$1 program=$2 folder=${CARGO_TARGET_DIR:-$(dirname "${BASH_SOURCE[0]}")/../target}/tools/$1
    local packages package place status=0
    shift 2
    for place in bin sbin usr/bin usr/sbin; do
        [ ! -x "$folder/$place/$program" ] || return 0
    done
    have apt-get && have dpkg-deb || return 1
    say "no $name: downloading Debian's packages '$*', to be unpacked to $folder"
    packages=$(mktemp -d)
    if (cd "$packages" && apt-get -qq download "$@") >/dev/null 2>&1 </dev/null; then
        mkdir -p "$folder"
        for package in "$packages"/*.deb; do
            dpkg-deb -x "$package" "$folder" || status=1
        done
    else
        status=1
    fi
    rm -rf "$packages"
    return "$status"
}

# It wants some packages whose names say their versions, which apt knows.
unpack_ganesha() {
    local wanted
    have apt-get || return 1
    if [ "$(id -u)" -eq 0 ] && [ -z "$(apt-cache search --names-only '^nfs-ganesha-vfs$' 2>/dev/null)" ]; then
        say "no nfs-ganesha in the lists of apt: running 'apt-get update'"
        apt-get -qq update >/dev/null 2>&1 || true
    fi
    wanted=$(apt-get -s install --no-install-recommends nfs-ganesha-vfs 2>/dev/null | awk '$1 == "Inst" { print $2 }')
    # shellcheck disable=SC2086 # names of packages have no spaces
    [ -n "$wanted" ] && unpack ganesha ganesha.nfsd $wanted
}

# The example of gRPC for Go, a server that a test has in a chain; built below the build output, for which Go fetches some modules.
make_greeter() {
    local folder=${CARGO_TARGET_DIR:-$(dirname "${BASH_SOURCE[0]}")/../target}/tools/greeter
    local name=google.golang.org/grpc/examples/helloworld/greeter_server version=v0.0.0-20260825154716-030ee8becb20
    local module status=0
    [ ! -x "$folder/greeter_server" ] || return 0
    have go || return 1
    say "no greeter of gRPC for Go; building it in $folder (a minute or two, once)"
    mkdir -p "$folder"
    folder=$(cd "$folder" && pwd)
    module=$(mktemp -d)
    (cd "$module" && go mod init greeter && timeout 300 go get "$name@$version" && timeout 600 go build -o "$folder/greeter_server" "$name") \
        >/dev/null 2>&1 </dev/null || status=1
    rm -rf "$module"
    return "$status"
}

# Without them, tests leave out what is compared with the programs of others, and say so.
need_onc() {
    PATH=$PATH:/usr/sbin:/sbin
    if ! have rpcgen || ! [ -e /usr/include/tirpc/rpc/rpc.h ]; then
        (apt_install "no rpcgen or no libtirpc" rpcsvc-proto libtirpc-dev) || say "going on without rpcgen"
    fi
    { have rpcbind && have rpcinfo; } || unpack rpcbind rpcbind rpcbind libwrap0 || say "going on without rpcbind"
    have ganesha.nfsd || unpack_ganesha || say "going on without nfs-ganesha"
    make_greeter || say "going on without the greeter of gRPC for Go"
    { have ip && have unshare; } \
        || (apt_install "no ip or no unshare, which make networks for tests" iproute2 util-linux) \
        || say "going on without networks for tests"
}

# Without them nothing is missing but the links that are cut; the program says so.
need_namespaces() {
    PATH=$PATH:/usr/sbin:/sbin
    have ip && have nsenter || apt_install "no ip or no nsenter, by which links are cut" iproute2 util-linux
}

# need_subcommand NAME VERSION: of cargo, compiled from source.
need_subcommand() {
    cargo "$1" --version >/dev/null 2>&1 && return
    say "no cargo-$1; compiling it (about three minutes on two cores, once)"
    cargo install "cargo-$1" --locked --version "$2" \
        || fail "cargo-$1 could not be installed; with network access: cargo install cargo-$1 --locked"
}

need_git() {
    have git || apt_install "no git" git
}

case "${1:-}" in
build)
    need_cargo
    need_linker
    ;;
test)
    need_cargo
    need_linker
    need_component fmt rustfmt
    need_component clippy clippy
    need_target wasm32-unknown-unknown "which chaining functions beside clients are compiled for"
    need_onc
    ;;
fuzz)
    need_cargo
    need_linker
    need_cxx
    ;;
peers)
    need_cargo
    need_linker
    need_cxx
    need_component fmt rustfmt
    need_component clippy clippy
    need_peers
    ;;
chaos)
    need_cargo
    need_linker
    need_component fmt rustfmt
    need_component clippy clippy
    need_namespaces
    ;;
callgrind)
    need_cargo
    need_linker
    need_valgrind
    ;;
mutants)
    need_cargo
    need_linker
    need_git
    need_subcommand mutants '^27.1'
    ;;
audit)
    need_cargo
    need_linker
    need_git # by which cargo-deny fetches the advisory database
    need_subcommand deny '^0.20'
    ;;
*)
    sed -n '2,13s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
    exit 2
    ;;
esac
