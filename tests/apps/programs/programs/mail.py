"""Mail: dovecot."""
import grp
import os
import pwd

from harness.processes import wait_until
from harness.program import Program
from harness.run import digest, free_port, must_equal, ordinary_user

from .python_peers import PEERS

# Its processes get only the variables that are named here.
DOVECOT = """
base_dir = {folder}/base
state_dir = {folder}/state
log_path = /dev/stderr
import_environment = LD_PRELOAD LD_LIBRARY_PATH RINGSOCK_STATS RINGSOCK_CONFIG_DIR
protocols = imap
listen = 127.0.0.1
ssl = no
disable_plaintext_auth = no
mail_location = maildir:~/Maildir
maildir_very_dirty_syncs = yes
mail_fsync = never
mail_max_userip_connections = 100
imap_hibernate_timeout = {hibernate_s}s
{users}
passdb {{
  driver = static
  args = password=secret
}}
userdb {{
  driver = static
  args = uid={user} gid={group} home={folder}/mail/%u
}}
service imap-login {{
  service_count = {service_count}
  process_min_avail = {login_processes}
  {chroot}
  inet_listener imap {{
    port = {port}
  }}
  inet_listener imaps {{
    port = 0
  }}
}}
service imap {{
  unix_listener imap-master {{
    mode = 0666
  }}
}}
service imap-hibernate {{
  unix_listener imap-hibernate {{
    mode = 0666
  }}
}}
"""


class Dovecot(Program):
    """A login process takes a connection and passes it, by a message, to a process of the user."""

    name = "dovecot"
    title = "dovecot (IMAP; a login process for each connection, which passes it on), curl, imaplib"
    not_in = ("restarted",)
    needs = ("dovecot", "/usr/lib/dovecot/imap", "curl", "python3")
    kernel_because = "dovecot's master listens, the programs that it executes accept"
    few_by_ring = 1  # who came before the first of them
    service_count, login_processes, hibernate_s = 1, 0, 0

    def start(self, run):
        self.port = free_port()
        run.folder.chmod(0o755)
        run.path("mail").mkdir(mode=0o777)
        run.path("mail").chmod(0o777)
        user, users, chroot = ordinary_user(), "", ""
        if user is None:
            user = pwd.getpwuid(os.getuid())
            users = f"default_internal_user = {user.pw_name}\ndefault_login_user = {user.pw_name}\n"
            users += f"default_internal_group = {grp.getgrgid(user.pw_gid).gr_name}\n"
            users += "service anvil {\n  chroot =\n}\n"
            chroot = "chroot ="
        text = DOVECOT.format(
            folder=run.folder,
            user=user.pw_uid,
            group=user.pw_gid,
            users=users,
            chroot=chroot,
            port=self.port,
            service_count=self.service_count,
            login_processes=self.login_processes,
            hibernate_s=self.hibernate_s,
        )
        words = ["dovecot", "-F", "-c", run.write("dovecot.conf", text)]
        run.serve(words, port=self.port, label="dovecot")

    def url(self, user, folder):
        return f"imap://{user}:secret@127.0.0.1:{self.port}/{folder}"

    def curl(self, *words):
        return ["curl", "-sS", "--no-progress-meter", "--noproxy", "*", *words]

    def exchange(self, run):
        self.check_curl(run)
        words = ["python3", "-B", PEERS / "imap_peers.py", "client", self.port]
        must_equal(run.client(words, timeout=60).output.strip(), b"correct", "the client's verdict")

    def check_curl(self, run):
        for number, size in enumerate((1, 100_000, 3_000_001), start=1):
            mail = run.write(f"mail{number}", b"Subject: test\r\n\r\n" + os.urandom(size).hex().encode() + b"\r\n")
            run.client(self.curl("-T", mail, self.url("curl", "INBOX")))
            got = run.client(self.curl(self.url("curl", f"INBOX;MAILINDEX={number}"))).output
            must_equal(digest(got), digest(mail), "the mail that was fetched")
        for _ in range(20):
            said = run.client(self.curl(self.url("curl", "INBOX"), "-X", "STATUS INBOX (MESSAGES)")).output.strip()
            must_equal(said, b"* STATUS INBOX (MESSAGES 3)", "the answer of a short connection")

    def endless(self, run):
        client = run.begin(["python3", "-B", PEERS / "imap_peers.py", "endless", self.port])
        wait_until(lambda: client.output() == b"begun\n", "the client says that data flows", 20)
        return client


class DovecotShared(Dovecot):
    """Login processes that serve many connections at once; connections that wait for mail go to one process, and back."""

    name = "dovecot-shared"
    title = "dovecot, login processes that are shared, connections that hibernate"
    service_count, login_processes, hibernate_s = 0, 2, 1
