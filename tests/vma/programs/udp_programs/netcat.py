"""OpenBSD's netcat over UDP: lines in both directions."""
import subprocess

from harness.processes import wait_until
from harness.run import must_equal
from two_hosts.cell import UdpProgram
from two_hosts.hosts import IPV4, IPV6, THERE

LINES = 20


class Netcat(UdpProgram):
    name = "netcat-udp"
    needs = ("nc.openbsd",)
    least = LINES

    def start(self, run):
        """A server lives for one client, so each exchange starts its own."""

    def exchange(self, run):
        for address in (IPV4[THERE], IPV6[THERE]):
            port = run.free_port()
            server = run.serve_udp(["nc.openbsd", "-u", "-l", address, port], port, stdin=subprocess.PIPE)
            client = run.begin(["nc.openbsd", "-u", address, port], stdin=subprocess.PIPE)
            for number in range(LINES):
                line = f"line {number}\n".encode()
                for sender, receiver in ((client, server), (server, client)):
                    before = len(receiver.output())
                    sender.say(line)
                    wait_until(lambda: len(receiver.output()) >= before + len(line), f"line {number} arrives")
            wanted = b"".join(f"line {number}\n".encode() for number in range(LINES))
            must_equal(server.output(), wanted, "what the server received")
            must_equal(client.output(), wanted, "what the client received")
            for process in (client, server):
                process.kill()
