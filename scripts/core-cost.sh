#!/usr/bin/env bash
# Puts a fresh table of what the protocol core costs (scripts/callgrind.sh) into docs/performance.md.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

page=docs/performance.md
begin='<!-- table: scripts/core-cost.sh -->'
end='<!-- end of table -->'

scripts/setup.sh callgrind
table=$(scripts/callgrind.sh)
updated=$(awk -v begin="$begin" -v end="$end" -v table="$table" '
    $0 == end { inside = 0 }
    !inside { print }
    $0 == begin { inside = 1; print table }
' "$page")
printf '%s\n' "$updated" >"$page"
printf '%s\n' "$table"
