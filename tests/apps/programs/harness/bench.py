"""Numbers: the same measurement over the kernel, over the library, and over the kernel with an idle library."""
import contextlib
import datetime
import os
import pathlib
import platform
import re
import statistics as median_of
import subprocess
import sys

from . import statistics
from .processes import Failure
from .run import Run

UNUSED_LEAST = 0.98  # wanted ratio of a library that is loaded but not in use
UNUSED_AIM = 1.00
BUSY_LEAST = 1.00  # under load the wish is only that nobody gets slower
PREFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1, ""))


def variants(library):
    """{name: environment of both sides}."""
    if library.path is None:
        return {"kernel": {}}
    return {"kernel": {}, "ours": library.environment(), "unused": library.environment(used=False)}


def measure_once(measurement, variant, environment, seconds):
    """{row key: value} of one run. Failure also when connections did not go the way of the variant."""
    run = Run(measurement.name, server=environment, client=environment)
    program = measurement.make()
    try:
        program.start(run)
        values = measurement.measure(program, run, seconds)
        run.end_servers()
        if variant == "ours":
            statistics.check_paths(run, "both", program)
        elif variant == "unused" and statistics.connections(run.errors_of("client")).ring:
            raise Failure("the library was in use although its settings forbid it")
        return values
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise Failure(f"{type(error).__name__}: {error}") from error
    finally:
        run.close()


@contextlib.contextmanager
def busy_processes(count):
    """count processes that compute for as long as the block runs."""
    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    Run.kept = frozenset(burner.pid for burner in burners)
    try:
        yield
    finally:
        Run.kept = frozenset()
        for burner in burners:
            burner.kill()
            burner.wait()


def take(measurements, library, *, runs, seconds, say):
    """{row key: {variant: [value of each run]}} and [failure text]. say(line) is told what goes on."""
    found, failures = {}, []
    for measurement in measurements:
        missing = measurement.make().missing()
        if missing:
            say(f"skip {measurement.name}: not installed: {', '.join(missing)}")
            continue
        for number in range(runs):
            order = list(variants(library).items())
            for variant, environment in order if number % 2 == 0 else order[::-1]:
                try:
                    values = measure_once(measurement, variant, environment, seconds)
                except Failure as failure:
                    failures.append(f"{measurement.name}, {variant}, run {number + 1}: {failure}")
                    say(f"not ok {failures[-1]}")
                    continue
                for key, value in values.items():
                    found.setdefault(key, {}).setdefault(variant, []).append(value)
                say(f"# {measurement.name}, {variant}: " + ", ".join(short(value) for value in values.values()))
    return found, failures


def summary(measurements, found, *, runs, seconds, busy):
    """What --json writes; a row has medians, all values, ratios (None: a side is missing), wanted ratios."""
    rows = []
    for row in (row for measurement in measurements for row in measurement.rows if row.key in found):
        values = found[row.key]
        medians = {variant: median_of.median(each) for variant, each in values.items()}
        kernel = medians.get("kernel")
        ratio = {
            variant: medians[variant] / kernel if kernel and variant in medians else None
            for variant in ("ours", "unused")
        }
        rows.append(
            {
                "key": row.key,
                "text": row.text,
                "unit": row.unit,
                "least": BUSY_LEAST if busy else row.least,
                "aim": row.aim,
                "medians": medians,
                "values": values,
                "ratio": ratio["ours"],
                "unused_ratio": ratio["unused"],
            }
        )
    return {
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "cpus": os.cpu_count(),
        "runs": runs,
        "seconds": seconds,
        "busy_processes": busy,
        "rows": rows,
    }


def machine():
    """ "AMD EPYC, Linux 6.1.0"."""
    model = re.search(r"^model name\s*: (.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.M)
    return f"{model[1] if model else platform.machine()}, Linux {platform.release()}"


def short(value):
    """Three digits and a prefix: 12.3k."""
    for factor, prefix in PREFIXES:
        if value >= factor:
            return f"{value / factor:.3g}{prefix}" if value / factor < 1000 else f"{value / factor:.0f}{prefix}"
    return f"{value:.3g}"


def times(ratio):
    return "–" if ratio is None else f"{ratio:.2f} ×"


def table(result):
    """Lines of Markdown."""
    busy = result["busy_processes"]
    beside = f", {busy} compute-bound processes beside them" if busy else ""
    yield (
        f"Medians of {result['runs']} runs in turns on {result['cpus']} CPUs ({result['machine']}), "
        f"{result['date']}{beside}; "
        f"both ends preloaded:"
    )
    yield ""
    yield "| program | kernel | librspreload | ratio | at least | aim | reached | loaded, not in use |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | :-: | ---: |"
    for row in result["rows"]:
        medians = row["medians"]
        kernel, ours = (
            f"{short(medians[side])} {row['unit']}" if side in medians else "–" for side in ("kernel", "ours")
        )
        reached = "–" if row["ratio"] is None else "✓" if row["ratio"] >= row["least"] else "✗"
        yield (
            f"| {row['text']} | {kernel} | {ours} | {times(row['ratio'])} | {row['least']:g} × | "
            f"{row['aim']:g} × | {reached} | "
            f"{times(row['unused_ratio'])} |"
        )
