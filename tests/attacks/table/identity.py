"""Sections 8 to 10: who is who, and what it costs to know."""
import time

from scene.scene import ALICE, BOB, MALLORY, PEERS, PYTHON, ROOT, Verdict, first_line
from . import attack

SOURCE_PORT = 0x5A5A  # 23130, and 257 below: the same in both byte orders
PRIVILEGED_PORT = 0x0101
LEAST_RATE = 0.8


def lies(scene, replace, users, server_host="127.0.0.1"):
    """What the server believes of clients that change their requests. A Verdict of the addresses that it saw."""
    server, port = scene.echo_server(ALICE, 64, server_host)
    for user in users:
        client = scene.python(
            "liar.py", port, SOURCE_PORT, user=user, hostile={"replace": replace}, label=f"liar-{user}"
        )
        client.wait(20)
    probe = scene.probe(port, "keep", ALICE, preload=True)
    probe.result()
    rows = [line.split() for line in server.output().decode().splitlines() if line.startswith("peer ")]
    false = [row for row in rows if row[1] != "127.0.0.1" or row[2] == str(PRIVILEGED_PORT) or row[4] != "127.0.0.1"]
    believed = f": {' '.join(false[0])}" if false else ""
    verdict = Verdict(bool(not false and rows), f"{len(users)} liars, {len(false)} believed{believed}")
    return scene.counted(verdict, server, "address", "port owner")


@attack(8, "a client that says it comes from 203.0.113.7")
def foreign_source(scene):
    return lies(scene, "7f000001:cb007107", (MALLORY, ALICE))


@attack(8, "a client that says it comes from a privileged port")
def privileged_source(scene):
    return lies(scene, f"{SOURCE_PORT:04x}:{PRIVILEGED_PORT:04x}", (MALLORY, ALICE))


@attack(8, "a client that says it connected to 203.0.113.7")
def foreign_destination(scene):
    return lies(scene, "7f000001:cb007107:last", (MALLORY, ALICE), "0.0.0.0")


@attack(9, "another user that has the ring's name and says it has the port")
def other_user_squats(scene):
    return squats(scene, MALLORY, [])


@attack(9, "a process of the client's user in other PID and mount namespaces that does so")
def sidecar_squats(scene):
    return squats(scene, ALICE, ["unshare", "--pid", "--mount", "--fork", "--kill-child"])


@attack(9, "a process of the client's user beside it that does so")
def same_user_squats(scene):
    return squats(scene, ALICE, [])


@attack(9, "a container's process that has the same user as both ends and does so")
def neighbour_squats(scene):
    return squats(scene, ALICE, ["unshare", "--pid", "--mount", "--fork", "--kill-child"], ALICE)


def squats(scene, user, namespaces, owner=BOB):
    """`owner` serves the port by the kernel; `user` listens on a ring of that port. Who gets Alice's bytes?"""
    server, port = scene.echo_server(owner, preload=False)
    identity = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
    lie = ["env", f"LD_PRELOAD={scene.preload} {scene.hostile_libc}", f"HOSTILE_PORT={port}"]
    argv = [*namespaces, *identity, *lie, PYTHON, PEERS / "echo_server.py", str(port)]
    squatter = scene.start(argv, ROOT, preload=False, label="squatter")
    first_line(squatter)
    time.sleep(0.2)
    client = scene.probe(port, "connect", ALICE, preload=True, pause=0.05)
    time.sleep(1.5)
    refused = scene.refusals(client.process).get("port owner", 0)
    seen = client.result()
    stolen, served = squatter.output().count(b"peer "), server.output().count(b"peer ")
    return Verdict(
        stolen == 0 and served > 0 and seen["errors"] == 0 and refused > 0,
        f"of {seen['rounds']} connections to the port the squatter got {stolen}, its owner {served}; {seen['errors']} errors; "
        f"{refused} counted as refused",
    )


def rate(scene, port, user, preload=True):
    """Connections per second, each with a round trip."""
    client = scene.probe(port, "connect", user, preload=preload, pause=0)
    time.sleep(0.5)
    return client.result()["per_s"]


@attack(10, "the price of the proof: short connections between two users and within one", 60)
def rates(scene):
    _, port = scene.echo_server()
    _, kernel_port = scene.echo_server(preload=False)
    same, two, kernel = [], [], []
    # A host that takes the CPUs away now and then spoils some of the measurements.
    while len(two) < 3 or (len(two) < 10 and max(two) < LEAST_RATE * max(same)):
        same.append(rate(scene, port, ALICE))
        two.append(rate(scene, port, BOB))
        kernel.append(rate(scene, kernel_port, BOB, preload=False))
    ratio = max(two) / max(same)
    return Verdict(
        ratio >= LEAST_RATE,
        f"{max(two):.0f}/s between users, {max(same):.0f}/s within one, {max(kernel):.0f}/s by the kernel (best of {len(two)}): "
        f"{ratio:.2f} of the rate within one, at least {LEAST_RATE}",
    )
