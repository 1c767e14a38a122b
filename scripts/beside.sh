#!/usr/bin/env bash
# Cargo's runner for test programs, as tests.sh has it: starts one and returns, so that the next one runs beside it. Most of them
# wait more than they compute. What they say is shown when they have ended, one program after the other.
#
#   scripts/beside.sh PROGRAM ARGUMENTS...  starts it as soon as there is a place
#   scripts/beside.sh                       waits until all have ended; fails if one of them has failed
#
# WALLABY_BESIDE is a folder for what they say. In it is the pipe `places`, with a byte for each program that may be started;
# whoever made it holds it open.
set -euo pipefail

# What a test itself has cargo start is none of the programs.
folder=${WALLABY_BESIDE-}
[ -n "$folder" ] || exec "$@"
exec 3<>"$folder/places"

take() { read -r -N "${#1}" -u 3 _; }

show_ended() {
    local output
    for output in "$folder"/*.ended; do
        [ -e "$output" ] || continue
        cat "$output"
        rm "$output"
    done
}

if [ $# -eq 0 ]; then
    take ..
    show_ended
    [ ! -e "$folder/failed" ] || { cat "$folder/failed" >&2 && exit 1; }
    exit
fi

program=${1##*/}
case $program in
load-* | patterns-* | processes-*) places=.. ;; # takes all of the machine, or counts who is slow as lost
*) places=. ;;
esac
take "$places"
show_ended
unset WALLABY_BESIDE
output=$folder/$program.$$
{
    echo "     Running $CARGO_PKG_NAME: $program"
    TIMEFORMAT="     Took %R s, of processors %U + %S s"
    time "$@" 3>&- || echo "tests: $CARGO_PKG_NAME: $program has failed with exit status $?" | tee -a "$folder/failed"
    mv "$output" "$output.ended"
    printf %s "$places" >&3
} >"$output" 2>&1 </dev/null &
