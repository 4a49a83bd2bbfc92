"""Python: its standard library's tests of what uses sockets, as Debian packages them. Nothing is fetched."""
import pathlib
import re

from harness.processes import Failure

from .bench import FAILED, PASSED, SKIPPED, Suite, Test

MODULES = """
    test_socket test_socketserver test_selectors test_select test_poll test_epoll test_ssl test_ftplib test_smtplib test_imaplib
    test_poplib test_nntplib test_telnetlib test_httplib test_httpservers test_urllib test_urllib2_localnet test_xmlrpc
    test_asyncore test_asynchat test_smtpd test_wsgiref test_signal test_fork1 test_subprocess test_multiprocessing_fork
    test_multiprocessing_spawn test_multiprocessing_forkserver test_logging test_eintr test_os test_posix test_sched
    test_asyncio.test_events test_asyncio.test_base_events test_asyncio.test_streams test_asyncio.test_sslproto
    test_asyncio.test_sock_lowlevel test_asyncio.test_sendfile test_asyncio.test_server test_asyncio.test_selector_events
    test_asyncio.test_subprocess test_asyncio.test_unix_events test_asyncio.test_buffered_proto test_asyncio.test_ssl
""".split()
WITHOUT_VSOCK = "import socket, unittest; del socket.AF_VSOCK; unittest.main(module=None)"
POINT = re.compile(r"^(\w+ \([\w.]+\))(?:\n[^\n]*)? \.\.\. (ok|FAIL|ERROR|skipped)", re.M)
UNFINISHED = re.compile(r"^(?:FAIL|ERROR): (\w+ \([\w.]+\))", re.M)


class Python(Suite):
    name = "python"
    title = "test_socket, test_asyncio, test_ssl, http, ftp, smtp, multiprocessing, subprocess ..."
    needs = ("/usr/bin/python3", "unshare", "ip")
    limits = {
        "test_ftplib": "a ring has no urgent data (ABOR)",
        "test_asyncore": "a ring has no urgent data (handle_expt)",
    }

    def prepare(self, work):
        if not list(pathlib.Path("/usr/lib").glob("python3.*/test/test_socket.py")):
            raise Failure("not installed: libpython3-testsuite")

    def tests(self):
        # VSOCK finds nobody to talk to, and waits for ever.
        words = ["/usr/bin/python3", "-B", "-c", WITHOUT_VSOCK, "-v"]
        return [
            Test(module, [*words, f"test.{module}"], pathlib.Path("/tmp"), {"PYTHONDONTWRITEBYTECODE": "1"}, timeout=480)
            for module in MODULES
        ]

    def judge(self, status, text):
        parts = {"": PASSED if status == 0 else FAILED}
        for name, verdict in POINT.findall(text):
            parts[name] = PASSED if verdict == "ok" else SKIPPED if verdict == "skipped" else FAILED
        parts |= dict.fromkeys(UNFINISHED.findall(text), FAILED)
        return parts
