#!/usr/bin/env python3
"""Lists the mutable objects with static storage in the rooms of the libraries, and compares them with those allowed below.

Usage: check_globals.py ROOT BUILD

BUILD has the objects of a build with optimisation. Counted are symbols of namespace ringsock in writable sections, thread-local ones
included; not counted are guards of function-local objects, vtables, constants, and data that is read-only after relocation. Exit
status 1 when core has more than MOST_IN_CORE of them, a room has an object that is not in allowed_globals.txt, or that file has one
that is gone or without a reason. The file has a line for each room, and below it "  NAME: REASON" for each object.
"""
import collections
import pathlib
import re
import subprocess
import sys

# No state: constants that are relocated in a writable section, and addresses of functions that are looked up on first use.
CONSTANT = re.compile(r"(^|::)k[A-Z]\w*$|^LateFunction<.*::found_$")
WRITABLE = re.compile(r"\.(data|bss|tdata|tbss)(?!\.rel\.ro)(\.|$)")
MOST_IN_CORE = 9
ALLOWED_FILE = pathlib.Path(__file__).with_name("allowed_globals.txt")


def objects(root, build):
    """Those of sources that are there: a build directory keeps objects of files that have moved."""
    for top in ("core", "librsocket", "libvmacompat", "preload"):
        for path in sorted((build / top).rglob("*.o")):
            room = path.parent.parent.relative_to(build)
            if path.parent.name == ".libs" and (root / room / (path.stem.rpartition("-")[2] + ".cc")).is_file():
                yield path, str(room)


def found(root, build):
    """{(room, name)}"""
    names = set()
    for path, room in objects(root, build):
        listing = subprocess.run(["objdump", "-t", "-C", str(path)], capture_output=True, text=True, check=True).stdout
        for line in listing.splitlines():
            match = re.match(r"[0-9a-f]+ (.{7}) (\S+)\t[0-9a-f]+ +(?:\.hidden |0x[0-9a-f]+ )*(.*)$", line)
            if not match or "O" not in match[1] and "d" in match[1] or not WRITABLE.match(match[2]):
                continue
            name = match[3].strip()
            if name.startswith((".", "guard variable", "vtable", "typeinfo", "VTT", "DW.ref")):
                continue
            if "ringsock::" in name and not CONSTANT.search(short(name)):
                names.add((room, short(name)))
    return names


def short(name):
    """The demangled name without the project's namespace, parameters and clones' suffixes."""
    name = name.replace("(anonymous namespace)::", "").replace("ringsock::", "")
    name = re.sub(r" \[clone [^]]*\]", "", name)
    while re.search(r"\([^()]*\)", name):
        name = re.sub(r"\([^()]*\)( const)?", "", name)
    return name.strip()


def allowed():
    """{(room, name): reason}"""
    rows = {}
    room = None
    for line in ALLOWED_FILE.read_text().splitlines():
        if line.startswith("#") or not line.strip():
            continue
        if not line.startswith(" "):
            room = line.rstrip(":")
            continue
        name, _, reason = line.strip().partition(": ")
        rows[room, name] = reason
    return rows


def main():
    root, build = map(pathlib.Path, sys.argv[1:3])
    there, known = found(root, build), allowed()
    problems = [f"not ok {room}: {name} is a mutable global that {ALLOWED_FILE.name} does not allow"
                for room, name in sorted(there - known.keys())]
    problems += [f"not ok {room}: {name} is in {ALLOWED_FILE.name}, and not in the objects"
                 for room, name in sorted(known.keys() - there)]
    problems += [f"not ok {room}: {name} is in {ALLOWED_FILE.name} without a reason" for (room, name), reason in sorted(known.items()) if not reason]
    count = collections.Counter(room for room, _ in there)
    core = sum(number for room, number in count.items() if room.startswith("core"))
    if core > MOST_IN_CORE:
        problems.append(f"not ok {core} objects in core, more than {MOST_IN_CORE}: process_state.h and this_thread.h have room for more")
    print("\n".join(problems) if problems else "ok each mutable global is known")
    print(f"# {core} in core, {sum(count.values())} in all: " + ", ".join(f"{room} {number}" for room, number in sorted(count.items())))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
