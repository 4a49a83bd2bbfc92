"""A server that asks its one client for data again and again and never waits: "recv CALLS LONGEST_MS AVERAGE_MS" of CPU at SIGTERM."""
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
calls, longest, total = 0, 0, 0
while goes_on:
    before = time.thread_time_ns()
    try:
        if not client.recv(4096):
            break
    except BlockingIOError:
        pass
    except OSError:
        break
    took = time.thread_time_ns() - before
    calls, longest, total = calls + 1, max(longest, took), total + took
print("recv", calls, longest / 1e6, total / 1e6 / max(calls, 1), flush=True)
