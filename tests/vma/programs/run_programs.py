#!/usr/bin/env python3
"""Debian's own UDP and TCP programs, unmodified, between two hosts (network namespaces), with and without libvma.

Usage: run_programs.py --library PATH [--only NAME,...] [--modes MODE,...] [--setting NAME=VALUE]... [--long]
       run_programs.py --list

Each program with both ends preloaded, with the client alone, with the server alone; some with either end killed by
signal 9 in the middle; with --long all of them so, and on the kernel alone, too,
which shows that the test is right. Checked: what the
programs say and what arrived, and by the hosts' counters that its packets went by rings where they must, and by the
kernel where they must.
Prints TAP. Exit status 1 when something failed, 77 where no namespaces can be made.
"""
import argparse
import pathlib
import signal
import sys
import time

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "apps" / "programs")]

from harness import processes  # noqa: E402
from two_hosts import hosts as networks  # noqa: E402
from two_hosts.cell import MODES, try_cell  # noqa: E402
from two_hosts.run import HostRun  # noqa: E402
import tcp_programs  # noqa: E402
import udp_programs  # noqa: E402


def all_programs():
    return udp_programs.all_programs() + tcp_programs.all_programs()


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", metavar="PATH", help="libvma.so")
    parser.add_argument(
        "--setting", action="append", default=[], metavar="NAME=VALUE", help="environment that goes with the library"
    )
    parser.add_argument("--only", metavar="NAME,...", help="these programs")
    parser.add_argument("--modes", metavar="MODE,...", help=f"of {', '.join(MODES)}")
    parser.add_argument("--long", action="store_true", help="all modes of all programs")
    parser.add_argument("--list", action="store_true", help="names the programs")
    return parser.parse_args()


def chosen(text, allowed, what):
    names = list(allowed) if text is None else text.split(",")
    unknown = [name for name in names if name not in allowed]
    if unknown:
        sys.exit(f"run_programs.py: no {what} is called {unknown[0]!r}; there are: {', '.join(allowed)}")
    return names


def wanted(options, program):
    """The modes in which the program is tried."""
    everything = options.long or options.modes
    names = chosen(options.modes, MODES, "mode")
    return [mode for mode in program.modes if mode in names and (everything or mode in program.quick)]


class Tap:
    """Numbers what is reported."""

    def __init__(self):
        self.failed = self.count = 0

    def report(self, outcome, seconds):
        self.count += 1
        first, _, rest = outcome.why.partition("\n")
        if outcome.verdict == "skip":
            print(f"ok {self.count} - {outcome.label} # SKIP {first}", flush=True)
            return
        print(f"{outcome.verdict} {self.count} - {outcome.label}", flush=True)
        if outcome.verdict == "not ok":
            self.failed += 1
            print("\n".join(f"# {line}" for line in [first, *rest.splitlines()]), flush=True)
        print(f"# {seconds:.1f} s", flush=True)


def run(options, programs):
    library = {
        "LD_PRELOAD": str(pathlib.Path(options.library).resolve()),
        "VMA_TRACELEVEL": "warning",
        **dict(setting.split("=", 1) for setting in options.setting),
    }
    tap = Tap()
    for network in networks.NETWORKS:
        there = [program for program in programs if program.network == network]
        if not there:
            continue
        with networks.Hosts(network) as hosts:
            HostRun.kept = hosts.keepers()
            for program in there:
                for mode in wanted(options, program):
                    started = time.monotonic()
                    tap.report(try_cell(program, mode, hosts, {**library, **program.settings}), time.monotonic() - started)
    print(f"1..{tap.count}")
    print(f"# {tap.count - tap.failed} of {tap.count} without failure")
    return 1 if tap.failed else 0


def main():
    options = arguments()
    if options.list:
        print("\n".join(program.name for program in all_programs()))
        return 0
    if options.library is None or not pathlib.Path(options.library).is_file():
        sys.exit("run_programs.py: --library must name libvma.so")
    reason = networks.why_not()
    if reason:
        print(f"1..0 # SKIP {reason}")
        return 77
    processes.adopt_orphans()
    # Some servers end on SIGINT; a shell that started us in the background had it ignored, which would be inherited.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("run_programs.py: ended by SIGTERM"))  # the hosts are removed
    by_name = {program.name: program for program in all_programs()}
    return run(options, [by_name[name] for name in chosen(options.only, by_name, "program")])


sys.exit(main())
