"""Any configuration yields settings or readable problems, never another exception."""

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.infra.examples import good, problems

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.sampled_from(["", "1Gi", "0", "-1", "a", "A_b", "nvidia.com/gpu", "/..", "1e99", "🦊"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["jobs", "kind", "a", "name", "nodes"]), inner, max_size=3
        )
    ),
    max_leaves=6,
)


def paths(value: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Return the path of every value in a configuration."""
    found = [path] if path else []
    if isinstance(value, dict):
        for key, item in value.items():
            found += paths(item, (*path, key))
    return found


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(path=st.sampled_from(paths(good())), value=JSON)
def test_any_value_at_any_path_is_accepted_or_reported_as_a_problem(
    path: tuple[str, ...], value: Any
) -> None:
    values = good()
    node = values
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    assert all(sentence.startswith("gpu-platform:") for sentence in problems(values))
