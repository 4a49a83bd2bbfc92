"""haproxy in front of nginx, as an HTTP proxy and as a TCP proxy that may splice."""
from harness.run import free_port

from . import nginx

CONFIGURATION = """
global
  nbthread 2
  maxconn 2500
defaults
  timeout connect 5s
  timeout client 60s
  timeout server 60s
frontend web
  mode http
  bind 127.0.0.1:{web}
  bind [::1]:{web}
  default_backend files
backend files
  mode http
  option http-keep-alive
  server nginx 127.0.0.1:{nginx}
frontend stream
  mode tcp
  option splice-auto
  bind 127.0.0.1:{stream}
  bind [::1]:{stream}
  default_backend bytes
backend bytes
  mode tcp
  option splice-auto
  server nginx 127.0.0.1:{nginx}
"""


class Haproxy(nginx.Nginx):
    name = "haproxy"
    title = "haproxy (HTTP, and TCP with splice) in front of nginx, curl, wrk"
    crowd = 1000
    servers_talk = True
    needs = ("haproxy", "nginx", "curl", "wrk")

    def start(self, run):
        behind, self.port, self.stream = free_port(), free_port(), free_port()
        nginx.start_nginx(run, behind)
        configuration = run.write("haproxy.cfg", CONFIGURATION.format(web=self.port, stream=self.stream, nginx=behind))
        run.serve(["haproxy", "-db", "-f", configuration], port=self.stream)

    def exchange(self, run):
        nginx.check_fetches(run, self.port)
        nginx.check_fetches(run, self.stream)
        nginx.check_wrk(run, self.port)
