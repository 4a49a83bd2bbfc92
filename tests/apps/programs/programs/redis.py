"""redis-server with redis-cli and redis-benchmark."""
import re

from harness.processes import wait_until
from harness.program import Program
from harness.run import digest, free_port, must_equal, must_hold


class Redis(Program):
    name = "redis"
    title = "redis-server, redis-cli, redis-benchmark"
    crowd = 1000
    needs = ("redis-server", "redis-cli", "redis-benchmark")

    def start(self, run):
        self.port = free_port()
        self.server = run.serve(
            ["redis-server", "--port", self.port, "--bind", "127.0.0.1", "::1", "--save", "", "--dir", run.folder, "--protected-mode", "no"],
            port=self.port,
        )

    def cli(self, run, *words, address="127.0.0.1", **options):
        return run.client(["redis-cli", "-h", address, "-p", self.port, *words], **options)

    def benchmark(self, *words):
        return ["redis-benchmark", "-h", "127.0.0.1", "-p", self.port, *words]

    def exchange(self, run):
        value = run.random_file("value", 2_000_003)
        must_hold(self.cli(run, "-x", "set", "value", stdin=value).text, "OK")
        for address in ("127.0.0.1", "::1"):
            got = self.cli(run, "--raw", "get", "value", address=address).output
            must_equal(digest(got[:-1]), digest(value), f"the value read back over {address}")
        run.client(self.benchmark("-q", "-c", 20, "-n", 3000, "incr", "counter"))
        must_equal(
            self.cli(run, "get", "counter").output.strip(), b"3000", "a counter after 3000 increments of 20 clients"
        )
        run.client(
            self.benchmark("-q", "-c", 10, "-P", 16, "-n", 4000, "-d", 1000, "-t", "set,get,lpush,lrange_100,mset")
        )
        commands = run.write("commands", "".join(f"SET key:{number} {number}\r\n" for number in range(5000)))
        must_hold(self.cli(run, "--pipe", stdin=commands).text, "errors: 0, replies: 5000")

    def endless(self, run):
        client = run.begin(self.benchmark("-c", 8, "-n", 500_000_000, "-t", "set"))
        # It spins for ever when its first write fails, on the kernel, too.
        wait_until(lambda: re.search(rb"rps=[1-9]", client.output()), "redis-benchmark reports progress")
        return client
