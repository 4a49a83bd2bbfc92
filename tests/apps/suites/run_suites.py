#!/usr/bin/env python3
"""The test suites of programs nobody here wrote, from Debian's source packages, over a preload library and over the kernel.

Usage: run_suites.py --library PATH --udp-library PATH --work FOLDER [--only SUITE,...] [--match REGEX] [--json FILE]
       run_suites.py --list

Fetches the sources by apt-get into FOLDER (kept: a second run fetches nothing), builds what has to be built, and runs each
test twice in a network namespace of its own: over the library and without it. Prints, for each test:
  ok SUITE TEST                  it passed over the library
  not ok SUITE TEST: why         it passed, or parts of it did, without the library only
  skip SUITE TEST: why           it does not pass without the library either, skips itself, or is about a limit that
                                 COMPLIANCE.md names
A suite whose sources cannot be fetched, or whose tools are not installed, is one "skip". Exit status 1 when something failed.
"""
import argparse
import json
import pathlib
import re
import signal
import sys

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "programs")]

from harness import processes  # noqa: E402
from harness.processes import Failure  # noqa: E402
from suites import all_suites  # noqa: E402
from suites.bench import Bench, compare  # noqa: E402


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=pathlib.Path, metavar="PATH", help="librspreload.so")
    parser.add_argument("--udp-library", type=pathlib.Path, metavar="PATH", help="libvma.so, for what uses UDP")
    parser.add_argument("--work", type=pathlib.Path, metavar="FOLDER", help="sources and what is built of them")
    parser.add_argument("--only", metavar="SUITE,...", help="these suites")
    parser.add_argument("--match", default="", metavar="REGEX", help="only tests whose name has a match")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="the results, for other programs")
    parser.add_argument("--list", action="store_true", help="names the suites")
    return parser.parse_args()


def run_suite(suite, options, say):
    """[{suite, test, verdict, why}]; never raises for what a suite does."""
    missing = [name for name in suite.needs if processes.find_program(name) is None]
    why = f"not installed: {', '.join(missing)}" if missing else ""
    if not why:
        try:
            suite.prepare(options.work)
        except Failure as failure:
            why = str(failure)
    if why:
        say(f"skip {suite.name}: {why}")
        return [{"suite": suite.name, "test": "", "verdict": "skip", "why": why}]
    results = []
    bench = Bench(suite, (options.udp_library if suite.uses_udp else options.library).resolve(), options.work)
    for test in suite.tests():
        if not re.search(options.match, test.name):
            continue
        ours, kernels = bench.run(test, preloaded=True), bench.run(test, preloaded=False)
        verdict, why = compare(ours, kernels, suite.limits.get(test.name, ""))
        say(f"{verdict} {suite.name} {test.name}{': ' if why else ''}{why}")
        if verdict == "not ok":
            say("\n".join("    " + line for line in ours.last_lines()))
        say(f"# {ours.seconds:.1f} s, without the library {kernels.seconds:.1f} s")
        results.append({"suite": suite.name, "test": test.name, "verdict": verdict, "why": why})
    return results


def main():
    options = arguments()
    suites = {suite.name: suite for suite in all_suites()}
    if options.list:
        print("\n".join(f"{suite.name:8} {suite.title}" for suite in suites.values()))
        return 0
    if None in (options.library, options.udp_library, options.work):
        sys.exit("run_suites.py: --library, --udp-library and --work are needed; --help tells more")
    for library in (options.library, options.udp_library):
        if not library.is_file():
            sys.exit(f"run_suites.py: {library} is not there")
    names = list(suites) if options.only is None else options.only.split(",")
    unknown = [name for name in names if name not in suites]
    if unknown:
        sys.exit(f"run_suites.py: no suite is called {unknown[0]!r}; there are: {', '.join(suites)}")
    options.work = options.work.resolve()
    options.work.mkdir(parents=True, exist_ok=True)
    processes.adopt_orphans()
    # A shell that started us in the background had it ignored, which would be inherited.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    results = []
    for name in names:
        results += run_suite(suites[name], options, lambda line: print(line, flush=True))
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    counts = {verdict: sum(each["verdict"] == verdict for each in results) for verdict in ("ok", "not ok", "skip")}
    print(f"# {counts['ok']} ok, {counts['not ok']} not ok, {counts['skip']} skipped")
    return 1 if counts["not ok"] else 0


sys.exit(main())
