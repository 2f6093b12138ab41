#!/usr/bin/env bash
# Makes .venv from requirements.lock: every wheel by its hash, Envoy among them. Says what it does.
# Needs a Python of at least 3.11; fetches uv when there is none. Run by make, from the repository's root.
set -euo pipefail

say() { printf 'setup: %s\n' "$*"; }
fail() { printf 'setup: %s\n' "$@" >&2; exit 1; }

find_python() {
    local name
    for name in "${PYTHON:-}" python3.13 python3.12 python3.11 python3; do
        [ -n "$name" ] || continue
        if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$name"
            return
        fi
    done
    fail "no Python of at least 3.11 was found" "  apt-get install python3   (Debian 12 or later), or make PYTHON=/path/to/python3.11 …"
}

# Debian splits venv and pip off; root may bring them, everybody else is told how.
need_venv() {
    "$1" -c 'import ensurepip, venv' 2>/dev/null && return
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        say "installing python3-venv (this Python comes without it)"
        apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3-venv >/dev/null
    fi
    "$1" -c 'import ensurepip, venv' 2>/dev/null || fail "this Python has no venv; as root:" "  apt-get install python3-venv"
}

python=$(find_python)
uv=$(command -v uv || true)
if [ -z "$uv" ]; then
    uv=.cache/uv/bin/uv
    if [ ! -x "$uv" ]; then
        need_venv "$python"
        say "fetching uv into .cache/uv"
        "$python" -m venv .cache/uv
        .cache/uv/bin/pip install -q --disable-pip-version-check 'uv>=0.9'
    fi
fi

say "making .venv with $("$python" --version) and $("$uv" --version | cut -d' ' -f1,2)"
[ -x .venv/bin/python ] || "$uv" venv -q --python "$python" .venv
"$uv" pip sync -q --python .venv/bin/python --require-hashes requirements.lock
"$uv" pip install -q --python .venv/bin/python --no-deps -e .
touch .venv/.made
say "done"
