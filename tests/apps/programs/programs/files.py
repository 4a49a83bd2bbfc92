"""Servers of files and of versions: rsync, vsftpd, git, Subversion, samba, distcc."""
import os
import shutil
import signal

from harness.processes import wait_until
from harness.program import Program
from harness.run import digest, free_port, must_equal, must_hold


def make_tree(run, name):
    """A folder with 200 small files and one of 4 MB; returns it."""
    tree = run.path(name)
    (tree / "many").mkdir(parents=True)
    for number in range(200):
        (tree / "many" / str(number)).write_bytes(os.urandom(number * 37))
    (tree / "big").write_bytes(os.urandom(4_000_037))
    return tree


def sums_of(tree):
    return {str(path.relative_to(tree)): digest(path) for path in sorted(tree.rglob("*")) if path.is_file()}


class Rsync(Program):
    name = "rsync"
    title = "rsync daemon, up and down"
    needs = ("rsync",)
    silent = ("server", "client")  # they end by _exit(2)
    kernel_because = "a built-in rule: the generator and the receiver are two processes on one connection"

    def start(self, run):
        self.port = free_port()
        store = run.path("store")
        store.mkdir()
        root = "uid = root\ngid = root\n" if os.geteuid() == 0 else ""
        text = f"{root}use chroot = no\n[store]\npath = {store}\nread only = no\n"
        configuration = run.write("rsyncd.conf", text)
        words = ["--daemon", "--no-detach", f"--config={configuration}", f"--port={self.port}", "--address=127.0.0.1"]
        run.serve(["rsync", *words], port=self.port)

    def exchange(self, run):
        tree, back = make_tree(run, "tree"), run.path("back")
        url = f"rsync://127.0.0.1:{self.port}/store/"
        run.client(["rsync", "-a", f"{tree}/", url])
        must_equal(sums_of(run.path("store")), sums_of(tree), "what the server stored")
        (tree / "big").write_bytes((tree / "big").read_bytes()[1000:] + os.urandom(1000))
        run.client(["rsync", "-a", "--checksum", f"{tree}/", url])
        run.client(["rsync", "-az", url, back])
        must_equal(sums_of(back), sums_of(tree), "what came back")

    def endless(self, run):
        with open(run.path("store") / "endless", "wb") as sparse:
            sparse.truncate(1 << 40)
        target = run.path("part")
        target.mkdir()
        words = ["-W", "--bwlimit=20M", f"rsync://127.0.0.1:{self.port}/store/endless", target]
        client = run.begin(["rsync", "--inplace", *words])
        wait_until(lambda: any(path.stat().st_size > 0 for path in target.iterdir()), "rsync receives")
        return client


class Vsftpd(Program):
    name = "vsftpd"
    title = "vsftpd (a process for each connection), curl and lftp, passive and active"
    not_in = ("user",)
    needs = ("vsftpd", "curl", "lftp")
    silent = ("server",)  # its processes end by _exit(2)
    kernel_because = "a built-in rule: a session goes from process to process, which may make neither threads nor processes"

    def start(self, run):
        self.port = free_port()
        self.home = run.path("ftp")
        (self.home / "up").mkdir(parents=True)
        (self.home / "up").chmod(0o777)
        empty = run.path("empty")
        empty.mkdir()
        lines = [
            "listen=YES",
            "listen_address=127.0.0.1",
            f"listen_port={self.port}",
            "background=NO",
            "anonymous_enable=YES",
            "local_enable=NO",
            "write_enable=YES",
            "anon_upload_enable=YES",
            "anon_mkdir_write_enable=YES",
            "anon_umask=022",
            f"anon_root={self.home}",
            "no_anon_password=YES",
            "port_enable=YES",
            "connect_from_port_20=NO",
            f"secure_chroot_dir={empty}",
            "seccomp_sandbox=NO",
            "isolate=NO",
            "isolate_network=NO",
            "xferlog_enable=NO",
            "nopriv_user=nobody",
        ]
        if os.geteuid() != 0:
            lines += ["run_as_launching_user=YES"]
        run.serve(["vsftpd", run.write("vsftpd.conf", "\n".join(lines) + "\n")], port=self.port)

    def curl(self, *words):
        return ["curl", "-sS", "--no-progress-meter", "--noproxy", "*", *words]

    def exchange(self, run):
        content = run.random_file("content", 3_000_011)
        shutil.copy(content, self.home / "down")
        url = f"ftp://127.0.0.1:{self.port}"
        for number, words in enumerate(((), ("--disable-epsv",), ("-P", "127.0.0.1"))):
            must_equal(digest(run.client(self.curl(*words, f"{url}/down")).output), digest(content), f"fetched, way {number}")
            run.client(self.curl(*words, "-T", content, f"{url}/up/{number}"))
            must_equal(digest(self.home / "up" / str(number)), digest(content), f"stored, way {number}")
        for number in range(20):
            (self.home / f"small{number}").write_bytes(os.urandom(1000 * number))
        run.path("mirror").mkdir()
        script = f"set net:max-retries 1; open {url}; mirror -P 4 / {run.folder}/mirror; exit"
        run.client(["lftp", "-c", script])
        must_equal(sums_of(run.path("mirror")), sums_of(self.home), "what lftp mirrored")

    def endless(self, run):
        with open(self.home / "endless", "wb") as sparse:
            sparse.truncate(1 << 40)
        part = run.path("part")
        client = run.begin(self.curl("--limit-rate", "20M", "-o", part, f"ftp://127.0.0.1:{self.port}/endless"))
        wait_until(lambda: part.exists() and part.stat().st_size > 0, "curl receives")
        return client


class Git(Program):
    name = "git"
    title = "git daemon: push, clone, fetch"
    needs = ("git",)
    silent = ("server",)  # ended by a signal
    hands_over = True  # a push executes git pack-objects on the connection

    def git(self, *words):
        identity = ["-c", "user.name=tester", "-c", "user.email=tester@localhost", "-c", "safe.directory=*"]
        return ["git", *identity, "-c", "init.defaultBranch=main", "-c", "protocol.version=2", *words]

    def start(self, run):
        self.port = free_port()
        self.store = run.path("store")
        run.tool(self.git("init", "-q", "--bare", self.store / "project.git"))
        self.url = f"git://127.0.0.1:{self.port}/project.git"
        words = [f"--base-path={self.store}", "--export-all", "--enable=receive-pack", "--reuseaddr"]
        run.write(".gitconfig", "[safe]\n\tdirectory = *\n")
        run.serve(["git", "daemon", *words, "--listen=127.0.0.1", f"--port={self.port}", self.store], port=self.port)

    def work_tree(self, run):
        tree = make_tree(run, "tree")
        run.tool(self.git("init", "-q", tree))
        self.commit(run, tree, "first")
        return tree

    def commit(self, run, tree, text):
        run.tool(self.git("-C", tree, "add", "-A"))
        run.tool(self.git("-C", tree, "commit", "-q", "-m", text))

    def exchange(self, run):
        tree, clone = self.work_tree(run), run.path("clone")
        run.client(self.git("-C", tree, "push", "-q", self.url, "HEAD:main"))
        run.client(self.git("clone", "-q", "-b", "main", self.url, clone))
        (tree / "more").write_bytes(os.urandom(1_000_001))
        self.commit(run, tree, "second")
        run.client(self.git("-C", tree, "push", "-q", self.url, "HEAD:main"))
        run.client(self.git("-C", clone, "pull", "-q", "--ff-only", "origin", "main"))
        run.tool(self.git("-C", clone, "fsck", "--strict"))
        heads = [run.tool(self.git("-C", each, "rev-parse", "HEAD")).output for each in (tree, clone)]
        must_equal(heads[1], heads[0], "the commit that was pulled")
        shutil.rmtree(clone / ".git"), shutil.rmtree(tree / ".git")
        must_equal(sums_of(clone), sums_of(tree), "the files that were cloned")

    def endless(self, run):
        # A pack that does not compress and takes long to receive: the client indexes it as it comes.
        tree = run.path("tree")
        tree.mkdir()
        run.tool(self.git("init", "-q", tree))
        run.tool(self.git("-C", tree, "config", "core.compression", 0))
        run.tool(self.git("-C", self.store / "project.git", "config", "pack.window", 0))
        run.tool(self.git("-C", self.store / "project.git", "config", "pack.compression", 0))
        for number in range(12):
            (tree / str(number)).write_bytes(os.urandom(20_000_000))
        self.commit(run, tree, "first")
        run.tool(["cp", "-r", tree / ".git" / "objects", self.store / "project.git"])
        run.tool(["cp", "-r", tree / ".git" / "refs", self.store / "project.git"])
        client = run.begin(self.git("clone", "--progress", "-b", "main", self.url, run.path("part")))
        wait_until(lambda: "Receiving objects" in client.text(), "git receives", 20)
        return client


class Subversion(Program):
    name = "subversion"
    title = "svnserve (a process for each connection), svn"
    # It does not ignore SIGPIPE, which comes when the server had read everything (RFC 9293, 3.5.2): a killed reader that
    # was as fast as the writer.
    may_die_of = (signal.SIGPIPE,)
    needs = ("svnserve", "svn", "svnadmin")
    silent = ("server",)  # ended by a signal

    def start(self, run):
        self.port = free_port()
        store = run.path("store")
        run.tool(["svnadmin", "create", store])
        run.write("store/conf/svnserve.conf", "[general]\nanon-access = write\n")
        words = ["--daemon", "--foreground", "--root", store, "--listen-host", "127.0.0.1", "--listen-port", self.port]
        run.serve(["svnserve", *words], port=self.port)
        self.url = f"svn://127.0.0.1:{self.port}/"

    def exchange(self, run):
        tree = make_tree(run, "tree")
        run.client(["svn", "import", "-q", "-m", "first", tree, self.url])
        run.client(["svn", "checkout", "-q", self.url, run.path("copy")])
        shutil.rmtree(run.path("copy/.svn"))
        must_equal(sums_of(run.path("copy")), sums_of(tree), "what was checked out")

    def endless(self, run):
        fifo = run.write("big", b"")
        with open(fifo, "wb") as sparse:
            sparse.truncate(1 << 32)
        client = run.begin(["svnmucc", "put", fifo, f"{self.url}endless", "-m", "endless", "-U", self.url])
        wait_until(client.is_busy, "svn transfers")
        return client


class Distcc(Program):
    name = "distcc"
    title = "distccd (forked workers), distcc"
    not_in = ("user",)
    needs = ("distccd", "distcc", "gcc")
    silent = ("server",)  # ended by a signal

    def start(self, run):
        self.port = free_port()
        run.folder.chmod(0o777)  # it becomes another user
        words = ["--no-detach", "--daemon", "--allow", "127.0.0.1", "--listen", "127.0.0.1", "-p", self.port, "-N", "0"]
        run.serve(["distccd", *words, "-j", 4, "--log-stderr", "--enable-tcp-insecure"], port=self.port)
        run.path(".distcc").mkdir(exist_ok=True)
        hosts = run.write(".distcc/hosts", f"127.0.0.1:{self.port}\n")
        must_hold(hosts.read_text(), "127")

    def exchange(self, run):
        for number in range(6):
            lines = [f"int value_{number}_{each}(int x) {{ return x * {each}; }}" for each in range(400)]
            source = run.write(f"source{number}.c", "\n".join(lines) + "\n")
            target, alone = run.path(f"target{number}.o"), run.path(f"alone{number}.o")
            run.client(["env", "DISTCC_FALLBACK=0", "distcc", "gcc", "-c", source, "-o", target])
            run.tool(["gcc", "-c", source, "-o", alone])
            must_equal(digest(target), digest(alone), "the object file")

    def endless(self, run):
        source = run.write("big.c", "".join(f"int v{each}(int x) {{ return x * {each}; }}\n" for each in range(300_000)))
        client = run.begin(["env", "DISTCC_FALLBACK=0", "distcc", "gcc", "-O2", "-c", source, "-o", run.path("big.o")])
        wait_until(lambda: list(run.folder.glob("distccd_*.i")), "the server has the source", 20)
        return client
