"""A process of a random world (tests/src/worlds): serves, or dials as commands on standard input say.

  agent.py serve NAME PORT...     answers each message of 32 bytes with its name, port and the client's address
  agent.py dial                   reads lines "dial ID ADDRESS PORT PATIENCE_S", "flow ID ADDRESS PORT PACE_S" and
                                  "count ID", and prints a line "ID ..." for each: the verdict, or a flow's count and end
"""
import errno
import socket
import sys
import threading
import time

SIZE = 32
# Enough messages for a ring, which needs four calls in each direction, and some that use it.
ROUNDS = 30


def name_of(error):
    return "timeout" if isinstance(error, TimeoutError) else errno.errorcode.get(error.errno, str(error))


def exactly(connection, size):
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise ConnectionResetError(errno.EPIPE, "end")
        data += piece
    return data


def serve(name, ports):
    def answer(connection, port):
        with connection:
            try:
                # The client's address shows how it was translated. Its port is random. A client may have gone already.
                reply = f"{name}:{port} {connection.getpeername()[0]}".encode()[:SIZE].ljust(SIZE)
                while True:
                    exactly(connection, SIZE)
                    connection.sendall(reply)
            except OSError:
                pass

    def accept(listener, port):
        while True:
            threading.Thread(target=answer, args=(listener.accept()[0], port), daemon=True).start()

    for port in ports:
        listener = socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=100)
        threading.Thread(target=accept, args=(listener, port), daemon=True).start()
    print("ready", flush=True)
    threading.Event().wait()


def connect(address, port, patience):
    connection = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    connection.settimeout(patience)
    connection.connect((address, port))
    return connection


def dial(address, port, patience):
    stage = "connect"
    try:
        with connect(address, port, patience) as connection:
            for stage in range(ROUNDS):
                connection.sendall(b"?" * SIZE)
                reply = exactly(connection, SIZE)
            return reply.decode().strip()
    except OSError as error:
        return f"{stage}: {name_of(error)}"


class Flow:
    """A connection that goes on until it gets an error."""

    def __init__(self, address, port, pace):
        self.count, self.end = 0, "-"
        threading.Thread(target=self.run, args=(address, port, pace), daemon=True).start()

    def run(self, address, port, pace):
        try:
            with connect(address, port, 5) as connection:
                # Without a time-out, Python blocks in recv(2) and not in poll(2).
                connection.settimeout(None)
                self.connection = connection
                while True:
                    connection.sendall(b"?" * SIZE)
                    exactly(connection, SIZE)
                    self.count += 1
                    if pace:
                        time.sleep(pace)
        except OSError as error:
            self.end = name_of(error)


def main():
    if sys.argv[1] == "serve":
        serve(sys.argv[2], [int(port) for port in sys.argv[3:]])
    flows, lock = {}, threading.Lock()

    def say(text):
        with lock:
            print(text, flush=True)

    print("ready", flush=True)
    for line in sys.stdin:
        verb, number, *rest = line.split()
        if verb == "dial":
            address, port, patience = rest
            ask = lambda n=number, a=address, p=int(port), t=float(patience): say(f"{n} {dial(a, p, t)}")
            threading.Thread(target=ask, daemon=True).start()
        elif verb == "flow":
            address, port, pace = rest
            flows[number] = Flow(address, int(port), float(pace))
        elif verb == "count":
            say(f"{number} {flows[number].count} {flows[number].end}")
        elif verb == "end":
            flow = flows.pop(number)
            try:
                flow.connection.shutdown(socket.SHUT_RDWR)
            except (OSError, AttributeError):
                pass


main()
