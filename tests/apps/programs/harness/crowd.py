"""Many connections at once that say nothing, then as many short ones. Usage: crowd.py PORT COUNT

Prints "connected" when all stand, and keeps them until SIGTERM. Exit status 1 when one of them was closed meanwhile.
"""
import resource
import signal
import socket
import sys


def is_open(connection):
    connection.setblocking(False)
    try:
        return bool(connection.recv(65536))  # some servers greet
    except BlockingIOError:
        return True
    except OSError:
        return False


def main():
    port, count = map(int, sys.argv[1:])
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    crowd = [socket.create_connection(("127.0.0.1", port), 30) for _ in range(count)]
    print("connected", flush=True)
    signal.sigwait({signal.SIGTERM})
    closed = sum(not is_open(connection) for connection in crowd)
    if closed:
        print(f"{closed} of {count} connections were closed", flush=True)
    for _ in range(count):
        socket.create_connection(("127.0.0.1", port), 30).close()
    return 1 if closed else 0


sys.exit(main())
