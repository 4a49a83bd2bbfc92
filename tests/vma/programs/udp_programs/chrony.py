"""chronyd as an NTP server, and once more as a client that asks it and sets no clock."""
import re

from harness.processes import Failure
from two_hosts.cell import UdpProgram
from two_hosts.hosts import IPV4, THERE


class Chrony(UdpProgram):
    name = "chrony"
    needs = ("chronyd",)
    kernel_because = {side: "SO_TIMESTAMPING of what it sends" for side in ("client", "server")}

    def start(self, run):
        self.port = run.free_port()
        configuration = run.write(
            "server.conf",
            f"local stratum 1\nallow all\nport {self.port}\ncmdport 0\nbindaddress {IPV4[THERE]}\n"
            f"pidfile {run.path('server.pid')}\n",
        )
        run.serve_udp(["chronyd", "-d", "-x", "-u", "root", "-f", configuration], self.port)

    def exchange(self, run):
        configuration = run.write(
            "client.conf",
            f"server {IPV4[THERE]} port {self.port} iburst maxsamples 1\ncmdport 0\nport 0\npidfile {run.path('client.pid')}\n",
        )
        said = run.client(["chronyd", "-Q", "-u", "root", "-f", configuration, "-t", 15]).text
        wrong_by = re.search(r"System clock wrong by (-?[\d.]+) seconds", said)
        if wrong_by is None or abs(float(wrong_by[1])) > 1:
            raise Failure("the client does not agree with the server's clock, which is its own")
