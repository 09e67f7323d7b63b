"""Azurite, the emulator of Azure Blob Storage, with one container. Its output and its commands are like those of hub.py."""
import base64
import datetime
import json
import pathlib
import socket
import subprocess
import sys
import tempfile
import time

from azure.storage.blob import BlobServiceClient, ContainerSasPermissions, generate_container_sas
from ports import free_ports

KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
[port] = free_ports(1)
url = f"http://127.0.0.1:{port}/devstoreaccount1"
azurite = pathlib.Path(__file__).resolve().parents[2] / ".cache/azurite/node_modules/azurite/dist/src/blob/main.js"
with tempfile.TemporaryDirectory() as folder:
    child = subprocess.Popen(
        ["node", str(azurite), "--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", folder, "--silent",
         "--skipApiVersionCheck", "--disableTelemetry"],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, cwd=folder)
    try:
        text = f"DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;AccountKey={KEY};BlobEndpoint={url};"
        for _ in range(600):
            if child.poll() is not None:
                sys.exit("the emulator ended")
            try:
                socket.create_connection(("127.0.0.1", port), timeout=5).close()
                break
            except OSError:
                time.sleep(0.1)
        service = BlobServiceClient.from_connection_string(text)
        service.create_container("models")
        sas = generate_container_sas(
            "devstoreaccount1", "models", KEY, permission=ContainerSasPermissions(read=True, list=True),
            expiry=datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(hours=1))
        print(json.dumps({"url": url, "account": "devstoreaccount1", "key": KEY, "sas": sas}), flush=True)
        for line in sys.stdin:
            command = json.loads(line)
            try:
                blob = service.get_blob_client(command["bucket"], command["key"])
                blob.upload_blob(base64.b64decode(command["data"]), overwrite=True)
                print("{}", flush=True)
            except Exception as error:  # The test shows it.
                print(json.dumps({"error": str(error)}), flush=True)
    finally:
        child.terminate()
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
