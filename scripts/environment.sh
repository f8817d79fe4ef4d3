# Environments of Python 3.11, 3.12 or 3.13 with the pinned packages. Sourced by reproduce.sh and test.sh, from the checkout's root.

# Prints the first Python 3.11, 3.12 or 3.13 among $PYTHON, python3.11, python3.12, python3.13, python3 and python.
find_python() {
    local name
    for name in ${PYTHON:+"$PYTHON"} python3.11 python3.12 python3.13 python3 python; do
        if "$name" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then
            command -v "$name"
            return
        fi
    done
    echo "error: repro needs Python 3.11, 3.12 or 3.13, and ${PYTHON:+$PYTHON, }python3.11 to python3.13, python3" >&2
    echo "       and python are none; install one, or name it: PYTHON=/path/to/python3.11 bash $0" >&2
    return 1
}

# make_environment FOLDER EXTRAS: at once when FOLDER holds what pyproject.toml and constraints.txt ask for.
# The stamp is written last, so that an installation that was cut short is begun again from nothing.
make_environment() {
    local folder=$1 extras=$2 python wanted stamp=$1/.installed
    python=$(find_python) || return
    wanted=$("$python" -c '
import hashlib, sys
from pathlib import Path
said = "".join([*sys.argv[1:], sys.version, *(Path(p).read_text("utf-8") for p in ("pyproject.toml", "constraints.txt"))])
print(hashlib.sha256(said.encode()).hexdigest())' "$PWD" "$extras") || return
    if [[ -f $stamp && $(<"$stamp") == "$wanted" ]]; then
        return
    fi
    if [[ ! -f $stamp ]]; then
        echo "Making $folder with $python"
        "$python" -m venv --clear "$folder" || return
    fi
    rm -f "$stamp"
    echo "Installing repro and its packages into $folder, once; this takes minutes"
    # pip would compile on one core; files that do not compile, templates of packages, stay as they are.
    "$folder/bin/python" -m pip install --disable-pip-version-check --no-compile \
        --constraint constraints.txt --editable ".${extras:+[$extras]}" || return
    "$folder/bin/python" -m compileall -q -j 0 "$folder/lib" >/dev/null 2>&1 || true
    echo "$wanted" >"$stamp"
}
