"""SeaweedFS as an S3 server, with signatures and permissions enforced. Its output and commands are like those of s3.py."""
import contextlib
import functools
import json
import pathlib
import sys
import tempfile

import boto3
import bucket
import lifetime
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from ports import free_ports

users = {name: {"id": name, "secret": f"{name}-secret"} for name in ("reader", "stranger", "writer")}
actions = {"reader": ["Read", "List"], "stranger": [], "writer": ["Admin", "Read", "Write", "List"]}
identities = [
    {"name": name, "credentials": [{"accessKey": key["id"], "secretKey": key["secret"]}], "actions": actions[name]}
    for name, key in users.items()
]
kinds = ("master", "volume", "filer", "s3")
names = [f"{kind}.port{grpc}" for kind in kinds for grpc in ("", ".grpc")]


def end(server, ports):
    """Ends a server, and removes the sockets that no option moves out of /tmp."""
    # What it has stored is not wanted any more.
    server.kill()
    server.wait()
    for kind in kinds:
        pathlib.Path(f"/tmp/seaweedfs-{kind}-grpc-{ports[f'{kind}.port.grpc']}.sock").unlink(missing_ok=True)


def start(folder):
    """Starts the server. Returns what ends it, a client with all permissions, and its URL; exits after ten failures."""
    for _ in range(10):
        ports = dict(zip(names, free_ports(len(names))))
        url = f"http://127.0.0.1:{ports['s3.port']}"
        command = [pathlib.Path(sys.executable).parent / "weed", "server"]
        command += [f"-{name}={port}" for name, port in ports.items()]
        command += [f"-{kind}.localSocket={folder}/{kind}.sock" for kind in ("filer", "s3")]
        command += [
            f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-master.telemetry=false", "-s3",
            f"-s3.config={folder}/s3.json", "-s3.iam=false", "-s3.port.iceberg=0", "-s3.port.lance=0",
            "-volume.max=100", "-master.volumeSizeLimitMB=64",
        ]
        with open(pathlib.Path(folder, "log"), "w") as log:
            server = lifetime.spawn(command, folder, stdout=log, stderr=log)
        s3 = boto3.client(
            "s3", endpoint_url=url, region_name="us-east-1", aws_access_key_id=users["writer"]["id"],
            aws_secret_access_key=users["writer"]["secret"], config=Config(retries={"max_attempts": 0}))

        def create():
            for name in ("models", "versioned"):
                with contextlib.suppress(s3.exceptions.BucketAlreadyExists, s3.exceptions.BucketAlreadyOwnedByYou):
                    s3.create_bucket(Bucket=name)
                s3.put_object(Bucket=name, Key="ready", Body=b"")
                s3.delete_object(Bucket=name, Key="ready")
            s3.put_bucket_versioning(Bucket="versioned", VersioningConfiguration={"Status": "Enabled"})

        # It takes some seconds until buckets can be created and written to. It ends if a port is taken meanwhile.
        try:
            if lifetime.is_ready(server, create, (BotoCoreError, ClientError)):
                return functools.partial(end, server, ports), s3, url
        except BaseException:
            end(server, ports)
            raise
        end(server, ports)
    sys.exit(f"SeaweedFS has ended: {pathlib.Path(folder, 'log').read_text()[-2000:]}")


with tempfile.TemporaryDirectory() as folder:
    pathlib.Path(folder, "s3.json").write_text(json.dumps({"identities": identities}))
    end_server, s3, url = start(folder)
    try:
        lifetime.started(json.dumps({"url": url, "users": users}))
        bucket.obey(s3)
    finally:
        end_server()
