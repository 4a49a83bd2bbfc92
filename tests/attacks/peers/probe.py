"""An honest client: probe.py PORT keep|connect|once echo|redis|http PAUSE [HOST]. Goes round until SIGTERM, then says what it saw, as JSON."""
import json
import os
import signal
import socket
import sys
import time

WORDS = {"echo": (b"hello\n", b"hello\n"), "redis": (b"PING\r\n", b"+PONG\r\n"), "http": (b"GET / HTTP/1.0\r\n\r\n", b"HTTP/1.1 ")}
seen = {"rounds": 0, "longest_ms": 0.0, "errors": 0, "what": "", "per_s": 0.0}
started = time.monotonic()
since = None


def tell(*_):
    if since is not None:
        seen["longest_ms"] = max(seen["longest_ms"], (time.monotonic() - since) * 1000)
    seen["per_s"] = seen["rounds"] / (time.monotonic() - started)
    # Not by print(): the signal may come while print() is at it, which refuses to be entered twice.
    os.write(sys.stdout.fileno(), json.dumps(seen).encode() + b"\n")
    os._exit(0)


def talk(client, words):
    client.sendall(words[0])
    got = b""
    while len(got) < len(words[1]):
        piece = client.recv(4096)
        if not piece:
            raise OSError("the server closed")
        got += piece
    if not got.startswith(words[1]):
        raise OSError(f"wrong bytes: {got[:40]!r}")


def main():
    global since, started
    port, mode, words, pause = int(sys.argv[1]), sys.argv[2], WORDS[sys.argv[3]], float(sys.argv[4])
    host = sys.argv[5] if len(sys.argv) > 5 else "127.0.0.1"
    signal.signal(signal.SIGTERM, tell)
    client = None
    started = time.monotonic()
    print("ready", flush=True) if mode == "connect" else None
    while True:
        since = time.monotonic()
        try:
            client = client or socket.create_connection((host, port))
            talk(client, words)
            seen["rounds"] += 1
            if seen["rounds"] == 1 and mode == "keep":
                print("ready", flush=True)
        except OSError as error:
            seen["errors"] += 1
            seen["what"] = str(error)
            client = None
        seen["longest_ms"] = max(seen["longest_ms"], (time.monotonic() - since) * 1000)
        since = None
        if mode == "once":
            tell()
        if mode == "connect" and client:
            client.close()
            client = None
        time.sleep(pause)


main()
