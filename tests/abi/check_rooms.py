#!/usr/bin/env python3
"""Compares the arrows that ARCHITECTURE.md draws between rooms (folders) with the includes in the code.

Usage: check_rooms.py FOLDER

A line of the drawing is "    ROOM -> ROOM ROOM ..."; what follows a colon or a dash is for readers. Exit status 1 when the code has
an arrow that is not drawn, the drawing one that the code has not, arrows lead round in a circle, or nothing but tests includes a header.
"""
import pathlib
import re
import sys

ROOTS = ("core", "librsocket", "libvmacompat", "preload", "tools", "include")
SUFFIXES = {".h", ".cc", ".c", ".def", ".inc"}
INCLUDE = re.compile(r'\s*#\s*include "([^"]+)"')
DRAWN = re.compile(r"    ([a-z][\w/]*) +-> *([\w/ ]*)$")


def included(root):
    """{room: {room: a file that includes}}"""
    arrows = {}
    for top in ROOTS:
        for file in sorted((root / top).rglob("*")):
            if file.suffix not in SUFFIXES:
                continue
            room = str(file.parent.relative_to(root))
            targets = arrows.setdefault(room, {})
            for line in file.read_text().splitlines():
                match = INCLUDE.match(line)
                if match and (root / match[1]).is_file():
                    target = str(pathlib.PurePath(match[1]).parent)
                    if target != room:
                        targets.setdefault(target, f"{file.relative_to(root)} includes {match[1]}")
    return arrows


def drawn(root):
    """{room: rooms}"""
    arrows = {}
    for line in (root / "ARCHITECTURE.md").read_text().splitlines():
        match = DRAWN.match(line)
        if match:
            arrows[match[1]] = set(match[2].split())
    return arrows


def circles(arrows):
    """Rooms that lead back to themselves."""
    def reached(room):
        seen, waiting = set(), [room]
        while waiting:
            for target in arrows.get(waiting.pop(), ()):
                if target not in seen:
                    seen.add(target)
                    waiting.append(target)
        return seen
    return sorted(room for room in arrows if room in reached(room))


# Included by the compiler's command line, and by programs.
INCLUDED_ELSEWHERE = {"core/base/precompiled.h", "include/mellanox/vma_extra.h", "include/rdma/rsocket.h"}


def headers_for_tests_only(root):
    """Headers that no source file but their own includes."""
    used = set()
    for top in ROOTS:
        for file in (root / top).rglob("*"):
            if file.suffix in SUFFIXES:
                names = {match[1] for match in map(INCLUDE.match, file.read_text().splitlines()) if match}
                used |= names - {str(file.relative_to(root).with_suffix(".h"))}
    headers = (str(file.relative_to(root)) for top in ROOTS for file in sorted((root / top).rglob("*.h")))
    return [header for header in headers if header not in used | INCLUDED_ELSEWHERE]


def main():
    root = pathlib.Path(sys.argv[1])
    code, drawing = included(root), drawn(root)
    faults = [f"no source file but its own includes {header}" for header in headers_for_tests_only(root)]
    for room, targets in code.items():
        if room not in drawing:
            faults.append(f"ARCHITECTURE.md does not draw {room}")
            continue
        faults += [f"{room} -> {target} is not drawn: {why}" for target, why in targets.items() if target not in drawing[room]]
        faults += [f"{room} -> {target} is drawn, and nothing includes it" for target in sorted(drawing[room] - set(targets))]
    faults += [f"ARCHITECTURE.md draws {room}, which is not there" for room in drawing if room not in code]
    faults += [f"{room} includes itself by way of others" for room in circles(code)]
    for fault in faults:
        print(fault)
    print(f"{len(code)} rooms, {sum(map(len, code.values()))} arrows as drawn" if not faults else f"{len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
