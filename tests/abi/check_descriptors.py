#!/usr/bin/env python3
"""Finds each place in the libraries' rooms where a descriptor is made, and asks whether it is moved out of the application's way.

Usage: check_descriptors.py FOLDER

A descriptor that the library keeps must have a high number: out_of_the_way() or own_duplicate() (core/base/unique_fd.h, own_duplicate.h) in the same
statement, or within the next lines for a named UniqueFd and for the two ends of a pair. A const local UniqueFd needs none, because it
ends with its block. Everything else stands in EXPLAINED. Exit status 1 when a place is neither, or a row of EXPLAINED has no place.
"""
import pathlib
import re
import sys

ROOTS = ("core", "librsocket", "libvmacompat", "preload")
MAKERS = """accept4? bpf_link_create bpf_prog_load bpf_object__open_mem dup[23]? epoll_create1? eventfd fdopen fopen inotify_init1?
    memfd_create mkostemp nl_connect open openat opendir perf_event_open pidfd_open pipe2? signalfd socket socketpair
    timerfd_create""".split()
MAKES = re.compile(r"(?:(?<![\w>])(?:::|std::)|\breal\.|(?<![\w:.>]))(" + "|".join(MAKERS) + r")\(|F_DUPFD\w*|SCM_RIGHTS|SYS_(?:userfaultfd|pidfd_open|bpf)\b|USERFAULTFD_IOC_NEW")
WITHIN = 12  # lines in which a named descriptor is moved

# (file, what makes): why the descriptor may keep the number that it gets
APPLICATIONS = "the application gets it, or puts it there"
ENDS = "closed before the call returns"
THEIRS = "a library opens it, and closes it before the call returns"
EXPLAINED = {
    ("core/base/text_lines.h", "fopen"): ENDS,
    ("core/base/helper_process.cc", "open"): ENDS,
    ("core/base/unique_fd.cc", "F_DUPFD_CLOEXEC"): "moves descriptors out of the way",
    ("core/config/rsocket_config.cc", "open"): ENDS,
    ("core/statistics/statistics_file.cc", "openat"): "of programs that read statistics",
    ("core/statistics/statistics_file.cc", "opendir"): ENDS,
    ("core/statistics/statistics_file.cc", "mkostemp"): ENDS,
    ("core/statistics/statistics_reader.cc", "opendir"): "of programs that read statistics",
    ("core/poll/select_call.cc", "opendir"): ENDS,
    ("core/poll/turn_sleeper.h", "signalfd"): "changes one that there is",
    ("core/poll/epoll_set.cc", "epoll_create1"): APPLICATIONS,
    ("core/transports/listening_beside.cc", "accept4"): APPLICATIONS,
    ("core/device/shm/link/link.cc", "dup3"): APPLICATIONS,
    ("core/device/shm/link/open_memory.cc", "open"): "callers map it and close it",
    ("core/device/shm/link/link.cc", "SCM_RIGHTS"): "memory, which is mapped at once",
    ("core/base/passing.h", "SCM_RIGHTS"): "memory, which callers map at once",
    ("core/device/shm/cm/acceptor.cc", "accept4"): APPLICATIONS,
    ("core/device/shm/names/port_reservation.cc", "socket"): "held until listen(2) or the end of connect(2) only",
    ("core/device/shm/memory/page_swap.cc", "USERFAULTFD_IOC_NEW"): "moved some lines below",
    ("core/device/shm/names/sock_diag.cc", "nl_connect"): THEIRS,
    ("core/device/packet/steering/bpf_program.cc", "bpf_object__open_mem"): THEIRS,
    ("core/device/packet/steering/flow_guardian.cc", "*"): "a process of its own",
    ("librsocket/api/api.cc", "*"): APPLICATIONS,
    ("librsocket/listen.cc", "eventfd"): APPLICATIONS,
    ("librsocket/fork_mover.cc", "dup3"): APPLICATIONS,
    ("librsocket/stream_numbers.cc", "dup3"): APPLICATIONS,
    ("librsocket/hand_over/door.cc", "SCM_RIGHTS"): "moved some lines below",
    ("librsocket/hand_over/relay.cc", "signalfd"): "a process of its own",
    ("librsocket/hand_over/exec.cc", "dup3"): APPLICATIONS,
    ("libvmacompat/extra_api/ring_descriptors.cc", "eventfd"): APPLICATIONS,
    ("core/extra_api/shared_rings.cc", "eventfd"): APPLICATIONS,
    ("libvmacompat/statistics/vma_page_reader.cc", "*"): "of programs that read statistics",
    ("preload/epoll_nesting.cc", "fopen"): ENDS,
    ("preload/connection_calls.cc", "accept"): APPLICATIONS,
    ("libvmacompat/tcp/tcp_events.cc", "accept4"): APPLICATIONS,
    ("preload/connection_calls.cc", "accept4"): APPLICATIONS,
    ("preload/pass_descriptors.cc", "SCM_RIGHTS"): "of messages that the application sends",
    ("preload/pass_descriptors.cc", "dup3"): APPLICATIONS,
}
# The application's own calls, passed on to libc
PASSED_ON = {"preload/" + name for name in ("bypass_calls.cc", "calls.def", "descriptor_calls.cc", "number_calls.cc", "stdio_calls.cc",
                                            "system_calls.cc", "socket_ways.cc", "wait_calls.cc", "async_calls.cc", "seccomp_calls.cc")}
LIBCS = {"core/base/" + name for name in ("libc_calls.cc", "libc_calls.def", "libc_calls.h", "libc_wraps.cc", "rare_calls.def", "no_shell.cc")}


def statement_at(text, place):
    """The text of the statement around `place`, and where it ends."""
    begin = max(text.rfind(mark, 0, place) for mark in ";{}") + 1
    end = text.find(";", place)
    return text[begin:end], end


def is_moved(text, place, maker):
    statement, end = statement_at(text, place)
    code = re.sub(r"//[^\n]*", "", statement).strip()
    if re.search(r"\bout_of_the_way\(|\bown_duplicate\(", code):
        return True
    if re.match(r"(if \(\w+\) )?const (Unique|Passed)Fd \w+[({]", code):
        return True
    following = "\n".join(text[end:].splitlines()[:WITHIN])
    if maker in ("pipe", "pipe2", "socketpair"):
        ends = r"(out_of_the_way\(UniqueFd\(|::close\()%s\[%d\]"
        return any(all(re.search(ends % (name, end_of), following) for end_of in (0, 1))
                   or re.search(r"const UniqueFd \w+\(%s\[0\]\), \w+\(%s\[1\]\)" % (name, name), following)
                   for name in re.findall(r"\w+", code))
    named = re.match(r"(?:if \([^)]*\) )?UniqueFd (\w+)[({]", code) or re.search(r"(\w+)\.reset\($", code[:code.find(maker)].rstrip(":"))
    return bool(named) and f"out_of_the_way(std::move({named[1]}))" in following


def places(root):
    """(file, line, what makes, whether it is moved)"""
    for top in ROOTS:
        for path in sorted((root / top).rglob("*")):
            name = str(path.relative_to(root))
            if path.suffix not in (".h", ".cc", ".def") or name in PASSED_ON | LIBCS:
                continue
            text = path.read_text()
            for match in MAKES.finditer(text):
                line = text[text.rfind("\n", 0, match.start()) + 1:text.find("\n", match.start())]
                if re.match(r"\s*(//|\*|#)", line) or "//" in line[:match.start() - text.rfind("\n", 0, match.start())]:
                    continue
                maker = match[1] or match[0]
                if match[1] and not match[0].startswith(("::", "std::", "real.")) and not maker.startswith(("bpf_", "nl_")):
                    continue  # a function of ours with that name
                if maker == "SCM_RIGHTS" and not re.search(r"cmsg_type != SCM_RIGHTS", line):
                    continue  # sent, not received
                yield name, text.count("\n", 0, match.start()) + 1, maker, is_moved(text, match.start(), maker)


def main():
    root = pathlib.Path(sys.argv[1])
    needed, faults, count = set(), [], 0
    for name, line, maker, moved in places(root):
        count += 1
        if moved:
            continue
        row = next((row for row in ((name, maker), (name, "*")) if row in EXPLAINED), None)
        if row is None:
            faults.append(f"{name}:{line}: {maker} makes a descriptor that is neither moved out of the way nor explained")
        needed.add(row)
    faults += [f"{pathlib.Path(__file__).name} explains {maker} in {name}, which is not there" for name, maker in EXPLAINED.keys() - needed]
    print("\n".join(faults) if faults else f"{count} places make descriptors, {len(EXPLAINED)} rows explain those that are not moved")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
