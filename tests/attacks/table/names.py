"""Section 11: names in spaces that all users share, taken first or filled."""
import os
import pathlib
import socket
import struct
import time

from harness.processes import wait_until
from scene.scene import ALICE, BOB, MALLORY, Attacker, Verdict, abstract_names
from . import attack
from .descriptors import squatted_names

SEMAPHORE = pathlib.Path("/dev/shm/sem.rsocket_fork")
# As on hardware: connections do not survive fork(2).
FORK_MODE = {"RDMAV_FORK_SAFE": "1", "RINGSOCK_TEST_SOFT_LIKE": "unforkable"}


def make_semaphore(user, value):
    """As sem_open(3) does: a counter in the first word."""
    SEMAPHORE.unlink(missing_ok=True)
    SEMAPHORE.write_bytes(struct.pack("QIIQQ", value, 1, 0, 0, 0))
    os.chown(SEMAPHORE, user, user)
    SEMAPHORE.chmod(0o666)


def fork_mode_beside(scene, spoil, value=1):
    """Clients and a server in fork mode, while a stranger owns the semaphore and does spoil() to it in the middle."""
    make_semaphore(MALLORY, value)
    server, port = scene.echo_server(env=FORK_MODE)
    seen = []
    for turn in range(4):
        client = scene.python("probe.py", port, "once", "echo", 0, user=ALICE, env=FORK_MODE, label=f"client-{turn}")
        before = time.monotonic()
        status = client.wait(12)
        seen.append((status == 0 and b'"errors": 0' in client.output(), time.monotonic() - before))
        if turn == 0:
            Attacker(spoil).result()
    status = server.status()
    SEMAPHORE.unlink(missing_ok=True)
    good = sum(each for each, _ in seen)
    return Verdict(
        status is None and good == 4 and max(took for _, took in seen) < 5,
        f"{good} of 4 clients served, {max(took for _, took in seen):.1f} s at most"
        + ("" if status is None else f"; the server ended with {status}"),
    )


@attack(11, "fork mode's semaphore truncated by the stranger who made it", 60)
def truncated(scene):
    def spoil():
        os.truncate(SEMAPHORE, 0)
        return 1

    return fork_mode_beside(scene, spoil)


@attack(11, "fork mode's semaphore held for ever by the stranger who made it", 60)
def held(scene):
    def spoil():
        with open(SEMAPHORE, "r+b") as file:
            file.write(struct.pack("Q", 0))
        return 1

    return fork_mode_beside(scene, spoil)


@attack(11, "names of a port's ring taken before its server starts")
def names_taken(scene):
    from harness.run import free_port

    port = free_port()
    names = squatted_names(port) + [name + f"//{sharer}".encode() for name in squatted_names(port) for sharer in (1, 2)]

    def body():
        held = []
        for name in names:
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            listener.bind(name)
            listener.listen(8)
            held.append(listener)
        time.sleep(15)
        return len(held)

    attacker = Attacker(body)
    wait_until(lambda: len(abstract_names(port)) >= len(names), "the names are taken")
    scene.echo_server(port=port)
    probes = [scene.probe(port, "connect", user, preload=ours) for user in (ALICE, BOB) for ours in (True, False)]
    time.sleep(2)
    seen = [probe.result() for probe in probes]
    os.kill(attacker.pid, 9)
    errors, longest = sum(each["errors"] for each in seen), max(each["longest_ms"] for each in seen)
    rounds = sum(each["rounds"] for each in seen)
    return Verdict(
        errors == 0 and rounds > 0 and longest < 1000,
        f"{len(names)} names taken; {rounds} connections, {longest:.0f} ms at most, {errors} errors",
    )


@attack(11, "/dev/shm filled by a stranger")
def filled(scene):
    def body():
        written = 0
        with open("/dev/shm/filler", "wb", buffering=0) as filler:
            try:
                while True:
                    written += filler.write(bytes(1 << 20))
            except OSError:
                pass
        return written

    written = Attacker(body).result()
    _, port = scene.echo_server()
    probes = [scene.probe(port, "connect", user, preload=True) for user in (ALICE, BOB)]
    time.sleep(1.5)
    seen = [probe.result() for probe in probes]
    pathlib.Path("/dev/shm/filler").unlink()
    errors, rounds = sum(each["errors"] for each in seen), sum(each["rounds"] for each in seen)
    return Verdict(errors == 0 and rounds > 0, f"{written >> 20} MiB; {rounds} connections, {errors} errors")


@attack(11, "files that look like statistics pages of other users, with rsstat")
def false_pages(scene):
    victim, port = scene.echo_server()
    namespace = os.stat("/proc/self/ns/pid").st_ino

    def body():
        made = 0
        for user in (ALICE, MALLORY, 0):
            for kind in ("ringsock", "ringsock-vma"):
                path = f"/dev/shm/{kind}.{user}.{namespace}.{victim.pid}.abcdef"
                with open(path, "wb") as file:
                    file.write(os.urandom(4096 * 40))
                os.symlink("/dev/zero", path[:-6] + "symlnk")
                os.mkfifo(path[:-6] + "fififo")
                made += 3
        return made

    made = Attacker(body).result()
    shown = scene.start([scene.stage / "bin/rsstat", "-p", victim.pid], ALICE, preload=False, label="rsstat")
    status = shown.wait(5)
    for path in pathlib.Path("/dev/shm").glob("ringsock*.abcdef"):
        path.unlink()
    good = status == 0 and str(port) in shown.output().decode()
    return Verdict(good, f"{made} files; rsstat ended with {status} and shows {'' if good else 'not '}the victim")
