"""Debian's programs, unmodified, with both ends over the kernel's TCP or over librspreload."""
import contextlib

from harness import statistics
from harness.processes import Failure
from harness.program import Program
from programs.nginx import Nginx
from programs.redis import Redis

from . import outputs
from .results import HIGHER, KERNEL, LOWER, OURS, REMARK, CannotRun, Measurement, Row
from .setting import missing_descriptors

TABLE = "programs"
SIDES = (KERNEL, OURS)
REDIS_CLIENTS = (50, 200, 1000, 4000)
WRK_CONNECTIONS = (16, 256)
# Connecting is a part of redis-benchmark's run. The first request of each client waits for the connection: percentiles
# are compared over the same number of requests, and the rate is that of a run in which connecting is a small part.
PERCENTILE_REQUESTS = 200_000
LEAST_REQUESTS = 50  # of a client, for the rate
LONGEST_S = 120  # of one client
DESCRIPTORS_OF_A_CONNECTION = 1.5  # one and a margin


def remark_on_ways(run, side, expected):
    """{REMARK: text} when more than the expected number of connections of the library's side went by the kernel. Failure
    when all did."""
    if side != OURS:
        return {}
    seen = statistics.connections(run.errors_of("client"))
    if seen.lines == 0:  # the client was killed
        seen = statistics.connections(run.errors_of("server"))
    if seen.ring == 0:
        raise Failure(f"no connection went by ring {seen.reasons or ''}")
    if seen.kernel <= expected:
        return {}
    return {REMARK: f"{seen.kernel} of {seen.ring + seen.kernel} connections by kernel TCP ({', '.join(seen.reasons)})"}


@contextlib.contextmanager
def started(setting, name, side, program, expected_by_kernel=0):
    """(run, found): a Run in which `program` serves, and a dictionary for what is measured. At the end it has a remark
    when more than the expected number of connections did not go the way of the side."""
    run, found = setting.run(name, side), {}
    try:
        program.start(run)
        yield run, found
        run.end_servers()
        found.update(remark_on_ways(run, side, expected_by_kernel))
    except Failure as failure:
        raise Failure("\n".join([str(failure), *run.last_lines()])) from failure
    finally:
        run.close()


def require_descriptors(connections):
    why = missing_descriptors(round(connections * DESCRIPTORS_OF_A_CONNECTION))
    if why:
        raise CannotRun(why)


def missing_redis(setting, side):
    return setting.missing_programs("redis-server", "redis-benchmark", "redis-cli") or setting.missing_parts()


def get(program, run, clients, requests):
    """Figures of redis-benchmark with GET, without pipelining."""
    words = program.benchmark("-c", clients, "-n", int(requests), "-t", "get", "--precision", 3)
    return outputs.redis_benchmark(run.client(words, timeout=LONGEST_S).text)


def redis(clients):
    """GET of so many clients: rate and percentiles."""
    name = f"redis-{clients}"

    def measure(setting, side):
        require_descriptors(clients)
        program = Redis()
        with started(setting, name, side, program) as (run, found):
            figures = get(program, run, clients, PERCENTILE_REQUESTS)
            # redis-benchmark has no time limit: that run tells how many requests take so long.
            requests = max(figures["rate"] * setting.seconds, LEAST_REQUESTS * clients)
            figures["rate"] = get(program, run, clients, requests)["rate"]
            found.update({f"{name}-{figure}": value for figure, value in figures.items()})
        return found

    text = f"redis GET, {clients:,} clients"
    rows = (
        Row(f"{name}-rate", text, "requests/s", HIGHER),
        Row(f"{name}-p50", f"{text}, p50", "ms", LOWER),
        Row(f"{name}-p99", f"{text}, p99", "ms", LOWER),
        Row(f"{name}-p99.9", f"{text}, p99.9", "ms", LOWER),
    )
    return Measurement(name, TABLE, SIDES, rows, measure, missing_redis)


def nginx(connections):
    """wrk with a file of 1 KB: rate and 99th percentile."""
    name = f"nginx-{connections}"

    def missing(setting, side):
        return setting.missing_programs("nginx", "wrk") or setting.missing_parts()

    def measure(setting, side):
        program = Nginx()
        with started(setting, name, side, program) as (run, found):
            seconds = f"{max(1, round(setting.seconds))}s"
            words = ["wrk", "--latency", "-t", 2, "-c", connections, "-d", seconds]
            said = run.client([*words, f"http://127.0.0.1:{program.port}/small"], timeout=LONGEST_S).text
            found.update({f"{name}-{figure}": value for figure, value in outputs.wrk(said).items()})
        return found

    text = f"nginx, wrk, 1 KB file, {connections} connections"
    rows = (
        Row(f"{name}-rate", text, "requests/s", HIGHER),
        Row(f"{name}-p99", f"{text}, p99", "ms", LOWER),
    )
    return Measurement(name, TABLE, SIDES, rows, measure, missing)


class ManyConnections(Program):
    """The server of many_connections, which echoes and ends with its last connection."""

    def __init__(self, setting):
        self.binary = setting.bench_program("many_connections")

    def start(self, run):
        self.server = run.serve([self.binary, "server"], ready=lambda process: process.output().endswith(b"\n"))
        self.port = int(self.server.output())

    def client(self, connections, busy, seconds):
        """Its command line."""
        return [self.binary, "client", self.port, connections, busy, seconds]


def missing_many(setting, side):
    return setting.missing_parts("many_connections")


def busy_of(connections, busy):
    """Messages per second of `busy` connections among so many."""
    name = f"busy-{busy}-of-{connections}"

    def measure(setting, side):
        require_descriptors(connections)
        program = ManyConnections(setting)
        with started(setting, name, side, program) as (run, found):
            said = run.client(program.client(connections, busy, setting.seconds), timeout=LONGEST_S).output
            found[name] = float(said.split()[1])
            program.server.wait(30)
        return found

    text = f"64 B echoes, {busy:,} busy of {connections:,} connections"
    return Measurement(name, TABLE, SIDES, (Row(name, text, "/s", HIGHER),), measure, missing_many)


def measurements():
    return [*map(redis, REDIS_CLIENTS), *map(nginx, WRK_CONNECTIONS), busy_of(1000, 1000), busy_of(10000, 1000)]
