"""Section 6: more work than anybody may ask for."""
import ctypes
import os
import random
import socket
import time

from harness.processes import Failure
from scene.scene import (
    ALICE,
    BOB,
    MALLORY,
    PEERS,
    Attacker,
    Verdict,
    first_line,
    listening_name,
    recorded_request,
    sealed_memory,
)
from . import attack

LONGEST_MS = 1000
# Of CPU. The guest's clock counts what its host takes away (92 ms were seen), so a single call may seem to be long. One
# that took all that a flood brings would last as long as the flood.
LONGEST_RECV_MS, SLOW_RECV_MS = 500, 0.5
FLOOD_S = 3
STRANGERS = range(64100, 64108)
PIDFD_GETFD = 438
RS_CONNECT_BYTES = 40  # core/wire/rs_connect.h; version first
# The offer of an overflow area behind it (core/wire/rs_connect.h, RsOverflow).
RS_OVERFLOW_BYTES, RS_OVERFLOW_MAGIC = 16, b"RSO3"


def link_to(name, timeout=2):
    link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    link.settimeout(timeout)
    link.connect(name)
    return link


def packets_for(seconds, name, packet, memory=False, pace=0.0):
    """A body: a link for each packet, closed at once, for so long; how many there were."""

    def body():
        os.nice(10)  # it is the victim's work that counts, not who gets the CPU
        fds = [sealed_memory()] if memory else []
        sent = 0
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                with link_to(name) as link:
                    socket.send_fds(link, [packet() if callable(packet) else packet], fds)
                    sent += 1
            except OSError:
                time.sleep(0.001)
            time.sleep(pace)
        return sent

    return body


def flooded(scene, bodies, server, users=None, wanted=()):
    """A Verdict of what honest clients of the server on `port` waited while the bodies ran."""
    victim, port = server
    held = scene.probe(port, "keep", ALICE, preload=True)
    ring = scene.probe(port, "connect", ALICE, preload=True)
    kernel = scene.probe(port, "connect", BOB)
    attackers = [Attacker(body, user) for body, user in zip(bodies, users or [MALLORY] * len(bodies))]
    sent = sum(attacker.result(25) for attacker in attackers)
    seen = [probe.result() for probe in (held, ring, kernel)]
    longest = max(each["longest_ms"] for each in seen)
    errors = sum(each["errors"] for each in seen)
    verdict = Verdict(
        longest < LONGEST_MS and errors == 0 and sent > 0,
        f"{sent} in {FLOOD_S} s; longest waits: open ring {seen[0]['longest_ms']:.0f} ms, new ring "
        f"{seen[1]['longest_ms']:.0f} ms ({seen[1]['rounds']}), kernel client {seen[2]['longest_ms']:.0f} ms "
        f"({seen[2]['rounds']}); {errors} errors",
    )
    return scene.counted(verdict, victim, *wanted)


@attack(6, "well-formed requests of another version")
def wrong_version(scene):
    server = _, port = scene.echo_server()
    descriptors, request = recorded_request(scene, port)
    # Behind the type byte comes the version.
    other = request[:1] + bytes([request[1] ^ 0x40]) + request[2:]
    body = packets_for(FLOOD_S, listening_name(port), other, memory=descriptors > 0)
    return flooded(scene, [body, body], server, wanted=["request"])


@attack(6, "well-formed requests with the rsockets protocol in another version")
def wrong_private_data(scene):
    server = _, port = scene.echo_server()
    descriptors, request = recorded_request(scene, port)
    has_overflow = request[-RS_OVERFLOW_BYTES:].startswith(RS_OVERFLOW_MAGIC)
    at = len(request) - RS_CONNECT_BYTES - (RS_OVERFLOW_BYTES if has_overflow else 0)
    if request[at] != 1:
        raise Failure(f"no private data of rsockets at the end of a request: {request.hex()}")
    body = packets_for(FLOOD_S, listening_name(port), request[:at] + b"\x09" + request[at + 1 :], descriptors > 0)
    return flooded(scene, [body, body], server, wanted=["request"])


@attack(6, "well-formed requests, each repeated from a real client's")
def replayed(scene):
    server = _, port = scene.echo_server()
    descriptors, request = recorded_request(scene, port)
    body = packets_for(FLOOD_S, listening_name(port), request, memory=descriptors > 0)
    return flooded(scene, [body, body], server)


@attack(6, "junk instead of a request")
def junk(scene):
    server = _, port = scene.echo_server()
    chance = random.Random(6)
    body = packets_for(
        FLOOD_S, listening_name(port), lambda: bytes([chance.randrange(8)]) + chance.randbytes(chance.randrange(1000))
    )
    return flooded(scene, [body, body], server, wanted=["request"])


def half_open(name, count):
    def body():
        os.nice(10)
        links, made = [], 0
        deadline = time.monotonic() + FLOOD_S
        while time.monotonic() < deadline:
            try:
                links.append(link_to(name, 0.2))
                made += 1
            except OSError:
                time.sleep(0.01)
            del links[:-count]
        return made

    return body


@attack(6, "half-open links of eight strangers")
def half_open_links(scene):
    server = _, port = scene.echo_server()
    bodies = [half_open(listening_name(port), 200)] * len(STRANGERS)
    return flooded(scene, bodies, server, STRANGERS)


@attack(6, "half-open links when the victim may have 64 descriptors")
def few_descriptors(scene):
    process = scene.start(
        ["prlimit", "--nofile=64:64", "/usr/bin/python3", PEERS / "echo_server.py", "0"], ALICE, label="victim"
    )
    port = int(first_line(process).split()[1])
    bodies = [half_open(listening_name(port), 200)] * len(STRANGERS)
    verdict = flooded(scene, bodies, (process, port), STRANGERS)
    refused = process.output().count(b"\naccept ")
    return Verdict(verdict.ok and refused == 0, f"{verdict.text}, accept() failed {refused} times")



def steal_descriptor(pid, fd):
    """What a debugger of the attacker can do: his own process's link, which the library hides from his program."""
    libc = ctypes.CDLL(None, use_errno=True)
    other = os.pidfd_open(pid)
    found = libc.syscall(PIDFD_GETFD, other, fd, 0)
    os.close(other)
    if found < 0:
        raise OSError(ctypes.get_errno(), "pidfd_getfd")
    return socket.socket(fileno=found)


def longest_recv(victim, sent):
    """A Verdict of what impatient.py measured."""
    os.kill(victim.pid, 15)
    victim.wait(10)
    rounds, longest, slow = map(float, victim.output().splitlines()[-1].split()[1:])
    return Verdict(
        longest < LONGEST_RECV_MS and slow < SLOW_RECV_MS and rounds > 0,
        f"{sent}, of {rounds:.0f} calls of recv() the longest took {longest:.1f} ms of CPU, one in a thousand {slow:.2f} ms",
    )


@attack(6, "control messages in the ring without end while the victim calls recv() without waiting")
def control_messages(scene):
    victim = scene.python("impatient.py", user=ALICE, label="victim")
    port = int(first_line(victim).split()[1])
    attackers = [scene.tool("sparse_peer", port, "flood", 2000, user=ALICE, preload=False)]
    sent = [attacker.wait(15) == 0 and attacker.output().decode().strip() for attacker in attackers]
    if not all(sent):
        return Verdict(True, f"refused: {attackers[0].text().strip()}")
    return longest_recv(victim, " and ".join(sent))


def flood_link(scene, packet):
    """What the longest non-blocking recv() of a victim costs while its peer sends `packet` on the link without end."""
    victim = scene.python("impatient.py", user=ALICE, label="victim")
    port = int(first_line(victim).split()[1])
    # Patient: a machine that is busy elsewhere must not make the attacker's connection the kernel's.
    client = scene.python("holder.py", port, user=MALLORY, env={"RINGSOCK_CONFIG_DIR": str(scene.patient())}, label="attacker")
    fd = int(first_line(client).split()[1])
    link = steal_descriptor(client.pid, fd)
    if link.family != socket.AF_UNIX:
        raise OSError("Mallory's connection is no ring")

    def body():
        os.nice(10)
        sent, deadline = 0, time.monotonic() + 2
        while time.monotonic() < deadline:
            try:
                link.send(packet, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                sent += 1
            except BlockingIOError:
                time.sleep(0)
            except OSError:
                break
        return sent

    attackers = [Attacker(body), Attacker(body)]
    sent = sum(attacker.result() for attacker in attackers)
    return longest_recv(victim, f"{sent} packets")


@attack(6, "doorbell packets without end while the victim calls recv() without waiting")
def doorbells(scene):
    return flood_link(scene, b"\x01")


@attack(6, "large control packets without end while the victim calls recv() without waiting")
def control_packets(scene):
    return flood_link(scene, b"\x03" + bytes(1000))


def broken_off(scene, then):
    """Clients that end, or stop for ever, before each of their first steps."""
    victim, port = scene.echo_server()
    held = scene.probe(port, "keep", ALICE, preload=True)
    kernel = scene.probe(port, "connect", BOB)
    clients = [
        scene.python("probe.py", port, "keep", "echo", 0.01, user=user, hostile={"step": n, "then": then}, label="attacker")
        for user in (MALLORY, ALICE)
        for n in range(1, 9)
    ]
    time.sleep(2)
    ring = scene.probe(port, "connect", ALICE, preload=True)
    time.sleep(1)
    broken = sum(is_broken_off(client) for client in clients)
    seen = [probe.result() for probe in (held, kernel, ring)]
    longest = max(each["longest_ms"] for each in seen)
    errors = sum(each["errors"] for each in seen)
    alive = victim.status() is None
    return Verdict(
        alive and longest < 1500 and errors == 0 and broken > 0,
        f"{broken} of {len(clients)} broken off; longest waits: open ring {seen[0]['longest_ms']:.0f} ms, kernel client "
        f"{seen[1]['longest_ms']:.0f} ms, new ring {seen[2]['longest_ms']:.0f} ms; {errors} errors",
    )


def is_broken_off(client):
    if client.status() is not None:
        return client.status() == -9
    with open(f"/proc/{client.pid}/stat", encoding="ascii") as stat:
        return stat.read().rpartition(")")[2].split()[0] in "Tt"


@attack(6, "clients killed by signal 9 before each of their steps")
def killed(scene):
    return broken_off(scene, "kill")


@attack(6, "clients that stop themselves before each of their steps")
def stopped(scene):
    return broken_off(scene, "stop")
