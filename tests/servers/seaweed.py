"""SeaweedFS as an S3 server, with signatures and permissions enforced. Its output and commands are like those of s3.py."""
import contextlib
import json
import pathlib
import subprocess
import sys
import tempfile
import time

import boto3
import bucket
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from ports import free_ports

users = {name: {"id": name, "secret": f"{name}-secret"} for name in ("reader", "stranger", "writer")}
actions = {"reader": ["Read", "List"], "stranger": [], "writer": ["Admin", "Read", "Write", "List"]}
identities = [
    {"name": name, "credentials": [{"accessKey": key["id"], "secretKey": key["secret"]}], "actions": actions[name]}
    for name, key in users.items()
]
names = [f"{server}.port{kind}" for server in ("master", "volume", "filer", "s3") for kind in ("", ".grpc")]


def start(directory):
    """Starts the server. Returns its process, a client with all permissions, and its URL; exits after ten failures."""
    for _ in range(10):
        ports = dict(zip(names, free_ports(len(names))))
        url = f"http://127.0.0.1:{ports['s3.port']}"
        command = [pathlib.Path(sys.executable).parent / "weed", "server"]
        command += [f"-{name}={port}" for name, port in ports.items()]
        command += [
            f"-dir={directory}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-master.telemetry=false", "-s3",
            f"-s3.config={directory}/s3.json", "-s3.iam=false", "-s3.port.iceberg=0", "-s3.port.lance=0",
            "-volume.max=100", "-master.volumeSizeLimitMB=64",
        ]
        with open(pathlib.Path(directory, "log"), "w") as log:
            server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        s3 = boto3.client(
            "s3", endpoint_url=url, region_name="us-east-1", aws_access_key_id=users["writer"]["id"],
            aws_secret_access_key=users["writer"]["secret"], config=Config(retries={"max_attempts": 0}))
        try:
            # It takes some seconds until buckets can be created and written to. It ends if a port is taken meanwhile.
            while server.poll() is None:
                try:
                    for name in ("models", "versioned"):
                        with contextlib.suppress(s3.exceptions.BucketAlreadyExists, s3.exceptions.BucketAlreadyOwnedByYou):
                            s3.create_bucket(Bucket=name)
                        s3.put_object(Bucket=name, Key="ready", Body=b"")
                        s3.delete_object(Bucket=name, Key="ready")
                    s3.put_bucket_versioning(Bucket="versioned", VersioningConfiguration={"Status": "Enabled"})
                    return server, s3, url
                except (BotoCoreError, ClientError):
                    time.sleep(0.1)
        except BaseException:
            server.kill()
            raise
    sys.exit(f"SeaweedFS has ended: {pathlib.Path(directory, 'log').read_text()[-2000:]}")


with tempfile.TemporaryDirectory() as directory:
    pathlib.Path(directory, "s3.json").write_text(json.dumps({"identities": identities}))
    server, s3, url = start(directory)
    try:
        print(json.dumps({"url": url, "users": users}), flush=True)
        bucket.obey(s3)
    finally:
        server.kill()
        server.wait()
