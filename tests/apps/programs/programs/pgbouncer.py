"""pgbouncer in front of PostgreSQL, and the next pgbouncer, which gets all its sockets from the one that runs."""
import subprocess

from harness.processes import wait_until
from harness.run import free_port, must_equal, must_hold, ordinary_user

from . import postgresql

SETTINGS = """
[databases]
postgres = host=127.0.0.1 port={behind}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir = {folder}/sockets
unix_socket_mode = 0777
pidfile = {folder}/sockets/pid
auth_type = trust
auth_file = {folder}/users
admin_users = pgbouncer
pool_mode = transaction
default_pool_size = 8
max_client_conn = 100
server_login_retry = 1
"""


class PgBouncer(postgresql.PostgreSql):
    """Listener, clients' connections and servers' go to the next process in messages (SCM_RIGHTS)."""

    name = "pgbouncer"
    title = "pgbouncer in front of PostgreSQL, a restart that passes all sockets on, psql, pgbench"
    servers_talk = True
    hands_over = True
    kernel_clients = 20  # those that come to a listener which was sent

    def __init__(self):
        super().__init__()
        self.needs += ("pgbouncer",)

    def start(self, run):
        super().start(run)
        behind, self.port = self.port, free_port()
        run.path("sockets").mkdir()
        run.path("sockets").chmod(0o777)
        run.write("users", '"tester" ""\n')
        self.settings = run.write("pgbouncer.ini", SETTINGS.format(behind=behind, port=self.port, folder=run.folder))
        self.bouncer = run.serve(["pgbouncer", self.settings], port=self.port, user=ordinary_user())

    def take_over(self, run):
        """Returns when the next pgbouncer has all sockets, and the first has ended by itself."""
        before = self.bouncer
        self.bouncer = run.serve(
            ["pgbouncer", "-R", self.settings],
            user=ordinary_user(),
            ready=lambda process: before.status() is not None and "process up" in process.text(),
        )
        must_equal(before.status(), 0, "how the first pgbouncer ended")

    def exchange(self, run):
        self.load(run)
        reads = run.client(self.words("pgbench", "-n", "-S", "-c", 4, "-j", 2, "-t", 250)).text
        must_hold(reads, "number of transactions actually processed: 1000/1000")
        self.check_short(run)
        idle = run.begin(self.words("psql", "-X", "-A", "-t", "-q"), stdin=subprocess.PIPE)
        self.ask(idle, "41 + 1", b"42")
        busy = run.begin(self.words("pgbench", "-n", "-c", 4, "-j", 2, "-t", 1000, "-P", 1))
        wait_until(lambda: "progress" in busy.text(), "pgbench reports progress")
        self.take_over(run)
        self.ask(idle, "42 + 1", b"43")
        idle.say(b"\\q\n")
        run.finish(idle)
        must_hold(run.finish(busy, timeout=60).text, "number of transactions actually processed: 4000/4000")

        self.check_short(run)

    def check_short(self, run):
        for _ in range(self.kernel_clients):
            must_equal(self.query(run, "select 42"), b"42", "a short connection's answer")

    def ask(self, psql, what, wanted):
        psql.say(f"select {what};\n".encode())
        wait_until(lambda: psql.output().endswith(wanted + b"\n"), f"psql says {wanted.decode()}")
