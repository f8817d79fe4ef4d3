#!/usr/bin/env bash
# Lint, format, types, tests and a sample of committed results computed again, in an environment of their own.
# All run; any failure is the exit status.
#
#   bash scripts/test.sh                 what every commit must pass
#   bash scripts/test.sh --slow --gpu    also the tests that need minutes, or a GPU
#   bash scripts/test.sh -k tables       whatever else follows goes to pytest
#   bash scripts/test.sh -n 0            one test after the other, in one process
#
# Tests run in as many processes as there are cores, at most four (a process takes about 1.5 GB), each with one
# thread: tensors are tiny, and more threads would only wait for each other. OMP_NUM_THREADS, if set, is kept.
# REPRO_DATA, if set, names a folder of real dataset rows; tests of them are skipped without it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh

slow="not slow" gpu="not gpu"
rest=()
for argument in "$@"; do
    case $argument in
        --slow) slow="" ;;
        --gpu) gpu="" ;;
        *) rest+=("$argument") ;;
    esac
done
marks="$slow${slow:+${gpu:+ and }}$gpu"

make_environment .venv-test dev,joblib,submitit

unset PYTHONDONTWRITEBYTECODE  # each process of a test would compile every file again

failed=()
check() {
    echo "== $1"
    "${@:2}" || failed+=("$1")
}
check "ruff check" .venv-test/bin/ruff check .
check "ruff format" .venv-test/bin/ruff format --check .
check "mypy" .venv-test/bin/mypy
check "pytest" env OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" .venv-test/bin/python -m pytest -n logical --maxprocesses 4 --dist worksteal -m "$marks" \
    ${rest[@]+"${rest[@]}"}
if ((${#rest[@]} == 0)); then
    check "repro.check" .venv-test/bin/python -m repro.check --fixed
fi

if ((${#failed[@]})); then
    printf 'failed: %s\n' "${failed[@]}" >&2
    exit 1
fi
