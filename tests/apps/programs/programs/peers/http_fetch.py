"""Usage: http_fetch.py URL NAME...: fetches all files at once, a thread each; prints "SHA256 NAME" in that order."""
import concurrent.futures
import hashlib
import sys
import urllib.request


def fetch(base, name):
    total = hashlib.sha256()
    # No proxy of the environment: the server is on this host.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{base}/{name}", timeout=20) as answer:
        received = 0
        while piece := answer.read(65536):
            if received == 0 and name == "endless":
                print("begun", flush=True)
            received += len(piece)
            total.update(piece)
        if received != int(answer.headers["Content-Length"]):
            raise EOFError(f"{name}: only {received} bytes came")
    return f"{total.hexdigest()} {name}"


def main():
    base, *names = sys.argv[1:]
    with concurrent.futures.ThreadPoolExecutor(len(names)) as pool:
        for line in pool.map(lambda name: fetch(base, name), names):
            print(line)


main()
