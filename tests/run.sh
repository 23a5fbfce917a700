#!/usr/bin/env bash
# Runs the tests: `tests/run.sh TIER [ARGUMENT...]`; the arguments go to pytest. Without a TIER:
# unit, engine and cluster. The engine tier and all clusters run at the same time, because they
# mostly wait for other processes. Unit tests compute: they run next to them with lower priority,
# distributed by file. Every part runs, and any of them fails the whole. Missing tools are built
# first, with progress; without them their tests report it. At the end: the slowest tests, shared
# fixtures and tiers.
set -uo pipefail

NOTHING=5 # pytest's status without tests
outcome=$NOTHING
failed=()
# Without bytecode every process that a test starts compiles all modules again, PyTorch's as well.
unset PYTHONDONTWRITEBYTECODE
folder=$(mktemp -d)
export TEST_DURATIONS=$folder/durations
touch "$TEST_DURATIONS"
trap 'rm -rf "$folder"' EXIT
trap 'wait; exit 130' INT

part() {
  python -m pytest "$@"
  ended $? "$@"
}

ended() {
  local status=$1
  shift
  ((status == 0 || status == NOTHING)) || failed+=("pytest $*")
  if ((outcome == 0 || outcome == NOTHING)) && ((status != NOTHING)); then outcome=$status; fi
}

# Its output is shown when it ends. A background process ignores Ctrl-C unless it is told not to.
behind() {
  local log=$folder/behind
  env --default-signal=INT nice -n 10 python -m pytest "$@" >"$log" 2>&1
  local status=$?
  echo
  cat "$log"
  return "$status"
}

tools() {
  python -m devcluster.toolchain auto --languages || true
}

shared=--no-loadscope-reorder
# Every process collects all of these; unit tests would take it longer than some tests.
others="testpaths=tests/cluster tests/engine tests/faults tests/operators"
tier=$1
shift
case "$tier $* " in
  *" -m"*) part ${tier:+-m "$tier"} "$@" ;; # a choice across tiers
  "unit "*) part -m unit -n 3 "$shared" "$@" ;;
  " "*)
    tools
    unit=(-m unit -n 2 "$shared" "$@")
    echo "Unit tests run behind the others; their output follows when they end."
    behind "${unit[@]}" &
    part -m "engine or cluster" -o "$others" -n 4 "$shared" "$@"
    wait "$!"
    ended $? "${unit[@]}"
    ;;
  "cluster "*)
    tools
    part -m cluster -o "$others" -n 3 "$shared" "$@"
    ;;
  *)
    tools
    part -m "$tier" -o "$others" "$@"
    ;;
esac
python -m tests.durations "$TEST_DURATIONS"
for part in ${failed[@]+"${failed[@]}"}; do echo "failed: $part" >&2; done
exit "$outcome"
