"""moto as an S3 server with signatures and IAM enforced. Its output and its commands are like those of hub.py."""
import json
import logging
import os

for name in list(os.environ):
    if name.startswith("AWS_"):
        del os.environ[name]
os.environ["INITIAL_NO_AUTH_ACTION_COUNT"] = "1000000"
import boto3  # noqa: E402
import bucket  # noqa: E402
import lifetime  # noqa: E402
from moto import settings  # noqa: E402
from moto.server import ThreadedMotoServer  # noqa: E402

logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
host, port = server.get_host_and_port()
url = f"http://127.0.0.1:{port}"
root = dict(endpoint_url=url, aws_access_key_id="root", aws_secret_access_key="root", region_name="us-east-1")
iam, s3 = boto3.client("iam", **root), boto3.client("s3", **root)


def user(name, *actions):
    iam.create_user(UserName=name)
    policy = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": list(actions), "Resource": "*"}]}
    iam.put_user_policy(UserName=name, PolicyName="p", PolicyDocument=json.dumps(policy))
    key = iam.create_access_key(UserName=name)["AccessKey"]
    return {"id": key["AccessKeyId"], "secret": key["SecretAccessKey"]}


users = {
    "reader": user("reader", "s3:GetObject", "s3:GetObjectVersion", "s3:ListBucket", "s3:HeadObject"),
    "stranger": user("stranger", "s3:ListAllMyBuckets"),
    "writer": user("writer", "s3:*"),
}
for name in ("models", "versioned"):
    s3.create_bucket(Bucket=name)
s3.put_bucket_versioning(Bucket="versioned", VersioningConfiguration={"Status": "Enabled"})
settings.INITIAL_NO_AUTH_ACTION_COUNT = 0
os.environ["INITIAL_NO_AUTH_ACTION_COUNT"] = "0"
writer = boto3.client(
    "s3", endpoint_url=url, region_name="us-east-1", aws_access_key_id=users["writer"]["id"],
    aws_secret_access_key=users["writer"]["secret"])
lifetime.started(json.dumps({"url": url, "users": users}))
bucket.obey(writer)
server.stop()
