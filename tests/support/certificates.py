"""Certificates made by openssl, for a server and for those who check it."""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import Sequence
from pathlib import Path


def make_certificate(
    folder: Path, name: str = "localhost", *, names: Sequence[str] = ("DNS:localhost", "IP:127.0.0.1"), days: int = 2,
    signed_by: tuple[Path, Path] | None = None, authority: bool = False, strict: bool = True,
) -> tuple[Path, Path]:  # fmt: skip
    """A certificate and its key, made by openssl; self-signed unless `signed_by` (certificate, key of an authority).

    With `days` 0 it has expired a second later. `strict`: as RFC 5280 wants an authority's, and Python 3.13 insists on.
    """
    stem = name.replace(" ", "_")
    cert, key, ask = folder / f"{stem}.crt", folder / f"{stem}.key", folder / f"{stem}.csr"
    _openssl("req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
             "-subj", f"/CN={name}", "-keyout", str(key), "-out", str(ask))  # fmt: skip
    extension = folder / f"{stem}.ext"
    about = ["basicConstraints=critical,CA:TRUE"] if authority else [f"subjectAltName={','.join(names)}"]
    if strict:
        about += ["subjectKeyIdentifier=hash", *(["authorityKeyIdentifier=keyid"] if signed_by else [])]
        about += ["keyUsage=critical,keyCertSign,cRLSign"] if authority else []
    extension.write_text("\n".join(about))
    signer = ["-CA", str(signed_by[0]), "-CAkey", str(signed_by[1])] if signed_by else ["-key", str(key)]
    _openssl(
        "x509", "-req", "-in", str(ask), "-days", str(days), *signer, "-extfile", str(extension), "-out", str(cert)
    )
    return cert, key


def server_context(cert: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return context


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)
