"""What requests cost beside their time: system calls, CPU time, memory; and what a connection costs."""
import contextlib
import json
import os
import pathlib
import socket
import time

from harness import bench
from harness.processes import Failure, tree_of, wait_until
from harness.program import Program
from harness.run import Run
from programs.redis import Redis

from . import outputs
from .programs import LONGEST_S, ManyConnections, missing_many, missing_redis, require_descriptors, started
from .results import HIGHER, KERNEL, LOWER, OURS, Measurement, Row

TABLE = "costs"
SIDES = (KERNEL, OURS)
BUSY_CLIENTS = 1000
STEADY_REQUESTS = 5  # of a client, before system calls are counted
ENDLESS = 500_000_000  # requests
PACED_RATE = 1000
IDLE_CONNECTIONS = 1000
SHORT_WARM_UP = 500
COMPUTING_PROCESSES = 2


# ---- system calls ------------------------------------------------------------------------------------------------


ALL_CALLS = "raw_syscalls:sys_enter"
# System calls by which a process sends or wakes another.
DOORBELL_CALLS = tuple(f"syscalls:sys_enter_{name}" for name in ("sendto", "sendmsg", "sendmmsg", "write", "writev"))
WAKING_FUTEX = "syscalls:sys_enter_futex"
# FUTEX_WAKE and FUTEX_WAKE_BITSET, each also with FUTEX_PRIVATE_FLAG.
WAKING_FILTER = "op==1 || op==10 || op==129 || op==138"
# perf finds the tracepoints where tracefs is mounted; it is mounted for perf alone.
WITH_TRACEFS = "mount -t tracefs tracefs /sys/kernel/tracing && exec perf stat -x, "


def perf_missing():
    """Why the kernel's tracepoints cannot be counted here; empty when they can."""
    return "" if os.geteuid() == 0 else "counts system calls by tracepoints, which needs root"


class RedisInfo:
    """A connection to a Redis server, by the kernel's TCP, on which it tells its counters."""

    def __init__(self, port):
        self._connection = socket.create_connection(("127.0.0.1", port), timeout=20)
        self._replies = self._connection.makefile("rb")

    def ask(self):
        """{name: value} of the whole numbers of INFO."""
        self._connection.sendall(b"INFO\r\n")
        length = int(self._replies.readline()[1:])
        return outputs.redis_info(self._replies.read(length + 2).decode())

    def close(self):
        self._replies.close()
        self._connection.close()


def count_system_calls(run, pids, seconds):
    """System calls of processes in a period, by `perf stat`: {event: count}."""
    events = ",".join([ALL_CALLS, *DOORBELL_CALLS])
    words = f"-e {events} -e {WAKING_FUTEX} --filter '{WAKING_FILTER}' -p {','.join(map(str, pids))} sleep {seconds}"
    said = run.tool(["unshare", "--mount", "sh", "-c", WITH_TRACEFS + words]).text
    return outputs.perf_counts(said)


def requests_are_steady(info):
    """Whether all clients are connected, and have had several replies."""
    now = info.ask()
    return now["connected_clients"] > BUSY_CLIENTS and now["total_commands_processed"] > STEADY_REQUESTS * BUSY_CLIENTS


def system_calls():
    """Per request at 1,000 busy clients, of redis-server and redis-benchmark together."""

    def missing(setting, side):
        return perf_missing() or setting.missing_programs("perf") or missing_redis(setting, side)

    def measure(setting, side):
        require_descriptors(BUSY_CLIENTS)
        program = Redis()
        with started(setting, "calls", side, program, expected_by_kernel=1) as (run, found):  # that of RedisInfo
            client = run.begin(program.benchmark("-c", BUSY_CLIENTS, "-n", ENDLESS, "-t", "get", "-q"))
            with contextlib.closing(RedisInfo(program.port)) as info:
                wait_until(lambda: requests_are_steady(info), "all clients have had replies", LONGEST_S)
                before, begun = info.ask()["total_commands_processed"], time.monotonic()
                counts = count_system_calls(run, (program.server.pid, client.pid), setting.seconds)
                rate = (info.ask()["total_commands_processed"] - before) / (time.monotonic() - begun)
            client.kill()
        requests = rate * setting.seconds
        doorbells = sum(counts[event] for event in (*DOORBELL_CALLS, WAKING_FUTEX))
        return {**found, "doorbells": doorbells / requests, "system-calls": counts[ALL_CALLS] / requests}

    text = f"per request, both ends, redis GET, {BUSY_CLIENTS:,} clients"
    rows = (
        Row("doorbells", f"system calls that send or wake, {text}", "", LOWER),
        Row("system-calls", f"all system calls, {text}", "", LOWER),
    )
    return Measurement("system-calls", TABLE, SIDES, rows, measure, missing)


# ---- CPU time ----------------------------------------------------------------------------------------------------


def cpu_seconds(process):
    """CPU time of a Process of the harness, its children included, so far."""
    nanoseconds = 0
    for pid in tree_of(process.pid):
        for task in pathlib.Path(f"/proc/{pid}/task").glob("*/schedstat"):
            nanoseconds += int(task.read_text().split()[0])
    return nanoseconds / 1e9


def cpu_while(seconds, *processes):
    """CPU time of these processes in a period: (CPU seconds, elapsed seconds)."""
    before, begun = sum(map(cpu_seconds, processes)), time.monotonic()
    time.sleep(seconds)
    after = sum(map(cpu_seconds, processes))
    return after - before, time.monotonic() - begun


def begin_connected(run, words):
    """Starts a client of many_connections; returns it when its connections are there."""
    client = run.begin(words)
    wait_until(lambda: b"connected" in client.output() or client.status() is not None, "the client connects", 60)
    return client


def cpu_per_request():
    """CPU time of both ends for a request to redis-server, at 1,000 requests per second from one client."""

    def missing(setting, side):
        return missing_redis(setting, side) or missing_many(setting, side)

    def measure(setting, side):
        program = Redis()
        with started(setting, "cpu", side, program) as (run, found):
            binary = setting.bench_program("many_connections")
            client = begin_connected(run, [binary, "paced", program.port, PACED_RATE, setting.seconds + 1.5])
            time.sleep(0.5)  # to steady state
            used, elapsed = cpu_while(setting.seconds, program.server, client)
            rate = float(run.finish(client).output.split()[1])
        if rate < 0.95 * PACED_RATE:
            raise Failure(f"{rate:.0f} requests/s instead of {PACED_RATE}: the machine is too busy")
        return {**found, "cpu-per-request": used / elapsed / rate * 1e6}

    text = f"CPU time per request, both ends, redis GET, {PACED_RATE:,} requests/s, 1 client"
    row = Row("cpu-per-request", text, "µs", LOWER)
    return Measurement("cpu-per-request", TABLE, SIDES, (row,), measure, missing)


def cpu_idle():
    """CPU time of both ends of connections on which nothing happens."""

    def measure(setting, side):
        require_descriptors(IDLE_CONNECTIONS)
        program = ManyConnections(setting)
        with started(setting, "idle", side, program) as (run, found):
            client = begin_connected(run, program.client(IDLE_CONNECTIONS, 0, setting.seconds + 1.5))
            time.sleep(0.5)  # to rest
            used, elapsed = cpu_while(setting.seconds, program.server, client)
            run.finish(client)
            program.server.wait(30)
        return {**found, "cpu-idle": used / elapsed * 1e3}

    row = Row("cpu-idle", f"CPU time with nothing to do, both ends, {IDLE_CONNECTIONS:,} connections", "ms/s", LOWER)
    return Measurement("cpu-idle", TABLE, SIDES, (row,), measure, missing_many)


# ---- connections -------------------------------------------------------------------------------------------------


def idle_memory():
    """By rsocket_bench, which has it."""

    def missing(setting, side):
        return setting.missing_parts("rsocket_bench")

    def measure(setting, side):
        run = Run("peers-memory")
        try:
            words = ["--json", "--runs", 1, "--only", "memory of an idle connection"]
            said = run.client([setting.bench_program("rsocket_bench"), *words], timeout=60)
            return {"memory-idle": json.loads(said.output)["rows"][0]["ringsock"]}
        finally:
            run.close()

    row = Row("memory-idle", "memory of an idle connection, both ends", "KiB", LOWER)
    return Measurement("memory-idle", TABLE, (OURS,), (row,), measure, missing)


class ShortConnections(Program):
    """The server of short_connections, which is killed at the end."""

    def __init__(self, setting):
        self.binary = setting.bench_program("short_connections")

    def start(self, run):
        server = run.serve([self.binary, "server", 0], ready=lambda process: process.output().endswith(b"\n"))
        self.port = int(server.output())

    def client(self, connections):
        return [self.binary, "client", self.port, connections]


def short_connections(name, text, computing):
    """Connections per second, one after the other, beside so many processes that compute."""

    def missing(setting, side):
        return setting.missing_parts("short_connections")

    def measure(setting, side):
        program = ShortConnections(setting)
        with bench.busy_processes(computing), started(setting, name, side, program) as (run, found):
            rate = float(run.client(program.client(SHORT_WARM_UP), timeout=LONGEST_S).output)
            connections = max(SHORT_WARM_UP, int(rate * setting.seconds))
            found[name] = float(run.client(program.client(connections), timeout=LONGEST_S).output)
        return found

    return Measurement(name, TABLE, SIDES, (Row(name, text, "/s", HIGHER),), measure, missing)


def measurements():
    text = "connect, 1 B each way, close"
    return [
        system_calls(),
        cpu_per_request(),
        cpu_idle(),
        idle_memory(),
        short_connections("short-connections", text, 0),
        short_connections("short-connections-beside-2", f"{text}, beside 2 computing processes", COMPUTING_PROCESSES),
    ]
