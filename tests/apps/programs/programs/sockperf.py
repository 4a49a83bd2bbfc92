"""sockperf over TCP: a ping-pong whose data it verifies itself."""
import signal

from harness.processes import wait_until
from harness.program import Program
from harness.run import free_port, must_hold


class Sockperf(Program):
    name = "sockperf"
    title = "sockperf over TCP (data verified)"
    needs = ("sockperf",)

    def start(self, run):
        self.port = free_port()
        run.serve(
            ["sockperf", "server", "--tcp", "-i", "127.0.0.1", "-p", self.port], port=self.port, stop=signal.SIGINT
        )

    def ping_pong(self, seconds, *words):
        return ["sockperf", "ping-pong", "--tcp", "-i", "127.0.0.1", "-p", self.port, "-t", seconds, *words]

    def exchange(self, run):
        said = run.client(self.ping_pong(1, "--data-integrity", "-m", 1000, "-r", 500, "--mps", 100_000)).text
        must_hold(said, "# dropped messages = 0; # duplicated messages = 0; # out-of-order messages = 0")

    def endless(self, run):
        client = run.begin(self.ping_pong(60))
        wait_until(lambda: "Starting test" in client.text(), "sockperf begins")
        return client
