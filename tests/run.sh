#!/usr/bin/env bash
# Runs the tests: `tests/run.sh TIER [ARGUMENT...]`, those of every tier where TIER is empty; the
# arguments go to pytest. Much of what the tests do is waiting for processes, so some run at a time:
# the unit tier shares its files out, and then the engine tier runs beside the two clusters. Each
# part runs, and each may fail the whole. The engine tier's tools are built first, where they are
# not there, with their progress shown; without them its tests say so.
set -uo pipefail

NOTHING=5 # pytest's status where there was no test to run
outcome=$NOTHING
failed=()
trap 'exit 130' INT

part() {
  python -m pytest "$@"
  local status=$?
  ((status == 0 || status == NOTHING)) || failed+=("pytest $*")
  if ((outcome == 0 || outcome == NOTHING)) && ((status != NOTHING)); then outcome=$status; fi
}

tools() {
  python -m devcluster.toolchain engine || true
}

shared=--no-loadscope-reorder
tier=$1
shift
case "$tier $* " in
  *" -m"*) part ${tier:+-m "$tier"} "$@" ;; # a choice across tiers
  "unit "*) part -m unit -n 2 "$shared" "$@" ;;
  " "*)
    part -m unit -n 2 "$shared" "$@"
    tools
    part -m "engine or cluster" -n 3 "$shared" "$@"
    ;;
  "cluster "*) part -m cluster -n 2 "$shared" "$@" ;;
  *)
    tools
    part -m "$tier" "$@"
    ;;
esac
for part in ${failed[@]+"${failed[@]}"}; do echo "failed: $part" >&2; done
exit "$outcome"
