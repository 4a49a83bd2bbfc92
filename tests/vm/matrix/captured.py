#!/usr/bin/env python3
"""Sessions of rstream and riostream, captured on the wire and compared with what upstream's say.
Usage: captured.py SESSION FILE.pcap    prints what golden/SESSION.txt should be"""
import difflib
import os
import pathlib
import socket
import subprocess
import sys

import messages
import packets
from tools import listens

GOLDEN = pathlib.Path(__file__).resolve().parent / "golden"
# The program with its options, and the size of a transfer: how it is cut into messages is the sender's choice.
SESSIONS = {
    "rstream": ("rstream", ["-S", "64", "-C", "5", "-I", "1"], 64),
    "rstream-20000": ("rstream", ["-S", "20000", "-C", "4", "-I", "2"], 20000),
    "riostream": ("riostream", ["-S", "4096", "-C", "4", "-I", "2"], 4096),
}
ETH_P_ALL = 3
SO_RCVBUFFORCE = 33


def program_server(cell, say):
    """Runs a program that listens."""
    with start(cell, "-b") as program:
        while program.poll() is None and not listens(cell["device"], cell["port"]):
            pass
        say("listening")
        must_succeed(program)


def program_client(cell, say):
    with start(cell, "-s") as program:
        must_succeed(program)


def start(cell, role):
    name, options, _ = SESSIONS[cell["session"]]
    words = [f"{cell['folder']}/{name}", role, cell["address"], "-p", str(cell["port"]), *options]
    return subprocess.Popen(words, env={**os.environ, **cell.get("environment", {})})


def must_succeed(program):
    if program.wait() != 0:
        raise messages.BrokenRule(f"the program ended with {program.returncode}")


class Capture:
    """The frames on an interface, from now on."""

    def __init__(self, interface):
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        self._socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 26)
        self._socket.bind((interface, 0))
        self._socket.setblocking(False)

    def frames(self):
        """Those that have come. Once."""
        taken = []
        while True:
            try:
                taken.append(self._socket.recv(1 << 17))
            except BlockingIOError:
                self._socket.close()
                return taken


def summary(session, transfer):
    """The lines of a session without what is chance: when credits come, how a transfer is cut, who says good-bye first.
    Upstream does not take back what it has mapped for the peer; who does may."""
    lines = messages.Reader(session).lines
    announced, talk = [], []
    for line in lines[2:]:
        sender, kind, *rest = line.split()
        if kind == "ENTRY":
            announced.append(line.split(",")[0])
        elif kind == "IOMAP" and int(rest[-1]) > 0:
            announced.append(line)
        elif kind in ("DATA", "WRITE"):
            if not talk or talk[-1][:2] != (sender, kind):
                talk.append((sender, kind, []))
            talk[-1][2].append(int(rest[0]))
    said = [f"{sender} {kind} {' '.join(map(str, joined(sizes, transfer)))}" for sender, kind, sizes in talk]
    end = ["DISCONNECT"] if any(line.endswith("DISCONNECT") for line in lines) else []
    return [*lines[:2], *sorted(announced), *said, *end]


def joined(sizes, transfer):
    """The sizes of messages as those of transfers, none of which shares a message with another one."""
    out = []
    for size in sizes:
        if out and out[-1] + size <= transfer:
            out[-1] += size
        else:
            out.append(size)
    return out


def difference(cell, frames):
    """None when the cell's session was as upstream's; else how it was not."""
    found = packets.sessions(frames)
    if len(found) != 1:
        return f"{len(found)} sessions in {len(frames)} frames"
    try:
        ours = summary(found[0], SESSIONS[cell["session"]][2])
    except messages.BrokenRule as error:
        return f"a broken rule: {error}"
    golden = (GOLDEN / f"{cell['session']}.txt").read_text(encoding="ascii").splitlines()
    return "\n".join(difflib.unified_diff(golden, ours, "upstream", "captured", lineterm="")) or None


if __name__ == "__main__":
    for one in packets.sessions(packets.read_pcap(pathlib.Path(sys.argv[2]).read_bytes())):
        print("\n".join(summary(one, SESSIONS[sys.argv[1]][2])))
