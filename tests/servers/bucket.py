"""The commands of the servers for S3: see hub.py."""
import base64
import json
import sys


def obey(s3):
    """Carries out each line of the input with a client, and prints its answer."""
    for line in sys.stdin:
        command = json.loads(line)
        try:
            if command["do"] == "put":
                s3.put_object(Bucket=command["bucket"], Key=command["key"], Body=base64.b64decode(command["data"]))
            if command["do"] == "delete":
                s3.delete_object(Bucket=command["bucket"], Key=command["key"])
            print("{}", flush=True)
        except Exception as error:  # The test shows it.
            print(json.dumps({"error": str(error)}), flush=True)
