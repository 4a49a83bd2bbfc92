#!/usr/bin/env python3
"""Debian's own programs, unmodified, with and without librspreload.

Usage: run_programs.py [run] [--long] [--preload PATH|none] [--only NAME,...] [--modes MODE,...] [--json FILE] [--readme]
       run_programs.py bench|busy [--preload PATH|none] [--only NAME,...] [--runs N] [--seconds S] [--json FILE]
                       [--readme]
       run_programs.py --list [--long]

--long  more programs and more modes, which take minutes and are in no table: a server that is killed and started again on
        its port; clients of another user; a crowd of connections to the server beside the clients, then as many short
        ones.
run     each program with both ends preloaded, with the client alone, with the server alone, with neither; then with its
        server killed by signal 9 in the middle. Prints "ok NAME, MODE", "not ok NAME, MODE: why" or "skip NAME, MODE:
        why" for each. Without a library (--preload none) the last two only. Exit status 1 when something failed.
bench   the table of numbers: kernel, library, and kernel with the library loaded but not in use, in turns, medians.
busy    the same with two compute-bound processes beside.
        Both print the table as Markdown. Exit status 1 when a program failed; a ratio not reached is no failure.
--readme writes the results into the marked table of README.md.
"""
import argparse
import json
import pathlib
import signal
import sys
import tempfile
import time

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from harness import bench as benchmarks  # noqa: E402
from harness import processes, readme  # noqa: E402
from harness.program import MODES, MORE_MODES, try_program  # noqa: E402
from harness.run import Library  # noqa: E402
from programs import all_programs, more_programs  # noqa: E402
from programs.measures import all_measurements  # noqa: E402

BUSY_PROCESSES = 2


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("run", "bench", "busy"), default="run")
    parser.add_argument("--preload", default="none", metavar="PATH", help="librspreload.so, or none")
    parser.add_argument(
        "--setting", action="append", default=[], metavar="NAME=VALUE", help="environment that goes with the library"
    )
    parser.add_argument(
        "--unused",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="environment under which the library leaves all to the kernel; default: a rule file that says so",
    )
    parser.add_argument("--runs", type=int, default=5, metavar="N", help="measurements of each number")
    parser.add_argument("--seconds", type=float, default=2, metavar="S", help="length of a measurement")
    parser.add_argument("--only", metavar="NAME,...", help="these programs")
    parser.add_argument("--modes", metavar="MODE,...", help=f"of {', '.join(MODES + MORE_MODES)}")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="the results, for other programs")
    parser.add_argument("--readme", action="store_true", help="write the results into README.md")
    parser.add_argument("--long", action="store_true", help="more programs")
    parser.add_argument("--list", action="store_true", help="names the programs")
    return parser.parse_args()


def chosen(text, allowed, what):
    names = list(allowed) if text is None else text.split(",")
    unknown = [name for name in names if name not in allowed]
    if unknown:
        sys.exit(f"run_programs.py: no {what} is called {unknown[0]!r}; there are: {', '.join(allowed)}")
    return names


def environment_of(settings):
    """{name: value} of NAME=VALUE words."""
    return dict(setting.split("=", 1) for setting in settings)


def configuration(folder, place, **files):
    """Environment with a new folder of configuration, `place` below `folder`, that has these files."""
    folder = pathlib.Path(folder)
    folder.chmod(0o755)
    place = folder / place
    place.mkdir()
    for name, content in files.items():
        (place / name).write_text(content)
    return {"RINGSOCK_CONFIG_DIR": str(place)}


def rules_for_nobody(folder):
    """Environment with a preload_config that leaves every socket to the kernel."""
    return configuration(folder, "nobody", preload_config="* * * * tcp\n")


def rings_on_a_busy_machine(folder):
    """Environment in which rings make all connections that they can make.

    A client does not take a server that has no CPU for one that does not answer, and short connections are not
    compared. A client that nobody wakes a server for still goes to the kernel, which is a failure here.
    """
    return configuration(folder, "busy", connect_patience="1000\n", short_by_kernel="0\n")


def report(outcome, seconds):
    first, _, rest = outcome.why.partition("\n")
    print(f"{outcome.verdict} {outcome.label}{': ' if first else ''}{first}", flush=True)
    if outcome.verdict == "not ok":
        print("\n".join("    " + line for line in rest.splitlines()), flush=True)
    print(f"# {seconds:.1f} s", flush=True)


def run(options, library, programs):
    allowed = MODES + MORE_MODES if library.path else ("none", "killed", *MORE_MODES)
    usual = allowed if options.long else [mode for mode in allowed if mode in MODES]
    modes = usual if options.modes is None else chosen(options.modes, allowed, "mode")
    outcomes = []
    for program in programs:
        for mode in modes:
            if mode not in program.modes or mode in program.not_in or (mode == "crowd" and program.crowd == 0):
                continue
            started = time.monotonic()
            outcomes.append(try_program(program, mode, library))
            report(outcomes[-1], time.monotonic() - started)
    if options.json:
        options.json.write_text(json.dumps([vars(outcome) for outcome in outcomes], indent=1) + "\n")
    if options.readme:
        readme.write("programs", readme.programs_table(programs, outcomes))
    failed = sum(outcome.verdict == "not ok" for outcome in outcomes)
    print(f"# {len(outcomes) - failed} of {len(outcomes)} without failure")
    return 1 if failed else 0


def bench(options, library):
    busy = BUSY_PROCESSES if options.what == "busy" else 0
    by_name = {measurement.name: measurement for measurement in all_measurements()}
    wanted = [by_name[name] for name in chosen(options.only, by_name, "measurement")]
    with benchmarks.busy_processes(busy):
        found, failures = benchmarks.take(
            wanted, library, runs=options.runs, seconds=options.seconds, say=lambda line: print(line, flush=True)
        )
    result = benchmarks.summary(wanted, found, runs=options.runs, seconds=options.seconds, busy=busy)
    print("\n".join(benchmarks.table(result)))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    if options.readme:
        readme.write(f"programs-{options.what}", benchmarks.table(result))
    return 1 if failures else 0


def main():
    options = arguments()
    programs = all_programs() + (more_programs() if options.long else [])
    if options.list:
        print("\n".join(f"{program.name:22} {program.title}" for program in programs))
        return 0
    path = None if options.preload == "none" else pathlib.Path(options.preload).resolve()
    if path is not None and not path.is_file():
        sys.exit(f"run_programs.py: {path} is not there")
    processes.adopt_orphans()
    # Some servers end on SIGINT; a shell that started us in the background had it ignored, which would be inherited.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="ringsock-rules-") as folder:
        settings = environment_of(options.setting)
        if options.what == "run":
            settings = {**rings_on_a_busy_machine(folder), **settings}
        library = Library(path, settings, environment_of(options.unused) or rules_for_nobody(folder))
        if options.what != "run":
            return bench(options, library)
        by_name = {program.name: program for program in programs}
        return run(options, library, [by_name[name] for name in chosen(options.only, by_name, "program")])


sys.exit(main())
