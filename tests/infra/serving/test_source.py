from tests.infra.serving.examples import DIGEST, environment, objects, pod, serving

URL = "s3://models/digits-1a2b3c4d/export"


def test_an_export_behind_an_address_is_fetched_before_the_server_starts() -> None:
    spec = pod(objects(serving(job=None, url=URL, digest=DIGEST))["Deployment"])
    (fetch,) = spec["initContainers"]
    assert fetch["image"] == spec["containers"][0]["image"]
    assert fetch["command"] == [
        "python3",
        "-m",
        "inference.fetch",
        URL,
        "/models/export",
        f"--sha256={DIGEST}",
    ]
    env = environment(spec["containers"][0])
    assert env["INFERENCE_MODEL_PATH"] == "/models/export"
    assert env["INFERENCE_MODEL_SHA256"] == DIGEST
    assert "RUN_NAME" not in env


def test_the_server_can_only_read_what_was_fetched() -> None:
    spec = pod(objects(serving(job=None, url=URL, fetch={"size": "4Gi"}))["Deployment"])
    (volume,) = (each for each in spec["volumes"] if each["name"] == "export")
    assert volume == {"name": "export", "emptyDir": {"sizeLimit": "4Gi"}}
    written, read = (
        next(mount for mount in each["volumeMounts"] if mount["name"] == "export")
        for each in (spec["initContainers"][0], spec["containers"][0])
    )
    assert written == {"name": "export", "mountPath": "/models"}
    assert read == {"name": "export", "mountPath": "/models", "readOnly": True}


def test_the_keys_of_the_object_store_are_known_to_the_fetching_container_alone() -> None:
    secret = {"secret": "store", "key": "access-key"}
    fetch = {"env": {"AWS_REGION": "eu-west-1"}, "env_from": {"AWS_ACCESS_KEY_ID": secret}}
    spec = pod(objects(serving(job=None, url=URL, fetch=fetch))["Deployment"])
    env = environment(spec["initContainers"][0])
    assert env["AWS_REGION"] == "eu-west-1"
    assert env["AWS_ACCESS_KEY_ID"] == {"secretKeyRef": {"name": "store", "key": "access-key"}}
    assert "AWS_ACCESS_KEY_ID" not in environment(spec["containers"][0])


def test_a_run_of_the_stack_is_read_from_its_claim_and_nothing_is_fetched() -> None:
    spec = pod(objects(serving())["Deployment"])
    assert "initContainers" not in spec
    (volume,) = (each for each in spec["volumes"] if each["name"] == "models")
    assert volume["persistentVolumeClaim"] == {"claimName": "ckpt", "readOnly": True}


def test_another_form_of_the_model_is_fetched_where_the_backend_computes_it() -> None:
    (fetch,) = pod(objects(serving(job=None, url=URL, server={"backend": "int8"}))["Deployment"])[
        "initContainers"
    ]
    assert fetch["command"][-1] == "--artifact=int8"
