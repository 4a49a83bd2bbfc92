"""Brokers of messages: RabbitMQ (Erlang), ActiveMQ (Java)."""
import os
import pathlib
import shutil

from harness.processes import wait_until
from harness.program import Program
from harness.run import digest, free_port, must_equal, must_hold, ordinary_user

from .python_peers import PEERS

BROKER_STARTS_S = 60  # a broker that is alone on the machine takes less than ten seconds
DEBIAN_MODULES = pathlib.Path("/usr/lib/python3/dist-packages")


class Broker(Program):
    """A broker, and a script of peers/: `SCRIPT client|endless PORT...`, which prints "correct" or "begun"."""

    script = ""
    module = ""  # of Debian's Python, which the script uses
    package = ""  # that has the module

    def missing(self):
        return super().missing() + ([] if (DEBIAN_MODULES / self.module).is_dir() else [self.package])

    def peer(self, role, *ports):
        return ["/usr/bin/python3", "-B", PEERS / self.script, role, *ports]

    def check_peer(self, run, *ports):
        must_equal(run.client(self.peer("client", *ports), timeout=60).output.strip(), b"correct", "the client's verdict")

    def begin_endless(self, run, *ports):
        client = run.begin(self.peer("endless", *ports))
        wait_until(lambda: client.output() == b"begun\n", "the client says that data flows", 20)
        return client


class RabbitMq(Broker):
    name = "rabbitmq"
    title = "RabbitMQ (AMQP), amqp-publish, amqp-get, amqp-consume, pika with confirmations"
    server = "/usr/lib/rabbitmq/bin/rabbitmq-server"  # the one in PATH becomes another user and writes to /var
    needs = (server, "epmd", "amqp-publish", "amqp-get", "amqp-consume", "amqp-declare-queue", "/usr/bin/python3")
    silent = ("server",)  # the emulator ends by _exit(2)
    servers_talk = True  # the broker and epmd
    clients_talk = True  # pika makes pairs of sockets over TCP
    script = "amqp_peers.py"
    module = "pika"
    package = "python3-pika"

    def start(self, run):
        self.port, names, nodes = free_port(), free_port(), free_port()
        user = ordinary_user()
        run.folder.chmod(0o777)
        cookie = run.write(".erlang.cookie", "ringsock", 0o400)
        if user is not None:
            shutil.chown(cookie, user.pw_uid, user.pw_gid)
        run.serve(["epmd", "-address", "127.0.0.1", "-port", names], port=names, user=user)
        settings = {
            "ERL_EPMD_PORT": names,
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_CONFIG_FILE": run.write("rabbitmq.conf", f"listeners.tcp.1 = 127.0.0.1:{self.port}\n"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": run.path("advanced.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": run.path("plugins"),
            "RABBITMQ_MNESIA_BASE": run.path("data"),
            "RABBITMQ_LOG_BASE": run.path("log"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_NODENAME": "ringsock@localhost",
            "RABBITMQ_DIST_PORT": nodes,
        }
        words = ["env", *(f"{name}={value}" for name, value in settings.items()), self.server]
        run.serve(words, port=self.port, user=user, label="rabbitmq-server", timeout=BROKER_STARTS_S)

    def amqp(self, command, *words):
        return [f"amqp-{command}", "--server=127.0.0.1", f"--port={self.port}", *words]

    def exchange(self, run):
        self.check_tools(run)
        self.check_peer(run, self.port)

    def check_tools(self, run):
        """A large message, 20 connections of a message each, and three consumers that share 300 messages."""
        content = run.random_file("content", 3_000_001)
        for queue in ("file", "lines"):
            must_equal(run.client(self.amqp("declare-queue", "-q", queue)).output.strip(), queue.encode(), "its queue")
        run.client(self.amqp("publish", "-r", "file", "-p"), stdin=content)
        must_equal(digest(self.get(run, "file")), digest(content), "what amqp-get fetched")
        for number in range(20):
            run.client(self.amqp("publish", "-r", "file", "-b", f"short {number}"))
            must_equal(self.get(run, "file"), f"short {number}".encode(), "the message of a short connection")
        lines = [f"line {number} {'x' * number}\n".encode() for number in range(300)]
        readers = [run.begin(self.amqp("consume", "-q", "lines", "-c", 100, "-p", 10, "cat")) for _ in range(3)]
        run.client(self.amqp("publish", "-r", "lines", "-l"), stdin=run.write("lines", b"".join(lines)))
        got = [line for reader in readers for line in run.finish(reader).output.splitlines(keepends=True)]
        must_equal(sorted(got), sorted(lines), "the messages that three readers shared")

    def get(self, run, queue):
        """The next message; a publisher that has no confirmation may have ended before its message is in the queue."""
        return wait_until(lambda: run.client(self.amqp("get", "-q", queue), status=None).output, "a message is there")

    def endless(self, run):
        return self.begin_endless(run, self.port)


ACTIVEMQ = """
<beans xmlns="http://www.springframework.org/schema/beans" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"
  xsi:schemaLocation="http://www.springframework.org/schema/beans
    http://www.springframework.org/schema/beans/spring-beans.xsd
    http://activemq.apache.org/schema/core http://activemq.apache.org/schema/core/activemq-core.xsd">
  <broker xmlns="http://activemq.apache.org/schema/core" brokerName="ringsock" useJmx="false" persistent="true"
      dataDirectory="{folder}/data">
    <transportConnectors>
      <transportConnector uri="stomp://127.0.0.1:{ports[0]}"/>
      <transportConnector uri="stomp+nio://127.0.0.1:{ports[1]}"/>
      <transportConnector uri="tcp://127.0.0.1:{ports[2]}"/>
    </transportConnectors>
  </broker>
</beans>
"""
LOG4J = """
log4j.rootLogger=WARN, stderr
log4j.logger.org.apache.activemq.util=INFO
log4j.appender.stderr=org.apache.log4j.ConsoleAppender
log4j.appender.stderr.target=System.err
log4j.appender.stderr.layout=org.apache.log4j.PatternLayout
log4j.appender.stderr.layout.ConversionPattern=%p %c %m%n
"""


class ActiveMq(Broker):
    name = "activemq"
    title = "ActiveMQ (STOMP by threads and by NIO, OpenWire), stomp.py, its own producer and consumer"
    crowd = 400
    home = "/usr/share/activemq"
    jar = f"{home}/bin/activemq.jar"
    needs = ("java", "/usr/bin/python3")
    script = "stomp_peers.py"
    module = "stomp"
    package = "python3-stomp"

    def missing(self):
        return super().missing() + ([] if os.path.exists(self.jar) else ["activemq"])

    def start(self, run):
        self.ports = [free_port() for _ in range(3)]
        self.port = self.ports[1]
        for name in ("conf", "data", "tmp"):
            run.path(name).mkdir()
        self.log4j = run.write("conf/log4j.properties", LOG4J)
        xml = run.write("conf/activemq.xml", ACTIVEMQ.format(folder=run.folder, ports=self.ports))
        server = self.java(run, "start", f"xbean:file:{xml}")
        run.serve(server, port=self.ports[2], label="activemq", timeout=BROKER_STARTS_S)

    def java(self, run, *words):
        """Debian's script reads /usr/share/activemq/activemq-options, which names folders below /var."""
        folders = {"home": self.home, "base": run.folder, "conf": run.path("conf"), "data": run.path("data")}
        settings = [f"-Dactivemq.{name}={folder}" for name, folder in folders.items()]
        settings += [f"-Djava.io.tmpdir={run.path('tmp')}", f"-Dlog4j.configuration=file:{self.log4j}"]
        return ["java", "-Xmx512M", "-XX:-UsePerfData", *settings, "-jar", self.jar, *words]

    def exchange(self, run):
        for port in self.ports[:2]:
            self.check_peer(run, port)
        self.check_own_clients(run)

    def check_own_clients(self, run):
        """OpenWire, with acknowledged messages; the consumer waits for the last of them."""
        words = ["--brokerUrl", f"tcp://127.0.0.1:{self.ports[2]}", "--destination", "queue://own", "--messageCount", 200]
        consumer = run.begin(self.java(run, "consumer", *words))
        said = run.client(self.java(run, "producer", *words, "--messageSize", 20_000, "--persistent", "true"), timeout=60)
        must_hold(said.text, "Produced: 200 messages")
        must_hold(run.finish(consumer, timeout=60).text, "Consumed: 200 messages")

    def endless(self, run):
        return self.begin_endless(run, self.ports[1])
