"""Databases, messages, names, calls: MariaDB, mosquitto, Erlang, gRPC, postfix's tools, unbound, sipp, Open MPI, iperf."""
import os
import pathlib
import re
import shutil
import signal

from harness.processes import Failure, wait_until
from harness.program import Program
from harness.run import digest, free_port, must_equal, must_hold, ordinary_user

from . import python_peers
from .python_peers import PEERS


class MariaDb(Program):
    name = "mariadb"
    title = "MariaDB (a thread for each connection), mariadb, mysqlslap"
    needs = ("mariadbd", "mariadb", "mariadb-slap", "mariadb-install-db")

    def start(self, run):
        self.port = free_port()
        user = ordinary_user()
        data = run.path("data")
        data.mkdir()
        run.folder.chmod(0o777)
        if user is not None:
            shutil.chown(data, user.pw_uid, user.pw_gid)
        common = ["--no-defaults", f"--datadir={data}", "--innodb-buffer-pool-size=32M", "--innodb-log-file-size=16M"]
        run.tool(
            ["mariadb-install-db", *common, "--auth-root-authentication-method=normal", "--skip-test-db", "--basedir=/usr"],
            user=user,
        )
        words = [f"--port={self.port}", "--bind-address=127.0.0.1", f"--socket={run.folder}/socket", "--skip-name-resolve"]
        run.serve(
            ["mariadbd", *common, *words, "--innodb-flush-log-at-trx-commit=0", "--max-allowed-packet=64M"],
            port=self.port,
            user=user,
        )
        self.query(run, "create user tester@'127.0.0.1' identified by 'secret'; grant all on *.* to tester@'127.0.0.1'", "root")

    def words(self, command, *words, user="tester"):
        login = ["-u", user, *([] if user == "root" else ["-psecret"])]
        return [command, "--no-defaults", "-h", "127.0.0.1", "-P", self.port, "--protocol=tcp", *login, *words]

    def query(self, run, text, user="tester"):
        return run.client(self.words("mariadb", "--batch", "--skip-column-names", "-e", text, user=user)).output

    def exchange(self, run):
        self.query(run, "create database tests; create table tests.t (a int primary key, b longblob)")
        content = run.random_file("content", 3_000_001)
        statement = run.write("insert", f"insert into tests.t values (1, x'{content.read_bytes().hex()}');\n")
        run.client(self.words("mariadb", "--max-allowed-packet=64M", "tests"), stdin=statement)
        must_equal(self.query(run, "select sha2(b, 256) from tests.t").strip().decode(), digest(content), "the stored sum")
        got = run.client(
            self.words("mariadb", "--max-allowed-packet=64M", "--batch", "--skip-column-names", "-e", "select hex(b) from tests.t")
        ).output
        must_equal(digest(bytes.fromhex(got.strip().decode())), digest(content), "what was read back")
        run.client(
            self.words(
                "mariadb-slap", "--auto-generate-sql", "--concurrency=8", "--number-of-queries=800", "--iterations=1"
            )
        )
        for _ in range(20):
            must_equal(self.query(run, "select 42").strip(), b"42", "a short connection's answer")

    def endless(self, run):
        client = run.begin(self.words("mariadb", "-e", "select benchmark(100000000000, sha2('x', 512))"))
        watching = "select count(*) from information_schema.processlist where info like 'select benchmark%'"
        wait_until(lambda: self.query(run, watching).strip() == b"1", "the query runs")
        return client


class Mosquitto(Program):
    name = "mosquitto"
    title = "mosquitto (MQTT), mosquitto_pub, mosquitto_sub"
    not_in = ("restarted",)
    crowd = 1000
    needs = ("mosquitto", "mosquitto_pub", "mosquitto_sub")

    def start(self, run):
        self.port = free_port()
        text = f"listener {self.port} 127.0.0.1\nallow_anonymous true\nmessage_size_limit 0\nmax_queued_messages 0\n"
        text += "log_dest stderr\nlog_type subscribe\n"
        self.server = run.serve(["mosquitto", "-c", run.write("mosquitto.conf", text)], port=self.port)
        self.where = ["-h", "127.0.0.1", "-p", self.port]

    def exchange(self, run):
        content = run.random_file("content", 2_000_003)
        readers = [self.subscribe(run, "file", "-C", 1, "-N", "-q", 1) for _ in range(4)]
        lines = run.write("lines", "".join(f"line {number}\n" for number in range(3000)))
        counter = self.subscribe(run, "lines", "-C", 3000, "-q", 2)
        run.client(["mosquitto_pub", *self.where, "-t", "file", "-q", 1, "-f", content])
        run.client(["mosquitto_pub", *self.where, "-t", "lines", "-q", 2, "-l"], stdin=lines)
        for reader in readers:
            must_equal(digest(run.finish(reader).output), digest(content), "what a reader received")
        must_equal(digest(run.finish(counter).output), digest(lines), "the lines that a reader received")

    def subscribe(self, run, topic, *words):
        """A reader of which the server says that it has subscribed."""
        before = self.server.text().count(f" {topic}\n")
        reader = run.begin(["mosquitto_sub", *self.where, "-t", topic, *words])
        wait_until(lambda: self.server.text().count(f" {topic}\n") > before, "the reader has subscribed")
        return reader

    def endless(self, run):
        content = run.random_file("content", 100_000)
        reader = self.subscribe(run, "endless")
        words = ["-q", 1, "--repeat", 1_000_000, "-f", content]
        client = run.begin(["mosquitto_pub", *self.where, "-t", "endless", *words])
        wait_until(lambda: reader.out.stat().st_size > 1_000_000, "messages arrive")
        return client


class Grpc(python_peers.PythonPeers):
    name = "grpc"
    title = "gRPC in Python: unary calls, streams, threads"
    crowd = 1000
    needs = ("/usr/bin/python3",)
    interpreter = "/usr/bin/python3"  # which has Debian's packages
    script = "grpc_echo.py"

    def missing(self):
        return [] if pathlib.Path("/usr/lib/python3/dist-packages/grpc").is_dir() else ["python3-grpcio"]


class SmtpTools(Program):
    name = "smtp"
    title = "postfix's smtp-sink and smtp-source"
    needs = ("smtp-sink", "smtp-source")
    silent = ("server",)  # ended by a signal

    def start(self, run):
        self.port = free_port()
        self.store = run.path("mails")
        self.store.mkdir()
        self.store.chmod(0o777)
        user = ordinary_user()
        words = ["-u", user.pw_name] if user is not None else []
        run.serve(["smtp-sink", *words, "-R", self.store, "-d", "mail.", f"127.0.0.1:{self.port}", 64], port=self.port)

    def exchange(self, run):
        run.client(["smtp-source", "-s", 8, "-m", 200, "-l", 20_000, f"inet:127.0.0.1:{self.port}"])
        run.client(["smtp-source", "-d", "-s", 8, "-m", 200, "-l", 20_000, f"inet:127.0.0.1:{self.port}"])
        mails = [path for path in self.store.rglob("mail.*") if path.is_file()]
        must_equal(len(mails), 400, "mails received")
        must_equal(min(path.stat().st_size for path in mails) >= 20_000, True, "each is whole")

    def endless(self, run):
        client = run.begin(["smtp-source", "-s", 4, "-m", 100_000_000, "-l", 1000, f"inet:127.0.0.1:{self.port}"])
        wait_until(client.is_busy, "smtp-source sends")
        return client


ZONE = "".join(f'local-data: "host{number}.test. IN TXT {"x" * 200}{number}"\n' for number in range(300))


class Unbound(Program):
    name = "unbound"
    title = "unbound, dig over TCP"
    needs = ("unbound", "dig")

    def start(self, run):
        self.port = free_port()
        lines = [
            "server:",
            "interface: 127.0.0.1",
            f"port: {self.port}",
            'username: ""',
            'chroot: ""',
            f'directory: "{run.folder}"',
            'pidfile: ""',
            "use-syslog: no",
            "do-daemonize: no",
            "num-threads: 2",
            "do-udp: no",
            "so-reuseport: yes",
            'local-zone: "test." static',
        ]
        run.serve(["unbound", "-d", "-c", run.write("unbound.conf", "\n".join(lines) + "\n" + ZONE)], port=self.port)

    def exchange(self, run):
        names = run.write("names", "".join(f"host{number}.test TXT\n" for number in range(300)))
        words = ["dig", "@127.0.0.1", "-p", self.port, "+tcp", "+short", "+tries=1", "+time=5"]
        wanted = "".join(f'"{"x" * 200}{number}"\n' for number in range(300))
        must_equal(run.client([*words, "-f", names]).output.decode(), wanted, "300 answers, a connection each")
        must_equal(run.client([*words, "+keepopen", "-f", names]).output.decode(), wanted, "300 answers, one connection")

    def endless(self, run):
        names = run.write("many", "".join(f"host{number % 300}.test TXT\n" for number in range(5000)))
        words = ["+tcp", "+keepopen", "+short", "+tries=1", "+time=2"]
        client = run.begin(["dig", "@127.0.0.1", "-p", self.port, *words, "-f", names])
        wait_until(lambda: client.out.stat().st_size > 1000, "dig gets answers")
        return client


class Sipp(Program):
    name = "sipp"
    title = "sipp (SIP over TCP), one connection and one for each call"
    crowd = 400
    needs = ("sipp",)
    silent = ("server",)

    def start(self, run):
        self.port = free_port()
        run.serve(["sipp", "-sn", "uas", "-t", "tn", "-i", "127.0.0.1", "-p", self.port, "-nostdin", "-max_socket", 1000], port=self.port)

    def uac(self, transport, *words):
        local = free_port()
        where = ["-i", "127.0.0.1", "-p", local, f"127.0.0.1:{self.port}"]
        return ["sipp", "-sn", "uac", "-t", transport, *words, "-nostdin", "-max_socket", 1000, *where]

    def exchange(self, run):
        run.client(self.uac("t1", "-m", 200, "-r", 200, "-d", 10))
        run.client(self.uac("tn", "-m", 60, "-r", 60, "-d", 10))

    def endless(self, run):
        client = run.begin(self.uac("t1", "-m", 10_000_000, "-r", 200, "-d", 10))
        wait_until(client.is_busy, "sipp calls", 20)
        return client


class OpenMpi(Program):
    name = "openmpi"
    title = "Open MPI over TCP (btl tcp), mpirun's own connections"
    needs = ("mpirun", "mpicc")
    silent = ("server",)
    modes = ("both", "none")  # all are clients, connected with each other

    def start(self, run):
        """mpirun starts all."""

    def run_words(self, run, role, count):
        program = run.path("mpi_ring")
        if not program.exists():
            run.tool(["mpicc", "-O1", "-o", program, PEERS / "mpi_ring.c"])
        words = ["--oversubscribe", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo", "--mca", "pml", "ob1"]
        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        return ["mpirun", *root, *words, "--mca", "oob_tcp_if_include", "lo", "-np", count, program, role]

    def exchange(self, run):
        must_hold(run.client(self.run_words(run, "check", 4), timeout=60).text, "correct")


class Iperf2(Program):
    name = "iperf2"
    title = "iperf 2 (threads, both directions at once)"
    needs = ("iperf",)

    def start(self, run):
        self.port = free_port()
        run.serve(["iperf", "-s", "-B", "127.0.0.1", "-p", self.port], port=self.port, stop=signal.SIGINT)

    def words(self, *words):
        return ["iperf", "-c", "127.0.0.1", "-p", self.port, *words]

    def exchange(self, run):
        for words in (("-n", "20M"), ("-P", 4, "-n", "5M"), ("--full-duplex", "-t", "1")):
            said = run.client(self.words(*words)).text
            if not re.search(r"[1-9][0-9.]* [KMG]bits/sec", said):
                raise Failure(f"iperf says no rate: {said}")

    def endless(self, run):
        client = run.begin(self.words("-t", "60", "-i", "1"))
        wait_until(lambda: "bits/sec" in client.text(), "iperf reports")
        return client

    def check_lost(self, finished):
        """iperf tells of the end, and ends with 0."""


class Erlang(Program):
    name = "erlang"
    title = "Erlang: distribution (epmd, two nodes), gen_tcp echo"
    crowd = 1000
    needs = ("erl", "epmd", "escript")
    silent = ("server", "client")  # the emulator ends by _exit(2)

    def start(self, run):
        self.port = free_port()
        self.epmd = free_port()
        run.serve(["epmd", "-address", "127.0.0.1", "-port", self.epmd], port=self.epmd)
        run.serve(self.erl(run, "server", "serve"), port=self.port, label="erl-server")

    def erl(self, run, name, function):
        shutil.copy(PEERS / "tcp_peers.erl", run.folder)
        if not run.path("tcp_peers.beam").exists():
            run.tool(["erlc", "-o", run.folder, run.path("tcp_peers.erl")])
        words = ["-noshell", "-noinput", "-pa", run.folder, "-name", f"{name}@127.0.0.1", "-setcookie", "ringsock"]
        env = ["env", f"ERL_EPMD_PORT={self.epmd}"]
        return [*env, "erl", *words, "-run", "tcp_peers", function, self.port]

    def exchange(self, run):
        must_equal(run.client(self.erl(run, "client", "check")).output.strip(), b"correct", "the client's verdict")

    def endless(self, run):
        client = run.begin(self.erl(run, "client", "endless"))
        wait_until(lambda: b"begun" in client.output(), "the client says that data flows")
        return client
