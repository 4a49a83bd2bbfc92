"""What is measured with the programs: the rows of the table of numbers, and how each number is had."""
import csv
import dataclasses
import io
import json
import re
from typing import Callable

from harness.program import Program

from . import iperf3, memcached, nginx, postgresql, redis


@dataclasses.dataclass(frozen=True)
class Row:
    """A line of the table. key: as measured; unit: of the value; least, aim: wanted ratio, preloaded over kernel."""

    key: str
    text: str
    unit: str
    least: float
    aim: float


@dataclasses.dataclass(frozen=True)
class Measurement:
    """measure(program, run, seconds) runs clients for about that long, returns {row.key: value}, more is better."""

    name: str
    make: Callable[[], Program]
    measure: Callable
    rows: tuple


def measure_redis(prefix, *words):
    """SET and GET, requests/s; the number of requests is found by a short run, as redis-benchmark has no time limit."""

    def requests_per_second(program, run, requests):
        said = run.client(
            program.benchmark("--csv", "-t", "set,get", "-n", requests, *words), timeout=60
        ).output.decode()
        return {row["test"].lower(): float(row["rps"]) for row in csv.DictReader(io.StringIO(said))}

    def measure(program, run, seconds):
        guess = min(requests_per_second(program, run, 4000).values())
        found = requests_per_second(program, run, int(guess * seconds / 2))
        return {f"{prefix}-{test}": found[test] for test in ("set", "get")}

    return measure


def measure_memcached(program, run, seconds):
    said = run.client(
        ["memcaslap", "-s", f"127.0.0.1:{program.port}", "-T", 2, "-c", 8, "-t", f"{max(1, round(seconds))}s"],
        timeout=60,
    ).text
    return {"memcached": float(re.search(r"TPS: (\d+)", said)[1])}


def measure_nginx(program, run, seconds):
    words = ["wrk", "-t", 2, "-c", 16, "-d", f"{max(1, round(seconds))}s", f"http://127.0.0.1:{program.port}/small"]
    return {"nginx": float(re.search(r"Requests/sec: +([\d.]+)", run.client(words, timeout=60).text)[1])}


def measure_iperf3(program, run, seconds):
    return {"iperf3": program.measure(run, "-t", max(1, round(seconds)))["sum_received"]["bits_per_second"]}


def measure_pgbench(program, run, seconds):
    program.load(run)
    words = program.words("pgbench", "-n", "-S", "-c", 4, "-j", 2, "-T", max(1, round(seconds)))
    return {"pgbench": float(re.search(r"tps = ([\d.]+)", run.client(words, timeout=60).text)[1])}


def all_measurements():
    """In the order of the table."""
    return (
        Measurement(
            "redis-1",
            redis.Redis,
            measure_redis("redis-1", "-c", 1),
            (
                Row("redis-1-set", "redis-benchmark, 1 client, SET", "requests/s", 5, 10),
                Row("redis-1-get", "redis-benchmark, 1 client, GET", "requests/s", 5, 10),
            ),
        ),
        Measurement(
            "redis-50",
            redis.Redis,
            measure_redis("redis-50", "-c", 50),
            (
                Row("redis-50-set", "redis-benchmark, 50 clients, SET", "requests/s", 2.5, 4),
                Row("redis-50-get", "redis-benchmark, 50 clients, GET", "requests/s", 2.5, 4),
            ),
        ),
        Measurement(
            "redis-50-p16",
            redis.Redis,
            measure_redis("redis-50-p16", "-c", 50, "-P", 16),
            (
                Row("redis-50-p16-set", "redis-benchmark, 50 clients, -P 16, SET", "requests/s", 1.2, 2),
                Row("redis-50-p16-get", "redis-benchmark, 50 clients, -P 16, GET", "requests/s", 1.2, 2),
            ),
        ),
        Measurement(
            "memcached",
            memcached.Memcached,
            measure_memcached,
            (Row("memcached", "memcached, memcaslap, 8 connections", "operations/s", 2.5, 4),),
        ),
        Measurement(
            "nginx",
            nginx.Nginx,
            measure_nginx,
            (Row("nginx", "nginx, wrk, 1 KB file, 16 connections", "requests/s", 1.5, 3),),
        ),
        Measurement("iperf3", iperf3.Iperf3, measure_iperf3, (Row("iperf3", "iperf3, one stream", "bits/s", 1.5, 3),)),
        Measurement(
            "pgbench",
            postgresql.PostgreSql,
            measure_pgbench,
            (Row("pgbench", "pgbench -S, 4 clients", "transactions/s", 1.2, 2),),
        ),
    )
