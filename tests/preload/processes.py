#!/usr/bin/env python3
"""Python's ways to make processes, in programs with connections on a ring. Run by processes.sh, under the library."""
import asyncio
import multiprocessing
import multiprocessing.reduction
import os
import socket
import socketserver
import subprocess
import sys
import threading
import unittest


def on_ring(connection):
    """To the kernel a connection on a ring is an AF_UNIX socket: /proc knows it by inode."""
    inode = os.readlink(f"/proc/self/fd/{connection.fileno()}").removeprefix("socket:[").removesuffix("]")
    with open("/proc/net/unix", encoding="ascii", errors="replace") as table:
        return any(line.split()[6] == inode for line in table.readlines()[1:])


def echo(connection):
    while data := connection.recv(65536):
        connection.sendall(data)


class EchoHandler(socketserver.BaseRequestHandler):
    def handle(self):
        echo(self.request)


class EchoInChildren(socketserver.ForkingTCPServer):
    request_queue_size = 64


class Echo:
    """A server with a child for each client, in a process of its own."""

    def __enter__(self):
        server = EchoInChildren(("127.0.0.1", 0), EchoHandler)
        self.address = server.server_address
        self.pid = os.fork()
        if self.pid == 0:
            server.serve_forever()
        server.socket.close()
        return self

    def connect(self):
        return socket.create_connection(self.address)

    def __exit__(self, *_):
        os.kill(self.pid, 9)
        os.waitpid(self.pid, 0)


class Processes(unittest.TestCase):
    def ask(self, connection, text):
        connection.sendall(text)
        got = b""
        while len(got) < len(text):
            part = connection.recv(65536)
            self.assertNotEqual(part, b"")
            got += part
        self.assertEqual(got, text)

    def test_forking_server(self):
        with Echo() as server:
            connections = [server.connect() for _ in range(10)]
            self.assertTrue(all(on_ring(connection) for connection in connections))
            for connection in connections:
                self.ask(connection, os.urandom(100_000))
            for connection in connections:
                connection.shutdown(socket.SHUT_WR)
                self.assertEqual(connection.recv(1), b"")
                connection.close()

    def test_subprocesses_leave_connections_alone(self):
        with Echo() as server, server.connect() as connection:
            for options in ({}, {"close_fds": False}, {"start_new_session": True}, {"preexec_fn": lambda: None}):
                with self.subTest(**options):
                    output = subprocess.run(["echo", "hello"], stdout=subprocess.PIPE, check=True, **options).stdout
                    self.assertEqual(output, b"hello\n")
                    self.ask(connection, b"still here")
            self.assertEqual(os.system("true"), 0)
            with os.popen("echo hello") as shell:
                self.assertEqual(shell.read(), "hello\n")
            self.ask(connection, b"still here")

    def test_subprocesses_beside_traffic_of_other_threads(self):
        with Echo() as server:
            done = threading.Event()
            rounds = [0, 0]

            def traffic(number):
                with server.connect() as connection:
                    while not done.is_set():
                        self.ask(connection, os.urandom(2000))
                        rounds[number] += 1

            threads = [threading.Thread(target=traffic, args=(number,)) for number in range(2)]
            for thread in threads:
                thread.start()
            for _ in range(20):
                subprocess.run(["true"], check=True)
            before = list(rounds)
            while any(now == then for now, then in zip(rounds, before)):
                pass
            done.set()
            for thread in threads:
                thread.join()

    def test_a_subprocess_talks_to_the_client(self):
        with Echo() as server, server.connect() as connection:
            command = subprocess.Popen(["sh", "-c", "echo hello; head -c 6 >&2"], stdin=connection, stdout=connection,
                                       stderr=subprocess.PIPE)
            self.assertEqual(command.stderr.read(), b"hello\n")
            self.assertEqual(command.wait(), 0)
            command.stderr.close()

    def test_a_connection_given_to_a_worker(self):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            ours, theirs = multiprocessing.Pipe()

            def worker():
                ours.close()
                with socket.socket(fileno=multiprocessing.reduction.recv_handle(theirs)) as connection:
                    echo(connection)

            process = multiprocessing.get_context("fork").Process(target=worker)
            process.start()
            theirs.close()

            def serve():
                connection, _ = listener.accept()
                multiprocessing.reduction.send_handle(ours, connection.fileno(), process.pid)
                connection.close()

            server = threading.Thread(target=serve)
            server.start()
            with socket.create_connection(listener.getsockname()) as client:
                self.assertTrue(on_ring(client))
                self.ask(client, os.urandom(50_000))
            server.join()
            process.join()
            ours.close()
            self.assertEqual(process.exitcode, 0)

    def test_asyncio_with_subprocesses(self):
        async def client(address):
            reader, writer = await asyncio.open_connection(*address)
            for _ in range(5):
                writer.write(b"x" * 10_000)
                await reader.readexactly(10_000)
                process = await asyncio.create_subprocess_exec("true")
                self.assertEqual(await process.wait(), 0)
            writer.close()
            await writer.wait_closed()

        async def clients(address):
            await asyncio.gather(*(client(address) for _ in range(4)))

        with Echo() as server:
            asyncio.run(clients(server.address))


if __name__ == "__main__":
    sys.exit(unittest.main())
