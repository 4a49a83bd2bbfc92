"""node: its tests of what uses sockets, run by the node that is installed. A test of another version fails without the library, too."""
import re

from .bench import FAILED, PASSED, SKIPPED, Suite, Test
from .debian_source import fetched

NETWORK = re.compile(
    r"^test-(net|http|https|http2|tls|cluster|dgram|tcp|socket|child-process-(fork|send|pass|recv|fd|stdio|emfile)"
    r"|stream-pipeline|stream-base|listen|pipe|handle|zlib-from|domain-http|regress|force-repl|inspector-(port|ip|open|enabled)"
    r"|async-(hooks-http|wrap)|gc-(http|net|tls)|eventsource|fetch|worker-(http|message-port-transfer)|double-tls|tcp|vm-.*net"
    r"|debugger-(pid|address|launch)|diagnostics-channel-(http|net)|webstreams|abort.*|keep-alive|unhandled.*http)"
)
FOLDERS = ("parallel", "sequential", "pummel")
PUMMEL = re.compile(r"^test-(net|http|https|tls|keep-alive|stream-pipe-multi)")
FLAGS = re.compile(r"^// Flags:(.*)$", re.M)
TAKES_MINUTES = {"pummel/test-http-upload-timeout", "pummel/test-heapdump-http2"}

class Node(Suite):
    name = "node"
    title = "test/parallel, sequential and pummel: net, http, https, http2, tls, cluster, dgram, child processes"
    needs = ("apt-get", "dpkg-source", "node", "unshare", "ip")

    def prepare(self, work):
        self._source = fetched(work, "nodejs")

    def skipped(self, folder):
        """Names of tests that Debian or node itself leaves out on every system."""
        text = (self._source / "test" / folder / f"{folder}.status").read_text()
        everywhere = text.partition("[true]")[2].partition("\n[")[0]
        return set(re.findall(r"^(test-[\w-]+)\s*: *SKIP", everywhere, re.M))

    def tests(self):
        environment = {"NODE_TEST_DIR": "@FOLDER@"}
        found = []
        for folder in FOLDERS:
            skipped = self.skipped(folder)
            wanted = PUMMEL if folder == "pummel" else NETWORK
            for path in sorted((self._source / "test" / folder).glob("test-*.*js")):
                name = f"{folder}/{path.stem}"
                if wanted.search(path.stem) and path.stem not in skipped and name not in TAKES_MINUTES:
                    flags = [word for line in FLAGS.findall(path.read_text(errors="replace")) for word in line.split()]
                    found.append(Test(name, ["node", *flags, path], self._source, environment))
        return found

    def judge(self, status, text):
        if status == 0 and re.search(r"^1\.\.0 # Skipped", text, re.M):
            return {"": SKIPPED}
        return {"": PASSED if status == 0 else FAILED}


class NodeUdp(Node):
    name = "node-udp"
    title = "test/parallel and sequential over libvma: dgram"
    uses_udp = True

    def tests(self):
        return [test for test in super().tests() if "dgram" in test.name]
