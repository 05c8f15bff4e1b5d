"""A program on a pseudo-terminal, and what its screen shows: enough of a terminal for programs that draw themselves."""
import fcntl, os, pty, re, select, signal, struct, termios, time

KEYS = {"Up": "\x1b[A", "Down": "\x1b[B", "Right": "\x1b[C", "Left": "\x1b[D", "PgUp": "\x1b[5~", "PgDn": "\x1b[6~", "Home": "\x1b[H", "End": "\x1b[F",
        "Enter": "\r", "Esc": "\x1b", "Tab": "\t", "Back": "\x7f", "C-c": "\x03", "C-z": "\x1a"}


class Screen:
    """Characters in rows; the alternate screen, the cursor, and modes that a program must put back."""
    def __init__(self, width, height):
        self.modes = {}
        self.saved = None
        self.title = None
        self.rest = ""
        self.asked = []
        self.row = self.column = 0
        self.resize(width, height)

    def resize(self, width, height):
        self.width, self.height = width, height
        self.rows = [[" "] * width for _ in range(height)]
        self.row = self.column = 0

    def lines(self):
        return ["".join(row).rstrip() for row in self.rows]

    def text(self):
        return "\n".join(self.lines())

    def put(self, c):
        if self.column >= self.width:
            if self.modes.get("7") == "l":  # no wrapping: the last column is overwritten
                self.column = self.width - 1
            else:
                self.column = 0
                self.line_feed()
        self.rows[self.row][self.column] = c
        self.column += 1

    def line_feed(self):
        if self.row + 1 < self.height:
            self.row += 1
        else:
            self.rows = self.rows[1:] + [[" "] * self.width]

    def csi(self, prefix, numbers, final):
        n = [int(x) if x else 0 for x in numbers.split(";")] if re.fullmatch(r"[\d;]*", numbers) else [0]
        count = max(1, n[0])
        if prefix == "?" and final in "hl":
            for mode in numbers.split(";"):
                if mode == "1049" and final == "h" and self.modes.get(mode) != "h":
                    self.saved = (self.rows, self.row, self.column)
                    self.rows = [[" "] * self.width for _ in range(self.height)]
                if mode == "1049" and final == "l" and self.saved:
                    (self.rows, self.row, self.column), self.saved = self.saved, None
                self.modes[mode] = final
        elif prefix == "" and final == "c":
            self.asked.append("\x1b[?62;22c")
        elif prefix == "" and final in "ABCD":
            down, right = {"A": (-1, 0), "B": (1, 0), "C": (0, 1), "D": (0, -1)}[final]
            self.row = min(max(0, self.row + down * count), self.height - 1)
            self.column = min(max(0, self.column + right * count), self.width - 1)
        elif prefix == "" and final == "H":
            self.row, self.column = min(count, self.height) - 1, (max(1, n[1]) if len(n) > 1 else 1) - 1
        elif prefix == "" and final == "J" and n[0] == 2:
            self.rows = [[" "] * self.width for _ in range(self.height)]
        elif prefix == "" and final == "J":
            self.rows[self.row][self.column:] = [" "] * (self.width - self.column)
            self.rows[self.row + 1:] = [[" "] * self.width for _ in range(self.height - self.row - 1)]
        elif prefix == "" and final == "K":
            begin, end = {0: (self.column, self.width), 1: (0, self.column + 1), 2: (0, self.width)}[n[0]]
            self.rows[self.row][begin:end] = [" "] * (end - begin)
        elif final not in "mqc":
            raise AssertionError(f"an escape that this terminal does not know: ESC [ {prefix}{numbers}{final}")

    def feed(self, text):
        self.rest += text
        while self.rest:
            if self.rest[0] != "\x1b":
                c, self.rest = self.rest[0], self.rest[1:]
                if c == "\r":
                    self.column = 0
                elif c == "\n":
                    self.line_feed()
                elif c != "\0":
                    assert c >= " " and c not in "\x7f\x9b\u202e", f"a control character reached the terminal: {c!r}"
                    self.put(c)
                continue
            if found := re.match(r"\x1b\[([?>=]?)([\d;]*)( ?)([@-~])", self.rest):
                self.csi(found[1], found[2], found[4])
            elif found := re.match(r"\x1bP.*?\x1b\\", self.rest, re.S):
                pass
            elif found := re.match(r"\x1b\].*?(\x07|\x1b\\)", self.rest, re.S):
                self.title = found[0]
            else:
                assert len(self.rest) < 64, f"an escape without an end: {self.rest[:64]!r}"
                return
            self.rest = self.rest[found.end():]


class Terminal:
    """A command on it. `prompt` stands on the screen before it starts, as a shell leaves one."""
    def __init__(self, words, width=80, height=24, environment=None, prompt="$ run\r\n"):
        self.master, slave = pty.openpty()
        self.screen = Screen(width, height)
        self.screen.feed(prompt)
        self.before = self.screen.lines()
        self._size(width, height)
        self.modes_before = termios.tcgetattr(slave)
        self.slave = slave
        self.output = ""
        self.partial = b""
        environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "TERM": "xterm-256color", **(environment or {})}
        self.states, states = os.pipe()
        self.shell = os.fork()
        if self.shell == 0:
            try:
                self._be_shell(slave, states, words, environment)
            finally:
                os._exit(1)
        os.close(states)
        self.pid, = struct.unpack("i", os.read(self.states, 4))
        self.exit = None

    @staticmethod
    def _be_shell(slave, states, words, environment):
        """The session's leader: the command is a job in the foreground, so that it can be stopped; what becomes of it goes down the pipe."""
        os.setsid()
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        go, went = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.setpgid(0, 0)
            os.read(go, 1)
            for fd in (0, 1, 2):
                os.dup2(slave, fd)
            os.closerange(3, 64)
            for number in (signal.SIGTTOU, signal.SIGHUP, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            os.execve(words[0], words, environment)
        os.setpgid(pid, pid)
        os.tcsetpgrp(slave, pid)
        os.write(went, b".")
        os.write(states, struct.pack("i", pid))
        while True:
            _, status = os.waitpid(pid, os.WUNTRACED)
            os.write(states, struct.pack("i", status))
            if not os.WIFSTOPPED(status):
                os._exit(0)

    def _size(self, width, height):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def resize(self, width, height):
        self.read(0.05)
        self.screen.resize(width, height)
        self._size(width, height)
        os.kill(self.pid, signal.SIGWINCH)

    def read(self, seconds):
        """What comes within that time; False at the end."""
        if not select.select([self.master], [], [], seconds)[0]:
            return True
        try:
            data = self.partial + os.read(self.master, 1 << 16)
        except OSError:
            return False
        for end in range(len(data), max(0, len(data) - 4), -1):  # a character may be cut
            try:
                text = data[:end].decode()
                break
            except UnicodeDecodeError:
                continue
        else:
            raise AssertionError(f"no UTF-8: {data[-16:]!r}")
        self.partial = data[end:]
        self.output += text
        self.screen.feed(text)
        for reply in self.screen.asked:
            os.write(self.master, reply.encode())
        self.screen.asked.clear()
        return True

    def type(self, *keys):
        """Each waits until what it draws has come."""
        for key in keys:
            os.write(self.master, KEYS.get(key, key).encode())
            if key == "Esc":
                time.sleep(0.2)  # else it begins an escape
        return self

    def expect(self, *wanted, seconds=20):
        """Until all of that is on the screen: text, or a function of the lines."""
        end = time.monotonic() + seconds
        def there():
            return all(each(self.screen.lines()) if callable(each) else each in self.screen.text() for each in wanted)
        while not there():
            assert time.monotonic() < end, f"never there: {wanted}\n{self.screen.text()}"
            assert self.read(0.05) or there(), f"ended without {wanted}\n{self.screen.text()}"
        return self

    def _state(self, seconds):
        """What became of it, as waitpid says; None: it goes on."""
        end = time.monotonic() + seconds
        while not select.select([self.states], [], [], 0)[0]:
            if time.monotonic() > end:
                return None
            self.read(0.02)
        status, = struct.unpack("i", os.read(self.states, 4))
        while select.select([self.master], [], [], 0)[0] and self.read(0):
            pass
        return status

    def finish(self, seconds=20):
        """The exit status, -signal where one ended it. All that it wrote has been read then."""
        status = self._state(seconds)
        assert status is not None and not os.WIFSTOPPED(status), f"it does not end\n{self.screen.text()}"
        self.exit = os.waitstatus_to_exitcode(status)
        return self.exit

    def wait_until_stopped(self, seconds=20):
        status = self._state(seconds)
        assert status is not None and os.WIFSTOPPED(status), f"it does not stop\n{self.screen.text()}"

    def is_as_before(self, lines=None):
        """The terminal as it was: its screen, its modes, line discipline."""
        assert termios.tcgetattr(self.slave) == self.modes_before, "modes of the line differ"
        modes = self.screen.modes
        assert modes.get("1049", "l") == "l" and modes.get("25", "h") == "h" and modes.get("7", "h") == "h", modes
        assert all(modes.get(mode, "l") == "l" for mode in ("1000", "1002", "1003", "1006", "1015")), modes
        assert self.screen.lines() == (lines or self.before), self.screen.text()

    def close(self):
        if self.exit is None and self._state(0) is None:
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.shell, 0)
        os.close(self.states)
        os.close(self.master)
        os.close(self.slave)
