#!/usr/bin/env python3
"""Our rstream and upstream's on one rxe device, in turns; then a stream whose reader pauses. See run_numbers, which starts it."""
import argparse
import multiprocessing
import os
import re
import statistics
import sys
import time

import cells
import tools
from deadline import Deadline
from rsockets import Library, Socket
from run_in_guest import PORTS, Installation

SIDES = ("upstream", "ours")
# The name, the size of a transfer, the options, what counts of a run (more is better), and how many runs one is: those of the
# latency last half a second and differ by half.
MEASURED = (
    ("64 B latency, round trips/s", 64, ["-I", "20000", "-C", "1"], lambda size, microseconds: 1e6 / (2 * microseconds), 3),
    ("64 KiB bandwidth, MB/s", 65536, ["-I", "1", "-C", "600"], lambda size, microseconds: size / microseconds, 1),
    ("1 MiB bandwidth, MB/s", 1 << 20, ["-I", "1", "-C", "48"], lambda size, microseconds: size / microseconds, 1),
)
RESULT = re.compile(r" ([0-9.]+)$", re.MULTILINE)  # the last column: microseconds for a transfer

PAUSE_SECONDS, PAUSE_EVERY, MESSAGE, STREAM = 0.05, 1 << 20, 1024, 4 << 20
RNR_STALL_SECONDS = 0.6  # the kernel's timer for a receiver that is not ready: 655 ms


def run_rstream(side, size, options):
    """Microseconds for a transfer."""
    place = {"address": cells.address("rxe", "IPv4"), "device": "rxe0", "port": next(PORTS)}
    run = tools.Run(side, ["rstream", "-b", place["address"], "-S", str(size), *options], place, Deadline(60))
    words = ["rstream", "-s", place["address"], "-p", str(place["port"]), "-S", str(size), *options]
    status, text = run.client(side, words)
    server_text = run.close()
    if status != 0 or not RESULT.search(text):
        sys.exit(f"rstream ended with {status}: {text}; the server: {server_text}")
    return float(RESULT.findall(text)[-1])


def pausing_reader(library, address, port, ready):
    listener = Socket(library, address)
    listener.listen(address, port)
    ready.set()
    stream = listener.accept()
    for _ in range(STREAM // PAUSE_EVERY):
        stream.receive(PAUSE_EVERY)
        time.sleep(PAUSE_SECONDS)
    stream.send(b"!")
    stream.close()


def longest_stall(path, address):
    """Seconds that one send took at most while the reader paused again and again."""
    library, port, ready = Library(path), next(PORTS), multiprocessing.Event()
    reader = multiprocessing.Process(target=pausing_reader, args=(library, address, port, ready))
    reader.start()
    if not ready.wait(20):
        sys.exit("the reader does not listen")
    stream = Socket(library, address)
    stream.connect(address, port)
    data, longest = bytes(MESSAGE), 0.0
    for _ in range(STREAM // MESSAGE):
        begin = time.monotonic()
        stream.send(data)
        longest = max(longest, time.monotonic() - begin)
    stream.receive(1)
    stream.close()
    reader.join(20)
    return longest


def measure_stalls(installation, runs):
    """Whether ours had none of the kernel's timer."""
    stalls = {whose: [] for whose in SIDES}
    for _ in range(runs):
        for whose in SIDES:
            peer = installation.peer(whose, {"flavor": "library", "device_kind": "rxe"})
            out = multiprocessing.Queue()
            # In a process of its own: it is one library's.
            process = multiprocessing.Process(target=stall_in_process, args=(peer, out))
            process.start()
            stalls[whose].append(out.get(timeout=90))
            process.join()
    print("longest send while the reader pauses 50 ms every MiB, ms: " + ", ".join(
        f"{whose} {1000 * max(values):.0f} (median {1000 * statistics.median(values):.0f})" for whose, values in stalls.items()
    ))  # fmt: skip
    return max(stalls["ours"]) < RNR_STALL_SECONDS


def stall_in_process(peer, out):
    os.environ.update(peer.get("environment", {}))
    out.put(longest_stall(peer["library"], cells.address("rxe", "IPv4")))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--stage", required=True)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--least", type=float, default=1.0, help="the ratio to upstream that is wanted")
    options = parser.parse_args()
    installation = Installation(options.stage, None)
    good = True
    for name, size, words, value_of, several in MEASURED:
        values = {whose: [] for whose in SIDES}
        for _ in range(several * options.runs):
            for whose in SIDES:
                values[whose].append(value_of(size, run_rstream(installation.tools(whose), size, words)))
        medians = {whose: statistics.median(values[whose]) for whose in SIDES}
        ratio = medians["ours"] / medians["upstream"]
        good &= ratio >= options.least
        spread = "; ".join(f"{whose} {min(values[whose]):.0f}..{max(values[whose]):.0f}" for whose in SIDES)
        print(f"{name}: upstream {medians['upstream']:.0f}, ours {medians['ours']:.0f}, ratio {ratio:.2f} ({spread})", flush=True)
    good &= measure_stalls(installation, options.runs)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
