"""Apache 2 with curl and ab."""
import os
import re

from harness.processes import Failure
from harness.run import free_port

from . import nginx

CONFIGURATION = """
ServerName localhost
ServerRoot {folder}
Listen 127.0.0.1:{port}
Listen [::1]:{port}
PidFile {folder}/apache.pid
ErrorLog {folder}/error.log
LoadModule mpm_event_module /usr/lib/apache2/modules/mod_mpm_event.so
LoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so
{user}
StartServers 2
ServerLimit 2
ThreadsPerChild 16
MaxRequestWorkers 32
EnableSendfile on
MaxKeepAliveRequests 0
DocumentRoot {folder}/www
"""


class Apache(nginx.Nginx):
    name = "apache2"
    title = "Apache 2 (event), curl, ab"
    crowd = 0
    needs = ("apache2", "curl", "ab")

    def start(self, run):
        self.port = free_port()
        nginx.make_files(run)
        user = "User nobody\nGroup nogroup" if os.geteuid() == 0 else ""
        configuration = CONFIGURATION.format(folder=run.folder, port=self.port, user=user)
        run.errors_also_in("server", run.path("error.log"))
        run.serve(["apache2", "-D", "FOREGROUND", "-f", run.write("apache.conf", configuration)], port=self.port)

    def exchange(self, run):
        nginx.check_fetches(run, self.port)
        said = run.client(["ab", "-q", "-n", 1000, "-c", 10, "-k", f"http://127.0.0.1:{self.port}/page"]).text
        if not re.search(r"Failed requests: +0\b", said) or not re.search(r"Complete requests: +1000\b", said):
            raise Failure(f"ab saw failures:\n{said}")
