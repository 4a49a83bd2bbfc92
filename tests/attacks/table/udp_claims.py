"""Section 11: libvma's names of UDP ports, claimed by a stranger."""
import os
import socket
import time

from harness.processes import wait_until
from scene.scene import MALLORY, Attacker, Verdict, lingering_socket, sink
from scene.second_host import SecondHost
from . import attack
from .descriptors import with_descriptor

PORT = 7777  # of a network of our own
LONGEST_MS = 1000


def claims(port):
    """The abstract names that have the port's number, and their types, from /proc/net/unix."""
    with open("/proc/net/unix", encoding="utf-8", errors="replace") as table:
        rows = [row.split() for row in table]
    return [("\0" + row[7][1:], int(row[4], 16)) for row in rows[1:] if len(row) > 7 and str(port) in row[7]]


def beside(scene, body, *, first=False):
    """A Verdict: root's UDP server stays on its ring, and answers, while Mallory carries out body()."""
    host = SecondHost(scene)
    try:
        attacker = None
        if first:
            attacker = Attacker(body)
            wait_until(lambda: claims(PORT), "the name is taken")
        server = host.udp_server(PORT)
        before = host.path(server)
        client = host.udp_client(PORT, 3)
        attacker = attacker or Attacker(body)
        seen = host.result(client)
        tries = attacker.result()
        after = host.path(server)
        verdict = Verdict(
            before == after == "ring" and seen["rounds"] > 0 and seen["longest_ms"] < LONGEST_MS,
            f"{tries} tries; the port was served by the {before}, then by the {after}; {seen['rounds']} answers, "
            f"{seen['longest_ms']:.0f} ms at most, {seen['lost']} datagrams lost",
        )
        return scene.counted(verdict, server)
    finally:
        host.close()


def visit(name, kind):
    visitor = socket.socket(socket.AF_UNIX, kind)
    visitor.settimeout(0.3)
    visitor.connect(name)
    return visitor


@attack(11, "a stranger's claim of a root process's UDP port, with a datagram socket for it")
def claim(scene):
    def body():
        tries = 0
        for name, kind in claims(PORT) * 20:
            try:
                with visit(name, kind) as visitor:
                    visitor.send(b"?")
            except OSError:
                pass
            tries += 1
            time.sleep(0.02)
        return max(tries, 1)

    return beside(scene, body)


@attack(11, "a UDP port's name taken by a stranger before its server starts")
def taken_first(scene):
    def body():
        listeners = []
        for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
            listener = socket.socket(socket.AF_UNIX, kind)
            try:
                listener.bind(f"\0ringsock-udp-port-{PORT}")
                listener.listen(0)
                listeners.append(listener)
            except OSError:
                pass
        time.sleep(8)
        return len(listeners)

    return beside(scene, body, first=True)


@attack(11, "lingering descriptors with claims of a UDP port")
def lingering_claims(scene):
    drain = sink()

    def volley(name, kind):
        visitors, blockers = [visit(name, kind) for _ in range(8)], [lingering_socket(drain) for _ in range(4)]
        late = [visit(name, kind) for _ in blockers]
        for visitor in visitors:
            visitor.send(b"?")
        for visitor, blocker in zip(late, blockers):
            with_descriptor(visitor, b"?", blocker.fileno())
            os.close(blocker.detach())
        time.sleep(5)

    def body():
        tries = 0
        for name, kind in claims(PORT) * 3:
            if os.fork() == 0:
                try:
                    volley(name, kind)
                finally:
                    os._exit(0)
            tries += 4
            time.sleep(0.5)
        return max(tries, 1)

    return beside(scene, body)
