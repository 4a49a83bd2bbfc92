"""nginx, two workers and sendfile, with curl, wrk and ab."""
import os
import re

from harness.processes import Failure, wait_until
from harness.program import Program
from harness.run import digest, free_port, must_equal

CONFIGURATION = """
daemon off;
{user}
worker_processes 2;
pid {folder}/nginx.pid;
error_log stderr warn;
events {{ worker_connections 4096; }}
http {{
  access_log off;
  sendfile on;
  tcp_nopush on;
  keepalive_requests 1000000;
  client_max_body_size 64m;
  {scratch}
  server {{
    listen 127.0.0.1:{port};
    listen [::1]:{port};
    root {folder}/www;
  }}
}}
"""
SCRATCH = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


def make_files(run):
    """The folder www with the files small (1 KB), page (30 kB), big (5 MB) of random bytes, endless (1 TB) of zeros."""
    www = run.path("www")
    www.mkdir()
    for name, size in (("small", 1024), ("page", 30_001), ("big", 5_000_011)):
        (www / name).write_bytes(os.urandom(size))
    with open(www / "endless", "wb") as sparse:
        sparse.truncate(1 << 40)


def start_nginx(run, port):
    """nginx on 127.0.0.1 and ::1, with the files of make_files()."""
    make_files(run)
    configuration = CONFIGURATION.format(
        user="user nobody nogroup;" if os.geteuid() == 0 else "",
        folder=run.folder,
        port=port,
        scratch=" ".join(f"{name}_temp_path {run.folder}/{name};" for name in SCRATCH),
    )
    run.serve(["nginx", "-e", "stderr", "-c", run.write("nginx.conf", configuration)], port=port)


def fetch(run, port, name, *words, address="127.0.0.1", **options):
    return run.client(
        ["curl", "-sS", "--no-progress-meter", "--fail", "--noproxy", "*", *words, f"http://{address}:{port}/{name}"],
        **options,
    )


def check_fetches(run, port, addresses=("127.0.0.1", "[::1]")):
    """curl gets every file whole, also many over one connection and many at once."""
    for address in addresses:
        for name in ("small", "page", "big"):
            got = fetch(run, port, name, address=address).output
            must_equal(digest(got), digest(run.path("www") / name), f"{name} over {address}")
    reused = fetch(run, port, "page?[1-30]", "-o", f"{run.folder}/reused_#1").status
    parallel = fetch(
        run, port, "page?[1-30]", "--parallel", "--parallel-max", "10", "-o", f"{run.folder}/parallel_#1"
    ).status
    must_equal((reused, parallel), (0, 0), "curl's status")
    for number in range(1, 31):
        for kind in ("reused", "parallel"):
            must_equal(digest(run.path(f"{kind}_{number}")), digest(run.path("www") / "page"), f"{kind} fetch {number}")


def check_wrk(run, port, name="small"):
    said = run.client(["wrk", "-t", 2, "-c", 16, "-d", "1s", f"http://127.0.0.1:{port}/{name}"]).text
    if "Socket errors" in said or "Non-2xx" in said or int(re.search(r"(\d+) requests in", said)[1]) == 0:
        raise Failure(f"wrk saw errors or nothing at all: {said}")


class Nginx(Program):
    name = "nginx"
    title = "nginx (2 workers, sendfile), curl, wrk"
    crowd = 1000
    needs = ("nginx", "curl", "wrk")

    def start(self, run):
        self.port = free_port()
        start_nginx(run, self.port)

    def exchange(self, run):
        check_fetches(run, self.port)
        check_wrk(run, self.port)

    def endless(self, run):
        part = run.path("part")
        client = run.begin(
            [
                "curl",
                "-sS",
                "--noproxy",
                "*",
                "--limit-rate",
                "20M",
                "-o",
                part,
                f"http://127.0.0.1:{self.port}/endless",
            ]
        )
        wait_until(lambda: part.exists() and part.stat().st_size > 0, "curl receives")
        return client


class ApacheBench(Nginx):
    name = "ab"
    title = "ab against nginx"
    needs = ("nginx", "ab")

    def exchange(self, run):
        for words in ((), ("-k",)):
            said = run.client(["ab", "-q", "-n", 1000, "-c", 10, *words, f"http://127.0.0.1:{self.port}/page"]).text
            for wanted in (
                r"Complete requests: +1000\b",
                r"Failed requests: +0\b",
                r"HTML transferred: +30001000 bytes",
            ):
                if not re.search(wanted, said):
                    raise Failure(f"ab does not say {wanted!r}:\n{said}")

    def endless(self, run):
        client = run.begin(["ab", "-n", 50_000_000, "-c", 8, "-k", f"http://127.0.0.1:{self.port}/small"])
        wait_until(client.is_busy, "ab transfers")
        return client
