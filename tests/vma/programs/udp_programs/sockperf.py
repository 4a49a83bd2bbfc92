"""sockperf: ping-pong whose data it verifies, throughput, two clients at once, a multicast group, --load-vma."""
import re
import signal

from harness.processes import Failure, wait_until
from harness.run import must_hold
from two_hosts.cell import UdpProgram
from two_hosts.hosts import HERE, IPV4, THERE

NOTHING_LOST = "# dropped messages = 0; # duplicated messages = 0; # out-of-order messages = 0"


class Sockperf(UdpProgram):
    needs = ("sockperf",)
    address = IPV4[THERE]

    def start(self, run):
        self.port = run.free_port()
        self.serve(run)

    def serve(self, run, *words):
        self.server = run.serve_udp(
            ["sockperf", "server", "-i", self.address, "-p", self.port, *words], self.port, stop=signal.SIGINT
        )

    def client_of(self, mode, *words):
        return ["sockperf", mode, "-i", self.address, "-p", self.port, *words]

    def received(self):
        """How many messages the server says at its end that it had."""
        self.server.end()
        return int(re.search(r"Total (\d+) messages received", self.server.text())[1])


class PingPong(Sockperf):
    name = "sockperf-ping-pong"
    modes = ("both", "client", "server", "none", "killed")

    def exchange(self, run):
        said = run.client(
            self.client_of("ping-pong", "-t", 1, "--data-integrity", "-m", 1000, "-r", 500, "--mps", 20000)
        ).text
        must_hold(said, NOTHING_LOST)

    def endless(self, run):
        client = run.begin(self.client_of("ping-pong", "-t", 60, "--dontwarmup"))
        wait_until(lambda: "Starting test" in client.text(), "sockperf begins")
        return client


class Throughput(Sockperf):
    """The server does not answer; what it counts is no more than what was sent, and nothing like a fall-back's rest."""

    name = "sockperf-throughput"
    quick = ("both",)
    directions = {"client": ("sends",), "server": ("receives",)}

    def exchange(self, run):
        # In bursts that any socket's buffer takes.
        said = run.client(self.client_of("throughput", "-t", 1, "-m", 200, "--mps", 20000)).text
        sent = int(re.search(r"Total of (\d+) messages sent", said)[1])
        received = self.received()
        if not sent * 0.9 <= received <= sent + 1000:
            raise Failure(f"{received} messages received, {sent} sent")


class TwoClients(Sockperf):
    """At once, under load, from two processes of one host; the server by epoll on two ports."""

    name = "sockperf-two-clients"
    quick = ("both",)

    def serve(self, run):
        self.ports = [self.port, run.free_port()]
        feed = run.write("feed", "".join(f"U:{self.address}:{port}\n" for port in self.ports))
        self.server = run.serve_udp(["sockperf", "server", "-f", feed, "-F", "e"], self.ports[1], stop=signal.SIGINT)

    def exchange(self, run):
        feed = run.write("feed-of-client", "".join(f"U:{self.address}:{port}\n" for port in self.ports))
        clients = [
            run.begin(["sockperf", "under-load", "-f", feed, "-F", way, "-t", 1, "--mps", 3000, "--reply-every", 1])
            for way in ("e", "p")
        ]
        for client in clients:
            said = run.finish(client).text
            # On a busy machine it may find none of its observations valid, and then counts no duplicates.
            if re.search(r"# duplicated messages = [1-9]", said):
                raise Failure("messages came twice")
            sent, received = map(int, re.search(r"SentMessages=(\d+); ReceivedMessages=(\d+)", said).groups())
            if received < 0.9 * sent or sent < 200:
                raise Failure(f"{received} answers, {sent} messages sent")


class Multicast(Sockperf):
    """Whether by rings or by the kernel depends on the way the group was joined."""

    name = "sockperf-multicast"
    quick = ("both", "client")
    directions = {"client": (), "server": ()}
    address = "239.9.9.9"

    def serve(self, run):
        super().serve(run, "--mc-rx-if", IPV4[THERE], "--mc-tx-if", IPV4[THERE])

    def exchange(self, run):
        said = run.client(self.client_of("ping-pong", "-t", 1, "--mc-tx-if", IPV4[HERE], "--mps", 5000)).text
        must_hold(said, NOTHING_LOST)


class LoadVma(Sockperf):
    """The library is not preloaded but loaded by sockperf, which looks its calls up."""

    name = "sockperf-load-vma"
    modes = ("both", "none")

    def start(self, run):
        self.libraries = run.loaded_by_itself()
        super().start(run)

    def serve(self, run):
        super().serve(run, *self.load())

    def load(self):
        return [f"--load-vma={self.libraries}"] if self.libraries else []

    def exchange(self, run):
        said = run.client(self.client_of("ping-pong", "-t", 1, "--data-integrity", "-m", 100, *self.load())).text
        must_hold(said, NOTHING_LOST)
