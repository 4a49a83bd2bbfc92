"""A server that echoes and allocates 16 MiB with each client: mapper.py [locked]. "no memory" when it cannot."""
import ctypes
import mmap
import select
import socket
import sys

if "locked" in sys.argv[1:]:
    libc = ctypes.CDLL(None, use_errno=True)
    import resource

    if libc.mlockall(3) != 0:
        limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        print("mlockall", ctypes.get_errno(), limit, file=sys.stderr)
listener = socket.create_server(("127.0.0.1", 0), backlog=256)
print("port", listener.getsockname()[1], flush=True)
clients = {}
while True:
    for fd in select.select([listener, *clients.values()], [], [], 1)[0]:
        if fd is listener:
            client = listener.accept()[0]
            clients[client.fileno()] = client
            try:
                mmap.mmap(-1, 16 << 20).close()
            except OSError as error:
                print("no memory", error, flush=True)
            continue
        try:
            data = fd.recv(4096)
            if data and fd.send(data):
                continue
        except OSError:
            pass
        clients.pop(fd.fileno()).close()
