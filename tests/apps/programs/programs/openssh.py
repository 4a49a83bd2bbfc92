"""OpenSSH: sshd with its own configuration, ssh and scp."""
import getpass
import os
import pathlib

from harness.processes import find_program, wait_until
from harness.program import Program
from harness.run import digest, free_port, must_equal

CONFIGURATION = """
ListenAddress 127.0.0.1:{port}
ListenAddress [::1]:{port}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PidFile none
StrictModes no
UsePAM no
PermitRootLogin prohibit-password
Subsystem sftp internal-sftp
"""
SEPARATION = pathlib.Path("/run/sshd")


class OpenSsh(Program):
    name = "openssh"
    title = "sshd, ssh, scp"
    not_in = ("user",)
    needs = ("sshd", "ssh", "scp", "ssh-keygen")
    kernel_because = "a built-in rule: sshd executes itself again with the connection"

    def start(self, run):
        self.port = free_port()
        for key in ("host_key", "user_key"):
            run.tool(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", run.path(key)])
        # A root sshd wants its empty folder; on a machine where sshd never ran it is missing.
        if os.geteuid() == 0 and not SEPARATION.exists():
            SEPARATION.mkdir(mode=0o755)
            run.at_end(SEPARATION.rmdir)
        configuration = run.write("sshd_config", CONFIGURATION.format(port=self.port, folder=run.folder))
        # sshd's process without privileges sets RLIMIT_FSIZE to 0: a line of statistics into a file would be its end.
        run.serve([find_program("sshd"), "-D", "-e", "-f", configuration], port=self.port, errors_by_pipe=True)
        self.options = [
            "-F",
            "none",
            "-i",
            run.path("user_key"),
            "-o",
            "BatchMode=yes",
            "-o",
            "IdentitiesOnly=yes",
            "-o",
            f"UserKnownHostsFile={run.path('known_hosts')}",
            "-o",
            "StrictHostKeyChecking=accept-new",
        ]

    def ssh(self, *words, address="127.0.0.1"):
        return ["ssh", *self.options, "-p", self.port, f"{getpass.getuser()}@{address}", *words]

    def scp(self, run, source, target):
        run.client(["scp", "-q", *self.options, "-P", self.port, source, target])

    def exchange(self, run):
        content, copy, back = run.random_file("content", 4_000_037), run.path("copy"), run.path("back")
        for address in ("127.0.0.1", "::1"):
            said = run.client(self.ssh("sha256sum", address=address), stdin=content).output.split()[0].decode()
            must_equal(said, digest(content), f"the sum of what ssh sent over {address}")
        must_equal(digest(run.client(self.ssh(f"cat {content}")).output), digest(content), "what ssh received")
        run.client(self.ssh("exit 7"), status=7)
        remote = f"{getpass.getuser()}@127.0.0.1"
        self.scp(run, content, f"{remote}:{copy}")
        self.scp(run, f"{remote}:{copy}", back)
        must_equal(digest(back), digest(content), "a file copied there and back")

    def endless(self, run):
        client = run.begin(self.ssh("cat /dev/zero"))
        wait_until(lambda: client.out.stat().st_size > 1_000_000, "ssh transfers")
        return client
