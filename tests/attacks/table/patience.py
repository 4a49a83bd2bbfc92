"""Section 7: how long a client waits for a ring before it takes the kernel's TCP."""
import os
import select
import signal
import socket
import time

from harness.processes import wait_until
from scene.scene import ALICE, BOB, MALLORY, Attacker, Verdict, abstract_names
from . import attack
from .descriptors import squatted_names

LONGEST_MS = 1000  # 100 ms of patience, and a machine with other things to do


def squat(names, backlog):
    """Listeners under these names whose backlog is full when backlog is 0."""
    listeners = []
    for name in names:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(name)
        listener.listen(backlog)
        listeners.append(listener)
    return listeners


def fill(name):
    links = []
    while True:
        link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        link.setblocking(False)
        try:
            link.connect(name)
        except BlockingIOError:
            return links
        links.append(link)


def connects_beside(scene, body, users=(BOB, ALICE), squatters=MALLORY):
    """How long clients take to reach the kernel's server while body(names) has the ring's names."""
    _, port = scene.echo_server(preload=False)
    names = squatted_names(port)
    attacker = Attacker(lambda: body(names), squatters)
    wait_until(lambda: len(abstract_names(port)) >= len(names), "the squatter listens")
    time.sleep(0.2)
    clients = [scene.probe(port, "connect", user, preload=True, pause=0.1) for user in users]
    time.sleep(2)
    refused = sum(sum(scene.refusals(client.process).values()) for client in clients)
    seen = [client.result() for client in clients]
    longest, rounds = max(each["longest_ms"] for each in seen), sum(each["rounds"] for each in seen)
    errors = sum(each["errors"] for each in seen)
    os.kill(attacker.pid, signal.SIGKILL)
    return Verdict(
        longest < LONGEST_MS and errors == 0 and rounds > 0,
        f"{rounds} connections to the kernel's server, {longest:.0f} ms at most, {errors} errors; {refused} counted as refused",
    )


@attack(7, "a squatter of the ring's names with a full backlog")
def full_backlog(scene):
    def body(names):
        listeners = squat(names, 0)
        links = [fill(name) for name in names]
        time.sleep(20)
        return len(listeners) + len(links)

    return connects_beside(scene, body)


def never_answers(names):
    listeners = squat(names, 64)
    kept = []
    while True:
        for ready in select.select(listeners, [], [])[0]:
            kept.append(ready.accept()[0])


@attack(7, "a squatter that takes links and never answers")
def silent_squatter(scene):
    return connects_beside(scene, never_answers)


@attack(7, "the same by another process of the client's own user")
def silent_squatter_of_same_user(scene):
    return connects_beside(scene, never_answers, users=(BOB,), squatters=BOB)


@attack(7, "a stopped server whose kernel backlog has room")
def stopped_server(scene):
    server, port = scene.echo_server()
    os.kill(server.pid, signal.SIGSTOP)
    clients = [scene.python("connected.py", port, user=user, label=f"client-{user}") for user in (ALICE, BOB)]
    give_up = time.monotonic() + 5
    while not all(has_answer(client) for client in clients) and time.monotonic() < give_up:
        time.sleep(0.01)
    times = [float(client.output().split()[1]) for client in clients if client.output()]
    os.kill(server.pid, signal.SIGCONT)
    served = 0
    for client in clients:
        served += client.output() != b"" and client.wait(10) == 0
    return Verdict(
        len(times) == 2 and max(times) < LONGEST_MS and served == 2,
        f"{len(times)} of 2 clients (the server's user, another one) connected within 5 s"
        + (f", after {max(times):.0f} ms at most" if times else "") + f"; {served} were served after SIGCONT",
    )


def has_answer(client):
    return client.output() or client.status() is not None


@attack(7, "a server that stops itself before each of its steps", 60)
def stops_at_each_step(scene):
    slow, waits, served, longest = [], [], 0, 0.0
    for step in range(1, 9):
        server, port = scene.echo_server(hostile={"step": step, "then": "stop"})
        client = scene.python("connected.py", port, user=ALICE, label=f"client-{step}")
        give_up = time.monotonic() + 2
        while not has_answer(client) and time.monotonic() < give_up:
            time.sleep(0.01)
        if client.output():
            took = float(client.output().split()[1])
            longest = max(longest, took)
            served += 1
            if took >= LONGEST_MS:
                slow.append(step)
        else:
            waits.append(step)
        client.kill()
        server.kill()
    return Verdict(
        not slow and not waits,
        f"{served} of 8 connected within 2 s, {longest:.0f} ms at most"
        + (f"; not at steps {waits}" if waits else "") + (f"; slowly at steps {slow}" if slow else ""),
    )
