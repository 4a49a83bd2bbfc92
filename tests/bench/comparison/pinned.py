"""Messages between two processes, each pinned to a CPU: kernel TCP, librsocket, and UCX over shared memory."""
from harness.processes import Failure
from harness.run import Run, free_port

from . import outputs
from .results import HIGHER, KERNEL, LOWER, OURS, SPINNING, UCX, Measurement, Row

TABLE = "pinned"
SIZES = (8, 32, 64, 256, 1024, 4096, 16384, 65536)
UCX_ENVIRONMENT = {"UCX_TLS": "posix,self", "UCX_WARN_UNUSED_ENV_VARS": "n"}
WAYS = {KERNEL: "kernel", SPINNING: "kernel-spinning", OURS: "ring"}


def size_text(size):
    return f"{size} B" if size < 1024 else f"{size // 1024} KiB"


def measure_by_pinned_bench(setting, *words):
    """The number that pinned_bench prints."""
    run = Run("peers-pinned")
    try:
        said = run.client([setting.bench_program("pinned_bench"), *setting.cpus, *words], timeout=60)
        return float(said.output)
    except Failure as failure:
        raise Failure("\n".join([str(failure), *run.last_lines()])) from failure
    finally:
        run.close()


def cache_line_ns(setting):
    """Time of a cache line from one of the two CPUs to the other."""
    return measure_by_pinned_bench(setting, "cache-line")


def measure_by_ucx(setting, test, size, iterations):
    """Figures of one ucx_perftest between the two CPUs."""
    run = Run("peers-ucx", server=UCX_ENVIRONMENT, client=UCX_ENVIRONMENT)
    try:
        port = free_port()
        server_cpu, client_cpu = setting.cpus
        server = run.serve(["ucx_perftest", "-p", port, "-c", server_cpu], port=port)
        words = ["-t", test, "-s", size, "-n", iterations, "-f", "-v"]
        said = run.client(["ucx_perftest", "127.0.0.1", "-p", port, "-c", client_cpu, *words], timeout=60)
        server.wait(10)
        return outputs.ucx_perftest(said.text)
    except Failure as failure:
        raise Failure("\n".join([str(failure), *run.last_lines()])) from failure
    finally:
        run.close()


def missing_pair(setting):
    """Why nothing can run on two pinned CPUs; empty when it can."""
    if len(set(setting.cpus)) < 2:
        return f"needs two CPUs, there is only CPU {setting.cpus[0]}"
    return setting.missing_parts("pinned_bench")


def missing(setting, side):
    return missing_pair(setting) or (setting.missing_programs("ucx_perftest") if side == UCX else "")


def latency(size):
    """One way of a message, half a round trip."""
    key = f"latency-{size}"

    def measure(setting, side):
        if side == UCX:
            # About half a second, as for the others.
            return {key: measure_by_ucx(setting, "tag_lat", size, 1_000_000 if size <= 1024 else 50_000)["latency_us"]}
        return {key: measure_by_pinned_bench(setting, "latency", WAYS[side], size)}

    row = Row(key, f"{size_text(size)} one way", "µs", LOWER)
    return Measurement(key, TABLE, (KERNEL, SPINNING, OURS, UCX), (row,), measure, missing)


def one_direction(name, row, size, iterations, value_of_message):
    """Messages in one direction; value_of_message turns a message per second into the row's unit."""

    def measure(setting, side):
        if side == UCX:
            rate = measure_by_ucx(setting, "tag_bw", size, iterations)["messages"]
        else:
            rate = measure_by_pinned_bench(setting, "rate", WAYS[side], size)
        return {row.key: rate * value_of_message}

    return Measurement(name, TABLE, (KERNEL, OURS, UCX), (row,), measure, missing)


def measurements():
    return [
        *map(latency, SIZES),
        one_direction(
            "messages-64",
            Row("messages-64", "64 B messages, one direction", "M/s", HIGHER),
            64,
            5_000_000,
            1e-6,
        ),
        one_direction(
            "throughput-65536",
            Row("throughput-65536", "64 KiB messages, one direction", "GB/s", HIGHER),
            65536,
            100_000,
            65536 / 1e9,
        ),
    ]
