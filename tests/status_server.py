"""The status server of Kubeflow Trainer on this machine: HTTPS by a CA of its own, a token, one path.

It answers as pkg/statusserver/server.go and auth.go of kubeflow/trainer do.
"""

from __future__ import annotations

import datetime
import http.server
import ipaddress
import json
import pathlib
import ssl
import threading
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

PATH = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/ml/trainjobs/mnist/status"
TOKEN = "the-token-of-the-pod"


class StatusServer:
    """A server, and what pods find in their environment.

    Attributes:
      received: the statuses that it has accepted, in their order.
      refused: codes of the answers to other requests.
      answer: the code that it gives instead, for all requests; None: as it should.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self.received: list[dict[str, Any]] = []
        self.refused: list[int] = []
        self.answer: int | None = None
        self.token, self.ca = folder / "token", folder / "ca.crt"
        self.token.write_text(TOKEN + "\n")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(_write_certificate(folder, self.ca))
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                code = server.judge(self.path, self.headers.get("Authorization", ""), body)
                self.send_response(code)
                self.end_headers()
                self.wfile.write(body if code == 200 else b'{"status": "Failure"}')

            def log_message(self, *arguments: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"https://127.0.0.1:{self._server.server_port}{PATH}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def environment(self) -> dict[str, str]:
        """The variables that the controller gives to pods."""
        values = {"URL": self.url, "CA_CERT": str(self.ca), "TOKEN": str(self.token)}
        return {f"KUBEFLOW_TRAINER_SERVER_{name}": value for name, value in values.items()}

    def judge(self, path: str, authorization: str, body: bytes) -> int:
        """Returns the code for a request, and remembers it."""
        code = self.answer or self._judge(path, authorization)
        if code == 200:
            self.received.append(json.loads(body))
        else:
            self.refused.append(code)
        return code

    def close(self) -> None:
        """Ends it."""
        self._server.shutdown()
        self._server.server_close()

    def _judge(self, path: str, authorization: str) -> int:
        if path != PATH:
            return 404
        return 200 if authorization == f"Bearer {TOKEN}" else 403


def _write_certificate(folder: pathlib.Path, ca: pathlib.Path) -> pathlib.Path:
    """Writes a CA's certificate; returns the file of a certificate by it for 127.0.0.1, with its key."""
    ca_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test CA")])
    host = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    authority = _builder(ca_name, ca_name, ca_key).add_extension(x509.BasicConstraints(True, None), critical=True)
    server_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    server = _builder(server_name, ca_name, key).add_extension(host, critical=False)
    ca.write_bytes(authority.sign(ca_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path = folder / "server.pem"
    path.write_bytes(server.sign(ca_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM) + private)
    return path


def _builder(subject: x509.Name, issuer: x509.Name, key: Any) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
    return builder.not_valid_before(now - datetime.timedelta(1)).not_valid_after(now + datetime.timedelta(1))
