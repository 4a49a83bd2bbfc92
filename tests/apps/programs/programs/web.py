"""Web servers and proxies: lighttpd, varnish, squid, stunnel, nghttpd, nginx with HTTP/2 and TLS, php-fpm, uvicorn, node."""
import os
import pathlib
import signal

from harness.processes import find_program, wait_until
from harness.program import Program
from harness.run import digest, free_port, must_equal, must_hold, ordinary_user

from . import nginx

BODY = ("-H", "Content-Type: application/octet-stream", "--data-binary")
PEERS = pathlib.Path(__file__).parent / "peers"


def make_certificate(run):
    """(certificate, key), signed by itself, for 127.0.0.1."""
    key, certificate = run.path("key.pem"), run.path("certificate.pem")
    words = ["-newkey", "rsa:2048", "-nodes", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    run.tool(["openssl", "req", "-x509", "-days", 2, *words, "-keyout", key, "-out", certificate])
    key.chmod(0o644)
    return certificate, key


class WebServer(nginx.Nginx):
    """What serves, or passes on, the files of nginx.make_files() on self.port of 127.0.0.1."""

    addresses = ("127.0.0.1",)

    def exchange(self, run):
        nginx.check_fetches(run, self.port, self.addresses)
        nginx.check_wrk(run, self.port)


class Lighttpd(WebServer):
    name = "lighttpd"
    title = "lighttpd, curl, wrk"
    crowd = 1000
    needs = ("lighttpd", "curl", "wrk")

    def start(self, run):
        self.port = free_port()
        nginx.make_files(run)
        lines = [
            f'server.document-root = "{run.folder}/www"',
            'server.bind = "127.0.0.1"',
            f"server.port = {self.port}",
            "server.max-keep-alive-requests = 1000000",
        ]
        run.serve(["lighttpd", "-D", "-f", run.write("lighttpd.conf", "\n".join(lines) + "\n")], port=self.port)


class H2o(WebServer):
    name = "h2o"
    title = "h2o, curl, wrk"
    crowd = 400
    needs = ("h2o", "curl", "wrk")
    silent = ("server",)  # ends by _exit(2)

    def start(self, run):
        self.port = free_port()
        nginx.make_files(run)
        text = (
            f"listen:\n  host: 127.0.0.1\n  port: {self.port}\nnum-threads: 2\n"
            f"hosts:\n  default:\n    paths:\n      /:\n        file.dir: {run.folder}/www\n"
        )
        run.serve(["h2o", "-c", run.write("h2o.conf", text)], port=self.port)


class Varnish(WebServer):
    name = "varnish"
    title = "varnish in front of nginx, curl, wrk"
    needs = ("varnishd", "nginx", "curl", "wrk")
    servers_talk = True
    kernel_because = "the child listens on a socket that its parent, which lives, has had since before"

    def start(self, run):
        behind, self.port = free_port(), free_port()
        nginx.start_nginx(run, behind)
        vcl = run.write(
            "default.vcl",
            f'vcl 4.1;\nbackend default {{ .host = "127.0.0.1"; .port = "{behind}"; }}\n'
            'sub vcl_recv { if (req.url == "/endless") { return (pipe); } }\n',
        )
        words = ["-F", "-j", "none", "-n", run.path("varnish"), "-a", f"127.0.0.1:{self.port}", "-T", "none", "-f", vcl]
        run.serve(["varnishd", *words, "-s", "malloc,64m", "-p", "vsl_space=1M"], port=self.port)


class Squid(WebServer):
    name = "squid"
    title = "squid as an accelerator of nginx, curl, wrk"
    crowd = 400
    needs = ("squid", "nginx", "curl", "wrk")
    servers_talk = True

    def start(self, run):
        behind, self.port = free_port(), free_port()
        nginx.start_nginx(run, behind)
        run.folder.chmod(0o777)
        lines = [
            f"http_port 127.0.0.1:{self.port} accel defaultsite=127.0.0.1 no-vhost",
            f"cache_peer 127.0.0.1 parent {behind} 0 no-query originserver no-digest name=nginx",
            "acl all_of_them src all",
            "http_access allow all_of_them",
            "cache_peer_access nginx allow all_of_them",
            "never_direct allow all_of_them",
            "cache deny all",
            "pinger_enable off",
            "access_log none",
            "cache_log stdio:/dev/stderr",
            f"pid_filename {run.folder}/squid.pid",
            f"coredump_dir {run.folder}",
            "shutdown_lifetime 1 seconds",
            "netdb_filename none",
            "icp_port 0",
        ]
        configuration = run.write("squid.conf", "\n".join(lines) + "\n")
        # It listens as another user than the one that opened the socket when it is started by root.
        run.serve(
            ["squid", "--foreground", "-N", "-n", "ringsock", "-f", configuration],
            port=self.port,
            user=ordinary_user(),
            errors_by_pipe=True,
        )


class Stunnel(WebServer):
    name = "stunnel"
    title = "stunnel (TLS) in front of nginx, curl"
    crowd = 400
    needs = ("stunnel", "nginx", "curl", "openssl")
    servers_talk = True

    def start(self, run):
        behind, self.port = free_port(), free_port()
        nginx.start_nginx(run, behind)
        self.certificate, key = make_certificate(run)
        lines = [
            "foreground = yes",
            "syslog = no",
            "pid =",
            "[web]",
            f"accept = 127.0.0.1:{self.port}",
            f"connect = 127.0.0.1:{behind}",
            f"cert = {self.certificate}",
            f"key = {key}",
        ]
        run.serve(["stunnel", run.write("stunnel.conf", "\n".join(lines) + "\n")], port=self.port)

    def fetch(self, name, *words):
        url = f"https://127.0.0.1:{self.port}/{name}"
        return ["curl", "-sS", "--no-progress-meter", "--fail", "--noproxy", "*", "--cacert", self.certificate, *words, url]

    def exchange(self, run):
        for name in ("small", "page", "big"):
            must_equal(digest(run.client(self.fetch(name)).output), digest(run.path("www") / name), name)
        words = ("--parallel", "--parallel-max", "10", "-o", f"{run.folder}/parallel_#1")
        run.client(self.fetch("page?[1-30]", *words))
        for number in range(1, 31):
            must_equal(digest(run.path(f"parallel_{number}")), digest(run.path("www") / "page"), f"fetch {number}")

    def endless(self, run):
        part = run.path("part")
        client = run.begin(self.fetch("endless", "--limit-rate", "20M", "-o", part))
        wait_until(lambda: part.exists() and part.stat().st_size > 0, "curl receives")
        return client


class Nghttp2(Stunnel):
    name = "nghttp2"
    title = "nghttpd (HTTP/2, TLS), nghttp, h2load, curl"
    crowd = 1000
    needs = ("nghttpd", "nghttp", "h2load", "curl", "openssl")
    servers_talk = False
    silent = ("server",)

    def start(self, run):
        self.port = free_port()
        nginx.make_files(run)
        self.certificate, key = make_certificate(run)
        words = ["-a", "127.0.0.1", "-d", run.path("www"), "-n", 2]
        run.serve(["nghttpd", *words, self.port, key, self.certificate], port=self.port)

    def exchange(self, run):
        super().exchange(run)
        got = run.client(["nghttp", f"https://127.0.0.1:{self.port}/big"]).output
        must_equal(digest(got), digest(run.path("www/big")), "what nghttp received")
        words = ["-n", 2000, "-c", 10, "-m", 10, "-t", 2]
        must_hold(run.client(["h2load", *words, f"https://127.0.0.1:{self.port}/page"]).text, " 2000 succeeded, 0 failed")


HTTP2 = """
daemon off;
{user}
worker_processes 2;
pid {folder}/nginx.pid;
error_log stderr warn;
events {{ worker_connections 4096; }}
http {{
  access_log off;
  {scratch}
  server {{
    listen 127.0.0.1:{port} ssl http2;
    ssl_certificate {certificate};
    ssl_certificate_key {key};
    root {folder}/www;
  }}
}}
"""


class NginxHttp2(Stunnel):
    name = "nginx-http2"
    title = "nginx (HTTP/2, TLS), curl, h2load"
    crowd = 1000
    needs = ("nginx", "curl", "h2load", "openssl")
    servers_talk = False

    def start(self, run):
        self.port = free_port()
        nginx.make_files(run)
        self.certificate, key = make_certificate(run)
        text = HTTP2.format(
            user="user nobody nogroup;" if os.geteuid() == 0 else "",
            folder=run.folder,
            port=self.port,
            certificate=self.certificate,
            key=key,
            scratch=" ".join(f"{name}_temp_path {run.folder}/{name};" for name in nginx.SCRATCH),
        )
        run.serve(["nginx", "-e", "stderr", "-c", run.write("nginx.conf", text)], port=self.port)

    def exchange(self, run):
        super().exchange(run)
        words = ["-n", 2000, "-c", 10, "-m", 10, "-t", 2]
        must_hold(run.client(["h2load", *words, f"https://127.0.0.1:{self.port}/page"]).text, " 2000 succeeded, 0 failed")


PHP = """<?php
if (isset($_GET['endless'])) { while (true) { echo str_repeat('x', 65536); flush(); } }
$body = file_get_contents('php://input');
echo hash('sha256', $body), ' ', strlen($body), "\\n", str_repeat('0123456789', (int)($_GET['times'] ?? 0));
"""
FASTCGI = """
daemon off;
{user}
worker_processes 2;
pid {folder}/nginx.pid;
error_log stderr crit;
events {{ worker_connections 4096; }}
http {{
  access_log off;
  client_max_body_size 64m;
  {scratch}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      fastcgi_pass 127.0.0.1:{behind};
      fastcgi_param REQUEST_METHOD $request_method;
      fastcgi_param QUERY_STRING $query_string;
      fastcgi_param CONTENT_LENGTH $content_length;
      fastcgi_param CONTENT_TYPE $content_type;
      fastcgi_param SCRIPT_FILENAME {folder}/index.php;
    }}
  }}
}}
"""


class PhpFpm(Program):
    name = "php-fpm"
    title = "php-fpm (4 workers) behind nginx by FastCGI, curl, ab"
    servers_talk = True

    def __init__(self):
        found = sorted(pathlib.Path("/usr/sbin").glob("php-fpm*"))
        self.fpm = str(found[-1]) if found else "php-fpm"
        self.needs = (self.fpm, "nginx", "curl", "ab")

    def start(self, run):
        behind, self.port = free_port(), free_port()
        run.write("index.php", PHP)
        lines = [
            "[global]",
            "error_log = /dev/stderr",
            "daemonize = no",
            "[www]",
            f"listen = 127.0.0.1:{behind}",
            "pm = static",
            "pm.max_children = 4",
            "pm.max_requests = 100",
        ]
        if os.geteuid() == 0:
            lines += ["user = nobody", "group = nogroup"]
        configuration = run.write("fpm.conf", "\n".join(lines) + "\n")
        run.serve([self.fpm, "-n", "-F", "-y", configuration], port=behind)
        text = FASTCGI.format(
            user="user nobody nogroup;" if os.geteuid() == 0 else "",
            folder=run.folder,
            port=self.port,
            behind=behind,
            scratch=" ".join(f"{name}_temp_path {run.folder}/{name};" for name in nginx.SCRATCH),
        )
        run.serve(["nginx", "-e", "stderr", "-c", run.write("nginx.conf", text)], port=self.port)

    def exchange(self, run):
        content = run.random_file("content", 3_000_001)
        url = f"http://127.0.0.1:{self.port}/"
        got = run.client(["curl", "-sS", "--fail", "--noproxy", "*", *BODY, f"@{content}", url]).output.split()
        must_equal(got[0].decode(), digest(content), "the sum of what php received")
        got = run.client(["curl", "-sS", "--fail", "--noproxy", "*", f"{url}?times=200000"]).output
        must_equal(digest(got.split(b"\n", 1)[1]), digest(b"0123456789" * 200_000), "what php sent")
        said = run.client(["ab", "-q", "-n", 600, "-c", 8, f"{url}?times=3000"]).text
        must_hold(said, "Complete requests:      600")
        must_hold(said, "Failed requests:        0")

    def endless(self, run):
        part = run.path("part")
        url = f"http://127.0.0.1:{self.port}/?endless=1"
        client = run.begin(["curl", "-sS", "--noproxy", "*", "--limit-rate", "20M", "-o", part, url])
        wait_until(lambda: part.exists() and part.stat().st_size > 0, "curl receives")
        return client

    def check_lost(self, finished):
        """nginx, when it lives a moment longer than php-fpm, takes that end for the end of the answer."""


class Uvicorn(Program):
    name = "uvicorn"
    title = "uvicorn (ASGI, asyncio), curl, ab"
    crowd = 1000
    needs = ("/usr/bin/python3", "curl", "ab")

    def missing(self):
        there = list(pathlib.Path("/usr/lib/python3/dist-packages").glob("uvicorn"))
        return super().missing() + ([] if there else ["uvicorn"])

    def start(self, run):
        self.port = free_port()
        words = ["--app-dir", PEERS, "--host", "127.0.0.1", "--port", self.port, "--log-level", "error", "asgi_sum:app"]
        run.serve(["/usr/bin/python3", "-B", "-m", "uvicorn", *words], port=self.port)

    def exchange(self, run):
        content = run.random_file("content", 3_000_001)
        url = f"http://127.0.0.1:{self.port}/"
        got = run.client(["curl", "-sS", "--fail", "--noproxy", "*", *BODY, f"@{content}", url]).output
        must_equal(got.decode(), digest(content), "the sum of what the server received")
        said = run.client(["ab", "-q", "-n", 500, "-c", 8, url]).text
        must_hold(said, "Complete requests:      500")
        must_hold(said, "Failed requests:        0")

    def endless(self, run):
        part = run.path("part")
        url = f"http://127.0.0.1:{self.port}/endless"
        client = run.begin(["curl", "-sS", "--noproxy", "*", "--limit-rate", "20M", "-o", part, url])
        wait_until(lambda: part.exists() and part.stat().st_size > 0, "curl receives")
        return client


class Node(Program):
    name = "node"
    title = "node: net, http and cluster, clients that verify"
    crowd = 1000
    hands_over = True  # the primary accepts, and sends the connections to its workers
    needs = ("node",)

    def peer(self, role):
        return ["node", PEERS / "node_peers.js", role, self.port]

    def start(self, run):
        self.port = free_port()
        run.serve(
            self.peer("server"), label="node-server", ready=lambda process: b"ready" in process.output(), stop=signal.SIGTERM
        )

    def exchange(self, run):
        must_equal(run.client(self.peer("client")).output.strip(), b"correct", "the client's verdict")

    def endless(self, run):
        client = run.begin(self.peer("endless"))
        wait_until(lambda: client.output() == b"begun\n", "the client says that data flows")
        return client
