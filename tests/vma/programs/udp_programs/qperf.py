"""qperf: UDP latency and bandwidth, with the counts of both sides. Its control connection is TCP."""
import re

from harness.processes import Failure
from two_hosts.cell import UdpProgram
from two_hosts.hosts import IPV4, THERE


class Qperf(UdpProgram):
    name = "qperf-udp"
    needs = ("qperf",)

    def start(self, run):
        self.port = run.free_port()
        run.serve_tcp(["qperf", "-lp", self.port], self.port)

    def exchange(self, run):
        there, back = self.counted(run, "udp_lat", "loc_send_msgs", "loc_recv_msgs")
        if back == 0 or not there - 1 <= back <= there:
            raise Failure(f"udp_lat: {back} messages came back, {there} were sent")
        sent, received = self.counted(run, "udp_bw", "send_msgs", "recv_msgs")
        if not 0 < received <= sent + 1:
            raise Failure(f"udp_bw: {received} messages received, {sent} sent")

    def counted(self, run, test, *names):
        said = run.client(
            ["qperf", IPV4[THERE], "-lp", self.port, "-ip", run.free_port(), "-t", 1, "-m", 1000, "-vvs", "-uu", test]
        ).text
        return (int(re.search(rf"\b{name} += +([\d,]+)", said)[1].replace(",", "")) for name in names)
