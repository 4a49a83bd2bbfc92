"""iperf3: one stream, four, the server sending, both directions, IPv6."""
import json

from harness.processes import Failure, wait_until
from harness.program import Program
from harness.run import free_port

AMOUNT = 40 * 1024 * 1024


class Iperf3(Program):
    name = "iperf3"
    title = "iperf3 (one stream, -P 4, -R, --bidir)"
    needs = ("iperf3",)

    def start(self, run):
        self.port = free_port()
        run.serve(["iperf3", "-s", "-p", self.port], port=self.port)

    def measure(self, run, *words, address="127.0.0.1"):
        """What iperf3 says at the end, as its JSON."""
        return json.loads(run.client(["iperf3", "-c", address, "-p", self.port, "-J", *words]).output)["end"]

    def exchange(self, run):
        for words in ((), ("-P", 4)):
            end = self.measure(run, "-n", AMOUNT, *words)
            if not 0 < end["sum_received"]["bytes"] <= end["sum_sent"]["bytes"] or end["sum_sent"]["bytes"] < AMOUNT:
                raise Failure(f"{words}: {end['sum_sent']} sent, {end['sum_received']} received")
        # Whichever direction is done first ends the test.
        both_ways = self.measure(run, "-n", AMOUNT, "--bidir")
        for direction in ("sum_received", "sum_received_bidir_reverse"):
            if both_ways[direction]["bytes"] == 0:
                raise Failure(f"--bidir: nothing in {direction}")
        for address in ("127.0.0.1", "::1"):
            for words in (("-R",), ("-R", "-P", 4)):
                end = self.measure(run, "-n", AMOUNT, *words, address=address)
                # The client ends the test when it has that much; of several streams the server may have sent more.
                if not AMOUNT <= end["sum_received"]["bytes"] <= end["sum_sent"]["bytes"]:
                    raise Failure(f"{words}: {end['sum_sent']} sent, {end['sum_received']} received")

    def endless(self, run):
        client = run.begin(["iperf3", "-c", "127.0.0.1", "-p", self.port, "-t", 60, "-i", "0.1", "--forceflush"])
        wait_until(lambda: b"bits/sec" in client.output(), "iperf3 reports progress")
        return client
