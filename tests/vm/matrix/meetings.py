"""Brings the peers of a cell together and judges what comes of it."""
import os
import subprocess

from captured import Capture, difference
from peers import Peer, Program
from remote import RemotePeer

SURVIVAL_SECONDS = 20  # but for cells that name another number


class Failed(Exception):
    """Why a cell failed."""


class Meeting:
    """The processes of one cell."""

    def __init__(self, cell, installation, deadline):
        self.cell = cell
        self._installation, self.deadline = installation, deadline
        self._processes = []

    def start(self, end, scenario=None):
        """The cell's scenario, or another one, as "client" or "server"."""
        cell = self._installation.peer(self.cell[end], self.cell)
        role = f"{scenario or self.cell['scenario']}_{end}"
        is_remote = end == "server" and "agent" in cell
        self._processes.append(RemotePeer(role, cell) if is_remote else Peer(role, cell))
        return self._processes[-1]

    def start_server(self, scenario=None):
        server = self.start("server", scenario)
        if not server.wait_for("listening", self.deadline):
            raise Failed(server.result(self.deadline) or "the server does not listen")
        return server

    def attack(self, verb):
        """raw_peer, with the cell's behaviour. verb: "connect" or "listen"."""
        words = [verb, self.cell["address"], str(self.cell["port"]), self.cell["behaviour"]]
        self._processes.append(Program([self._installation.raw_peer, *words]))
        return self._processes[-1]

    @property
    def raw_datagrams(self):
        return self._installation.raw_datagrams

    def add(self, process):
        self._processes.append(process)

    def must_say(self, process, event):
        if not process.wait_for(event, self.deadline):
            raise Failed(f"{process.role} does not say {event!r}; it said {process.events}")

    def must_end_well(self, *peers):
        whys, deadline = [], self.deadline
        for peer in peers:
            why = peer.result(deadline)
            if why:
                whys.append(why)
                deadline = deadline.sooner(3)  # the other one may never know
        if whys:
            raise Failed("; ".join(whys))

    def must_survive(self, peer):
        """Its call must come back soon after its peer has gone."""
        if not peer.wait_for("survived", self.deadline.sooner(self.cell.get("survival_seconds", SURVIVAL_SECONDS))):
            raise Failed(peer.result(self.deadline.sooner(0)) or f"{peer.role}: {peer.events}")

    def close(self):
        """What the processes wrote: (role, text)."""
        return [(process.role, process.end()) for process in self._processes]


def two_peers(meeting):
    server = meeting.start_server()
    meeting.must_end_well(meeting.start("client"), server)


def refused(meeting):
    meeting.must_end_well(meeting.start("client"))


def killed_client(meeting):
    server = meeting.start_server()
    victim = meeting.start("client")
    meeting.must_say(server, "flowing")
    victim.kill()
    meeting.must_survive(server)
    meeting.must_end_well(meeting.start("client", "one_echo"), server)


def killed_server(meeting):
    victim = meeting.start_server("killed_server")
    client = meeting.start("client")
    meeting.must_say(victim, "flowing")
    victim.kill()
    meeting.must_survive(client)
    meeting.must_end_well(client)


def hostile_client(meeting):
    server = meeting.start_server()
    attacker = meeting.attack("connect")
    meeting.must_say(attacker, "rejected" if meeting.cell["behaviour"] == "version" else "")
    if "rejected" not in attacker.events:
        meeting.must_survive(server)
    meeting.must_end_well(meeting.start("client", "honest"), server)


def hostile_server(meeting):
    attacker = meeting.attack("listen")
    meeting.must_say(attacker, "listening")
    client = meeting.start("client")
    meeting.must_survive(client)
    meeting.must_end_well(client)


def hostile_datagrams(meeting):
    """The server has an honest client when the attack is over."""
    server = meeting.start_server("digests")
    attacker = Program([meeting.raw_datagrams, meeting.cell["address"], str(meeting.cell["port"])])
    meeting.add(attacker)
    meeting.must_say(attacker, "sent")
    meeting.must_end_well(meeting.start("client", "digests"), server)


def slow_client(meeting):
    server = meeting.start_server()
    attacker = meeting.attack("connect")
    meeting.must_say(attacker, "connected")
    meeting.must_end_well(meeting.start("client", "one_echo"), server)
    if any(line in attacker.events for line in ("gone", "still there")):
        raise Failed(f"it was served only after the slow client had gone: {attacker.events}")


def fork_mode(meeting):
    """Upstream's listener is on all devices at once, or on none: on an iWARP device the kernel's has the port."""
    # Not by subprocess, which would reap the peers.
    rdma = "/usr/bin/rdma link"
    if os.system(f"{rdma} delete siw0"):
        raise Failed("siw0 cannot be removed")
    try:
        two_peers(meeting)
    finally:
        os.system(f"{rdma} add siw0 type siw netdev siw")


def link_cut(meeting):
    """Keepalive must tell both ends, which wait in poll()."""
    server = meeting.start_server()
    client = meeting.start("client")
    meeting.must_say(server, "idle")
    meeting.must_say(client, "idle")
    device = meeting.cell["device_kind"]
    try:
        subprocess.run(["/usr/sbin/ip", "link", "set", device, "down"], check=True)
        meeting.must_survive(client)
        meeting.must_survive(server)
    finally:
        subprocess.run(["/usr/sbin/ip", "link", "set", device, "up"], check=True)
        # Going down cost the interface its IPv6 address.
        address = f"{meeting.cell['local_ipv6']}/64"
        subprocess.run(["/usr/sbin/ip", "addr", "add", address, "dev", device, "nodad"], check=True)
    meeting.must_end_well(client, server)


def restarted(meeting):
    """The server of datagrams is killed, and another one takes its port."""
    server = meeting.start_server()
    client = meeting.start("client")
    for life in range(meeting.cell["lives"]):
        meeting.must_say(client, f"life {life}")
        if life + 1 < meeting.cell["lives"]:
            server.kill()
            server.wait_for("never", meeting.deadline)
            server = meeting.start_server()
    meeting.must_end_well(client)


def captured(meeting):
    """What goes over the wire must be what upstream says."""
    capture = Capture(meeting.cell["device_kind"])
    server = meeting.start_server("program")
    meeting.must_end_well(meeting.start("client", "program"), server)
    why = difference(meeting.cell, capture.frames())
    if why:
        raise Failed(why)


MEETINGS = {
    "captured": captured,
    "fork_mode": fork_mode,
    "link_cut": link_cut,
    "refused": refused,
    "no_datagrams": refused,
    "restarted": restarted,
    "killed_client": killed_client,
    "killed_server": killed_server,
    "killed_server_reader": killed_server,
    "hostile_client": hostile_client,
    "hostile_server": hostile_server,
    "hostile_datagrams": hostile_datagrams,
    "slow_client": slow_client,
}


def meet(cell, installation, deadline):
    """None when all went well, else why not."""
    meeting = Meeting(cell, installation, deadline)
    why = None
    try:
        MEETINGS.get(cell["scenario"], two_peers)(meeting)
    except Failed as failure:
        why = str(failure)
    said = meeting.close()
    return why and "\n".join([why, *(f"{role}: {text}" for role, text in said if text)])
