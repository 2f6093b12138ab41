"""A small server that speaks S3 (and enough of Azure Blob Storage) to list, sign-check and read objects."""

from __future__ import annotations

import base64
import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, parse_qsl, unquote, urlencode, urlsplit
from xml.sax.saxutils import escape

from moe_operator.staging.azure_sas import signature
from moe_operator.staging.sigv4 import AccessKey, presigned

KEY = AccessKey("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "session/token+with=signs")
ACCOUNT_KEY = base64.b64encode(b"an account key of Azure's kind").decode()
REGION = "eu-central-7"
PAGE = 2


@dataclass
class Asked:
    """One request: its query tells what was signed, its headers what was carried."""

    path: str
    query: dict[str, str]
    start: int
    headers: dict[str, str]


@dataclass
class Double:
    """``objects``: path below the server -> bytes. ``dialect`` is s3 or azure; unsigned requests are 403."""

    dialect: str = "s3"
    public: bool = False
    checksums: dict[str, tuple[str, str]] = field(default_factory=dict)  # path -> (value, type)
    objects: dict[str, bytes] = field(default_factory=dict)
    redirect: str = ""
    asked: list[Asked] = field(default_factory=list)
    address: str = ""

    @property
    def url(self) -> str:
        return f"http://{self.address}"


@contextmanager
def object_store_double(dialect: str = "s3", host: str = "127.74.3.1") -> Iterator[Double]:
    double = Double(dialect)
    server = ThreadingHTTPServer((host, 0), _handler(double))
    server.daemon_threads = True
    double.address = f"{host}:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield double
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _handler(double: Double) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            self.close_connection = True
            parts = urlsplit(self.path)
            query = dict(parse_qsl(parts.query, keep_blank_values=True))
            span = self.headers.get("Range", "").removeprefix("bytes=").rstrip("-")
            double.asked.append(Asked(parts.path, query, int(span or 0), dict(self.headers)))
            if double.redirect:
                self._say(307, b"", Location=double.redirect)
            elif not (double.public or self._is_signed(parts.path, query)):
                self._say(403, b"<Error><Code>SignatureDoesNotMatch</Code></Error>")
            elif "list-type" in query or query.get("comp") == "list":
                self._say(200, self._page(unquote(parts.path).strip("/"), query))
            else:
                self._object(unquote(parts.path).lstrip("/"), int(span or 0), query)

        def _is_signed(self, path: str, query: dict[str, str]) -> bool:
            if double.dialect == "azure":
                sent = query.get("sig", "")
                account_and_container = "/".join(("acct", path.strip("/").split("/")[0]))
                return sent == signature(query, f"/blob/{account_and_container}", ACCOUNT_KEY)
            if "X-Amz-Date" not in query:
                return False
            moment = datetime.strptime(query["X-Amz-Date"], "%Y%m%dT%H%M%SZ")
            plain = [(name, value) for name, value in query.items() if not name.startswith("X-Amz-")]
            url = f"http://{self.headers['Host']}{path}" + (f"?{urlencode(plain)}" if plain else "")
            expected = parse_qs(urlsplit(presigned(url, KEY, REGION, moment)).query)["X-Amz-Signature"]
            return [query.get("X-Amz-Signature", "")] == expected

        def _page(self, container: str, query: dict[str, str]) -> bytes:
            inside = [path for path in double.objects if path.startswith(f"{container}/")]
            below = sorted(path.removeprefix(f"{container}/") for path in inside)
            names = [name for name in below if name.startswith(query["prefix"])]
            marker = query.get("continuation-token", query.get("marker", ""))
            first = names.index(marker) if marker else 0
            page, more = names[first : first + PAGE], names[first + PAGE : first + PAGE + 1]
            sizes = {name: len(double.objects[f"{container}/{name}"]) for name in page}
            shown = _azure_page if double.dialect == "azure" else _s3_page
            return shown(sizes, more[0] if more else "").encode()

        def _object(self, path: str, start: int, query: dict[str, str]) -> None:
            if path not in double.objects:
                self._say(404, b"<Error><Code>NoSuchKey</Code></Error>")
                return
            data = double.objects[path]
            headers = {"ETag": f'"{hashlib.md5(data).hexdigest()}-7"'}
            if path in double.checksums and query.get("x-amz-checksum-mode") == "ENABLED":
                value, kind = double.checksums[path]
                headers |= {"x-amz-checksum-sha256": value, "x-amz-checksum-type": kind}
            if start:
                headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
            self._say(206 if start else 200, data[start:], **headers)

        def _say(self, status: int, body: bytes, **headers: str) -> None:
            try:
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
            except (BrokenPipeError, ConnectionResetError):
                pass  # only the headers were wanted

    return Handler


def _s3_page(sizes: dict[str, int], more: str) -> str:
    items = "".join(
        f"<Contents><Key>{escape(name)}</Key><Size>{size}</Size><ETag>x</ETag></Contents>"
        for name, size in sizes.items()
    )
    token = f"<NextContinuationToken>{escape(more)}</NextContinuationToken>" if more else ""
    return (
        '<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<IsTruncated>{'true' if more else 'false'}</IsTruncated>{items}{token}</ListBucketResult>"
    )


def _azure_page(sizes: dict[str, int], more: str) -> str:
    items = "".join(
        f"<Blob><Name>{escape(name)}</Name>"
        f"<Properties><Content-Length>{size}</Content-Length></Properties></Blob>"
        for name, size in sizes.items()
    )
    marker = f"<NextMarker>{escape(more)}</NextMarker>"
    return f"<EnumerationResults><Blobs>{items}</Blobs>{marker}</EnumerationResults>"
