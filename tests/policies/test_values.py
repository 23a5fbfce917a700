from pulumi_policy import Secret, proxy
from pulumi_policy.deserialize import deserialize_properties

from policies.properties import plain
from policies.values import UNKNOWN, Node


def test_proxies_are_converted_to_plain_data_with_unknown_leaves() -> None:
    props = proxy.unknown_checking_proxy(
        {
            "image": proxy.UNKNOWN_STRING_VALUE,
            "spec": {"list": [1.0, proxy.UNKNOWN_NUMBER_VALUE, None], "half": 0.5, "on": True},
        }
    )
    assert plain(props) == {
        "image": UNKNOWN,
        "spec": {"list": [1, UNKNOWN, None], "half": 0.5, "on": True},
    }


def test_every_unknown_value_of_the_sdk_is_recognized() -> None:
    names = [name for name in vars(proxy) if name.startswith("UNKNOWN_")]
    assert len(names) == 7
    assert all(plain(getattr(proxy, name)) is UNKNOWN for name in names)


def test_secrets_are_unwrapped() -> None:
    assert plain({"a": Secret("x"), "b": [Secret({"c": 1})]}) == {"a": "x", "b": [{"c": 1}]}


def test_proxies_passed_to_a_remediation_are_converted() -> None:
    secret = {"4dabf18193072939515e22adb298388d": "1b47061264138c4ac30d75fd1eb44270", "value": "x"}
    props = deserialize_properties({"a": secret, "b": [proxy.UNKNOWN_STRING_VALUE]}, True)
    assert plain(props) == {"a": "x", "b": [UNKNOWN]}


def test_path_is_formatted_as_in_a_manifest() -> None:
    node = Node({"spec": {"containers": [{"limits": {"nvidia.com/gpu": 1}}]}})
    gpu = node["spec"]["containers"][0]["limits"]["nvidia.com/gpu"]
    assert gpu.value == 1
    assert gpu.path == 'spec.containers[0].limits["nvidia.com/gpu"]'
    assert gpu.steps == ("spec", "containers", 0, "limits", "nvidia.com/gpu")


def test_missing_values_are_absent_and_values_below_an_unknown_are_unknown() -> None:
    node = Node({"a": UNKNOWN, "b": "text", "c": [1]})
    assert node["a"]["x"][3].value is UNKNOWN
    assert node["b"]["x"].absent
    assert node["c"][7].absent
    assert list(node["b"].items()) == []
    assert list(node["c"].fields()) == []


def test_fields_missing_from_a_partial_manifest_are_unknown() -> None:
    node = Node({"spec": {"queue": "a"}}, partial=True)
    assert node["spec"]["queue"].value == "a"
    assert node["spec"]["minAvailable"].value is UNKNOWN
    assert node["spec"]["x"]["y"].value is UNKNOWN


def test_list_with_an_unknown_item_is_not_complete() -> None:
    assert Node([1, 2]).complete
    assert Node(None).complete
    assert not Node([1, UNKNOWN]).complete
    assert not Node(UNKNOWN).complete
