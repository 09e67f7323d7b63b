"""Azurite, the emulator of Azure Blob Storage, with one container. Its output and its commands are like those of hub.py."""
import base64
import datetime
import json
import pathlib
import socket
import subprocess
import sys
import tempfile

import lifetime
from azure.storage.blob import BlobServiceClient, ContainerSasPermissions, generate_container_sas
from ports import free_ports

KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
azurite = pathlib.Path(__file__).resolve().parents[2] / ".cache/azurite/node_modules/azurite/dist/src/blob/main.js"


def start(folder):
    """Starts the emulator. Returns its process and its port. Exits after ten failures: a port may be taken meanwhile."""
    for _ in range(10):
        [port] = free_ports(1)
        child = lifetime.spawn(
            ["node", str(azurite), "--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", folder, "--silent",
             "--skipApiVersionCheck", "--disableTelemetry"], folder, stdout=subprocess.DEVNULL)
        if lifetime.is_ready(child, lambda: socket.create_connection(("127.0.0.1", port), timeout=5).close(), OSError):
            return child, port
    sys.exit("the emulator has ended")


with tempfile.TemporaryDirectory() as folder:
    child, port = start(folder)
    try:
        url = f"http://127.0.0.1:{port}/devstoreaccount1"
        text = f"DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;AccountKey={KEY};BlobEndpoint={url};"
        service = BlobServiceClient.from_connection_string(text, retry_total=2)
        service.create_container("models")
        sas = generate_container_sas(
            "devstoreaccount1", "models", KEY, permission=ContainerSasPermissions(read=True, list=True),
            expiry=datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(hours=1))
        lifetime.started(json.dumps({"url": url, "account": "devstoreaccount1", "key": KEY, "sas": sas}))
        for line in sys.stdin:
            command = json.loads(line)
            try:
                blob = service.get_blob_client(command["bucket"], command["key"])
                blob.upload_blob(base64.b64decode(command["data"]), overwrite=True)
                print("{}", flush=True)
            except Exception as error:  # The test shows it.
                print(json.dumps({"error": str(error)}), flush=True)
    finally:
        lifetime.end(child)
