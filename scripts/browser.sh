#!/usr/bin/env bash
# Prints the path of a Chromium for the tests of the page, and gets one first where there is none:
# from the system's packages as root, else from npm into the folder given (default .browser), which needs no root.
set -euo pipefail
folder="${1:-.browser}"

for name in "${TOKENTRACE_BROWSER:-}" chromium-headless-shell chromium chromium-browser google-chrome; do
    if [ -n "$name" ] && path="$(command -v "$name")"; then
        echo "$path"
        exit
    fi
done

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    if { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium-headless-shell fonts-dejavu-core; } >&2; then
        command -v chromium-headless-shell
        exit
    fi
fi

command -v npm >/dev/null || { echo "no Chromium: install one, or npm to get one with" >&2; exit 1; }
mkdir -p "$folder"
npm install --prefix "$folder" --ignore-scripts --no-audit --no-fund --silent '@sparticuz/chromium@^153' >&2
# The package holds a compressed binary and unpacks it, with its libraries, into the temporary folder.
cd "$folder"
TMPDIR="$PWD" node --input-type=module -e 'import chromium from "@sparticuz/chromium"; console.log(await chromium.executablePath())'
