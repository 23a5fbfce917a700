from pathlib import Path

import pytest

from devcluster.paths import CHECKOUT
from gitops.errors import GitopsError
from gitops.prices import load


def test_price_table_contains_every_environment() -> None:
    stacks = {file.name.split(".")[1] for file in CHECKOUT.glob("Pulumi.*.yaml")}
    table = load()
    assert stacks <= set(table.environments)
    for environment in table.environments.values():
        assert environment.product in table.products
        assert environment.host in table.hosts
        assert environment.storage_class in {None, *table.storage}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("currency: USD\nprodukts: {}", "produkts"),
        ("currency: USD\nproducts: {a: {on_demand: -1}}", "products.a.on_demand is -1"),
        ("currency: USD\nenvironments: {a: {utilization: {training: 2}}}", "training is 2"),
        ("[", "cannot be read"),
        ("currency: \xff", "cannot be read"),
        ("currency: USD\nproducts: &a {a: *a}", "cannot be read"),
        ("", "is invalid"),
    ],
)
def test_error_for_an_invalid_table_names_the_file_and_the_key(
    text: str, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "prices.yaml"
    file.write_text(text, "latin-1")
    with pytest.raises(GitopsError) as raised:
        load(file)
    assert message in str(raised.value)
    assert str(file) in str(raised.value)
