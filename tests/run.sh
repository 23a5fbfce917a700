#!/usr/bin/env bash
# Runs the tests: `tests/run.sh TIER [ARGUMENT...]`; the arguments go to pytest. Without a TIER:
# unit, engine and cluster. Tests mostly wait for other processes, so some run at the same time:
# unit tests are distributed by file, then the engine tier runs next to all clusters.
# Every part runs, and any of them fails the whole. Missing tools are built first, with progress;
# without them their tests report it. At the end: the slowest tests, shared fixtures and tiers.
set -uo pipefail

NOTHING=5 # pytest's status without tests
outcome=$NOTHING
failed=()
# Without bytecode every process that a test starts compiles all modules again, PyTorch's as well.
unset PYTHONDONTWRITEBYTECODE
TEST_DURATIONS=$(mktemp)
export TEST_DURATIONS
trap 'rm -f "$TEST_DURATIONS"' EXIT
trap 'exit 130' INT

part() {
  python -m pytest "$@"
  local status=$?
  ((status == 0 || status == NOTHING)) || failed+=("pytest $*")
  if ((outcome == 0 || outcome == NOTHING)) && ((status != NOTHING)); then outcome=$status; fi
}

tools() {
  python -m devcluster.toolchain auto --languages || true
}

shared=--no-loadscope-reorder
# Every process collects all of these; unit tests would take it longer than some tests.
others="testpaths=tests/cluster tests/engine tests/operators"
tier=$1
shift
case "$tier $* " in
  *" -m"*) part ${tier:+-m "$tier"} "$@" ;; # a choice across tiers
  "unit "*) part -m unit -n 5 "$shared" "$@" ;;
  " "*)
    part -m unit -n 5 "$shared" "$@"
    tools
    part -m "engine or cluster" -o "$others" -n 5 "$shared" "$@"
    ;;
  "cluster "*)
    tools
    part -m cluster -o "$others" -n 3 "$shared" "$@"
    ;;
  "engine "* | "slow "* | "operators "*)
    tools
    part -m "$tier" -o "$others" "$@"
    ;;
  *)
    echo "TIER is '$tier': use unit, engine, cluster, slow or operators, or leave it out" >&2
    exit 2
    ;;
esac
python -m tests.durations "$TEST_DURATIONS"
for part in ${failed[@]+"${failed[@]}"}; do echo "failed: $part" >&2; done
exit "$outcome"
