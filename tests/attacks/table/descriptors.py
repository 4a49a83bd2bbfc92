"""Section 4: a descriptor whose close(2) waits, passed to somebody who did not ask for it."""
import array
import os
import signal
import socket
import time

from harness.processes import wait_until
from harness.run import free_port, is_listening
from scene.scene import (
    ALICE,
    BOB,
    MALLORY,
    Attacker,
    Verdict,
    abstract_names,
    lingering_socket,
    listening_name,
    recorded_request,
    sink,
)
from . import attack

LONGEST_MS = 1000  # the descriptors linger for 5 s
VOLLEYS, PER_VOLLEY, BUSY_LINKS = 3, 4, 24
SQUATTERS = LATER_CLIENTS = 8


def with_descriptor(link, packet, fd):
    link.sendmsg([packet], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))], socket.MSG_NOSIGNAL)


def link_to(name):
    link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    link.settimeout(5)
    link.connect(name)
    return link


def watched(scene, victim, port, body, speaks="echo", tries=VOLLEYS * PER_VOLLEY):
    """Carries body() out as Mallory while honest clients use the server; a Verdict of the longest time they waited."""
    held = scene.probe(port, "keep", ALICE, preload=True, speaks=speaks)
    fresh = scene.probe(port, "connect", speaks=speaks)
    sent = Attacker(body).result(25)
    time.sleep(0.5)  # the victim is given the time to close what it got
    ring, kernel = held.result(), fresh.result()
    longest = max(ring["longest_ms"], kernel["longest_ms"])
    verdict = Verdict(
        longest < LONGEST_MS and ring["errors"] == 0 and sent == tries,
        f"{sent} descriptors, an open ring waited {ring['longest_ms']:.0f} ms at most, a kernel client "
        f"{kernel['longest_ms']:.0f} ms ({kernel['rounds']} connections, {ring['errors'] + kernel['errors']} errors)",
    )
    return scene.counted(verdict, victim)


def send_each(name, packet, drain, *, leave=False):
    """Mallory's body: volleys of links with a packet and a lingering descriptor each.

    The descriptor must be gone here before the victim gets to it, else it is Mallory who waits; so links with nothing
    but a byte come first, which keep the victim busy for a moment.
    """

    def volley():
        busy, armed = [link_to(name) for _ in range(BUSY_LINKS)], []
        blockers = [lingering_socket(drain) for _ in range(PER_VOLLEY)]
        if not leave:
            armed = [link_to(name) for _ in blockers]
        time.sleep(0.05)
        for link in busy:
            link.send(b"?")
        for i, blocker in enumerate(blockers):
            link = link_to(name) if leave else armed[i]
            with_descriptor(link, packet, blocker.fileno())
            os.close(blocker.detach())
            if leave:
                link.close()
        time.sleep(6)  # a child that lost the race waits for itself

    def body():
        for _ in range(VOLLEYS):
            if os.fork() == 0:
                try:
                    volley()
                finally:
                    os._exit(0)
            time.sleep(0.6)
        return VOLLEYS * PER_VOLLEY

    return body


@attack(4, "a lingering descriptor with one byte, to a listener")
def to_listener(scene):
    victim, port = scene.echo_server()
    return watched(scene, victim, port, send_each(listening_name(port), b"?", sink()))


@attack(4, "a lingering descriptor left in a listener's backlog by a client that has gone")
def in_backlog(scene):
    victim, port = scene.echo_server()
    return watched(scene, victim, port, send_each(listening_name(port), b"\x01", sink(), leave=True))


@attack(4, "a lingering descriptor instead of the memory of a well-formed request")
def in_request(scene):
    victim, port = scene.echo_server()
    _, request = recorded_request(scene, port)
    return watched(scene, victim, port, send_each(listening_name(port), request, sink()))


@attack(4, "the same to redis-server", 40)
def redis(scene):
    port = free_port()
    argv = ["redis-server", "--port", port, "--save", "", "--appendonly", "no", "--bind", "127.0.0.1"]
    victim = scene.start(argv, ALICE)
    wait_until(lambda: is_listening(port), "redis-server listens", 20)
    return watched(scene, victim, port, send_each(listening_name(port), b"?", sink()), "redis")


@attack(4, "lingering descriptors with each later packet of a connection")
def later_packets(scene):
    _, port = scene.echo_server()
    drain = sink()
    held = scene.probe(port, "keep", ALICE, preload=True)
    fresh = scene.probe(port, "connect")
    hostile = {"linger": drain[1], "linger_first": 1, "apart": 1}
    # Several: whether the victim or the attacker closes a descriptor last is chance.
    clients = [
        scene.python("probe.py", port, "keep", "echo", 0.01 * turn, user=MALLORY, hostile=hostile, label="attacker")
        for turn in range(1, LATER_CLIENTS + 1)
    ]
    time.sleep(2.5)
    for client in clients:
        client.kill()
    time.sleep(0.5)
    ring, kernel = held.result(), fresh.result()
    longest = max(ring["longest_ms"], kernel["longest_ms"])
    return Verdict(
        longest < LONGEST_MS and ring["errors"] == 0,
        f"an open ring waited {ring['longest_ms']:.0f} ms at most, a kernel client {kernel['longest_ms']:.0f} ms",
    )


@attack(4, "a lingering descriptor from a squatter of a ring's name to its client")
def squatter(scene):
    server, port = scene.echo_server(preload=False)
    drain = sink()
    names = squatted_names(port)

    def body():
        listeners = []
        for name in names:
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            listener.bind(name)
            listener.listen(64)
            listeners.append(listener)
        for _ in range(SQUATTERS):
            # The most specific name is asked first. Each child waits for nobody else when it loses the race.
            if os.fork() == 0:
                try:
                    for _ in range(4):
                        blocker = lingering_socket(drain)
                        with listeners[0].accept()[0] as link:
                            with_descriptor(link, b"\x03", blocker.fileno())
                            os.close(blocker.detach())
                finally:
                    os._exit(0)
        time.sleep(30)

    mallory = Attacker(body)
    wait_until(lambda: len(abstract_names(port)) >= len(names), "the squatter listens")
    client = scene.probe(port, "connect", BOB, preload=True, pause=0.2)
    time.sleep(4)
    seen = client.result()
    os.kill(mallory.pid, signal.SIGKILL)
    return Verdict(
        seen["rounds"] > 0 and seen["longest_ms"] < LONGEST_MS and seen["errors"] == 0,
        f"connect() took {seen['longest_ms']:.0f} ms at most, {seen['rounds']} connections, {seen['errors']} errors",
    )


@attack(4, "lingering descriptors with the reply and each later packet of a server")
def from_server(scene):
    drain = sink()
    _, port = scene.echo_server(MALLORY, hostile={"linger": drain[1], "apart": 1})
    clients = [scene.probe(port, mode, BOB, preload=True, pause=0.1) for mode in ("keep", "connect")]
    time.sleep(3)
    seen = [client.result() for client in clients]
    longest = max(each["longest_ms"] for each in seen)
    return Verdict(
        longest < LONGEST_MS and all(each["rounds"] for each in seen),
        f"{seen[0]['rounds']} round trips and {seen[1]['rounds']} connections, {longest:.0f} ms at most",
    )


def squatted_names(port):
    """The names that a client of 127.0.0.1 looks for."""
    return [f"\0ringsock1/tcp/{port}/listen/{host}".encode() for host in ("127.0.0.1", "0.0.0.0", "::")]
