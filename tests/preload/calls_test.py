#!/usr/bin/env python3
"""Compares what is intercepted with what there is to intercept.

The table (preload/calls.def), the map, what librspreload.so exports; libc's functions on descriptors, as its headers
declare them; what real programs and their libraries import; and how our libraries come by libc's functions.

usage: calls_test.py SOURCE_DIR BUILD_DIR       exit status 77: no nm, readelf or C compiler
"""
import pathlib
import re
import shutil
import subprocess
import sys

# Exported beside the rows of the table, because they are made of rows.
MADE_OF_ROWS = {
    "_Exit": "_exit",
    "__vfork": "vfork",
    "execl": "execve",
    "execle": "execve",
    "execlp": "execvpe",
    "execv": "execve",
    "execvp": "execvpe",
    "dprintf": "vdprintf",
    "__dprintf_chk": "__vdprintf_chk",
    "sockatmark": "ioctl",
    "__sigaction": "sigaction",
    "signal": "sigaction",
    "bsd_signal": "sigaction",
    "ssignal": "sigaction",
    "sysv_signal": "sigaction",
    "__sysv_signal": "sigaction",
    "siginterrupt": "sigaction",
    "sigset": "sigaction",
}
# Exported beside the table: not libc's (async_calls.cc).
OF_OTHER_LIBRARIES = {
    "io_submit",
    "io_uring_setup",
    "io_uring_queue_init",
    "io_uring_queue_init_params",
    "io_uring_queue_init_mem",
    "io_uring_submit",
    "io_uring_submit_and_wait",
    "io_uring_submit_and_get_events",
    "io_uring_submit_and_wait_timeout",
    "io_uring_submit_and_wait_min_timeout",
    "io_uring_submit_and_wait_reg",
    "io_uring_wait_cqes",
    "io_uring_wait_cqes_min_timeout",
    "io_uring_wait_cqe_timeout",
    "io_uring_register_files",
    "io_uring_register_files_tags",
    "io_uring_register_files_update",
    "io_uring_register_files_update_tag",
}

# libc's functions on descriptors that are not intercepted: reason, names.
LEFT_TO_LIBC = (
    (
        "only aborts, on a number that is too large for an fd_set",
        "__fdelt_chk __fdelt_warn",
    ),
    (
        "a socket is under every descriptor of ours, so the kernel's answer is right",
        "fstat fstat64 statx fstatat fstatat64 isfdtype isatty fpathconf",
    ),
    (
        "sockets have no offset and no contents: the kernel's error is right",
        "pread pread64 preadv preadv64 pwrite pwrite64 pwritev pwritev64 __pread_chk __pread64_chk lseek lseek64 "
        "ftruncate ftruncate64 fallocate fallocate64 posix_fallocate posix_fallocate64 posix_fadvise posix_fadvise64 "
        "readahead sync_file_range fsync fdatasync syncfs mmap mmap64 copy_file_range getdents64 getdirentries "
        "getdirentries64 lockf lockf64 flock",
    ),
    ("of libc's AIO, whose requests name kernel sockets only", "aio_cancel aio_cancel64"),
    (
        "of a socket's inode: the kernel's answer or error is right",
        "fchmod fchown futimens futimes fstatfs fstatfs64 "
        "fstatvfs fstatvfs64 fgetxattr flistxattr fremovexattr fsetxattr name_to_handle_at",
    ),
    (
        "of directories",
        "faccessat fchdir fchmodat fchownat fdopendir futimesat linkat mkdirat mkfifoat mknodat "
        "readlinkat __readlinkat_chk renameat renameat2 scandirat scandirat64 symlinkat unlinkat utimensat",
    ),
    (
        "of terminals",
        "grantpt login_tty ptsname ptsname_r __ptsname_r_chk tcdrain tcflow tcflush tcgetattr tcgetpgrp tcgetsid tcsendbreak "
        "tcsetattr tcsetpgrp ttyname ttyname_r __ttyname_r_chk unlockpt",
    ),
    ("of pipes only", "tee vmsplice"),
    (
        "of descriptors that are no sockets",
        "eventfd_read eventfd_write inotify_add_watch inotify_rm_watch timerfd_gettime timerfd_settime",
    ),
    (
        "carried out by the kernel in the child, whose descriptors of ours are closed by exec anyway",
        "posix_spawn_file_actions_addclose posix_spawn_file_actions_addopen posix_spawn_file_actions_addfchdir_np",
    ),
    ("handlers of pthread_atfork(3) do the work", "fork forkpty daemon __fork"),
    ("promises no handlers; its child may call exec only", "_Fork"),
    ("the shell gets no descriptor that is close-on-exec, as all of ours are for the kernel", "system popen"),
    ("libc's own, and it opens a file in the place of what was there", "freopen freopen64"),
    ("internal to stdio", "__overflow"),
)

# Beside what takes a descriptor: calls that make sockets or processes.
ALSO_OF_INTEREST = set(
    """socket socketpair epoll_create epoll_create1 fork vfork _Fork forkpty daemon system popen execl execle execlp execv
    execve execvp execvpe fexecve posix_spawn posix_spawnp _exit _Exit fdopen freopen freopen64 fileno fileno_unlocked
    dprintf vdprintf syscall""".split()
)

HEADERS = """aio.h dirent.h fcntl.h poll.h pty.h spawn.h stdio.h stdlib.h sys/epoll.h sys/eventfd.h sys/file.h sys/inotify.h
    sys/ioctl.h sys/mman.h sys/select.h sys/sendfile.h sys/signalfd.h sys/socket.h sys/stat.h sys/statfs.h sys/statvfs.h
    sys/time.h sys/timerfd.h sys/uio.h sys/xattr.h termios.h unistd.h utmp.h""".split()

PROGRAMS = """redis-server redis-cli redis-benchmark nginx memcached memcslap memcaslap haproxy curl wget iperf3 socat nc ssh
    sshd scp psql pgbench postgres python3 java apache2 ab wrk qperf sockperf rsync dig perl ruby node""".split()
PLACES = (
    "/usr/bin",
    "/usr/sbin",
    "/usr/lib/postgresql/*/bin",
    "/usr/lib/jvm/*/bin",
)
LIBRARIES = (
    "/usr/lib/jvm/*/lib/libnet.so",
    "/usr/lib/jvm/*/lib/libnio.so",
    "/usr/lib/jvm/*/lib/libextnet.so",
    "/usr/lib/jvm/*/lib/server/libjvm.so",
    "/usr/lib/*-linux-gnu/libcurl*.so.4",
    "/usr/lib/*-linux-gnu/libevent*.so.7",
    "/usr/lib/*-linux-gnu/libapr*-1.so.0",
    "/usr/lib/*-linux-gnu/libpq.so.5",
    "/usr/lib/*-linux-gnu/libuv.so.1",
    "/usr/lib/*-linux-gnu/libssl.so.3",
    "/usr/lib/*-linux-gnu/libcrypto.so.3",
    "/usr/lib/*-linux-gnu/libev.so.4",
    "/usr/lib/*-linux-gnu/libzmq.so.5",
    "/usr/lib/python3*/lib-dynload/*socket*.so",
    "/usr/lib/python3*/lib-dynload/*multiprocessing*.so",
)

# What our own libraries take from libc by name although it is intercepted, and why that does no harm.
OWN_CALLS = {
    "syscall": "passed on by number",
    "ioctl": "on descriptors that are not in the table",
    "pselect": "for sets without an endpoint",
}

failures = []


def complain(text):
    failures.append(text)
    print(f"not ok: {text}")


def output_of(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def rows(path):
    """Names in a table."""
    return set(re.findall(r"^LIBC_CALL\([^,]+,\s*(\w+),", path.read_text(), re.M))


def mapped(path):
    text = re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.S)
    return set(re.findall(r"(\w+);", re.search(r"global:(.*?)local:", text, re.S)[1]))


def symbols(path, which):
    """{name: version} of the dynamic symbols of a file; which: --defined-only or --undefined-only."""
    found = {}
    for line in output_of("nm", "-D", which, str(path)).splitlines():
        name, _, version = line.split()[-1].partition("@")
        found[name] = version.lstrip("@")
    return found


def declared_on_descriptors(compiler):
    """libc's functions with a descriptor, or a set of them, among the parameters."""
    source = "#define _GNU_SOURCE\n" + "".join(f"#include <{header}>\n" for header in HEADERS)
    text = subprocess.run(
        [*compiler, "-E", "-P", "-x", "c", "-"], input=source, check=True, capture_output=True, text=True
    ).stdout
    descriptor = re.compile(
        r"\bint\s+(__(?:fds?|fd1|fd2|fildes|s|fp|epfd|infd|outfd|in_fd|out_fd|fdin|fdout|dfd|fromfd|tofd|ufd|lowfd|fd_max)"
        r"|fd\w*)\b|\bpollfd\b|\bfd_set\b|\bint\s*(,|$)"
    )
    declaration = re.compile(r"\b(\w+)\s*\(((?:[^(){};]|\([^()]*\))*)\)\s*(?:__attribute__[^;]*)?;")
    return {name for name, parameters in declaration.findall(text) if descriptor.search(parameters)}


def plain_name(name):
    """__recv_chk and __recv are forms of recv."""
    return re.sub(r"_chk$", "", name.removeprefix("__")) if name.startswith("__") else name


def check_table(table, exported, by_map):
    for name in sorted(table | set(MADE_OF_ROWS) | OF_OTHER_LIBRARIES):
        if name not in by_map:
            complain(f"{name} is intercepted, but not in librspreload.map")
    for name in sorted(by_map - table - set(MADE_OF_ROWS) - OF_OTHER_LIBRARIES - {"ringsock_shell"}):
        complain(f"{name} is in librspreload.map, but not in calls.def")
    for name in sorted(by_map - exported):
        complain(f"{name} is in librspreload.map, but librspreload.so does not export it")
    for name in sorted(exported - by_map):
        complain(f"librspreload.so exports {name}, which is not in librspreload.map")
    for name, row in MADE_OF_ROWS.items():
        if row not in table:
            complain(f"{name} is made of {row}, which is not in calls.def")


def check_surface(surface, intercepted, left):
    for name in sorted(surface - intercepted - left):
        complain(f"libc has {name}, which is neither intercepted nor in LEFT_TO_LIBC of {sys.argv[0]}")
    for name in sorted(left & intercepted):
        complain(f"{name} is intercepted, and in LEFT_TO_LIBC")


def files_to_look_at():
    files = set()
    for program in PROGRAMS:
        for place in PLACES:
            files.update(pathlib.Path("/").glob(f"{place.lstrip('/')}/{program}"))
    for pattern in LIBRARIES:
        files.update(pathlib.Path("/").glob(pattern.lstrip("/")))
    return sorted({file.resolve() for file in files if file.is_file() and file.read_bytes()[:4] == b"\x7fELF"})


def check_imports(surface, intercepted, left):
    files = files_to_look_at()
    seen = set()
    for file in files:
        for name, version in symbols(file, "--undefined-only").items():
            if not version.startswith("GLIBC_") or (name not in surface and plain_name(name) not in surface):
                continue
            seen.add(name)
            if name not in intercepted | left:
                complain(f"{file} imports {name}, which is neither intercepted nor in LEFT_TO_LIBC")
    print(
        f"{len(files)} programs and libraries import {len(seen)} of libc's functions on descriptors and processes: "
        f"{len(seen & intercepted)} are intercepted, {len(seen & left)} left to libc for a reason"
    )
    return files


def check_own(build, wrapped, intercepted):
    """Our libraries call libc's functions through libc_calls: by name there is data (that table), no call."""
    for library in ("libringsock-core.so", "librsocket.so", "librspreload.so"):
        for line in output_of("readelf", "-rW", str(build / ".libs" / library)).splitlines():
            words = line.split()
            if len(words) < 5 or not words[2].startswith("R_"):
                continue
            name = words[4].partition("@")[0]
            if name not in intercepted or name in OWN_CALLS:
                continue
            is_table = library == "libringsock-core.so" and name in wrapped and re.search(r"_64$|ABS64$", words[2])
            is_own = library == "librspreload.so" and words[3].strip("0")  # with a value: defined here
            if not is_table and not is_own:
                complain(f"{library} calls {name} by name ({words[2]}), not through libc_calls")


def main():
    source, build = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    compiler = next((name for name in ("cc", "gcc", "clang") if shutil.which(name)), None)
    for tool in ("nm", "readelf", compiler):
        if tool is None or shutil.which(tool) is None:
            print(f"skipped: no {tool or 'C compiler'}")
            return 77
    library = build / ".libs/librspreload.so"
    wrapped = rows(source / "core/base/libc_calls.def") | {"fcntl"}
    table = wrapped | rows(source / "preload/calls.def")
    exported = set(symbols(library, "--defined-only"))
    check_table(table, exported, mapped(source / "preload/librspreload.map"))

    intercepted = table | set(MADE_OF_ROWS)
    left = {name for _, names in LEFT_TO_LIBC for name in names.split()}
    libc = next(line.split()[2] for line in output_of("ldd", str(library)).splitlines() if "libc.so" in line)
    public = {name for name, version in symbols(libc, "--defined-only").items() if version != "GLIBC_PRIVATE"}
    declared = declared_on_descriptors([compiler]) | ALSO_OF_INTEREST
    surface = {name for name in public if name in declared or plain_name(name) in intercepted}
    check_surface(surface, intercepted, left)
    check_imports(surface, intercepted, left)
    check_own(build, wrapped, intercepted)
    if not failures:
        print(f"ok: {len(exported)} functions intercepted, {len(surface)} of libc's looked at")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
