# shellcheck shell=bash
# Sourced by the scripts, with the extras to install: `source scripts/_venv.sh trainer,demo`, or `none` for no project.
# Changes to the root of the project, creates .venv if it is missing, installs the project into it if needed, and puts it
# first in PATH. Messages go to stderr, because stdout belongs to the script.

CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

say() { printf '%s\n' "$*" >&2; }

find_python() {
    local name path without_venv=""
    for name in python3 python python3.14 python3.13 python3.12 python3.11; do
        # Every match in PATH is tried: a shim of a version manager may exist and not run.
        while read -r path; do
            "$path" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue
            if "$path" -c 'import ensurepip, venv' 2>/dev/null; then
                printf '%s\n' "$path"
                return
            fi
            without_venv=$path
        done < <(type -aP "$name")
    done
    if [[ $without_venv ]]; then
        say "error: $without_venv cannot create virtual environments; install its venv package (on Debian: apt install python3-venv)."
    else
        say "error: no Python 3.11 or newer was found in PATH; install one (python.org, or your system's packages) and run this again."
    fi
    return 1
}

make_venv() {
    # Also if it is unusable: incomplete, or its Python was removed or is too old.
    .venv/bin/python -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && return
    local python
    python=$(find_python) || return
    say "Creating .venv with $("$python" --version) ..."
    "$python" -m venv --clear .venv
}

install_project() {
    local extras=$1 log=.venv/pip.log wanted stamp
    # The stamp contains the path: a project that was moved must be installed again.
    wanted="$PWD"$'\n'"$(<pyproject.toml)"
    for stamp in ".venv/installed-$extras" .venv/installed-test; do # test includes all other extras
        [[ -f $stamp && $(<"$stamp") == "$wanted" ]] && return
    done
    say "Installing lclrr-edge[$extras] into .venv (a minute or two, once) ..."
    if ! .venv/bin/python -m pip install --disable-pip-version-check --no-input -e ".[$extras]" >"$log" 2>&1; then
        grep -v '^Requirement already satisfied' "$log" | tail -n 15 >&2
        say "error: pip could not install the project; its output is in $PWD/$log."
        return 1
    fi
    printf '%s\n' "$wanted" >".venv/installed-$extras"
}

make_venv || exit 1
[[ $1 == none ]] || install_project "$1" || exit 1
export PATH="$PWD/.venv/bin:$PATH"
