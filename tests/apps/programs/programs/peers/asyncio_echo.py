"""Usage: asyncio_echo.py server|client|endless PORT: an echo server and its clients on asyncio's streams."""
import asyncio
import os
import signal
import sys

CLIENTS = 40
BULK = 2_000_003


async def echo(reader, writer):
    while piece := await reader.read(65536):
        writer.write(piece)
        await writer.drain()
    writer.close()


async def serve(port):
    server = await asyncio.start_server(echo, "127.0.0.1", port, backlog=CLIENTS)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stop.set)
    async with server:
        await stop.wait()


async def send_all(writer, content):
    writer.write(content)
    await writer.drain()
    writer.write_eof()


async def talk(port, number):
    """Small messages in turn, then bulk in both directions at once, then the end of the stream."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for turn in range(50):
        message = f"{number} {turn}\n".encode()
        writer.write(message)
        assert await reader.readline() == message
    content = os.urandom(BULK // CLIENTS)
    _, got = await asyncio.gather(send_all(writer, content), reader.read(-1))
    assert got == content, f"{len(got)} bytes came back, of {len(content)}"
    writer.close()
    await writer.wait_closed()


async def run_clients(port):
    await asyncio.gather(*(talk(port, number) for number in range(CLIENTS)))
    print("correct")


async def talk_forever(port):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    begun = False
    while True:
        writer.write(bytes(30_000))
        await reader.readexactly(30_000)
        if not begun:
            print("begun", flush=True)
            begun = True


asyncio.run({"server": serve, "client": run_clients, "endless": talk_forever}[sys.argv[1]](int(sys.argv[2])))
