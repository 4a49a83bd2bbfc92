"""Figures read from what programs print. ValueError when a figure is not there."""
import re

UNITS_MS = {"us": 1e-3, "ms": 1.0, "s": 1e3, "m": 6e4}


def _find(pattern, text, what):
    found = re.search(pattern, text, re.M)
    if found is None:
        raise ValueError(f"no {what} in: {text[-300:]!r}")
    return found


def ucx_perftest(text):
    """The line of `ucx_perftest -f -v`: {"latency_us": one way, "messages": per second}."""
    lines = [line.split(",") for line in text.splitlines() if re.match(r"\d+(,[\d.]+){7}$", line)]
    if not lines:
        raise ValueError(f"no line of figures in: {text[-300:]!r}")
    figures = lines[-1]
    return {"latency_us": float(figures[3]), "messages": float(figures[7])}


def percentile(distribution, wanted):
    """The value of [(percent, value)] at the first percent that is at least `wanted`."""
    reached = [(percent, value) for percent, value in distribution if percent >= wanted]
    if not reached:
        raise ValueError(f"no percentile of {wanted} or more")
    return min(reached)[1]


def redis_benchmark(text):
    """One test of `redis-benchmark --precision 3`: {"rate": requests/s, "p50", "p99", "p99.9": ms}."""
    # A progress line of the same test ends with a carriage return.
    text = text.replace("\r", "\n")
    rate = float(_find(r"throughput summary: ([\d.]+) requests per second", text, "throughput")[1])
    by_percent = text.partition("Latency by percentile distribution:")[2].partition("Cumulative distribution")[0]
    steps = re.findall(r"([\d.]+)% <= ([\d.]+) milliseconds", by_percent)
    distribution = [(float(percent), float(value)) for percent, value in steps]
    # The summary has these two without the steps of the distribution.
    columns = _find(r"avg +min +p50 +p95 +p99 +max\s+([\d. ]+)", text, "latency summary")[1].split()
    return {
        "rate": rate,
        "p50": float(columns[2]),
        "p99": float(columns[4]),
        "p99.9": percentile(distribution, 99.9),
    }


def wrk(text):
    """`wrk --latency`: {"rate": requests/s, "p99": ms}."""
    if "Socket errors" in text or "Non-2xx" in text:
        raise ValueError(f"wrk saw errors: {text[-300:]!r}")
    latency = _find(r"^ +99% +([\d.]+)(us|ms|s|m)$", text, "99th percentile")
    rate = _find(r"^Requests/sec: +([\d.]+)", text, "rate")
    return {"rate": float(rate[1]), "p99": float(latency[1]) * UNITS_MS[latency[2]]}


def perf_counts(text):
    """`perf stat -x,`: {name of the event: count}. ValueError when an event could not be counted."""
    counts = {}
    for line in text.splitlines():
        columns = line.split(",")
        if len(columns) > 2 and ":" in columns[2]:
            if not columns[0].isdigit():
                raise ValueError(f"perf: {columns[2]}: {columns[0]}")
            counts[columns[2]] = int(columns[0])
    if not counts:
        raise ValueError(f"no counts in: {text[-300:]!r}")
    return counts


def redis_info(text):
    """The reply to INFO: {name: value}, of the values that are whole numbers."""
    return {name: int(value) for name, value in re.findall(r"^(\w+):(\d+)\r?$", text, re.M)}
