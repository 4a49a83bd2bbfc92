"""libuv: its own test program, built from Debian's source."""
import os
import re

from .bench import FAILED, PASSED, SKIPPED, Suite, Test
from .debian_source import fetched, run_quietly

NOT_NETWORK = re.compile(r"^(fs_|threadpool|thread_|fork_fs|condvar|tty|process_title|get_|barrier|timer|idna|utf8|strscpy)")


class Libuv(Suite):
    name = "libuv"
    title = "uv_run_tests: TCP, UDP, pipes, polling, processes"
    needs = ("apt-get", "dpkg-source", "cmake", "make", "cc", "unshare", "ip")

    limits = dict.fromkeys(("poll_oob", "tcp_oob"), "a ring has no urgent data") | {
        "emfile": "the highest number of a full descriptor table is the library's"
    }

    def prepare(self, work):
        self._source = fetched(work, "libuv1", lambda source: self._build(source, work / "libuv1.log"))
        self._program = self._source / "build" / "uv_run_tests"

    @staticmethod
    def _build(source, log):
        build = source / "build"
        build.mkdir()
        run_quietly(["cmake", "-DBUILD_TESTING=ON", "-DCMAKE_BUILD_TYPE=Debug", ".."], build, log)
        run_quietly(["make", f"-j{os.cpu_count()}", "uv_run_tests"], build, log)

    def tests(self):
        # "name", or "name (helpers: other ...)"
        listed = re.findall(r"^(\w+)", os.popen(f"UV_RUN_AS_ROOT=1 '{self._program}' --list").read(), re.M)
        return [
            Test(name, [self._program, name], self._source, {"UV_RUN_AS_ROOT": "1", "UV_TEST_TIMEOUT_MULTIPLIER": "2"})
            for name in listed
            if not NOT_NETWORK.search(name)
        ]

    def judge(self, status, text):
        if re.search(r"^ok .*# SKIP", text, re.M):
            return {"": SKIPPED}
        return {"": PASSED if status == 0 and re.search(r"^ok ", text, re.M) else FAILED}


class LibuvUdp(Libuv):
    name = "libuv-udp"
    title = "uv_run_tests over libvma: UDP, polling, fork"
    uses_udp = True
    limits = {}

    def tests(self):
        return [test for test in super().tests() if re.search(r"udp|poll|fork|getaddr|loop_", test.name)]
