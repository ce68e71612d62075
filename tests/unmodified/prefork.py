"""A server with blocking sockets: prefork.py PROCESSES HOST PORT. Each process has a thread for each connection (socketserver) and
answers a request with its body. A process that exits is replaced. SIGHUP replaces all.

Each process forks and runs programs in the middle of its connections, as the handlers of such servers do.
"""

import http.server
import os
import signal
import socketserver
import subprocess
import sys


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path == "/fork":
            child = os.fork()
            if child == 0:
                os._exit(0)
            os.waitpid(child, 0)
        elif self.path == "/spawn":
            subprocess.run(["true"], check=True)
        elif self.path == "/system":
            os.system("true")
        # One write: in two, Nagle's algorithm would hold the body until the head is acknowledged.
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n"
        if self.close_connection:
            head += "Connection: close\r\n"
        self.wfile.write(head.encode() + b"\r\n" + body)

    def log_message(self, *_):
        pass


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *_):
        pass


def start():
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        try:
            server.serve_forever()
        finally:
            os._exit(1)
    children.add(child)


def replace(*_):
    for child in list(children):
        os.kill(child, signal.SIGTERM)


def end(*_):
    replace()
    os._exit(0)


processes, host, port = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
server, children = Server((host, port), Handler), set()
signal.signal(signal.SIGHUP, replace)
signal.signal(signal.SIGTERM, end)
for _ in range(processes):
    start()
while True:
    children.discard(os.wait()[0])
    start()
