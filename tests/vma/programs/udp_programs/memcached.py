"""memcached -U with a small client: Debian has none that speaks its UDP protocol."""
import pathlib
import sys

from harness.run import must_hold
from two_hosts.cell import UdpProgram
from two_hosts.hosts import IPV4, THERE

CLIENT = pathlib.Path(__file__).with_name("memcached_client.py")


class Memcached(UdpProgram):
    name = "memcached-udp"
    needs = ("memcached",)

    def start(self, run):
        self.port = run.free_port()
        # Whoever gives up root's privileges before he opens his sockets has the kernel's.
        run.serve_udp(
            ["memcached", "-l", IPV4[THERE], "-p", self.port, "-U", self.port, "-t", 4, "-u", "root"], self.port
        )

    def exchange(self, run):
        clients = [run.begin([sys.executable, CLIENT, IPV4[THERE], self.port, str(number)]) for number in range(2)]
        for client in clients:
            must_hold(run.finish(client).text, "500 values read back")
