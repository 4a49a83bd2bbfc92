"""Usage: grpc_echo.py server|client|endless PORT: bytes are echoed in calls and in streams, without protobuf."""
import concurrent.futures
import os
import signal
import sys
import threading

import grpc


class Echo(grpc.GenericRpcHandler):
    def service(self, details):
        if details.method == "/echo/call":
            return grpc.unary_unary_rpc_method_handler(lambda request, _: request)
        if details.method == "/echo/stream":
            return grpc.stream_stream_rpc_method_handler(lambda requests, _: iter(requests))
        return None


def serve(port):
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(8), handlers=[Echo()])
    if server.add_insecure_port(f"127.0.0.1:{port}") != port:
        sys.exit("the port is taken")
    stop = threading.Event()
    signal.signal(signal.SIGINT, lambda *_: stop.set())
    server.start()
    stop.wait()
    server.stop(1).wait()


def open_channel(port):
    return grpc.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.use_local_subchannel_pool", 1)])


def talk(port, number):
    with open_channel(port) as channel:
        call = channel.unary_unary("/echo/call")
        for turn in range(50):
            content = os.urandom(turn * 997 + number)
            assert call(content, timeout=10) == content
        pieces = [os.urandom(30_011) for _ in range(40)]
        assert list(channel.stream_stream("/echo/stream")(iter(pieces), timeout=10)) == pieces


def check(port):
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        for done in [pool.submit(talk, port, number) for number in range(12)]:
            done.result()
    print("correct")


def talk_forever(port):
    with open_channel(port) as channel:
        call = channel.unary_unary("/echo/call")
        call(b"x", timeout=10)
        print("begun", flush=True)
        while True:
            call(bytes(30_000), timeout=10)


{"server": serve, "client": check, "endless": talk_forever}[sys.argv[1]](int(sys.argv[2]))
