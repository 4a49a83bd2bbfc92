"""DTLS: GnuTLS's and OpenSSL's own servers and clients."""
import subprocess

from harness.processes import wait_until
from two_hosts.cell import UdpProgram
from two_hosts.hosts import IPV4, THERE

LINES = 20


def certificate(run):
    """Paths of a key and of its certificate."""
    key, made = run.path("key.pem"), run.path("certificate.pem")
    run.tool(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", key,
              "-out", made, "-days", 2, "-subj", "/CN=there.test"])  # fmt: skip
    return key, made


class Dtls(UdpProgram):
    modes = ("both", "client", "server", "none")

    def talk(self, client, speaker, listener, prefix):
        """Lines, one after the other; each has arrived before the next is said."""
        for number in range(LINES):
            line = f"{prefix} {number}."
            speaker.say(line.encode() + b"\n")
            wait_until(lambda: line in listener.text(), f"{line!r} arrives")


class GnuTls(Dtls):
    name = "gnutls-dtls"
    needs = ("gnutls-serv", "gnutls-cli", "openssl")

    def start(self, run):
        self.port = run.free_port()
        key, made = certificate(run)
        run.serve_udp(["gnutls-serv", "--udp", "-p", self.port, "--echo", "--x509keyfile", key, "--x509certfile", made],
                      self.port)  # fmt: skip

    def exchange(self, run):
        client = run.begin(
            ["gnutls-cli", "--udp", "--insecure", "-p", self.port, IPV4[THERE]], stdin=subprocess.PIPE
        )
        wait_until(lambda: "Handshake was completed" in client.text(), "the handshake is completed")
        self.talk(client, client, client, "an echoed line")
        client.kill()


class OpenSsl(Dtls):
    name = "openssl-dtls"
    needs = ("openssl",)

    def start(self, run):
        self.port = run.free_port()
        key, made = certificate(run)
        self.server = run.serve_udp(
            ["openssl", "s_server", "-dtls1_2", "-accept", f"{IPV4[THERE]}:{self.port}", "-key", key, "-cert", made,
             "-quiet"],
            self.port, stdin=subprocess.PIPE,
        )  # fmt: skip

    def exchange(self, run):
        client = run.begin(
            ["openssl", "s_client", "-dtls1_2", "-connect", f"{IPV4[THERE]}:{self.port}"], stdin=subprocess.PIPE
        )
        wait_until(lambda: "Verify return code" in client.text(), "the handshake is completed")
        self.talk(client, client, self.server, "to the server")
        self.talk(client, self.server, client, "to the client")
        client.kill()
