import pytest
from pydantic import ValidationError

from infra.settings.training.network import NcclSettings


def environment(interface: str | None = None, **settings: object) -> dict[str, str]:
    return NcclSettings.model_validate(settings).to_environment(interface)


def test_configured_network_is_the_only_one_that_nccl_uses() -> None:
    assert environment("ib0", network="infiniband") == {
        "NCCL_NET": "IB",
        "NCCL_DEBUG": "WARN",
        "NCCL_SOCKET_IFNAME": "ib0",
        "GLOO_SOCKET_IFNAME": "ib0",
    }
    assert environment("bond0", network="roce")["NCCL_NET"] == "IB"
    assert environment(network="tcp") == {
        "NCCL_NET": "Socket",
        "NCCL_IB_DISABLE": "1",
        "NCCL_DEBUG": "WARN",
    }


def test_each_field_becomes_an_nccl_variable() -> None:
    found = environment(
        "bond0",
        network="roce",
        gid_index=3,
        traffic_class=106,
        timeout=22,
        retry_count=7,
        queue_pairs=4,
        gpu_direct="PHB",
        debug="INFO",
    )
    assert found["NCCL_IB_GID_INDEX"] == "3"
    assert found["NCCL_IB_TC"] == "106"
    assert found["NCCL_IB_TIMEOUT"] == "22"
    assert found["NCCL_IB_RETRY_CNT"] == "7"
    assert found["NCCL_IB_QPS_PER_CONNECTION"] == "4"
    assert found["NCCL_NET_GDR_LEVEL"] == "PHB"
    assert found["NCCL_DEBUG"] == "INFO"
    assert environment("ib0", network="infiniband", service_level=1)["NCCL_IB_SL"] == "1"


def test_socket_settings_apply_only_to_tcp() -> None:
    found = environment(network="tcp", interface="eth1", socket_threads=4, sockets_per_thread=2)
    assert found["NCCL_SOCKET_IFNAME"] == "eth1"
    assert (found["NCCL_SOCKET_NTHREADS"], found["NCCL_NSOCKS_PERTHREAD"]) == ("4", "2")
    with pytest.raises(ValidationError, match="applies to tcp"):
        environment(network="roce", socket_threads=4)
