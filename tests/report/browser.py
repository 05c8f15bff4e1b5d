"""A page in headless Chromium, driven by WebDriver: plain HTTP to chromedriver on 127.0.0.1."""
import base64, json, pathlib, re, shutil, subprocess, tempfile, time, urllib.error, urllib.request

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
KEYS = {"Down": "\ue015", "Up": "\ue013", "Left": "\ue012", "Right": "\ue014", "Enter": "\ue007", "Tab": "\ue004", "End": "\ue010"}


def missing():
    """What is not installed, or None."""
    for program in ("chromium", "chromedriver"):
        if shutil.which(program) is None:
            return program
    return None


class Browser:
    def __init__(self, width=1200, height=900, dark=False):
        self.driver = subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.profile = tempfile.mkdtemp()
        for line in self.driver.stdout:
            if found := re.search(r"started successfully on port (\d+)", line):
                break
        self.base = f"http://127.0.0.1:{found[1]}"
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
                     "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", f"--window-size={width},{height}",
                     f"--user-data-dir={self.profile}"]
        if dark:
            arguments.append("--force-dark-mode")
        options = {"binary": shutil.which("chromium"), "args": arguments}
        made = self._call("POST", "/session", {"capabilities": {"alwaysMatch": {
            "browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}}}})
        self.base += f"/session/{made['sessionId']}"

    def close(self):
        try:
            self._call("DELETE", "")
        finally:
            self.driver.terminate()
            self.driver.wait(timeout=20)
            shutil.rmtree(self.profile, ignore_errors=True)

    def _call(self, method, path, body=None):
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(self.base + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            return json.load(urllib.request.urlopen(request, timeout=120))["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(error.read().decode()[:2000]) from None

    def open(self, path):
        self._call("POST", "/url", {"url": pathlib.Path(path).resolve().as_uri()})

    def run(self, script, *arguments):
        return self._call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def find(self, selector):
        return self._call("POST", "/element", {"using": "css selector", "value": selector})[ELEMENT]

    def click(self, selector):
        self._call("POST", f"/element/{self.find(selector)}/click", {})

    def type(self, selector, text):
        self._call("POST", f"/element/{self.find(selector)}/value", {"text": text})

    def keys(self, *names):
        actions = [{"type": kind, "value": KEYS.get(name, name)} for name in names for kind in ("keyDown", "keyUp")]
        self._call("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def text(self, selector):
        return self.run("return document.querySelector(arguments[0]).textContent", selector)

    def errors(self):
        """What the console has said since it was asked last, but for remarks."""
        return [each["message"] for each in self._call("POST", "/se/log", {"type": "browser"}) if each["level"] in ("SEVERE", "WARNING")]

    def requests(self):
        """URLs that the page has asked for."""
        out = []
        for each in self._call("POST", "/se/log", {"type": "performance"}):
            message = json.loads(each["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                out.append(message["params"]["request"]["url"])
        return out

    def screenshot(self, path):
        pathlib.Path(path).write_bytes(base64.b64decode(self._call("GET", "/screenshot")))

    def wait(self, script, seconds=20):
        end = time.monotonic() + seconds
        while not self.run("return " + script):
            assert time.monotonic() < end, f"never true: {script}"
            time.sleep(0.05)


def nothing_is_asked_for(browser, pages):
    browser.requests()
    for page in pages:
        browser.open(page)
        for tab in browser.run("return [...document.querySelectorAll('[role=tab]')].map((tab) => tab.id)"):
            browser.click("#" + tab)
    asked = [url for url in browser.requests() if not url.startswith(("file:", "data:"))]
    assert asked == [], asked
