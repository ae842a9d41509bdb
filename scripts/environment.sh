# Sourced by the other scripts: makes .venv next to pyproject.toml and installs the project into it, once.
# PYTHON names another interpreter; EXTRAS (such as "dev") names the extras to install.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

find_python() {
    local candidate
    for candidate in "${PYTHON:-}" python3 python3.13 python3.12 python3.11; do
        if [ -n "$candidate" ] && "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    echo "seqtool needs Python 3.11, 3.12 or 3.13: install one, or name it with PYTHON=/path/to/python." >&2
    return 1
}

stamp=".venv/installed-${EXTRAS:-plain}"
checksum=$(cksum < pyproject.toml)
if [ "$(cat "$stamp" 2>/dev/null || true)" != "$checksum" ]; then
    python=$(find_python)
    if [ ! -x .venv/bin/python ]; then
        echo "Making .venv with $("$python" --version)"
        rm -rf .venv
        "$python" -m venv .venv
    fi
    echo "Installing seqtool${EXTRAS:+ and what its $EXTRAS extra needs} (torch is large: this takes some minutes)"
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --editable ".${EXTRAS:+[$EXTRAS]}"
    echo "$checksum" > "$stamp"
fi
export PATH="$PWD/.venv/bin:$PATH"
