"""The price table: what a GPU costs for an hour, and for how much of a month it is taken."""

from decimal import Decimal
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gitops.errors import GitopsError
from workload.configuration import problem_sentences

DEFAULT = Path(__file__).parent / "config" / "prices.yaml"
Purchase = Literal["on-demand", "spot"]
WHOLE = ("nvidia.com/gpu", "amd.com/gpu")
"""Resources that are a whole GPU; others need their share in the price table."""
Share = Annotated[Decimal, Field(ge=0, le=1)]
Price = Annotated[Decimal, Field(ge=0)]


class _Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Product(_Settings):
    """The price of one GPU for an hour, on demand and on nodes that may be taken away."""

    on_demand: Price
    spot: Price | None = None


class Utilisation(_Settings):
    """The part of a month in which the GPUs are taken, by what they are for."""

    training: Share = Decimal(1)
    inference: Share = Decimal(1)
    other: Share = Decimal(1)


class Queue(_Settings):
    """What differs for a queue."""

    purchase: Purchase | None = None
    utilisation: Share | None = None


class Environment(_Settings):
    """What an environment's GPUs are, and how much they are used."""

    product: str | None = None
    purchase: Purchase = "on-demand"
    installed: dict[str, Annotated[int, Field(ge=0)]] = {}
    utilisation: Utilisation = Utilisation()
    queues: dict[str, Queue] = {}


class Prices(_Settings):
    """The whole table."""

    currency: str = Field(min_length=1, max_length=8)
    hours_per_month: Annotated[Decimal, Field(gt=0, le=744)] = Decimal(730)
    products: dict[str, Product] = {}
    shares: dict[str, Share] = {}
    spot_labels: dict[str, str] = {}
    environments: dict[str, Environment] = {}

    def share(self, resource: str) -> Decimal | None:
        """What a device of this resource is of a whole GPU; None where the table does not say."""
        return Decimal(1) if resource in WHOLE else self.shares.get(resource)

    def of_product(self, product: str, purchase: Purchase) -> Decimal | None:
        """Price of a whole GPU for an hour; None where the table does not say."""
        known = self.products.get(product)
        if known is None:
            return None
        return known.spot if purchase == "spot" else known.on_demand

    def environment(self, stack: str) -> Environment:
        """What is written about a stack, or the defaults."""
        return self.environments.get(stack, Environment())


def load(path: Path = DEFAULT) -> Prices:
    """Reads a price table; raises GitopsError that names file, key and what is wrong."""
    try:
        return Prices.model_validate(yaml.safe_load(path.read_text("utf-8")))
    except (OSError, yaml.YAMLError) as error:
        raise GitopsError(f"the price table {path} cannot be read: {error}") from error
    except ValidationError as error:
        problems = "; ".join(problem_sentences(error))
        raise GitopsError(f"the price table {path} cannot be used: {problems}") from None
