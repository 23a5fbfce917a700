#!/usr/bin/env bash
# Runs the tests: `tests/run.sh TIER [ARGUMENT...]`. The arguments are passed to pytest. An empty TIER
# selects unit, engine and cluster. Tests mostly wait for other processes, so several run at the same
# time: first the unit tests, then the tests of the engine and cluster tiers together.
# All parts run even if one fails; the script then exits with the status of the first failed part.
# Missing tools are built first. If a build fails, the tests that need the tool report this. At the
# end, the script prints the durations of the slowest tests, shared fixtures and tiers.
set -uo pipefail

NOTHING=5 # pytest's status if no test was selected
outcome=$NOTHING
failed=()
# Without bytecode, each process that a test starts would compile all modules, including PyTorch's.
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
# Each process collects the tests in these paths. Collecting unit tests as well would take too long.
others="testpaths=tests/cluster tests/engine tests/operators"
tier=$1
shift
case "$tier $* " in
  *" -m"*) part ${tier:+-m "$tier"} "$@" ;; # the user selects tests from any tier
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
