import pytest
from pydantic import TypeAdapter, ValidationError

from infra.settings.types import (
    AbsolutePath,
    CpuQuantity,
    DeviceName,
    DnsName,
    HostName,
    HttpUrl,
    MemoryQuantity,
    PathPrefix,
    QualifiedName,
    Quantity,
    ResourceName,
    RunKey,
    parse_image,
)


def accepts(kind: object, value: object) -> bool:
    try:
        TypeAdapter(kind).validate_python(value, strict=True)
    except ValidationError:
        return False
    return True


@pytest.mark.parametrize(
    ("kind", "valid", "invalid"),
    [
        (Quantity, [4, "4", 0.5], [0, "-1", True, None, "x"]),
        (CpuQuantity, [2, "250m", "0.25"], ["0.5m", "1u", 0]),
        (MemoryQuantity, ["512Mi", "1G", 2**21], ["512m", "100", 7]),
        (DnsName, ["fast", "fast.example.com", "a-1"], ["Fast", "-a", "a-", "a..b", "a_b", ""]),
        (RunKey, ["digits", "a-1", "a" * 40], ["1a", "a" * 41, "a.b", "A"]),
        (
            QualifiedName,
            ["nvidia.com/gpu", "rdma/hca", "nvidia.com/mig-1g.10gb", "cpu", "a/" + "A" * 63],
            ["/gpu", "a/b/c", "nvidia.com/", "GPU s", "a/" + "A" * 64, f"{'a' * 254}/a"],
        ),
        (
            HttpUrl,
            [
                "http://prometheus",
                "http://prometheus.monitoring:9090",
                "https://a.example.com./prefix/?tenant=a",
                "http://10.0.0.1:80",
                "http://[fd00::1]:9090/",
            ],
            [
                "http://prometheus:90900",
                "http://user:password@prometheus:9090",
                "http://prometheus:9090x",
                "http://prometheus:0",
                "http://prometheus:$(PORT)",
                "http://[prom",
                "http://[x]",
                "http://",
                "http://:9090",
                "http:///path",
                "http://-a",
                "http://a b",
                "http://a\n",
                "ftp://a",
                "a:9090",
            ],
        ),
        (
            AbsolutePath,
            ["/", "/a", "/a/", "/a/b..c", "/.a", "/a b"],
            ["a", "", "/a/../b", "/..", "//a", "/a//b", "/./a", "/a/.", "/a\n"],
        ),
        (
            PathPrefix,
            ["/", "/a", "/a/", "/a/b..c", "/.a", "/~a/%20", "/(a)"],
            [
                *("a", "", "//", "/a//b", "/a/../b", "/a/..", "/./a", f"/{'a' * 1024}"),
                *("/%2f", "/%2F", "/%", "/ü", "/a b", "/a?b", "/a#b"),
            ],
        ),
        (HostName, ["a.example.com", "a", "1.example.com"], ["10.0.0.1", "*.example.com", "A"]),
        (
            ResourceName,
            ["cpu", "memory", "pods", "ephemeral-storage", "hugepages-2Mi", "nvidia.com/gpu"],
            ["gpu", "gpus", "requests.cpu", "nvidia.com/"],
        ),
        (DeviceName, ["nvidia.com/gpu", "rdma/hca"], ["gpu", "cpu", "hugepages-2Mi"]),
    ],
)
def test_type_accepts_valid_and_rejects_invalid_values(
    kind: object, valid: list[object], invalid: list[object]
) -> None:
    assert [value for value in valid if not accepts(kind, value)] == []
    assert [value for value in invalid if accepts(kind, value)] == []


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("python:3.11", {"host": None, "path": "python", "tag": "3.11"}),
        ("nvcr.io/nvidia/pytorch:26.08-py3", {"host": "nvcr.io", "tag": "26.08-py3"}),
        ("127.0.0.1:5000/a/b", {"host": "127.0.0.1:5000", "path": "a/b", "tag": None}),
    ],
)
def test_an_image_reference_is_parsed(text: str, parts: dict[str, str | None]) -> None:
    found = parse_image(text).groupdict()
    assert {name: found[name] for name in parts} == parts


@pytest.mark.parametrize("text", ["", "a b", "A/b:1", "a@sha256:12", "a:", "http://a/b:1"])
def test_invalid_image_reference_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="image reference"):
        parse_image(text)
