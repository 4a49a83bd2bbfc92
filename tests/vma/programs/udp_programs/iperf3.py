"""iperf3 over UDP: client to server, back, both at once, IPv6. Its control connection is TCP, which is the kernel's."""
import json

from harness.processes import Failure
from two_hosts.cell import UdpProgram
from two_hosts.hosts import IPV4, IPV6, THERE

LEAST = 0.9  # the machine may be busy, and buffers are finite


class Iperf3(UdpProgram):
    name = "iperf3-udp"
    needs = ("iperf3",)
    kernel_most = 0.7  # datagrams that are larger than a frame are the kernel's

    def start(self, run):
        self.port = run.free_port()
        run.serve_tcp(["iperf3", "-s", "-p", self.port], self.port)

    def exchange(self, run):
        for address, words in (
            (IPV4[THERE], ()),
            (IPV4[THERE], ("-R",)),
            (IPV6[THERE], ("--bidir",)),
            (IPV4[THERE], ("-l", 4000)),
        ):
            said = run.client(
                ["iperf3", "-u", "-c", address, "-p", self.port, "-J", "-k", 300, "-l", 1000, "-b", "20M", *words]
            )
            end = json.loads(said.output)["end"]
            for direction in ("sum", *(["sum_bidir_reverse"] if "--bidir" in words else [])):
                packets, lost = end[direction]["packets"], end[direction]["lost_packets"]
                if packets < 100 or lost > (1 - LEAST) * packets:
                    raise Failure(f"{words}: {lost} of {packets} packets lost ({direction})")
