"""What an attack plays on: a network namespace of its own with a daemon, programs of several users, and clients that lie."""

import os
import shutil
import socket
import signal
import subprocess
import tempfile
import time

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))
# The folder of the built programs.
PROGRAMS = os.environ.get("FS_PROGRAMS", os.path.join(os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target")), "release"))
PYTHON = "/usr/bin/python3"
LIMIT = 10.0


class Broken(Exception):
    """The attack worked; the text says what was gained."""


class Late(Broken):
    """The attack worked as far as the clock says, which a machine with other work to do says as well: it is played again."""


class Refused(Exception):
    """What the liar asked for did not work."""


class Inapplicable(Exception):
    """This kernel has not what the attack is about."""


def sh(*command, check=True):
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
    if check and done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.returncode} {done.stdout} {done.stderr}")
    return done


def end_session(popen):
    """Ends a program with all that it started: what timeout(1) runs outlives it otherwise."""
    try:
        os.killpg(popen.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


class Proc:
    """A program that was started; what it prints goes to a file."""

    def __init__(self, stage, command, stdin=None):
        self.path = os.path.join(stage.dir, f"log{len(stage.procs)}")
        with open(self.path, "w") as log:
            self.popen = subprocess.Popen(command, stdin=stdin or subprocess.DEVNULL, stdout=log, stderr=log, cwd=stage.dir,
                                          start_new_session=True)
        self.pid = self.popen.pid
        stage.procs.append(self)

    def said(self):
        with open(self.path, errors="replace") as log:
            return log.read()

    def wait_for(self, text, limit=60):
        """Waits for a line that begins so."""
        until = time.monotonic() + limit

        def is_said():
            return any(line.startswith(text) for line in self.said().splitlines())
        while not is_said():
            if time.monotonic() > until or self.popen.poll() is not None and not is_said():
                raise RuntimeError(f"no {text!r}: {self.said()[-800:]}")
            time.sleep(0.01)
        return self

    def lines(self, start):
        return [line[len(start):].strip() for line in self.said().splitlines() if line.startswith(start)]

    def end(self, limit=LIMIT):
        """Waits for its end; its output."""
        try:
            self.popen.wait(limit)
        except subprocess.TimeoutExpired:
            return self.said() + "\nTIMEOUT"
        return self.said()

    def stop(self):
        end_session(self.popen)
        self.popen.wait()


class Liar:
    """A process of `fs-redteam`."""

    def __init__(self, stage, command):
        self.popen = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, bufsize=1,
            start_new_session=True)
        self.pid = self.popen.pid
        self.popen_said = ""
        stage.procs.append(self)

    def __call__(self, *words):
        self.popen.stdin.write(" ".join(str(word) for word in words) + "\n")
        self.popen.stdin.flush()
        answer = self.popen.stdout.readline()
        if answer.startswith("ok"):
            return answer[2:].split()
        raise Refused(f"{words[0]}: {answer.strip() or 'the liar has ended'}")

    def may(self, *words):
        """The answer, or nothing where it was refused."""
        try:
            return self(*words)
        except Refused:
            return None

    def attach(self, name="liar"):
        self("connect")
        self.number, self.page, self.directory = self("hello", name)
        return self

    def stop(self):
        end_session(self.popen)
        self.popen.wait()
        self.popen.stdin.close()
        self.popen.stdout.close()


class Stage:
    """Gone at the end of `with`, with all that runs on it."""

    def __init__(self, name):
        self.name = name
        self.procs = []
        self.spaces = []
        self.daemon = None

    def __enter__(self):
        self.dir = tempfile.mkdtemp(prefix=f"fastsock-{os.environ.get('FS_LAB', 'red')}-")
        os.chmod(self.dir, 0o755)
        for file in ("libfastsock.so", "fastsock", "fs-redteam"):
            # Programs that drop privileges must find them.
            shutil.copy(os.path.join(PROGRAMS, file), self.dir)
        self.control = os.path.join(self.dir, "control")
        self.home = self.space("host")
        return self

    def __exit__(self, *_):
        for proc in reversed(self.procs):
            proc.stop()
        for space in self.spaces:
            sh("ip", "netns", "del", space, check=False)
        shutil.rmtree(self.dir, ignore_errors=True)

    def space(self, name):
        """A new network namespace with its loopback up."""
        space = f"{os.environ.get('FS_LAB', 'red')}-{os.path.basename(self.dir)[-8:]}-{name}"
        sh("ip", "netns", "add", space)
        self.spaces.append(space)
        sh("ip", "-n", space, "link", "set", "lo", "up")
        return space

    def ip(self, *words, ns=None):
        return sh("ip", "-n", ns or self.home, *words)

    def sh(self, *words, ns=None, check=True):
        return sh("nsenter", f"--net=/run/netns/{ns or self.home}", *words, check=check)

    def pair(self):
        """The world: a namespace behind a pair of devices; 10.9.0.1 is the host's, 10.9.0.2 the world's."""
        self.world = self.space("world")
        self.ip("link", "add", "w0", "type", "veth", "peer", "name", "w1", "netns", self.world)
        for space, device, address in ((self.home, "w0", "10.9.0.1/24"), (self.world, "w1", "10.9.0.2/24")):
            self.ip("address", "add", address, "dev", device, ns=space)
            self.ip("link", "set", device, "up", ns=space)
        until = time.monotonic() + 60
        while self.sh("ping", "-c1", "-W1", "10.9.0.2", check=False).returncode != 0 and time.monotonic() < until:
            pass

    def start(self, *options, config=None, wire=False, env=()):
        """The daemon."""
        if config is not None:
            self.config = os.path.join(self.dir, "config.toml")
            with open(self.config, "w") as file:
                file.write(config)
            options += ("--config", self.config)
        if wire:
            self.pair()
            options += ("--device", "w0", "--partial-checksums")
        else:
            options += ("--only-local",)
        # ip(8), and not nsenter(1): the daemon reads its namespace's /sys.
        command = ["ip", "netns", "exec", self.home, "env", f"FASTSOCK_CONTROL={self.control}", *env,
                   os.path.join(self.dir, "fastsock"), "up", *options]
        self.daemon = Proc(self, command).wait_for("ready")
        return self.daemon

    def command(self, *program, user=None, preload=True, ns=None, userns=False, control=None, limit=30):
        command = ["nsenter", f"--net=/run/netns/{ns or self.home}"]
        if user:
            group = {"nobody": "nogroup"}.get(user, user)
            command += ["setpriv", "--reuid", user, "--regid", group, "--clear-groups"]
        if userns:
            command += ["unshare", "-Urn"]
        command += ["timeout", str(limit), "env", f"FASTSOCK_CONTROL={control or self.control}"]
        if preload:
            command += [f"LD_PRELOAD={self.dir}/libfastsock.so"]
        return command + [str(word) for word in program]

    def py(self, script, *arguments, wait="ready", **how):
        """Starts a Python program, and waits for what it says when it is ready."""
        proc = Proc(self, self.command(PYTHON, "-c", script, *arguments, **how))
        return proc.wait_for(wait) if wait else proc

    def rival(self, script, host, port, *arguments, **how):
        """A server at a place that somebody has let go of; nothing where the kernel still has it as taken, so that nobody is misled."""
        proc = Proc(self, self.command(PYTHON, "-c", script, host, port, *arguments, **how))
        try:
            return proc.wait_for("ready")
        except RuntimeError:
            if "Errno 98" in proc.said():
                return None
            raise

    def run(self, script, *arguments, **how):
        """Runs one to its end; its output."""
        return Proc(self, self.command(PYTHON, "-c", script, *arguments, **how)).end().strip()

    def liar(self, user="nobody", ns=None, userns=False):
        command = self.command(os.path.join(self.dir, "fs-redteam"), user=user, preload=False, ns=ns, userns=userns)
        return Liar(self, command)

    def fastsock(self, *words, user=None):
        program = self.command(os.path.join(self.dir, "fastsock"), *words, preload=False, user=user)
        return sh(*program, check=False)

    def counter(self, name):
        for line in self.fastsock("stat").stdout.splitlines():
            if line.split()[:1] == [name]:
                return int(line.split()[-1])
        return 0

    def wanted(self, waiting=True):
        """Seconds that the daemon's threads have run, or also waited for a CPU."""
        total = 0
        for task in os.listdir(f"/proc/{self.daemon.pid}/task"):
            with open(f"/proc/{self.daemon.pid}/task/{task}/schedstat") as file:
                total += sum(int(word) for word in file.read().split()[:1 + waiting])
        return total / 1e9

    def memory(self):
        """Bytes of the daemon's memory, shared memory too."""
        with open(f"/proc/{self.daemon.pid}/status") as file:
            return sum(int(line.split()[1]) for line in file if line.startswith(("RssAnon", "RssShmem"))) * 1024


# A server that names itself to each client, and says who came; it serves 127.0.0.1 and what else it is told.
SERVER = """
import socket, sys
s = socket.create_server((sys.argv[1], int(sys.argv[2])))
print('ready', flush=True)
while True:
    c, a = s.accept()
    print('peer', a[0], a[1], flush=True)
    try:
        c.sendall(sys.argv[3].encode())
        if len(sys.argv) > 4: c.recv(1)
        c.close()
    except OSError as e: print('gone', e, flush=True)
"""

# A client that prints what it is told, and what became of it where nothing is.
CLIENT = """
import socket, sys
try:
    c = socket.create_connection((sys.argv[1], int(sys.argv[2])), 3)
    print(c.recv(100).decode() or 'END', flush=True)
except OSError as e: print('ERR', e.errno, e, flush=True)
"""


