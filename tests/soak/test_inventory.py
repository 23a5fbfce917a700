from tests.soak.inventory import added, numbered


def test_additional_objects_are_leftovers() -> None:
    first = {"Pod": frozenset({"ml/a"})}
    last = {"Pod": frozenset({"ml/a", "ml/b"}), "Service": frozenset({"ml/c"})}
    assert added(first, last) == {"Pod": ["ml/b"], "Service": ["ml/c"]}
    assert added(first, first) == {}


def test_removed_objects_are_not_leftovers() -> None:
    assert added({"Pod": frozenset({"ml/a"})}, {"Pod": frozenset()}) == {}


def test_additional_mounts_of_the_same_kind_are_counted() -> None:
    one = ["/run/0123456789abcdef/rootfs", "/sys"]
    other = ["/sys", "/run/fedcba9876543210/rootfs"]
    assert set(numbered(one)) == set(numbered(other))
    assert set(numbered([*one, one[0]])) - set(numbered(other)) == {"/run/#/rootfs 2"}
