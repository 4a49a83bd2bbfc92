import java.io.EOFException;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Random;

/** Usage: NioEcho server|client|endless PORT. The server echoes on one selector; a client prints "correct". */
public class NioEcho {
    private static final int CLIENTS = 12;
    private static final int BULK = 400_000;

    public static void main(String[] arguments) throws Exception {
        var address = new InetSocketAddress(InetAddress.getByName(System.getProperty("echo.host", "127.0.0.1")), Integer.parseInt(arguments[1]));
        switch (arguments[0]) {
            case "server" -> serve(address);
            case "client" -> runClients(address);
            default -> talkForever(address);
        }
    }

    private static void serve(InetSocketAddress address) throws IOException {
        var selector = Selector.open();
        var listener = ServerSocketChannel.open();
        listener.bind(address, CLIENTS);
        listener.configureBlocking(false);
        listener.register(selector, SelectionKey.OP_ACCEPT);
        while (true) {
            selector.select();
            for (var key : selector.selectedKeys()) {
                if (key.isAcceptable()) {
                    var connection = listener.accept();
                    if (connection == null) continue;
                    connection.configureBlocking(false);
                    connection.register(selector, SelectionKey.OP_READ, ByteBuffer.allocateDirect(65536));
                } else {
                    echo(key);
                }
            }
            selector.selectedKeys().clear();
        }
    }

    /** Reads while there is room, writes while the peer takes it, and asks for exactly the events it can use. */
    private static void echo(SelectionKey key) {
        var connection = (SocketChannel) key.channel();
        var buffer = (ByteBuffer) key.attachment();
        try {
            var ended = key.isReadable() && connection.read(buffer) < 0;
            buffer.flip();
            connection.write(buffer);
            var left = buffer.hasRemaining();
            buffer.compact();
            if (ended) {
                key.cancel();
                connection.configureBlocking(true);
                buffer.flip();
                while (buffer.hasRemaining()) connection.write(buffer);
                connection.close();
                return;
            }
            key.interestOps((left ? SelectionKey.OP_WRITE : 0) | (buffer.hasRemaining() ? SelectionKey.OP_READ : 0));
        } catch (IOException broken) {
            key.cancel();
            try {
                connection.close();
            } catch (IOException ignored) {
                // It is gone already.
            }
        }
    }

    private static void runClients(InetSocketAddress address) throws Exception {
        var failures = new ArrayList<Throwable>();
        var threads = new ArrayList<Thread>();
        for (int number = 0; number < CLIENTS; ++number) {
            final int seed = number;
            var thread = new Thread(() -> {
                try {
                    if (seed % 2 == 0) talkByChannel(address, seed);
                    else talkBySocket(address, seed);
                } catch (Throwable failure) {
                    synchronized (failures) {
                        failures.add(failure);
                    }
                }
            });
            threads.add(thread);
            thread.start();
        }
        for (var thread : threads) thread.join();
        for (var failure : failures) failure.printStackTrace();
        if (!failures.isEmpty()) System.exit(1);
        System.out.println("correct");
    }

    private static byte[] content(int seed) {
        var bytes = new byte[BULK + seed];
        new Random(seed).nextBytes(bytes);
        return bytes;
    }

    /** Non-blocking connect, then writes and reads as a selector allows. */
    private static void talkByChannel(InetSocketAddress address, int seed) throws IOException {
        var sent = content(seed);
        var out = ByteBuffer.wrap(sent);
        var in = ByteBuffer.allocate(sent.length + 1);
        try (var selector = Selector.open(); var channel = SocketChannel.open()) {
            channel.configureBlocking(false);
            var key = channel.register(selector, SelectionKey.OP_CONNECT);
            if (channel.connect(address)) key.interestOps(SelectionKey.OP_READ | SelectionKey.OP_WRITE);
            for (boolean ended = false; !ended; ) {
                selector.select();
                selector.selectedKeys().clear();
                if (key.isConnectable() && channel.finishConnect()) {
                    key.interestOps(SelectionKey.OP_READ | SelectionKey.OP_WRITE);
                }
                if (key.isWritable()) {
                    channel.write(out);
                    if (!out.hasRemaining()) {
                        channel.shutdownOutput();
                        key.interestOps(SelectionKey.OP_READ);
                    }
                }
                if (key.isReadable()) ended = channel.read(in) < 0;
            }
        }
        if (!Arrays.equals(sent, Arrays.copyOf(in.array(), in.position()))) {
            throw new IOException("the echo of " + seed + " differs");
        }
    }

    /** Streams of a plain socket, one thread in each direction. */
    private static void talkBySocket(InetSocketAddress address, int seed) throws Exception {
        var sent = content(seed);
        try (var socket = new Socket()) {
            socket.connect(address, 10_000);
            socket.setSoTimeout(20_000);
            socket.setTcpNoDelay(true);
            OutputStream out = socket.getOutputStream();
            InputStream in = socket.getInputStream();
            var writer = new Thread(() -> {
                try {
                    out.write(sent);
                    socket.shutdownOutput();
                } catch (IOException ignored) {
                    // The reader sees too little.
                }
            });
            writer.start();
            var got = in.readAllBytes();
            writer.join();
            if (!Arrays.equals(sent, got)) throw new IOException("the echo of " + seed + " differs");
        }
    }

    private static void talkForever(InetSocketAddress address) throws IOException {
        try (var channel = SocketChannel.open(address)) {
            var begun = false;
            for (var message = ByteBuffer.allocate(30_000); ; ) {
                message.clear();
                while (message.hasRemaining()) channel.write(message);
                message.clear();
                while (message.hasRemaining()) {
                    if (channel.read(message) < 0) throw new EOFException("the server is gone");
                }
                if (!begun) System.out.println("begun");
                begun = true;
            }
        }
    }
}
