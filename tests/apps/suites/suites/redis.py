"""redis: its own units, against Debian's redis-server of the same version."""
import re

from .bench import FAILED, PASSED, Suite, Test
from .debian_source import fetched, run_quietly

PROGRAMS = ("redis-server", "redis-cli", "redis-benchmark", "redis-check-aof", "redis-check-rdb", "redis-sentinel")
LEFT_OUT = re.compile(r"cluster|unit/tls|corrupt-dump|convert-|memefficiency|oom-score")
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
POINT = re.compile(r"^\[(ok|err|exception|ignore|skip)\]: (.*?)(?: \(\d+ ms\))?(?: in tests/.*)?$", re.M)


class Redis(Suite):
    name = "redis"
    title = "runtest: all units but those of clusters and files"
    needs = ("apt-get", "dpkg-source", "tclsh", "redis-server", "unshare", "ip")

    def prepare(self, work):
        self._source = fetched(work, "redis", self._link_programs)

    @staticmethod
    def _link_programs(source):
        for name in PROGRAMS:
            run_quietly(["ln", "-sf", f"/usr/bin/{name}", source / "src" / name], source, source.parent / "prepare.log")

    def tests(self):
        text = (self._source / "tests/test_helper.tcl").read_text()
        units = re.search(r"set ::all_tests \{(.*?)\}", text, re.S).group(1).split()
        return [
            Test(
                unit,
                ["tclsh", "tests/test_helper.tcl", "--clients", "1", "--timeout", "240", "--single", unit],
                self._source,
                timeout=300,
            )
            for unit in units
            if not LEFT_OUT.search(unit)
        ]

    def judge(self, status, text):
        parts = {"": PASSED if status == 0 else FAILED}
        for verdict, what in POINT.findall(ESCAPES.sub("", text)):
            if verdict in ("ok", "err", "exception"):
                parts[what[:100]] = PASSED if verdict == "ok" else FAILED
        return parts
