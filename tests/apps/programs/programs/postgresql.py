"""PostgreSQL with psql and pgbench, a cluster of its own."""
import pathlib
import shutil
import signal
import subprocess

from harness.processes import wait_until
from harness.program import Program
from harness.run import digest, free_port, must_equal, must_hold, ordinary_user

SETTINGS = """
listen_addresses = '127.0.0.1,::1'
unix_socket_directories = ''
fsync = off
shared_buffers = 32MB
max_connections = 40
dynamic_shared_memory_type = mmap
log_min_messages = fatal
autovacuum = off
"""


class PostgreSql(Program):
    name = "postgresql"
    title = "PostgreSQL, psql, pgbench"
    not_in = ("restarted",)

    def __init__(self):
        versions = sorted(pathlib.Path("/usr/lib/postgresql").glob("[0-9]*"), key=lambda path: int(path.name))
        folder = versions[-1] / "bin" if versions else pathlib.Path("/usr/lib/postgresql/bin")
        self.commands = {name: folder / name for name in ("initdb", "postgres", "psql", "pgbench")}
        self.needs = tuple(map(str, self.commands.values()))

    def start(self, run):
        user = ordinary_user()
        self.port = free_port()
        data = run.path("data")
        data.mkdir(mode=0o700)
        if user is not None:
            shutil.chown(data, user.pw_uid, user.pw_gid)
        run.tool(
            [self.commands["initdb"], "-D", data, "-U", "tester", "-A", "trust", "--no-sync", "--no-instructions"],
            user=user,
        )
        with open(data / "postgresql.conf", "a", encoding="ascii") as settings:
            settings.write(run.translated(SETTINGS) + f"port = {self.port}\n")
        with open(data / "pg_hba.conf", "a", encoding="ascii") as who:
            who.write("host all tester samenet trust\n")
        run.at_end(lambda: remove_interlock(data))
        run.serve(
            [self.commands["postgres"], "-D", data],
            user=user,
            stop=signal.SIGINT,
            ready=lambda process: "ready" in status_of(data),
        )

    def words(self, command, *words, address="127.0.0.1"):
        return [self.commands[command], "-h", address, "-p", self.port, "-U", "tester", *words, "postgres"]

    def query(self, run, text, address="127.0.0.1"):
        return run.client(
            self.words("psql", "-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1", "-c", text, address=address)
        ).output.strip()

    def load(self, run):
        run.client(self.words("pgbench", "-i", "-q", "-s", 1))

    def exchange(self, run):
        self.load(run)
        reads = run.client(self.words("pgbench", "-n", "-S", "-c", 4, "-j", 2, "-t", 250)).text
        must_hold(reads, "number of transactions actually processed: 1000/1000")
        writes = run.client(self.words("pgbench", "-n", "-c", 4, "-j", 2, "-t", 50)).text
        must_hold(writes, "number of transactions actually processed: 200/200")
        sums = self.query(
            run,
            "select count(*), sum(delta) - (select sum(abalance) from pgbench_accounts),"
            " sum(delta) - (select sum(bbalance) from pgbench_branches) from pgbench_history",
            "::1",
        )
        must_equal(sums, b"200|0|0", "transactions and the differences of the balances")
        rows = run.write("rows", "".join(f"{number}\t{number * 7919 % 100_003}\n" for number in range(100_000)))
        self.query(run, "create table copied(a int, b int)")
        run.client(self.words("psql", "-X", "-q", "-c", "copy copied from stdin"), stdin=rows)
        got = run.client(
            self.words("psql", "-X", "-q", "-c", "copy (select * from copied order by a) to stdout")
        ).output
        must_equal(digest(got), digest(rows), "100,000 rows copied in and out")
        self.cancel(run)

    def cancel(self, run):
        """A query is ended by way of a second connection."""
        sleeper = run.begin(self.words("psql", "-X", "-c", "select pg_sleep(60)"))
        running = "select count(*) from pg_stat_activity where query = 'select pg_sleep(60)' and wait_event = 'PgSleep'"
        wait_until(lambda: self.query(run, running) == b"1", "the query runs")
        sleeper.interrupt()
        must_hold(run.finish(sleeper, status=1).text, "canceling statement due to user request")

    def endless(self, run):
        self.load(run)
        client = run.begin(self.words("pgbench", "-n", "-S", "-c", 4, "-T", 60, "-P", 1))
        wait_until(lambda: "tps" in client.text(), "pgbench reports progress")
        return client


def status_of(data):
    """Last line of postmaster.pid, empty while there is none."""
    try:
        return (data / "postmaster.pid").read_text().splitlines()[-1]
    except (OSError, IndexError):
        return ""


def remove_interlock(data):
    """A killed server leaves a small System V segment; its line in postmaster.pid holds key and id."""
    try:
        lines = (data / "postmaster.pid").read_text().splitlines()
        subprocess.run(["ipcrm", "-m", lines[6].split()[1]], check=False, stderr=subprocess.DEVNULL)
    except (OSError, IndexError):
        pass
