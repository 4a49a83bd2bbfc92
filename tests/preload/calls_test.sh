#!/bin/sh
# The table of intercepted calls against the map, the library of this build, and what programs import.
command -v python3 > /dev/null || { echo "no python3"; exit 77; }
exec python3 "$(dirname "$0")/calls_test.py" "${srcdir:-$(dirname "$0")/../..}" .
