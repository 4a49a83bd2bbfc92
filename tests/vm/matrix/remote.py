#!/usr/bin/env python3
"""Peers in another guest: there, this program is the agent that starts them. Usage: remote.py"""
import json
import os
import select
import signal
import socket
import sys
import time

from deadline import Deadline
from peers import Peer, Process

PORT = 7000
LOG = b"log "  # begins the last line: what the peer wrote, as JSON


class RemotePeer(Process):
    """A peer that the agent runs: ROLE(cell, say) there, its events here. cell["agent"]: where that is."""

    def __init__(self, role, cell):
        self._agent = dial(cell["agent"])
        self._agent.sendall(json.dumps([role, cell]).encode() + b"\n")
        super().__init__(role, self._agent.fileno())

    def place(self):
        return "the other guest"

    def kill(self):
        self._agent.sendall(b"kill\n")

    def end(self):
        self._agent.sendall(b"end\n")
        deadline = Deadline(20)
        while self.read(deadline):
            pass
        self._agent.close()
        logs = [line for line in self.events if line.startswith(LOG.decode())]
        return json.loads(logs[0][len(LOG) :]) if logs else "(the other guest does not answer)"


def dial(address):
    """Raises OSError when the other guest does not answer for a minute: it may still be starting."""
    give_up = time.monotonic() + 60
    while True:
        try:
            return socket.create_connection((address, PORT), 10)
        except OSError:
            if time.monotonic() > give_up:
                raise
            time.sleep(0.2)


def end_agent(address):
    with dial(address) as agent:
        agent.sendall(b"null\n")


def first_line(connection):
    data = b""
    while not data.endswith(b"\n"):
        more = connection.recv(1)  # no more than the line
        if not more:
            return b"null"
        data += more
    return data


def serve(connection):
    """Runs one peer for whom the connection comes from. False: that was the order to end."""
    order = json.loads(first_line(connection))
    if order is None:
        return False
    if os.fork() == 0:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        relay(Peer(*order), connection)
        os._exit(0)
    return True


def relay(peer, connection):
    """Events there, orders here, until "end" or the end of the connection."""
    orders, told, sources = b"", 0, [peer.lines, connection]
    while not orders.endswith(b"end\n"):
        ready = select.select(sources, [], [])[0]
        if connection in ready:
            more = connection.recv(4096)
            if not more:
                break
            orders += more
            if b"kill" in more:
                peer.kill()
        if peer.lines in ready and not peer.read(Deadline(1)):
            sources.remove(peer.lines)
            if not any(event.startswith(("ok", "failed")) for event in peer.events):
                peer.events.append("failed: it died")
        connection.sendall(b"".join(event.encode() + b"\n" for event in peer.events[told:]))
        told = len(peer.events)
    connection.sendall(LOG + json.dumps(peer.end()).encode() + b"\n")


def main():
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.create_server(("", PORT), backlog=32) as listener:
        while True:
            connection = listener.accept()[0]
            with connection:
                if not serve(connection):
                    return 0


if __name__ == "__main__":
    sys.exit(main())
