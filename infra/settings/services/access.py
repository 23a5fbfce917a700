"""What the server needs to know its callers, and they it: always in Secrets."""

from pydantic import Field

from infra.settings.types import DnsName, Settings


class TlsSettings(Settings):
    """TLS that ends at the server itself."""

    secret: DnsName = Field(description="Secret of the type kubernetes.io/tls in the namespace")


class ApiKeysSettings(Settings):
    """Keys without which no prediction is given."""

    secret: DnsName = Field(description="Secret of the namespace")
    key: str = Field(
        default="keys",
        pattern=r"^[-._A-Za-z0-9]{1,253}$",
        description="key in it: one API key a line, plain or sha256:<hex>",
    )
