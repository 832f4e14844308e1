"""The peer's server: gunicorn as the project runs it; the number of threads is on its command line."""

import os

bind = f"127.0.0.1:{os.environ['PORT']}"
workers = int(os.environ.get("WEB_CONCURRENCY", "2"))
worker_class = "gthread"
worker_connections = 1000
backlog = 2048
timeout = 10
keepalive = 65
control_socket_disable = True
