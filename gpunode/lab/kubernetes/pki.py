"""Certificates and kubeconfigs of a lab cluster, as kubeadm makes them; keys are ECDSA P-256, valid for a year."""

from __future__ import annotations

import base64
import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from gpunode.core.late import dataclass
from gpunode.lab import machine

YEAR = datetime.timedelta(days=365)
SERVICE_ADDRESS = "10.96.0.1"  # of the API server inside the cluster


@dataclass(frozen=True, kw_only=True)
class Authority:
    """A cluster's certificate authority, kept as ca.crt and ca.key in `folder`."""

    folder: Path
    server: str  # https://ADDRESS:6443

    def identity(self, user: str, groups: Sequence[str] = ()) -> tuple[bytes, bytes]:
        """A client's certificate and key, PEM: the user and groups that the API server sees."""
        return self._issue(user, groups, ExtendedKeyUsageOID.CLIENT_AUTH)

    def kubeconfig(self, user: str, groups: Sequence[str] = ()) -> str:
        """A kubeconfig that holds everything it needs."""
        certificate, key = self.identity(user, groups)
        authority = (self.folder / "ca.crt").read_bytes()
        return yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [
                    {"name": "lab", "cluster": {"server": self.server, "certificate-authority-data": _b64(authority)}}
                ],
                "users": [
                    {
                        "name": user,
                        "user": {"client-certificate-data": _b64(certificate), "client-key-data": _b64(key)},
                    }
                ],
                "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": user}}],
                "current-context": "lab",
            },
            sort_keys=False,
        )

    def _issue(
        self, user: str, groups: Sequence[str], usage: x509.ObjectIdentifier, names: Sequence[x509.GeneralName] = ()
    ) -> tuple[bytes, bytes]:
        authority = x509.load_pem_x509_certificate((self.folder / "ca.crt").read_bytes())
        signer = serialization.load_pem_private_key((self.folder / "ca.key").read_bytes(), None)
        assert isinstance(signer, ec.EllipticCurvePrivateKey)
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name(
            [*(x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups), _common_name(user)]
        )
        builder = _certificate(subject, authority.subject, key).add_extension(x509.ExtendedKeyUsage([usage]), False)
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), False)
        return builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM), _pem(key)


def make(folder: Path, address: str) -> Authority:
    """Write a new cluster's authority, the API server's certificates and the key of service accounts into `folder`.

    `address` is the API server's.
    """
    server = f"https://{address}:6443"
    authority = _authority(folder, "kubernetes", server)
    names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"]
    served: list[x509.GeneralName] = [x509.DNSName(name) for name in (*names, "localhost")]
    served += [x509.IPAddress(ipaddress.ip_address(one)) for one in (address, SERVICE_ADDRESS, "127.0.0.1")]
    _write(folder, "apiserver", *authority._issue("kube-apiserver", (), ExtendedKeyUsageOID.SERVER_AUTH, served))
    _write(folder, "kubelet-client", *authority.identity("kube-apiserver-kubelet-client", ["system:masters"]))
    front_proxy = _authority(folder / "front-proxy", "front-proxy-ca", server)  # of aggregated API servers
    _write(folder, "front-proxy-client", *front_proxy.identity("front-proxy-client"))
    accounts = ec.generate_private_key(ec.SECP256R1())
    public = accounts.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    machine.write(folder / "sa.pub", public.decode())
    machine.write(folder / "sa.key", _pem(accounts).decode())
    return authority


def _authority(folder: Path, name: str, server: str) -> Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([_common_name(name)])
    own = _certificate(subject, subject, key).add_extension(x509.BasicConstraints(True, None), True)
    _write(folder, "ca", own.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM), _pem(key))
    return Authority(folder=folder, server=server)


def _certificate(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return x509.CertificateBuilder(
        issuer, subject, key.public_key(), x509.random_serial_number(), now - datetime.timedelta(hours=1), now + YEAR
    )


def _common_name(name: str) -> x509.NameAttribute[str]:
    return x509.NameAttribute(NameOID.COMMON_NAME, name)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write(folder: Path, name: str, certificate: bytes, key: bytes) -> None:
    machine.write(folder / f"{name}.crt", certificate.decode())
    machine.write(folder / f"{name}.key", key.decode())


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode()
