#!/usr/bin/env bash
# Runs the packed tests, benches and examples on a machine with a GPU and without Rust.
#
#   pack/run.sh [tests|benches|examples|sanitize|all] [FILTER] [-- ARGUMENTS...]
#
# Start it in the repository's folder: tests read assets/ there. FILTER picks executables by a part of their
# name; ARGUMENTS go to each of them (under a sanitizer: a part of cases' names). Results are written to $OUT, or to
# ./out, as they come: summary.txt, failed.txt, kernels.json after benches, and results.tar.gz with every log.
#
# A sanitizer has a process for each case, LOCKSTEP_JOBS (4) at once: with many more each waits for the GPU's turns.
# LOCKSTEP_TIMEOUT (300): seconds of an executable, or of such a case. LOCKSTEP_SECONDS (3600): of all cases; none is
# begun after them.
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
what=tests filter=
case "${1:-}" in tests | benches | examples | sanitize | all) what=$1 && shift ;; esac
if [[ $# -gt 0 && $1 != -- ]]; then filter=$1 && shift; fi
if [[ $# -gt 0 && $1 == -- ]]; then shift; elif [[ $# -gt 0 ]]; then echo "unknown argument: $1" >&2 && exit 2; fi

out=${OUT:-out}
mkdir -p "$out" || exit 2
work=$(mktemp -d) && mkdir "$work/logs"
trap 'rm -rf "$work"' EXIT
if command -v xz >/dev/null; then XZ_OPT=--memlimit=1GiB tar -xJf "$here/bin.tar.xz" -C "$work"; else
  python3 -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2])' "$here/bin.tar.xz" "$work"
fi || { echo "cannot unpack $here/bin.tar.xz: it takes xz or python3" >&2 && exit 2; }

export LOCKSTEP_ROOT=${LOCKSTEP_ROOT:-$PWD} LOCKSTEP_REQUIRE_GPU=${LOCKSTEP_REQUIRE_GPU:-1}
export CRITERION_HOME=$work/criterion RUST_BACKTRACE=${RUST_BACKTRACE:-0}
limit=${LOCKSTEP_TIMEOUT:-300}
deadline=$(($(date +%s) + ${LOCKSTEP_SECONDS:-3600}))
if ! ldconfig -p 2>/dev/null | grep -q libcublasLt; then
  folder=$(python3 -c 'import glob, os, sys
found = [f for p in sys.path if p for f in sorted(glob.glob(p + "/nvidia/*/lib/libcublasLt.so*"))]
print(os.path.dirname(found[-1]) if found else "")' 2>/dev/null)
  if [[ -n $folder ]]; then export LD_LIBRARY_PATH=$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}; fi
fi

bad=0
: >"$work/rows" && : >"$work/failed"
# What there is by now: somebody may end us at any time.
save() {
  {
    nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem --format=csv,noheader 2>/dev/null
    cat "$here/commit.txt" 2>/dev/null
    if [[ -s $work/table ]]; then cat "$work/table"; fi
    { printf 'executable\tpassed\tfailed\tignored\ttime\tverdict\n' && cat "$work/rows"; } |
      awk -F '\t' '{ printf "%-44s %7s %7s %8s %7s  %s\n", $1, $2, $3, $4, $5, $6 }'
  } >"$out/summary.txt"
  cp "$work/failed" "$out/failed.txt"
  tar -czf "$out/results.tar.gz" -C "$work" logs $([[ -d $work/criterion ]] && echo criterion)
}
# run NAME COMMAND...: one row of the summary
run() {
  local name=$1 started=$SECONDS log=$work/logs/${1//[\/ ]/-}.txt rc counts
  shift
  echo "== $name"
  timeout "$limit" "$@" 2>&1 | tee "$log" | tail -n "${LOCKSTEP_TAIL:-12}"
  rc=${PIPESTATUS[0]}
  # An executable prints one result line for each harness in it.
  counts=$(awk '/^test result:/ { for (i = 2; i <= NF; i++) {
      if ($i ~ /^passed/) p += $(i-1); if ($i ~ /^failed/) f += $(i-1); if ($i ~ /^ignored/) g += $(i-1) } seen = 1 }
    END { if (seen) printf "%d\t%d\t%d", p, f, g; else printf "-\t-\t-" }' "$log")
  local verdict=ok
  if [[ $rc -ne 0 ]]; then
    verdict="FAILED ($rc)" bad=1
    if [[ $rc -eq 124 ]]; then verdict="TIMED OUT (${limit} s)"; fi
    { echo "== $name: $verdict" && tail -n 200 "$log"; } >>"$work/failed"
  fi
  printf '%s\t%s\t%s s\t%s\n' "$name" "$counts" "$((SECONDS - started))" "$verdict" >>"$work/rows"
  save
}
# sanitize TOOL EXECUTABLE [PART]: one row of the summary, of all cases for a GPU with PART in their names
sanitize() {
  local name started=$SECONDS verdict=ok reported passed failed left
  name="$1 $(basename "$2")"
  echo "== $name"
  export tool=$1 exe=$2 limit sanitizer work deadline
  "$2" --list 2>/dev/null | sed -n 's/^\[cuda\] \(.*\): test$/\1/p' | grep -F -- "${3:-}" |
    xargs -r -d '\n' -P "${LOCKSTEP_JOBS:-4}" -I CASE bash -c 'one "$1"' - CASE >"$work/cases"
  passed=$(grep -c '^passed' "$work/cases") failed=$(grep -c '^failed' "$work/cases")
  left=$(grep -c '^left' "$work/cases") reported=$(grep -c 'reported$' "$work/cases")
  if [[ $failed -ne 0 ]]; then
    verdict="FAILED" bad=1
    { echo "== $name: $failed of its cases" && grep '^failed' "$work/cases"; } | tee -a "$work/failed"
  elif [[ $left -ne 0 ]]; then
    verdict="NOT DONE" bad=1
  fi
  printf '%s\t%s\t%s\t%s\t%s s\t%s, %s reported\n' \
    "$name" "$passed" "$failed" "$left" "$((SECONDS - started))" "$verdict" "$reported" >>"$work/rows"
  save
}
# One case of them: passed, failed or left out for want of time.
one() {
  if [[ $(date +%s) -ge $deadline ]]; then echo "left $1" && return; fi
  local log=$work/logs/$tool-$(basename "$exe")-${1//[^a-z0-9_]/-}.txt rc said=clean
  timeout "$limit" "$sanitizer" --tool "$tool" --error-exitcode 9 "$exe" "$1" --exact >"$log" 2>&1
  rc=$?
  # A tool that was ended says nothing, and racecheck's warnings do not change its status.
  if ! grep -q SUMMARY "$log"; then said=unfinished; fi
  if grep SUMMARY "$log" | grep -qvE 'SUMMARY: 0 (errors|hazards)'; then said=reported; fi
  if [[ $rc -eq 0 && $said == clean ]] && grep -q '^test result: ok. 1 passed' "$log"; then
    echo "passed $1"
  else
    echo "failed $1 ($rc), $(basename "$log"): $said"
  fi
}
export -f one
each() { find "$work/$1" -type f -name "*$filter*" 2>/dev/null | sort; }

if [[ $what == tests || $what == all ]]; then
  for exe in $(each tests); do run "$(basename "$exe")" "$exe" "$@"; done
fi
if [[ $what == examples || $what == all ]]; then
  for exe in $(each examples); do run "example $(basename "$exe")" "$exe" "$@"; done
fi
if [[ $what == sanitize ]]; then
  export LOCKSTEP_SANITIZED=1
  sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | tail -n 1)
  if [[ -z $sanitizer ]]; then echo "compute-sanitizer is neither on PATH nor in /usr/local/cuda/bin" >&2 && exit 3; fi
  for tool in ${LOCKSTEP_SANITIZERS:-memcheck racecheck synccheck initcheck}; do
    for exe in $(each tests); do sanitize "$tool" "$exe" "$@"; done
  done
fi
if [[ $what == benches || $what == all ]]; then
  for exe in $(each benches); do
    run "bench $(basename "$exe")" "$exe" --bench --warm-up-time 0.1 --measurement-time 0.3 "$@"
    "$work/xtask" bench-kernels --from "$CRITERION_HOME" --json "$out/kernels.json" >"$work/table"
  done
fi

save
if [[ $bad -ne 0 ]]; then echo && cat "$out/failed.txt"; fi
echo && cat "$out/summary.txt"
if [[ ! -s $work/rows ]]; then echo "nothing in the pack matches \`$filter\`" >&2 && bad=1; fi
exit $bad
