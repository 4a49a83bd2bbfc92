#!/usr/bin/env python3
"""tests/bench/peers: what it reads from programs, medians, goals, tables and plots. Nothing is measured."""
import pathlib
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

sys.dont_write_bytecode = True
TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "bench"), str(TESTS / "apps/programs")]

from comparison import costs, goals, outputs, pinned, plots, programs, svg, tables  # noqa: E402
from comparison.results import HIGHER, KERNEL, LOWER, OURS, REMARK, UCX  # noqa: E402
from comparison.results import CannotRun, Measurement, Results, Row, rows_of, take  # noqa: E402
from harness.processes import Failure  # noqa: E402

UCX_OUTPUT = """\
iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr
200000,0.115,0.121,0.126,483.24,483.24,7917478,7917479
"""
REDIS_OUTPUT = """\
 GET: rps=0.0 (overall: 0.0) avg_msec=-nan (overall: -nan)\r====== GET ======
  3000 requests completed in 0.16 seconds
  50 parallel clients

Latency by percentile distribution:
0.000% <= 0.343 milliseconds (cumulative count 2)
50.000% <= 1.047 milliseconds (cumulative count 1502)
99.219% <= 11.791 milliseconds (cumulative count 2977)
99.805% <= 12.079 milliseconds (cumulative count 2995)
99.902% <= 12.151 milliseconds (cumulative count 2998)
100.000% <= 12.287 milliseconds (cumulative count 3000)

Cumulative distribution of latencies:
99.960% <= 5.103 milliseconds (cumulative count 2861)

Summary:
  throughput summary: 18987.34 requests per second
  latency summary (msec):
          avg       min       p50       p95       p99       max
        1.589     0.336     1.039     4.751    11.511    12.287
"""
WRK_OUTPUT = """\
Running 2s test @ http://127.0.0.1:12345/small
  2 threads and 16 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency   312.06us  512.20us  11.27ms   95.45%
  Latency Distribution
     50%  243.00us
     75%  310.00us
     99%    2.31ms
  118233 requests in 2.10s, 142.74MB read
Requests/sec:  56303.62
"""
PERF_OUTPUT = """\
73603,,raw_syscalls:sys_enter,516823187,100.00,,
8127,,syscalls:sys_enter_sendto,516823187,100.00,,
0,,syscalls:sys_enter_futex,516823187,100.00,,
"""
INFO_REPLY = "# Server\r\nredis_version:7.0.15\r\nconnected_clients:1001\r\ntotal_commands_processed:6396\r\n"


class Outputs(unittest.TestCase):
    def test_ucx_perftest_tells_the_overall_latency_and_rate(self):
        self.assertEqual(outputs.ucx_perftest(UCX_OUTPUT), {"latency_us": 0.126, "messages": 7917479})

    def test_redis_benchmark_tells_the_rate_and_percentiles(self):
        # 99.9 is taken from the distribution by percentile, not from the one by time.
        self.assertEqual(
            outputs.redis_benchmark(REDIS_OUTPUT), {"rate": 18987.34, "p50": 1.039, "p99": 11.511, "p99.9": 12.151}
        )

    def test_a_percentile_is_the_first_that_is_high_enough(self):
        distribution = [(100.0, 9.0), (50.0, 1.0), (99.219, 3.0)]
        self.assertEqual(outputs.percentile(distribution, 50), 1.0)
        self.assertEqual(outputs.percentile(distribution, 99), 3.0)
        self.assertEqual(outputs.percentile(distribution, 99.9), 9.0)
        with self.assertRaises(ValueError):
            outputs.percentile([(50.0, 1.0)], 99)

    def test_wrk_tells_the_rate_and_a_percentile_in_milliseconds(self):
        self.assertEqual(outputs.wrk(WRK_OUTPUT), {"rate": 56303.62, "p99": 2.31})
        self.assertAlmostEqual(outputs.wrk(WRK_OUTPUT.replace("2.31ms", "310.00us"))["p99"], 0.31)
        with self.assertRaises(ValueError):
            outputs.wrk(WRK_OUTPUT + "  Socket errors: connect 0, read 3, write 0, timeout 0\n")

    def test_perf_tells_the_count_of_each_event(self):
        counts = {"raw_syscalls:sys_enter": 73603, "syscalls:sys_enter_sendto": 8127, "syscalls:sys_enter_futex": 0}
        self.assertEqual(outputs.perf_counts(PERF_OUTPUT), counts)
        with self.assertRaises(ValueError):
            outputs.perf_counts(PERF_OUTPUT.replace("8127", "<not supported>"))

    def test_redis_tells_its_counters(self):
        self.assertEqual(
            outputs.redis_info(INFO_REPLY), {"connected_clients": 1001, "total_commands_processed": 6396}
        )

    def test_what_is_not_understood_is_an_error(self):
        for parse in (outputs.ucx_perftest, outputs.redis_benchmark, outputs.wrk, outputs.perf_counts):
            with self.assertRaises(ValueError):
                parse("connection refused")


def measurement(values, missing=lambda setting, side: ""):
    """A measurement "m" of one row "m" in µs. values: {side: iterator of figures, or of exceptions}."""

    def measure(_setting, side):
        value = next(values[side])
        if isinstance(value, Exception):
            raise value
        return {"m": value}

    return Measurement("m", "pinned", tuple(values), (Row("m", "m", "µs", LOWER),), measure, missing)


def results_of(figures):
    """Results with {row key: {side: figure}}; lower is better, all in the table "pinned"."""
    results = Results(figures)
    results.cpus = (0, 1)
    for key, sides in figures.items():
        better = HIGHER if key.endswith("-rate") else LOWER
        one = Measurement(key, "pinned", tuple(sides), (Row(key, key, "µs", better),), None, None)
        values = {key: {side: [figure] for side, figure in sides.items()}}
        results.replace(key, rows_of(one, values, runs=1, cache_line_ns=50.0), [])
    return results


class Taking(unittest.TestCase):
    def test_sides_take_turns_and_the_median_counts(self):
        order = []

        def measure(_setting, side):
            order.append(side)
            return {"m": float(len(order))}

        both = Measurement("m", "pinned", (KERNEL, OURS), (Row("m", "m", "µs", LOWER),), measure, lambda *_: "")
        values, reasons = take(both, None, 3, lambda line: None)
        self.assertEqual(order, [KERNEL, OURS, OURS, KERNEL, KERNEL, OURS])
        self.assertEqual(reasons, [])
        self.assertEqual(rows_of(both, values, runs=3, cache_line_ns=None)[0]["medians"], {KERNEL: 4.0, OURS: 3.0})

    def test_a_side_that_is_not_installed_is_left_out_with_the_reason(self):
        told = []
        one = measurement(
            {OURS: iter([1.0]), UCX: iter([])},
            lambda setting, side: "not installed: apt-get install ucx-utils" if side == UCX else "",
        )
        values, reasons = take(one, None, 1, told.append)
        self.assertEqual(values, {"m": {OURS: [1.0]}})
        self.assertEqual(reasons, ["m, UCX: not installed: apt-get install ucx-utils"])
        self.assertIn(f"skip {reasons[0]}", told)

    def test_what_failed_in_one_run_counts_in_the_others(self):
        one = measurement({OURS: iter([1.0, Failure("it ended"), 5.0]), UCX: iter([CannotRun("no memory")] * 3)})
        values, reasons = take(one, None, 3, lambda line: None)
        self.assertEqual(values, {"m": {OURS: [1.0, 5.0]}})
        self.assertIn("m, ringsock, run 2: failed: it ended", reasons)
        self.assertIn("m, UCX: no memory", reasons)

    def test_a_remark_is_kept_beside_the_value(self):
        one = Measurement(
            "m",
            "pinned",
            (OURS,),
            (Row("m", "m", "µs", LOWER),),
            lambda *_: {"m": 1.0, REMARK: "3 of 50 connections by kernel TCP"},
            lambda *_: "",
        )
        values, reasons = take(one, None, 1, lambda line: None)
        self.assertEqual(values, {"m": {OURS: [1.0]}})
        self.assertEqual(reasons, ["m, ringsock, run 1: 3 of 50 connections by kernel TCP"])

    def test_what_was_saved_is_loaded_and_measurements_are_replaced(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "results.json"
            results_of({"latency-8": {OURS: 1.0}, "latency-64": {OURS: 2.0}}).save(path)
            results = Results(["latency-8", "latency-64"])
            results.load(path)
        newer = results_of({"latency-8": {OURS: 3.0}})
        results.replace("latency-8", newer.rows, [])
        self.assertEqual([row["key"] for row in results.rows], ["latency-8", "latency-64"])
        self.assertEqual(results.median("latency-8", OURS), 3.0)
        self.assertIsNone(results.median("latency-8", KERNEL))


def verdicts(results):
    return {line[0]: line[1:] for line in tables.goal_rows(results)}


class Goals(unittest.TestCase):
    def test_a_figure_reaches_nothing_the_least_or_the_aim(self):
        for rate, reached in ((0.5, "no"), (0.6, "yes"), (0.8, "aim")):
            results = results_of({"redis-50-rate": {OURS: 100.0}, "redis-1000-rate": {OURS: 100.0 * rate}})
            self.assertEqual(verdicts(results)["redis GET, rate at 1,000 clients / rate at 50"][-1], reached)

    def test_where_lower_is_better_a_lower_figure_reaches(self):
        for ours, reached in ((1.1, "no"), (1.0, "yes"), (0.7, "aim")):
            results = results_of({"latency-64": {OURS: ours, UCX: 1.0}})
            self.assertEqual(verdicts(results)["64 B one way, ours / UCX"][-1], reached)

    def test_a_goal_without_figures_is_left_out(self):
        self.assertNotIn("8 B one way, ours / UCX", verdicts(results_of({"latency-64": {OURS: 1.0, UCX: 1.0}})))
        self.assertIsNone(tables.goal_rows(results_of({"m": {OURS: 1.0}})))

    def test_each_goal_compares_rows_that_are_measured(self):
        class Recorder:
            def __init__(self):
                self.asked = set()

            def median(self, key, side):
                self.asked.add((key, side))

        measured = {
            (row.key, side)
            for each in pinned.measurements() + programs.measurements() + costs.measurements()
            for row in each.rows
            for side in each.sides
        }
        recorder = Recorder()
        for goal in goals.GOALS:
            goal.ratio(recorder)
        self.assertEqual(recorder.asked - measured, set())


class Tables(unittest.TestCase):
    def test_a_row_has_each_side_and_how_many_times_better(self):
        results = results_of({"latency-64": {KERNEL: 20.0, OURS: 0.5, UCX: 0.25}})
        lines = tables.table_rows(results, "pinned", (KERNEL, OURS, UCX), (KERNEL, UCX))
        self.assertEqual(lines[1], ["latency-64", "20 µs", "0.5 µs", "0.25 µs", "40 ×", "0.5 ×"])

    def test_a_missing_side_leaves_its_cells_empty(self):
        lines = tables.table_rows(results_of({"m": {OURS: 0.5}}), "pinned", (KERNEL, OURS), (KERNEL,))
        self.assertEqual(lines[1], ["m", "–", "0.5 µs", "–"])

    def test_the_time_of_a_cache_line_is_told_as_a_range_when_it_changed(self):
        results = results_of({"a": {OURS: 1.0}, "b": {OURS: 1.0}})
        self.assertEqual(tables.cache_line_text(results), "50 ns")
        results.rows[1]["cache_line_ns"] = 211.0
        self.assertEqual(tables.cache_line_text(results), "50 to 211 ns")

    def test_markdown_has_as_many_cells_in_each_line(self):
        results = results_of({"latency-64": {OURS: 1.0, UCX: 2.0}})
        lines = [line for line in tables.as_markdown(results) if line.startswith("|")]
        self.assertEqual({line.count("|") for line in lines[:3]}, {8})
        self.assertEqual({line.count("|") for line in lines[3:]}, {6})


class Plots(unittest.TestCase):
    def test_ticks_cover_the_values(self):
        self.assertEqual(svg.linear_ticks(100), [0, 20, 40, 60, 80, 100])
        self.assertEqual(svg.linear_ticks(0.7), [0, 0.2, 0.4, 0.6000000000000001, 0.8])
        self.assertEqual(svg.log_ticks(0.2, 30), [0.1, 1, 10, 100])
        self.assertEqual(svg.log_ticks(1, 1), [1, 10])
        for highest in (0.001, 0.9, 1, 5.5, 61, 999, 1001, 774_000):
            ticks = svg.linear_ticks(highest)
            self.assertGreaterEqual(ticks[-1], highest)
            self.assertIn(len(ticks), range(3, 9), highest)

    def test_a_scale_maps_its_ends(self):
        linear, logarithmic = svg.scale(0, 10, 100, 200, False), svg.scale(1, 100, 100, 0, True)
        self.assertEqual((linear(0), linear(5), linear(10)), (100, 150, 200))
        self.assertEqual((logarithmic(1), logarithmic(10), logarithmic(100)), (100, 50, 0))

    def test_the_page_is_well_formed_and_draws_every_point(self):
        results = results_of(
            {
                "latency-8": {OURS: 0.1, KERNEL: 20.0, UCX: 0.2},
                "latency-64": {OURS: 0.2, KERNEL: 21.0},
                "redis-50-rate": {OURS: 700e3, KERNEL: 80e3},
                "redis-50-p50": {OURS: 0.05, KERNEL: 0.6},
                "redis-50-p99.9": {OURS: 0.2, KERNEL: 2.0},
            }
        )
        results.machine = "a <machine> & more"
        root = xml.etree.ElementTree.fromstring(plots.as_svg(results))
        name = "{http://www.w3.org/2000/svg}"
        self.assertEqual(len(root.findall(f"{name}g")), 3)
        self.assertEqual(len(root.findall(f".//{name}circle")), 11)
        self.assertEqual(len(root.findall(f".//{name}polyline")), 7)
        self.assertIn("<svg ", plots.as_html(results))

    def test_without_figures_there_is_nothing_to_draw(self):
        with self.assertRaises(ValueError):
            plots.as_svg(results_of({"m": {OURS: 1.0}}))


class Command(unittest.TestCase):
    """The script itself, without a build and without measuring."""

    def peers(self, *words):
        script = TESTS / "bench/peers"
        return subprocess.run([sys.executable, script, *words], capture_output=True, text=True, timeout=60)

    def test_it_lists_measurements_and_says_what_is_missing(self):
        with tempfile.TemporaryDirectory() as folder:
            said = self.peers("--list", "--build", folder)
        self.assertEqual(said.returncode, 0)
        self.assertIn("latency-64 ", said.stdout)
        self.assertIn("not built: ", said.stdout)

    def test_without_a_build_it_says_in_one_line_what_builds_it(self):
        with tempfile.TemporaryDirectory() as folder:
            stored = pathlib.Path(folder) / "results.json"
            said = self.peers("--build", folder, "--json", stored)
            self.assertFalse(stored.exists())
        self.assertEqual((said.returncode, said.stdout), (1, ""))
        self.assertRegex(said.stderr, r"\Apeers: not built: .*/librspreload\.so, .*\(\./check gcc builds all\)\n\Z")

    def test_only_selects_by_part_or_pattern(self):
        for pattern, wanted in (("nginx", ["nginx-16", "nginx-256"]), ("redis-*000", ["redis-1000", "redis-4000"])):
            lines = self.peers("--list", "--only", pattern).stdout.splitlines()
            self.assertEqual([line.split()[0] for line in lines if not line.startswith(" ")], wanted)
        said = self.peers("--list", "--only", "nobody")
        self.assertEqual(said.returncode, 2)
        self.assertIn("'nobody'", said.stderr)

    def test_a_report_shows_what_was_kept(self):
        with tempfile.TemporaryDirectory() as folder:
            stored, page = pathlib.Path(folder) / "results.json", pathlib.Path(folder) / "page.html"
            results_of({"latency-64": {OURS: 0.5, UCX: 1.0}}).save(stored)
            said = self.peers("--report", "--json", stored, "--plots", page)
            self.assertEqual((said.returncode, said.stderr), (0, ""))
            self.assertIn("64 B one way, ours / UCX", said.stdout)
            self.assertIn("<svg ", page.read_text())
            self.assertEqual(self.peers("--report", "--json", pathlib.Path(folder) / "none").returncode, 2)


if __name__ == "__main__":
    unittest.main()
