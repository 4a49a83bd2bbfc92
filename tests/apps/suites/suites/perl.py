"""perl: its tests of sockets, handles, polling and processes, run by Debian's perl of the same version."""
import os
import re

from .bench import FAILED, PASSED, SKIPPED, Suite, Test
from .debian_source import fetched, run_quietly

FOLDERS = (
    ("t/io", ""),
    ("t/op", "(alarm|die_unwind|exec|fork|getpid|kill0|select|sleep|sselect|stat|sysio|time|wait)"),
    ("dist/IO/t", ""),
    ("cpan/IO-Socket-IP/t", ""),
    ("cpan/Socket/t", ""),
    ("cpan/libnet/t", ""),
    ("cpan/HTTP-Tiny/t", ""),
    ("dist/Net-Ping/t", ""),
    ("ext/IPC-Open3/t", ""),
    ("lib", "(Net|open|FileHandle|SelectSaver)"),
)
POINT = re.compile(r"^(not )?ok (\d+)(.*)$", re.M)


class Perl(Suite):
    name = "perl"
    title = "t/io, IO, IO::Socket::IP, Socket, libnet, Net::Ping, HTTP::Tiny"
    needs = ("apt-get", "dpkg-source", "perl", "unshare", "ip")

    def prepare(self, work):
        self._source = fetched(work, "perl", self._lay_modules)

    @staticmethod
    def _lay_modules(source):
        """The tests look for modules in ../lib: Debian's, whose Config is that of a perl that has been built."""
        log = source.parent / "prepare.log"
        path = os.popen("perl -e 'print join q( ), grep { m{^/usr/(share|lib/[^/]+)/perl/} } @INC'").read().split()
        path += os.popen("perl -e 'print join q( ), grep { m{/perl-base$} } @INC'").read().split()
        for folder in path:
            run_quietly(["cp", "-as", "--force", f"{folder}/.", source / "lib"], source, log)
        run_quietly(["ln", "-sf", "/usr/bin/perl", source / "t/perl"], source, log)
        run_quietly(["ln", "-sf", "/usr/bin/perl", source / "perl"], source, log)

    def tests(self):
        found = []
        for folder, pattern in FOLDERS:
            home = self._source / ("t" if folder.startswith("t/") else folder if folder == "lib" else folder[: -len("/t")])
            for path in sorted((self._source / folder).rglob("*.t") if folder == "lib" else (self._source / folder).glob("*.t")):
                name = path.relative_to(self._source)
                if re.search(f"^{pattern}", path.name) or folder == "lib" and re.search(f"/{pattern}", str(name)):
                    text = path.read_text(errors="replace")
                    taint = ["-T"] if re.match(r"#!.*perl.*\s-\w*T", text) else []
                    here = self._source / "t" if folder.startswith("t/") else home
                    found.append(Test(str(name), ["perl", *taint, path.relative_to(here)], here, {"PERL_CORE": "1", "PERL_HASH_SEED": "0"}))
        return found

    def judge(self, status, text):
        if re.search(r"^1\.\.0 # [Ss]kip", text, re.M):
            return {"": SKIPPED}
        parts = {"": PASSED if status == 0 else FAILED}
        for failed, number, rest in POINT.findall(text):
            allowed = re.search(r"# (TODO|skip)", rest, re.I)
            parts[f"point {number}"] = SKIPPED if allowed else FAILED if failed else PASSED
        return parts
