"""A stub of the Hugging Face Hub and its CDN, on two ports, that the official client accepts.

Prints its addresses and files as one line of JSON. Commands are lines of JSON on standard input; it ends with its input.
"""
import base64
import functools
import hashlib
import json
import pathlib
import sys
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import lifetime

COMMIT = "0123456789abcdef0123456789abcdef01234567"
OLD = "89abcdef0123456789abcdef0123456789abcdef"
PAGE = 3
TOKEN, ACCEPTED = "hf_TOKEN-4d1f", "hf_ACCEPTED-77aa"


def content(size, seed):
    out = bytearray()
    block = hashlib.sha256(str(seed).encode()).digest()
    while len(out) < size:
        out += block
        block = hashlib.sha256(block).digest()
    return bytes(out[:size])


FILES = {
    "config.json": (b'{"model_type": "stub"}', False),
    "model.safetensors.index.json": (b'{"weight_map": {"a": "model-00001-of-00002.safetensors"}}', False),
    "model-00001-of-00002.safetensors": (content(300_000, 1), True),
    "model-00002-of-00002.safetensors": (content(200_001, 2), True),
    "gguf/Q4 K.gguf": (content(70_000, 3), True),
    "gguf/deep/x?#%.gguf": (content(10_000, 4), True),
    "README.md": (b"# stub\n", False),
    "empty.txt": (b"", False),
}


@functools.cache
def sha256(data):
    return hashlib.sha256(data).hexdigest()


def served(folder):
    """The files of a folder, as FILES. Those of models are in LFS."""
    files = sorted(path for path in pathlib.Path(folder).rglob("*") if path.is_file())
    return {
        path.relative_to(folder).as_posix(): (path.read_bytes(), path.suffix in (".safetensors", ".gguf"))
        for path in files
    }


def oid(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


REPOS = {
    ("models", "org/model"): {},
    ("models", "org/gated"): {"gated": "auto", "wants": ACCEPTED},
    ("models", "org/private"): {"private": True, "wants": TOKEN},
    ("models", "org/busy"): {"busy": True},
    ("datasets", "org/data"): {},
}
RENAMED = {"org/old-name": "org/model"}

state = {"lifetime": 3600, "generation": 0, "log": [], "whole": False, "lie": None, "broken": 0,
         "busy": 0, "stalled": False, "pause": None}
lock = threading.Lock()


def signature(path, expires, generation):
    return hashlib.sha256(f"{path} {expires} {generation} secret".encode()).hexdigest()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def note(self, name):
        with lock:
            state["log"].append({
                "server": name, "method": self.command, "path": self.path, "range": self.headers.get("Range"),
                "authorization": self.headers.get("Authorization"), "encoding": self.headers.get("Accept-Encoding"),
            })

    def answer(self, status, body=b"", headers=()):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            # A long body stops after this many bytes, until there is no pause any more.
            at = state["pause"] or len(body)
            self.wfile.write(body[:at])
            while state["pause"] and at < len(body):
                time.sleep(0.02)
            self.wfile.write(body[at:])

    def bytes(self, data, headers=()):
        """A whole file, or the range that was asked for."""
        wanted = self.headers.get("Range")
        if not wanted or state["whole"]:
            return self.answer(200, data, headers)
        first, last = wanted.removeprefix("bytes=").split("-")
        first, last = int(first), min(int(last or len(data)), len(data) - 1)
        if first >= len(data):
            return self.answer(416, b"", [("Content-Range", f"bytes */{len(data)}")])
        body = data[first:last + 1]
        self.answer(206, body, [*headers, ("Content-Range", f"bytes {first}-{last}/{len(data)}")])


class Hub(Handler):
    def do_HEAD(self):
        self.do_GET()

    def error(self, status, code, message, commit=None):
        headers = [("X-Error-Code", code), ("X-Error-Message", message)]
        if commit:
            headers.append(("X-Repo-Commit", commit))
        self.answer(status, json.dumps({"error": message}).encode(), headers)

    def do_GET(self):
        self.note("hub")
        url = urllib.parse.urlsplit(self.path)
        parts = [urllib.parse.unquote(part) for part in url.path.strip("/").split("/")]
        query = urllib.parse.parse_qs(url.query)
        api = parts[0] == "api"
        parts = parts[1:] if api else parts
        kind = "models"
        if parts[0] in ("models", "datasets", "spaces"):
            kind, parts = parts[0], parts[1:]
        if len(parts) < 2:
            return self.answer(404)
        name, rest = "/".join(parts[:2]), parts[2:]
        if name in RENAMED:
            return self.answer(307, b"", [("Location", self.path.replace(name, RENAMED[name]))])
        repo = REPOS.get((kind, name))
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        if repo is None or (repo.get("private") and token != repo["wants"]):
            return self.error(404 if token == TOKEN else 401, "RepoNotFound", "Repository not found")
        if token and token not in (TOKEN, ACCEPTED):
            return self.answer(401, b"", [("X-Error-Message", f"Invalid credentials {token}")])
        if repo.get("busy"):
            return self.answer(429, b"", [("RateLimit", '"api";r=0;t=41'), ("Retry-After", "3")])
        if repo.get("gated") and (not api or rest[:1] == ["tree"]) and token != repo["wants"]:
            text = "Access to model is restricted"
            return self.error(403 if token else 401, "GatedRepo", text)
        if api and rest == []:
            rest = ["revision", "main"]
        if len(rest) < 2:
            return self.answer(404)
        verb, revision, path = rest[0], rest[1], "/".join(rest[2:])
        if revision not in ("main", "v1", "refs/pr/1", COMMIT):
            return self.error(404, "RevisionNotFound", f"Invalid rev id: {revision}", COMMIT)
        if api and verb == "revision":
            return self.answer(200, json.dumps({
                "_id": "1", "id": name, "modelId": name, "sha": COMMIT, "private": repo.get("private", False),
                "gated": repo.get("gated", False), "disabled": False, "downloads": 0, "likes": 0, "tags": [],
                "lastModified": "2024-05-13T10:20:30.000Z",
                "siblings": [{"rfilename": path} for path in FILES],
            }).encode(), [("Content-Type", "application/json")])
        if api and verb == "tree":
            return self.tree(url, query, path)
        if verb == "resolve":
            return self.resolve(path)
        self.answer(404)

    def tree(self, url, query, folder):
        prefix = folder + "/" if folder else ""
        deep = query.get("recursive") == ["true"]
        entries, folders = [], set()
        for path, (data, lfs) in FILES.items():
            if not path.startswith(prefix):
                continue
            inner = path[len(prefix):].split("/")
            for depth in range(1, len(inner) if deep else min(len(inner), 2)):
                folders.add(prefix + "/".join(inner[:depth]))
            if len(inner) > 1 and not deep:
                continue
            entry = {"type": "file", "path": path, "size": len(data), "oid": oid(data)}
            if lfs:
                entry["oid"] = oid(b"pointer" + data[:100])
                entry["lfs"] = {"oid": sha256(data), "size": len(data), "pointerSize": 130}
                entry["xetHash"] = hashlib.sha256(b"xet" + data).hexdigest()
            entries.append(entry)
        entries += [{"type": "directory", "path": path, "size": 0, "oid": "0" * 40} for path in sorted(folders)]
        if not entries:
            return self.error(404, "EntryNotFound", "no such folder", COMMIT)
        at = int(query.get("cursor", ["0"])[0])
        headers = [("Content-Type", "application/json")]
        if at + PAGE < len(entries):
            query = dict(query, cursor=[str(at + PAGE)])
            path = f"{url.path}?{urllib.parse.urlencode(query, doseq=True)}"
            headers.append(("Link", f'<http://{self.headers["Host"]}{path}>; rel="next"'))
        self.answer(200, json.dumps(entries[at:at + PAGE]).encode(), headers)

    def resolve(self, path):
        if path not in FILES:
            return self.error(404, "EntryNotFound", "Entry not found", COMMIT)
        data, lfs = FILES[path]
        headers = [("X-Repo-Commit", COMMIT), ("Accept-Ranges", "bytes")]
        if not lfs:
            return self.bytes(data, [*headers, ("ETag", f'"{oid(data)}"')])
        digest = sha256(data)
        expires = int(time.time() + state["lifetime"])
        sign = signature(digest, expires, state["generation"])
        query = urllib.parse.urlencode({"Expires": expires, "Policy": "_", "Signature": sign, "Key-Pair-Id": "K1"})
        linked = state["lie"] or digest
        self.answer(302, b"", [
            *headers, ("X-Linked-Size", str(len(data))), ("X-Linked-ETag", f'"{linked}"'), ("ETag", f'"{linked}"'),
            ("Location", f"http://127.0.0.1:{cdn.server_port}/repos/{digest}?{query}"),
        ])


class Cdn(Handler):
    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        self.note("cdn")
        while state["stalled"]:
            time.sleep(0.02)
        with lock:
            busy, state["busy"] = state["busy"], max(0, state["busy"] - 1)
        if busy:
            return self.answer(429, b"", [("Retry-After", "1")])
        url = urllib.parse.urlsplit(self.path)
        query = {name: values[0] for name, values in urllib.parse.parse_qs(url.query).items()}
        digest = url.path.rsplit("/", 1)[1]
        expires = int(query.get("Expires", "0"))
        if query.get("Signature") != signature(digest, expires, state["generation"]) or time.time() > expires:
            return self.answer(403, b"<Error><Code>AccessDenied</Code></Error>")
        data = next(data for data, _ in FILES.values() if sha256(data) == digest)
        if "gzip" in (self.headers.get("Accept-Encoding") or "") and self.headers.get("Range"):
            # The real one then sends the whole file. The official client gets it so.
            pass
        # Its own ETag is not the hash of the file.
        tag = hashlib.sha256(b"cdn" + digest.encode()).hexdigest()
        with lock:
            broken, state["broken"] = state["broken"], max(0, state["broken"] - 1)
        if broken:
            self.send_response(206)
            first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
            self.send_header("Content-Length", str(last + 1 - first))
            self.end_headers()
            self.wfile.write(data[first:first + 1000])
            self.wfile.flush()
            self.close_connection = True
            self.connection.shutdown(2)
            return
        self.bytes(data, [("ETag", f'"{tag}"'), ("Accept-Ranges", "bytes")])


hub = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
cdn = ThreadingHTTPServer(("127.0.0.1", 0), Cdn)
for server in (hub, cdn):
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
lifetime.started(json.dumps({
    "url": f"http://127.0.0.1:{hub.server_port}", "cdn": f"http://127.0.0.1:{cdn.server_port}", "commit": COMMIT,
    "token": TOKEN, "accepted": ACCEPTED,
    "files": {
        path: {"data": base64.b64encode(data).decode(), "lfs": lfs, "sha256": sha256(data), "oid": oid(data)}
        for path, (data, lfs) in FILES.items()
    },
}))
for line in sys.stdin:
    command = json.loads(line)
    with lock:
        if command["do"] == "log":
            print(json.dumps(state["log"]), flush=True)
            state["log"] = []
            continue
        if command["do"] == "revoke":
            state["generation"] += 1
        if command["do"] == "set":
            state.update(command["state"])
        if command["do"] == "serve":
            FILES.clear()
            FILES.update(served(command["folder"]))
    print("{}", flush=True)
