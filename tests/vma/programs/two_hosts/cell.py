"""What a file of ../udp_programs describes, and how one is put to the test: a program, a network, and who is preloaded."""
import dataclasses

from harness.processes import Failure, Hung, find_program, wait_until

from .hosts import HERE, THERE
from .run import HostRun

MODES = ("both", "client", "server", "none", "killed")
MODE_TEXT = {
    "both": "both over libvma",
    "client": "the client over libvma",
    "server": "the server over libvma",
    "none": "both on the kernel",
    "killed": "killed in the middle",
}
FEW = 12  # packets that are nobody's: ARP


class NetworkProgram:
    """A program nobody here wrote, between two hosts.

    name: as reported; needs: executables; network: one of hosts.NETWORKS; modes: those that are tried; quick: of them,
    those that a short run tries;
    kernels: what of the kernel's is counted, a field of hosts.KERNELS;
    least: packets that an offloaded side at least receives by its rings, and sends by them;
    kernel_few, kernel_most: how many may go by the kernel all the same, and how many more for each by rings;
    directions: {side: what it does on the network at all};
    kernel_because: {side: why it leaves its sockets to the kernel although it is preloaded};
    settings: environment of the sides that are preloaded, beside the usual;
    leaves_children: whether what it has forked outlives it.
    """

    name = ""
    needs = ()
    network = "cable"
    kernels = "datagrams"
    modes = ("both", "client", "server", "none")
    quick = ("both", "client", "server", "killed")
    least = 20
    kernel_few = 4
    kernel_most = 0.1
    directions = {"client": ("receives", "sends"), "server": ("receives", "sends")}
    kernel_because = {}
    settings = {}
    leaves_children = False

    def start(self, run):
        """Starts the servers; returns when a client may come."""
        raise NotImplementedError

    def exchange(self, run):
        """Runs the clients, checks what they say and what arrived; Failure when anything is wrong."""
        raise NotImplementedError

    def endless(self, run):
        """For mode "killed": starts a client that would run for a minute; returns it when datagrams are on their way."""
        raise NotImplementedError

    def killed(self, run):
        """Mode "killed": what is to hold when processes are killed in the middle."""
        raise NotImplementedError

    def make_run(self, hosts, **sides):
        return HostRun(self.name, hosts, **sides)

    def missing(self):
        """Executables that are not installed."""
        return [name for name in self.needs if find_program(name) is None]


class UdpProgram(NetworkProgram):
    """One that talks by UDP."""

    def killed(self, run):
        """Client and server are killed, one after the other; a server that starts anew on its port finds nothing left."""
        for victim in ("server", "client"):
            client = self.endless(run)
            if client.status() is not None:
                raise Failure(f"the client ended with {client.status()} before anybody was killed")
            if victim == "server":
                run.kill_servers()
                wait_until(lambda: not run.hosts.is_bound(THERE, self.port), "the kernel has the port back")
            client.kill()
            if victim == "server":
                self.start(run)
        self.exchange(run)


@dataclasses.dataclass
class Outcome:
    """verdict: "ok", "not ok" or "skip"; why: the reason of the last two."""

    label: str
    verdict: str
    why: str = ""


def try_cell(program, mode, hosts, library):
    """Runs one program in one mode. Never raises for what the program does. library: environment of an offloaded side."""
    label = f"{program.name}, {MODE_TEXT[mode]}"
    missing = program.missing()
    if missing:
        return Outcome(label, "skip", f"not installed: {', '.join(missing)}")
    run = program.make_run(
        hosts,
        server=library if mode in ("both", "server", "killed") else {},
        client=library if mode in ("both", "client", "killed") else {},
    )
    why = ""
    try:
        before = {host: hosts.packets(host, program.kernels) for host in (HERE, THERE)}
        program.start(run)
        (program.killed if mode == "killed" else program.exchange)(run)
        went = {host: hosts.packets(host, program.kernels).since(before[host]) for host in (HERE, THERE)}
        run.end_servers()
        _check_way(program, "client", went[HERE], mode in ("both", "client", "killed"))
        _check_way(program, "server", went[THERE], mode in ("both", "server", "killed"))
    except Hung as failure:
        why = "\n".join([str(failure), *run.last_lines(), *run.where()])
    except Failure as failure:
        why = "\n".join([str(failure), *run.last_lines()])
    except (OSError, ValueError, LookupError, TypeError) as error:
        # Also output that cannot be understood, which is a failure of the program.
        why = "\n".join([f"{type(error).__name__}: {error}", *run.last_lines()])
    strays = run.close()
    if strays and not why and mode != "killed" and not program.leaves_children:
        why = f"left behind: {'; '.join(strays)}"
    return Outcome(label, "not ok" if why else "ok", why)


def _check_way(program, side, went, offloaded):
    """A fall-back that nobody asked for is a failure, too; and so are rings where there must be none."""
    counts = (
        f"{side}: {went.rings_in} packets in and {went.rings_out} out by rings, "
        f"{went.kernels_in} {program.kernels} in and {went.kernels_out} out by the kernel"
    )
    if not offloaded or side in program.kernel_because:
        if max(went.rings_in, went.rings_out) > FEW:
            raise Failure(f"not by the kernel, as it must be: {counts}")
        return
    for rings, kernels, direction in (
        (went.rings_in, went.kernels_in, "receives"),
        (went.rings_out, went.kernels_out, "sends"),
    ):
        if direction not in program.directions[side]:
            continue
        if rings < program.least or kernels > program.kernel_few + program.kernel_most * rings:
            raise Failure(f"{direction} by the kernel, not by rings: {counts}")

