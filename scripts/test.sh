#!/usr/bin/env bash
# Lint, format, types, tests, those of them that depend on the host as other hosts, and a sample of committed
# results computed again, in an environment of their own.
# All run; any failure is the exit status.
#
#   bash scripts/test.sh                 what every commit must pass
#   bash scripts/test.sh --slow --gpu    also the tests that need minutes, as every night, or a GPU
#   bash scripts/test.sh -k tables       whatever else follows goes to pytest
#   bash scripts/test.sh -n 0            one test after the other, in one process
#   bash scripts/test.sh --host=avx2     only the tests that depend on the host, as one of scripts/other_hosts.sh
#
# Tests run in as many processes as there are cores, at most four (a process takes about 1.5 GB), each with one
# thread: tensors are tiny, and more threads would only wait for each other. OMP_NUM_THREADS, if set, is kept.
# REPRO_DATA, if set, names a folder of real dataset rows; tests of them are skipped without it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh
source scripts/other_hosts.sh

slow="not slow" gpu="not gpu" host=""
rest=()
for argument in "$@"; do
    case $argument in
        --slow) slow="" HOSTS+=("${SLOW_HOSTS[@]}") ;;
        --gpu) gpu="" ;;
        --host=*) host=${argument#*=} ;;
        *) rest+=("$argument") ;;
    esac
done
marks="$slow${slow:+${gpu:+ and }}$gpu"

make_environment .venv-test dev,dask

unset PYTHONDONTWRITEBYTECODE  # each process of a test would compile every file again

failed=()
check() {
    echo "== $1"
    "${@:2}" || failed+=("$1")
}
tests=(env OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" .venv-test/bin/python -m pytest -n logical --maxprocesses 4
    --dist worksteal -m "$marks" ${rest[@]+"${rest[@]}"})
if [[ -n $host ]]; then
    check "pytest as $host" as_host "$host" "${tests[@]}"
else
    check "ruff check" .venv-test/bin/ruff check .
    check "ruff format" .venv-test/bin/ruff format --check .
    check "mypy" .venv-test/bin/mypy
    check "pytest" "${tests[@]}"
    if ((${#rest[@]} == 0)); then
        for other in "${HOSTS[@]}"; do
            check "pytest as $other" as_host "$other" "${tests[@]}"
        done
        check "repro check" .venv-test/bin/python -m repro check --fixed
    fi
fi

if ((${#failed[@]})); then
    printf 'failed: %s\n' "${failed[@]}" >&2
    exit 1
fi
