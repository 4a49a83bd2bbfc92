"""dig against dnsmasq."""
from harness.processes import Failure
from harness.run import must_equal
from two_hosts.cell import UdpProgram
from two_hosts.hosts import IPV4, IPV6, THERE

NAMES = 20
LONG_TEXT = "x" * 250


class Dns(UdpProgram):
    name = "dig-dnsmasq"
    needs = ("dig", "dnsmasq")
    # dig lets routers fragment what it sends, which is the kernel's therefore, and sets options of IPv6 that are, too;
    # dnsmasq names its source address with each answer.
    directions = {"client": ("receives",), "server": ("receives",)}
    least = 10
    kernel_most = 1.5
    tries, timeout = 1, 5

    def start(self, run):
        self.port = run.free_port()
        records = [f"address=/host{number}.test/10.1.2.{number}" for number in range(NAMES)]
        # One answer that is larger than a frame.
        records += [f"txt-record=long.test,{LONG_TEXT}{number}" for number in range(8)]
        configuration = run.write("dnsmasq.conf", "\n".join(records) + "\n")
        run.serve_udp(
            ["dnsmasq", "-k", "-C", configuration, "-p", self.port, "--no-resolv", "--no-hosts", "--log-facility=-",
             "--user=root", "--edns-packet-max=4096", "--pid-file=", "--local=/test/"],
            self.port,
        )  # fmt: skip

    def dig(self, run, address, *words):
        said = run.client(
            ["dig", f"@{address}", "-p", self.port, f"+tries={self.tries}", f"+timeout={self.timeout}", "+notcp", "+short", *words]
        ).text
        return [line for line in said.splitlines() if not line.startswith(";;")]  # complaints of lost questions

    def exchange(self, run):
        for address in (IPV4[THERE], IPV6[THERE]):
            questions = run.write("questions", "".join(f"host{number}.test A\n" for number in range(NAMES)))
            must_equal(
                self.dig(run, address, "-f", questions),
                [f"10.1.2.{number}" for number in range(NAMES)],
                f"the answers of {address}",
            )
            long = self.dig(run, address, "+bufsize=4096", "+ignore", "long.test", "TXT")
            if sorted(long) != sorted(f'"{LONG_TEXT}{number}"' for number in range(8)):
                raise Failure(f"a long answer: {long!r:.300}")


class LossyDns(Dns):
    """Who gets no answer asks again."""

    name = "dig-dnsmasq-lossy"
    network = "lossy"
    tries, timeout = 8, 1
    modes = ("both",)
