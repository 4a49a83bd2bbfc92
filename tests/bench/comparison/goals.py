"""The goals that the figures are compared with."""
import dataclasses
from typing import Callable

from .results import HIGHER, KERNEL, LOWER, OURS, UCX


@dataclasses.dataclass(frozen=True)
class Goal:
    """ratio(results): the figure, None when something of it was not measured. It should be `least`, and is wanted to be
    `aim`, or better than that."""

    text: str
    ratio: Callable
    least: float
    aim: float
    better: str
    unit: str = ""

    def reaches(self, figure, bound):
        return figure >= bound if self.better == HIGHER else figure <= bound


def _between(key, side, other_key, other_side):
    """One median divided by another."""

    def ratio(results):
        figure, other = results.median(key, side), results.median(other_key, other_side)
        return None if figure is None or not other else figure / other

    return ratio


def _ours_over(side, key):
    return _between(key, OURS, key, side)


def _ours_alone(key):
    return lambda results: results.median(key, OURS)


GOALS = (
    Goal(
        "redis GET, rate at 1,000 clients / rate at 50",
        _between("redis-1000-rate", OURS, "redis-50-rate", OURS),
        0.6,
        0.8,
        HIGHER,
    ),
    Goal(
        "redis GET, rate at 4,000 clients / rate at 50",
        _between("redis-4000-rate", OURS, "redis-50-rate", OURS),
        0.5,
        0.7,
        HIGHER,
    ),
    Goal("redis GET, 4,000 clients, ours / kernel", _ours_over(KERNEL, "redis-4000-rate"), 5, 8, HIGHER),
    Goal("nginx, wrk, 1 KB, 256 connections, ours / kernel", _ours_over(KERNEL, "nginx-256-rate"), 2.3, 3, HIGHER),
    Goal("system calls that send or wake, per request, 1,000 busy clients", _ours_alone("doorbells"), 0.02, 0, LOWER),
    Goal(
        "1,000 busy of 10,000 connections, rate / that of 1,000 alone",
        _between("busy-1000-of-10000", OURS, "busy-1000-of-1000", OURS),
        0.8,
        0.95,
        HIGHER,
    ),
    Goal("p99.9, redis, 50 clients, ours / kernel", _ours_over(KERNEL, "redis-50-p99.9"), 1, 0.3, LOWER),
    Goal("p99.9, redis, 1,000 clients, ours / kernel", _ours_over(KERNEL, "redis-1000-p99.9"), 1, 0.3, LOWER),
    Goal("memory of an idle connection, both ends", _ours_alone("memory-idle"), 24, 8, LOWER, "KiB"),
    Goal("64 B one way, ours / UCX", _ours_over(UCX, "latency-64"), 1, 0.8, LOWER),
    Goal("8 B one way, ours / UCX", _ours_over(UCX, "latency-8"), 0.9, 0.6, LOWER),
    Goal("32 B one way, ours / UCX", _ours_over(UCX, "latency-32"), 0.9, 0.6, LOWER),
    Goal("64 B messages/s, ours / UCX", _ours_over(UCX, "messages-64"), 1.5, 2, HIGHER),
    Goal("64 KiB GB/s, ours / UCX", _ours_over(UCX, "throughput-65536"), 2, 2.5, HIGHER),
    Goal("connect, 1 B each way, close, ours / kernel", _ours_over(KERNEL, "short-connections"), 1.2, 2, HIGHER),
    Goal("the same beside 2 computing processes", _ours_over(KERNEL, "short-connections-beside-2"), 1, 1.5, HIGHER),
    Goal("CPU per request at 1,000 requests/s, ours / kernel", _ours_over(KERNEL, "cpu-per-request"), 1.3, 1, LOWER),
)
