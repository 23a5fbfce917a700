"""Price table: hourly prices of GPUs, CPUs and memory, monthly storage prices, and utilization."""

from decimal import Decimal
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gitops.errors import GitopsError
from gitops.stack_file import parse
from kube.accelerators import DEVICE_CLASS_PREFIX, NVIDIA_GPU
from workload.configuration import problem_sentences

DEFAULT = Path(__file__).parent / "config" / "prices.yaml"
Purchase = Literal["on-demand", "spot"]
WHOLE_GPUS = (NVIDIA_GPU, "amd.com/gpu", f"{DEVICE_CLASS_PREFIX}gpu.nvidia.com")
"""Resources whose unit is a whole GPU. The price table maps other resources to fractions."""
HOST_RESOURCES = ("cpu", "memory")
Share = Annotated[Decimal, Field(ge=0, le=1)]
Price = Annotated[Decimal, Field(ge=0)]


class _Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Product(_Settings):
    """Hourly price of one unit, such as a GPU, on demand and on spot nodes."""

    on_demand: Price
    spot: Price | None = None


class Host(_Settings):
    """Prices of the CPUs and memory that pods request."""

    cpu: Product
    """Price of one core."""
    memory: Product
    """Price of one GiB."""
    gpu_pods: bool = False
    """True if CPUs and memory of GPU pods cost extra. If false, GPU prices include them."""


class Utilization(_Settings):
    """Fraction of a month during which pods run, by role."""

    training: Share = Decimal(1)
    inference: Share = Decimal(1)
    other: Share = Decimal(1)


class Queue(_Settings):
    """Queue settings that override the settings of the environment."""

    purchase: Purchase | None = None
    utilization: Share | None = None


class Environment(_Settings):
    """GPUs, hosts and storage of an environment, and their utilization."""

    product: str | None = None
    host: str | None = None
    storage_class: str | None = None
    purchase: Purchase = "on-demand"
    installed: dict[str, Annotated[int, Field(ge=0)]] = {}
    utilization: Utilization = Utilization()
    queues: dict[str, Queue] = {}


class Prices(_Settings):
    """The price table."""

    currency: str = Field(min_length=1, max_length=8)
    hours_per_month: Annotated[Decimal, Field(gt=0, le=744)] = Decimal(730)
    products: dict[str, Product] = {}
    shares: dict[str, Share] = {}
    hosts: dict[str, Host] = {}
    storage: dict[str, Price] = {}
    spot_labels: dict[str, str] = {}
    environments: dict[str, Environment] = {}

    def share(self, resource: str) -> Decimal | None:
        """Return the fraction of a GPU that one unit of a resource represents; None if unknown."""
        return Decimal(1) if resource in WHOLE_GPUS else self.shares.get(resource)

    def of_product(self, product: str, purchase: Purchase) -> Decimal | None:
        """Return the hourly price of a GPU, or None if it is unknown."""
        return _price(self.products.get(product), purchase)

    def of_resource(self, product: str, resource: str, purchase: Purchase) -> Decimal | None:
        """Return the hourly price of a device, core or GiB, or None if it is unknown.

        `product` is the GPU model or, for CPUs and memory, the host.
        """
        if resource in HOST_RESOURCES:
            host = self.hosts.get(product)
            return None if host is None else _price(getattr(host, resource), purchase)
        share, price = self.share(resource), self.of_product(product, purchase)
        return None if price is None or share is None else price * share

    def environment(self, stack: str) -> Environment:
        """Return the entry for a stack, or the defaults."""
        return self.environments.get(stack, Environment())


def _price(product: Product | None, purchase: Purchase) -> Decimal | None:
    if product is None:
        return None
    return product.spot if purchase == "spot" else product.on_demand


def load(path: Path = DEFAULT) -> Prices:
    """Read a price table.

    Raises:
        GitopsError: If the table cannot be read or is invalid. The message contains the file and
            the key.
    """
    try:
        return Prices.model_validate(parse(path.read_text("utf-8")))
    except ValidationError as error:
        problems = "; ".join(problem_sentences(error))
        raise GitopsError(f"the price table {path} is invalid: {problems}") from None
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise GitopsError(f"the price table {path} cannot be read: {error}") from error
