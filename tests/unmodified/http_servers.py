"""Serves the current directory over HTTP with the servers that Python programs use: http_servers.py KIND HOST PORT.

KIND: threaded (a thread for each connection), forking (a process for each), asyncio (one thread, non-blocking sockets).
"""

import asyncio
import http.server
import pathlib
import socketserver
import sys


class Handler(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass


class Threaded(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    request_queue_size = 128


class Forking(socketserver.ForkingMixIn, http.server.HTTPServer):
    max_children = 64
    request_queue_size = 128


async def answer(reader, writer):
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            path, version = head.split(b" ", 2)[1].decode(), head.split(b"\r\n", 1)[0].split(b" ")[2]
            keep = b"keep-alive" in head.lower() or (version == b"HTTP/1.1" and b"connection: close" not in head.lower())
            body = pathlib.Path("." + path).read_bytes()
            kept = "keep-alive" if keep else "close"
            writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: {kept}\r\n\r\n".encode() + body)
            await writer.drain()
            if not keep:
                break
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    writer.close()


async def run(host, port):
    server = await asyncio.start_server(answer, host, port, backlog=128)
    async with server:
        await server.serve_forever()


kind, host, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
if kind == "asyncio":
    asyncio.run(run(host, port))
else:
    {"threaded": Threaded, "forking": Forking}[kind]((host, port), Handler).serve_forever()
