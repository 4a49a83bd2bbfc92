"""QUIC: ngtcp2's HTTP/3 server and client, which use segmentation offload, ECN marks and control data."""
from harness.run import digest, must_equal
from two_hosts.cell import UdpProgram
from two_hosts.hosts import IPV4, THERE

from .dtls import certificate

SIZES = (1, 20_000, 1_500_000)


class Quic(UdpProgram):
    name = "quic-ngtcp2"
    needs = ("gtlsserver", "gtlsclient", "openssl")
    modes = ("both", "client", "server", "none")
    # The server has its datagrams segmented by the kernel.
    directions = {"client": ("receives", "sends"), "server": ("receives",)}

    def start(self, run):
        self.port = run.free_port()
        key, made = certificate(run)
        self.files = [run.random_file(f"file{number}", size) for number, size in enumerate(SIZES)]
        run.serve_udp(["gtlsserver", "-q", "-d", run.folder, IPV4[THERE], self.port, key, made], self.port)

    def exchange(self, run):
        downloads = run.path("downloads")
        downloads.mkdir()
        run.client(
            ["gtlsclient", "-q", "--exit-on-all-streams-close", "--download", downloads, IPV4[THERE], self.port,
             *(f"https://there.test/{path.name}" for path in self.files)],
            timeout=40,
        )  # fmt: skip
        for path in self.files:
            must_equal(digest(downloads / path.name), digest(path), f"the content of {path.name}")


class BridgedQuic(Quic):
    name = "quic-ngtcp2-bridged"
    network = "bridge"
    modes = ("both",)


class LossyQuic(Quic):
    name = "quic-ngtcp2-lossy"
    network = "lossy"
    modes = ("both",)
