"""A server that asks its one client for data again and again and never waits. At SIGTERM "recv CALLS LONGEST_MS SLOW", of CPU:
one call in a thousand took SLOW ms or more."""
import signal
import socket
import time

listener = socket.create_server(("127.0.0.1", 0))
print("port", listener.getsockname()[1], flush=True)
client, _ = listener.accept()
client.setblocking(False)
goes_on = True


def stop(*_):
    global goes_on
    goes_on = False


signal.signal(signal.SIGTERM, stop)
took = []
while goes_on:
    before = time.thread_time_ns()
    try:
        if not client.recv(4096):
            break
    except BlockingIOError:
        pass
    except OSError:
        break
    took.append(time.thread_time_ns() - before)
took.sort()
print("recv", len(took), took[-1] / 1e6, took[-1 - len(took) // 1000] / 1e6, flush=True)
