"""Section 5: how much memory of somebody else's a stranger may take."""
import pathlib
import time

from scene.scene import ALICE, MALLORY, ROOT, Verdict, first_line
from . import attack

HUGE = 4 << 40
CONNECTIONS = 60
MOST_ADDRESSES_MB = 64 << 10
MOST_MEMORY_MB = 256


def status_mb(pid, field):
    text = pathlib.Path(f"/proc/{pid}/status").read_text()
    return next((int(line.split()[1]) >> 10 for line in text.splitlines() if line.startswith(field + ":")), 0)


def huge_segments(scene, size, connections, *arguments, wanted="segment size"):
    """Verdict: the growth of the victim's address space and memory while so many clients announce that size."""
    # Root may lock as much as it likes.
    victim = scene.python("mapper.py", *arguments, user=ROOT if arguments else ALICE, label="victim")
    port = int(first_line(victim).split()[1])
    if "mlockall" in victim.errors():
        return Verdict(None, f"mlockall() is not possible here: {victim.errors().strip()}")
    addresses, memory = status_mb(victim.pid, "VmSize"), status_mb(victim.pid, "VmRSS")
    client = scene.python(
        "crowd.py", port, connections, user=MALLORY, hostile={"size": size}, label="attacker"
    )
    connected = int(first_line(client, 25).split()[1])
    time.sleep(0.5)
    alive = victim.status() is None
    more_addresses = status_mb(victim.pid, "VmSize") - addresses if alive else 0
    more_memory = status_mb(victim.pid, "VmRSS") - memory if alive else 0
    client.kill()
    probe = scene.python("probe.py", port, "once", "echo", 0, user=ALICE, preload=False, label="probe")
    served = probe.wait(15) == 0 and b'"errors": 0' in probe.output()
    failed = victim.output().count(b"no memory")
    verdict = Verdict(
        alive and served and not failed and more_addresses < MOST_ADDRESSES_MB and more_memory < MOST_MEMORY_MB,
        f"{connected} of {connections} connected; the victim's address space grew by {more_addresses / 1024:.1f} GiB, its "
        f"memory by {more_memory} MiB; {failed} allocations failed" + ("" if alive else "; the victim died")
        + ("" if served else "; a kernel client was not served"),
    )
    return scene.counted(verdict, victim, wanted)


@attack(5, f"{CONNECTIONS} connections with segments of 4 TiB")
def terabytes(scene):
    return huge_segments(scene, HUGE, CONNECTIONS)


@attack(5, "40 connections with segments of 64 MiB to a victim that called mlockall()")
def locked(scene):
    return huge_segments(scene, 64 << 20, 40, "locked")


@attack(5, "a buffer of one byte in each page of the attacker's memory")
def sparse_buffers(scene):
    """The victim echoes; where its bytes land is the peer's choice."""
    victim, port = scene.echo_server()
    before = status_mb(victim.pid, "RssShmem")
    client = scene.tool("sparse_peer", port, 20000, user=MALLORY, preload=False)
    said = first_line(client, 25)
    grown = status_mb(victim.pid, "RssShmem") - before if victim.status() is None else -1
    client.kill()
    return Verdict(0 <= grown < 8, f"{said}; the victim's shared memory grew by {grown} MiB")
