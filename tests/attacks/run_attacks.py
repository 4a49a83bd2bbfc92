#!/usr/bin/env python3
"""Attacks on programs over the installed libraries, by users who may not do that.

Usage: run_attacks.py --stage DIR --tools DIR [--only WORD,...] [--list]

--stage  where the libraries are installed; --tools: where tests/attacks was built
--only   attacks whose title has one of these words, or whose section or number is one of these

Three users (64001 to 64003, no names needed) act in a network, mount and IPC namespace of their own, with a /dev/shm of
their own, all of which end with this program. It prints "ok NUMBER.INDEX TITLE: COUNTS", "not ok ..." or
"skip ..." for each attack; the number is that of the section in SECURITY.md. A victim that hangs fails the attack
when its time is over; what the attack started is killed, by pid. Exit status 1 when an attack succeeded.
"""
import argparse
import concurrent.futures
import ctypes
import os
import pathlib
import signal
import subprocess
import sys
import time
import traceback

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "apps/programs")]

from harness import processes  # noqa: E402
from scene.scene import Scene, Verdict  # noqa: E402
from table import all_attacks  # noqa: E402

# These sections count what was lost, or wait; the others measure, or use what all share.
BESIDE_OTHERS, AT_A_TIME = (1, 2, 3, 4, 7, 8, 9, 12, 13, 14), 3
CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWNET = 0x20000, 0x08000000, 0x40000000
SHM = ["mount", "-t", "tmpfs", "-o", "mode=1777,size=256m", "tmpfs", "/dev/shm"]


def enter_namespaces():
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    for command in (["mount", "--make-rprivate", "/"], SHM, ["ip", "link", "set", "lo", "up"]):
        subprocess.run(command, check=True)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stage", type=pathlib.Path, help="where the libraries are installed")
    parser.add_argument("--tools", type=pathlib.Path, help="where tests/attacks was built")
    parser.add_argument("--only", default="", metavar="WORD,...", help="these attacks")
    parser.add_argument("--list", action="store_true", help="names the attacks")
    return parser.parse_args()


def is_meant(attack, word):
    if word.replace(".", "").isdigit():
        return word in (str(attack.section), attack.label)
    return word in attack.title


def carry_out(attack, options):
    """The attack's Verdict, in this process, which has nothing else to do."""
    processes.adopt_orphans()
    scene = Scene(options.stage.resolve(), options.tools.resolve())
    try:
        return attack.body(scene)
    except processes.Failure as failure:
        said = [line for process in scene.started for line in process.last_lines(3)]
        return Verdict(False, "\n".join([str(failure), *said[-12:]]))
    except Exception:
        return Verdict(False, "the attack itself failed\n" + traceback.format_exc())
    finally:
        scene.close()
        processes.reap_strays(frozenset())


def try_attack(attack, options):
    """(verdict word, text): the attack in a process of its own, killed with all it started when its time is over."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        verdict = carry_out(attack, options)
        word = "skip" if verdict.ok is None else "ok" if verdict.ok else "not ok"
        os.write(writer, f"{word}\n{verdict.text}".encode()[:60000])
        os._exit(0)
    os.close(writer)
    deadline = time.monotonic() + attack.seconds
    while not processes.is_zombie(child) and time.monotonic() < deadline:
        time.sleep(0.02)
    if not processes.is_zombie(child):
        for pid in reversed(processes.tree_of(child)):
            processes.signal_quietly(pid, signal.SIGKILL)
        text = f"not ok\nnot over within {attack.seconds} s"
    else:
        text = os.read(reader, 1 << 16).decode() or "not ok\nthe attack ended without a word"
    os.waitpid(child, 0)
    os.close(reader)
    return text.partition("\n")[::2]


def told(attack, options):
    """Carries the attack out and prints what became of it; True when it succeeded."""
    started = time.monotonic()
    word, text = try_attack(attack, options)
    first, _, rest = text.partition("\n")
    lines = [f"{word} {attack.label} {attack.title}: {first}  [{time.monotonic() - started:.1f} s]"]
    print("\n".join(lines + ["    " + line for line in rest.splitlines()]), flush=True)
    return word == "not ok"


def main():
    options = arguments()
    wanted = [word for word in options.only.split(",") if word]
    attacks = [each for each in all_attacks() if not wanted or any(is_meant(each, word) for word in wanted)]
    if options.list:
        print("\n".join(f"{each.label} {each.title}" for each in attacks))
        return 0
    if os.geteuid() != 0:
        print("1..0 # SKIP only root can become three users")
        return 77
    enter_namespaces()
    processes.adopt_orphans()
    beside = [attack for attack in attacks if attack.section in BESIDE_OTHERS]
    alone = [attack for attack in attacks if attack.section not in BESIDE_OTHERS]
    with concurrent.futures.ThreadPoolExecutor(AT_A_TIME) as several:
        failed = sum(several.map(lambda attack: told(attack, options), beside))
    failed += sum(told(attack, options) for attack in alone)
    processes.reap_strays(frozenset())
    print(f"# {failed} of {len(attacks)} attacks succeeded", flush=True)
    return 1 if failed else 0


sys.exit(main())
