#!/usr/bin/env python3
"""Programs under seccomp filters: what runs to its end on the kernel's sockets does so under librspreload.

For each call of core/base/rare_calls.def: a filter that kills for it, and one that answers EPERM, before the program
starts, when it starts, and when its connection is there; at both ends, at the server's, at the client's. Then lists of
what is allowed, as service managers and containers install them. Three of the six combinations of moment and action
are tried for each call, all of them with RINGSOCK_TEST_LONG set.

usage: seccomp.py TALK ROWS LIBRARY
"""
import concurrent.futures
import re
import os
import subprocess
import sys
import tempfile

talk, rows_program, library = sys.argv[1:4]
# Rings have time on a busy machine.
patient = os.path.join(os.path.dirname(os.path.abspath(__file__)), "patient")
environment = dict(os.environ, RINGSOCK_CONFIG_DIR=patient, RINGSOCK_STATS="1")
environment.pop("LD_PRELOAD", None)
# A child that is to tell what is allowed cannot be made here; said in librspreload(7).
NEEDS_VARIABLE = {"thread"}
CLONE_THREAD = 0x00010000
SECONDS = 60
RUNS_AT_ONCE = 3
is_long = "RINGSOCK_TEST_LONG" in os.environ


def command(role, moment, rule, preload, *more):
    """One end; `moment` exec: the filter is there before the program."""
    if moment == "exec":
        return [talk, "exec", rule, library if preload else "-", talk, role, "never", "-", *more]
    return [talk, role, moment, rule, *more]


def run(server_moment, client_moment, rule, preload, variables=None):
    """(ended well, what both said)."""
    env = dict(environment, **(variables or {}))
    direct = dict(env, LD_PRELOAD=library) if preload else env
    with tempfile.TemporaryFile("w+") as said:
        server = subprocess.Popen(command("server", server_moment, rule, preload), stdout=subprocess.PIPE, stderr=said,
                                  env=env if server_moment == "exec" else direct)
        port = server.stdout.readline().decode().strip()
        client = subprocess.Popen(command("client", client_moment, rule, preload, port or "1"), stderr=said,
                                  env=env if client_moment == "exec" else direct)
        statuses = []
        for process in (client, server):
            try:
                # Once the client has failed, so has the run, however the server ends.
                statuses.append(process.wait(SECONDS if not statuses or statuses[0] == 0 else 0.2))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                statuses.append("hangs")
        said.seek(0)
        return statuses == [0, 0], f"client {statuses[0]}, server {statuses[1]}\n{said.read()}"


def rule_against(number, arguments):
    """Where an ordinary program makes the same call with other arguments, the arguments count."""
    if number == NUMBERS["socket"]:
        return f"deny {number}/0/{arguments[0]}"
    if number in (NUMBERS["fcntl"], NUMBERS["membarrier"], NUMBERS["prctl"]):
        index = 1 if number == NUMBERS["fcntl"] else 0
        return f"deny {number}/{index}/{arguments[index]}"
    if number == NUMBERS["madvise"]:
        return f"deny {number}/2/{arguments[2]}"
    if number == NUMBERS["mmap"]:
        return f"deny {number}/3/{arguments[3]}"
    if number == NUMBERS["setsockopt"]:
        return f"deny {number}/2/{arguments[2]}"
    return f"deny {number}"


def numbers():
    text = subprocess.run(["cc", "-E", "-dM", "-include", "sys/syscall.h", "-x", "c", "/dev/null"], check=True,
                          capture_output=True, text=True).stdout
    return {name: int(value) for name, value in re.findall(r"#define __NR_(\w+) (\d+)$", text, re.M)}


NUMBERS = numbers()
# What programs of a service need, after systemd's @system-service: no membarrier, userfaultfd, process_vm_writev, bpf.
SERVICE = """accept accept4 access arch_prctl bind brk capget capset chdir chmod chown clock_getres clock_gettime
clock_nanosleep clone clone3 close close_range connect creat dup dup2 dup3 epoll_create epoll_create1 epoll_ctl
epoll_ctl_old epoll_pwait epoll_wait eventfd eventfd2 execve execveat exit exit_group faccessat faccessat2 fadvise64
fallocate fchdir fchmod fchmodat fchown fchownat fcntl fdatasync fgetxattr flock fork fstat fstatfs fsync ftruncate futex
getcwd getdents getdents64 getegid geteuid getgid getgroups getpeername getpgid getpgrp getpid getppid getpriority
getrandom getresgid getresuid getrlimit getrusage getsid getsockname getsockopt gettid gettimeofday getuid inotify_init1
ioctl kill lchown link linkat listen lseek lstat madvise memfd_create mkdir mkdirat mlock mmap mprotect mremap msync munlock
munmap nanosleep newfstatat open openat openat2 pause pipe pipe2 poll ppoll prctl pread64 preadv prlimit64 pselect6
pwrite64 pwritev read readlink readlinkat readv recvfrom recvmmsg recvmsg rename renameat restart_syscall rmdir rseq
rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait sched_getaffinity
sched_yield seccomp select sendfile sendmmsg sendmsg sendto set_robust_list set_tid_address setitimer setsid setsockopt
shutdown sigaltstack signalfd4 socket socketpair splice stat statfs statx symlink sysinfo tee tgkill time timer_create
timerfd_create timerfd_settime times tkill truncate umask uname unlink unlinkat utimensat vfork wait4 waitid write
writev""".split()
# A program that is as narrow as can be: what a small server over kernel TCP needs, and no more.
NARROW = """access arch_prctl accept bind brk clock_nanosleep close connect execve exit exit_group fstat futex getpid
getrandom getsockname listen lseek mmap mprotect munmap newfstatat open openat pread64 prlimit64 prctl seccomp read
recvfrom rseq rt_sigaction rt_sigprocmask rt_sigreturn sendto set_robust_list set_tid_address socket write""".split()


def allowing(names):
    return "allow " + ",".join(str(NUMBERS[name]) for name in names if name in NUMBERS)


table = [(fields[0], fields[1], int(fields[2]), [int(word) & 0xFFFFFFFF for word in fields[3:]])
         for fields in (line.split() for line in subprocess.run([rows_program], check=True, capture_output=True,
                                                                 text=True).stdout.splitlines())]
pool = concurrent.futures.ThreadPoolExecutor(RUNS_AT_ONCE)
checks = []


def outcome(what, server_moment, client_moment, rule, expect, variables):
    """What went wrong, "" when nothing did; None: the kernel's sockets need what the filter forbids, too."""
    well, said = run(server_moment, client_moment, rule, True, variables)
    if well and (expect is None or expect in said):
        return ""
    if not well and not run(server_moment, client_moment, rule, False)[0]:
        return None
    print(f"FAILED {what}: {said}", flush=True)
    return said


def check(what, server_moment, client_moment, rule, expect=None, variables=None):
    checks.append((what, pool.submit(outcome, what, server_moment, client_moment, rule, expect, variables)))


ON_RING = "1 connections by ring"
MOMENTS = ("exec", "start", "connected")
for place, (name, need, number, arguments) in enumerate(table):
    for action in ("kill", "errno"):
        rule = f"{action} {rule_against(number, arguments)}"
        for moment in MOMENTS:
            # In the short form each call is killed for before and after the library asks what is allowed.
            chosen = moment != "start" if action == "kill" else moment == MOMENTS[place % 3]
            if not chosen and not is_long:
                continue
            if moment == "exec" and name in NEEDS_VARIABLE:
                check(f"{name} {action} exec, told", "exec", "exec", rule, variables={"RINGSOCK_SECCOMP": "deny"})
            else:
                check(f"{name} {action} {moment}", moment, moment, rule)
for name in ("membarrier", "memfd_create", "eventfd2", "fallocate", "epoll_create1", "sendmsg"):
    for moment in MOMENTS if is_long else ("exec", "connected"):
        rule = f"kill deny {NUMBERS[name]}"
        check(f"{name} {moment}, server alone", moment, "never", rule)
        check(f"{name} {moment}, client alone", "never", moment, rule)
for what, names in (("service", SERVICE), ("narrow", NARROW)):
    for action in ("kill", "trap", "errno"):
        for moment in MOMENTS:
            variables = {"RINGSOCK_SECCOMP": "deny"} if what == "narrow" and moment == "exec" else None
            check(f"{what} {action} {moment}", moment, moment, f"{action} {allowing(names)}", variables=variables)
# Where a filter lets everything through the rings stay; where it does not the statistics say so.
check("harmless: ring", "exec", "exec", f"kill deny {NUMBERS['reboot']}", ON_RING)
check("service: ring", "exec", "exec", f"kill {allowing(SERVICE)}", ON_RING)
check("memfd_create: said", "exec", "exec", f"kill deny {NUMBERS['memfd_create']}", "seccomp")
# A process that may make no thread has rings where the table says so.
if dict((row[0], row[1]) for row in table)["thread"] != "ring":
    no_threads = f"errno deny {NUMBERS['clone3']},{NUMBERS['clone']}/0/&{CLONE_THREAD}"
    for moment in MOMENTS:
        check(f"no threads {moment}: ring", moment, moment, no_threads, ON_RING)

outcomes = [(what, future.result()) for what, future in checks]
left_out = [what for what, result in outcomes if result is None]
failed = sum(1 for _, result in outcomes if result)
print(f"left out, the kernel's sockets need them: {', '.join(left_out)}")
print(f"{len(outcomes) - failed - len(left_out)} runs under filters ended well, {failed} did not")
sys.exit(1 if failed else 0)
