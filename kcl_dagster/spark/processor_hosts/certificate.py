"""The certificate of a worker. The worker makes it at its start, for one session, and does not store it."""

import ssl
import tempfile
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Self

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

NAME: Final = "kcl-dagster worker"
# A session trusts this one certificate as long as it runs, whatever the clocks of its machines show.
VALID_FROM: Final = datetime(2000, 1, 1, tzinfo=UTC)
VALID_UNTIL: Final = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)  # "no well-defined end" in RFC 5280


@dataclass(frozen=True, slots=True)
class Certificate:
    """A self-signed certificate. `certificate`: in PEM, not secret. `key`: the private key, in PEM."""

    certificate: str
    key: bytes = field(repr=False)

    @classmethod
    def new(cls) -> Self:
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, NAME)])
        made = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(VALID_FROM)
            .not_valid_after(VALID_UNTIL)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(key, SHA256())
        )
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return cls(made.public_bytes(Encoding.PEM).decode(), private)

    def context(self) -> ssl.SSLContext:
        """The TLS context for the worker's side of connections."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.num_tickets = 0  # no connection is resumed
        # `ssl` reads keys from files only. This file exists for a moment, and only its owner can read it.
        with tempfile.TemporaryDirectory(prefix="kcl-") as folder:
            file = Path(folder, "certificate.pem")
            file.write_bytes(self.key + self.certificate.encode())
            context.load_cert_chain(file)
        return context
