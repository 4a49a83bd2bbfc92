#!/bin/sh
# Formats every manual page with all warnings on. Usage: check_pages.sh; srcdir: the source directory (set by automake).
# Exit status 77: groff is not installed.
command -v groff >/dev/null || { echo "groff is not installed"; exit 77; }
status=0
for page in "${srcdir:-.}"/man/*.[1-9]; do
  # Another name of a page.
  other=$(sed -n '1s/^\.so man[1-9]\///p' "$page")
  [ -n "$other" ] && [ -e "${srcdir:-.}/man/$other" ] && continue
  problems=$(LC_ALL=C.UTF-8 groff -man -Tutf8 -ww -rLL=80n -z "$page" 2>&1)
  [ -z "$problems" ] && continue
  echo "$page:"
  echo "$problems"
  status=1
done
exit $status
