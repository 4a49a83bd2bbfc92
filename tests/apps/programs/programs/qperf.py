"""qperf: TCP bandwidth and latency, with the counts of both sides."""
import re

from harness.processes import Failure, wait_until
from harness.program import Program
from harness.run import free_port


class Qperf(Program):
    name = "qperf"
    title = "qperf (tcp_bw, tcp_lat)"
    not_in = ("restarted",)
    needs = ("qperf",)

    def start(self, run):
        self.port = free_port()
        run.serve(["qperf", "-lp", self.port], port=self.port)

    def words(self, *words):
        return ["qperf", "127.0.0.1", "-lp", self.port, "-ip", free_port(), *words]

    def exchange(self, run):
        sent, received = self.counted(run, "tcp_bw", "send_msgs", "recv_msgs")
        # What is still on its way when the time is over does not count as received; the last message, during which the
        # time ran out, the sender does not count.
        if not 0 < received <= sent + 1:
            raise Failure(f"tcp_bw: {received} messages received, {sent} sent")
        there, back = self.counted(run, "tcp_lat", "loc_send_msgs", "loc_recv_msgs")
        if back == 0 or not there - 1 <= back <= there:
            raise Failure(f"tcp_lat: {back} messages came back, {there} were sent")

    def counted(self, run, test, *names):
        said = run.client(self.words("-t", 1, "-m", 1000, "-vvs", "-uu", test)).text
        return (int(re.search(rf"\b{name} += +([\d,]+)", said)[1].replace(",", "")) for name in names)

    def endless(self, run):
        client = run.begin(self.words("-t", 60, "tcp_bw"))
        wait_until(client.is_busy, "qperf transfers")
        return client
