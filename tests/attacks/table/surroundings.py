"""Sections 12 to 14: surroundings that take something away. No attacker: the program must do what it does without us."""
from scene.scene import ALICE, PEERS, PYTHON, Verdict, first_line
from . import attack

# Each is what the server runs under, and what it is called.
CONFINEMENTS = (
    (12, ("--processes", "1"), "no more threads (RLIMIT_NPROC)"),
    (12, ("--deny", "clone3", "--deny", "clone"), "clone3 and clone denied"),
    (13, ("--kill", "membarrier"), "killed by membarrier"),
    (13, ("--kill", "fallocate"), "killed by fallocate"),
    (13, ("--kill", "eventfd2"), "killed by eventfd2"),
    (13, ("--kill", "memfd_create"), "killed by memfd_create"),
    (13, ("--kill", "userfaultfd"), "killed by userfaultfd"),
    (13, ("--kill", "pidfd_open"), "killed by pidfd_open"),
    (13, ("--kill", "sched_yield"), "killed by sched_yield"),
    (13, ("--kill", "inotify_init1"), "killed by inotify_init1"),
    (13, ("--deny", "membarrier"), "membarrier denied"),
    (13, ("--deny", "memfd_create"), "memfd_create denied"),
    (13, ("--deny", "eventfd2"), "eventfd2 denied"),
    (13, ("--deny", "epoll_create1"), "epoll_create1 denied"),
)


def serves(scene, confinement, preload):
    """Whether a confined server serves ten clients, ring and kernel. (bool, what it did)"""
    env = {"CONFINED_PRELOAD": str(scene.preload)} if preload else {}
    argv = [scene.tools / "confined", *confinement, "--", PYTHON, PEERS / "threaded.py"]
    server = scene.start(argv, ALICE, preload=False, env=env, label="victim")
    try:
        port = int(first_line(server, 6).split()[1])
    except Exception as error:
        return False, f"{error}"
    served = 0
    for user, library in ((ALICE, True), (ALICE, False)) * 3:
        client = scene.python("probe.py", port, "once", "echo", 0, user=user, preload=library)
        client.wait(8)
        served += b'"errors": 0' in client.output()
    return served == 6, f"{served} of 6 clients served" + (
        "" if server.status() is None else f", the server ended with {server.status()}"
    )


def confined(confinement):
    def body(scene):
        without, _ = serves(scene, confinement, False)
        if not without:
            return Verdict(None, "the server does not serve without the library either")
        return Verdict(*serves(scene, confinement, True))

    return body


def confined_client(confinement):
    def body(scene):
        _, port = scene.echo_server()
        argv = [scene.tools / "confined", *confinement, "--", PYTHON, PEERS / "probe.py", port, "once", "echo", 0]
        client = scene.start(argv, ALICE, preload=False, env={"CONFINED_PRELOAD": str(scene.preload)}, label="client")
        status = client.wait(8)
        return Verdict(status == 0 and b'"errors": 0' in client.output(), f"the client ended with {status}")

    return body


for number, confinement, title in CONFINEMENTS:
    attack(number, f"a server that is {title}" if "denied" not in title and "more" not in title else f"a server with {title}")(
        confined(confinement)
    )


def closes_descriptors(how):
    def body(scene):
        without = scene.python("daemon.py", how, user=ALICE, preload=False, label="without")
        first_line(without, 8)
        server = scene.python("daemon.py", how, user=ALICE, label="victim")
        port = int(first_line(server, 6).split()[1])
        served = 0
        for library in (True, False) * 2:
            client = scene.python("probe.py", port, "once", "echo", 0, user=ALICE, preload=library)
            client.wait(8)
            served += b'"errors": 0' in client.output()
        return Verdict(served == 4, f"{served} of 4 clients served")

    return body


attack(12, "a server that calls closefrom(3) and begins anew")(closes_descriptors("closefrom"))
attack(12, "a server that closes each descriptor in a loop and begins anew")(closes_descriptors("loop"))
attack(12, "a server that calls close_range(2) by itself and begins anew")(closes_descriptors("raw"))
attack(14, "a server that becomes a daemon by two forks")(closes_descriptors("fork"))
attack(14, "a server whose child serves after _Fork()")(closes_descriptors("_Fork"))

for call in ("membarrier", "fallocate", "eventfd2", "memfd_create", "sched_yield", "inotify_init1"):
    attack(13, f"a client that is killed by {call}")(confined_client(("--kill", call)))
