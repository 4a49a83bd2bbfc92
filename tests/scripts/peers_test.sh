#!/bin/sh
# What tests/bench/peers reads from programs, computes, draws and keeps. Nothing is measured.
command -v python3 > /dev/null || { echo "no python3"; exit 77; }
exec python3 "$(dirname "$0")/peers_test.py"
