"""Debian's source packages, fetched by apt-get with lists of our own: the machine's stay as they are."""
import pathlib
import shutil
import subprocess

from harness.processes import Failure

FETCHING_S = 900
MIRROR = "http://deb.debian.org/debian"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


def run_quietly(argv, folder, log, timeout=FETCHING_S, environment=None):
    """Failure with the last line that it said, unless it exits with 0."""
    with open(log, "ab") as out:
        try:
            status = subprocess.run(
                [str(word) for word in argv],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                timeout=timeout,
            ).returncode
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Failure(f"{argv[0]}: {error}") from None
    if status != 0:
        last = pathlib.Path(log).read_text(errors="replace").strip().splitlines()[-1:]
        raise Failure(f"{argv[0]} ended with {status}: {' '.join(last)[:200]}")


class Apt:
    """apt-get with a folder for its lists."""

    def __init__(self, work, codename):
        self._log = work / "apt.log"
        self._state = work / "apt"
        (self._state / "lists" / "partial").mkdir(parents=True, exist_ok=True)
        (self._state / "archives" / "partial").mkdir(parents=True, exist_ok=True)
        sources = self._state / "sources.list"
        sources.write_text(f"deb-src [signed-by={KEYRING}] {MIRROR} {codename} main\n")
        self._options = [
            f"-oDir::Etc::sourcelist={sources}",
            "-oDir::Etc::sourceparts=/dev/null",
            f"-oDir::State::lists={self._state}/lists",
            f"-oDir::Cache::archives={self._state}/archives",
            "-oDir::Cache::pkgcache=",
            "-oDir::Cache::srcpkgcache=",
            "-oAPT::Sandbox::User=",
            "-oAcquire::Retries=3",
            "-qq",
        ]
        if not any((self._state / "lists").glob("*_Sources")):
            self._get("update", work)

    def source(self, package, folder):
        """Unpacks the package, Debian's patches applied, as `folder`."""
        self._get("source", folder.parent, "--download-only", package)
        described = sorted(folder.parent.glob(f"{package}_*.dsc"))
        if not described:
            raise Failure(f"apt-get source {package} brought no .dsc")
        shutil.rmtree(folder, ignore_errors=True)
        run_quietly(["dpkg-source", "--no-check", "-x", described[-1], folder], folder.parent, self._log)

    def _get(self, command, folder, *words):
        run_quietly(["apt-get", *self._options, command, *words], folder, self._log)


def codename():
    for line in pathlib.Path("/etc/os-release").read_text().splitlines():
        name, _, value = line.partition("=")
        if name == "VERSION_CODENAME":
            return value.strip('"')
    raise Failure("/etc/os-release names no Debian release")


def fetched(work, package, make=lambda folder: None):
    """The unpacked source of a package in work/package/source; made, by make(folder), and fetched once.
    """
    home = work / package
    done = home / "ready"
    if not done.exists():
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        apt = Apt(work, codename())
        apt.source(package, home / "source")
        make(home / "source")
        done.touch()
    return home / "source"
