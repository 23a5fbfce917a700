"""Rules for pod security, secrets, access and exposure, with rejected and accepted manifests."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.policies import manifests
from tests.policies.harness import REMOVED, UNKNOWN_VALUE, Manifest, changed, evaluate_rule

POD = "spec/template/spec"
MAIN = f"{POD}/containers/0"
TOKEN = "hf_" + "a" * 34
CONTAINERS = ("containers/1", "initContainers", "ephemeralContainers")
RBAC = "rbac.authorization.k8s.io/v1"


def deployment(*edits: tuple[str, Any]) -> Manifest:
    return changed(manifests.deployment(), *edits)


def manifest(version: str, kind: str, **fields: Any) -> Manifest:
    metadata = {"name": "a", "namespace": "team"} | fields.pop("metadata", {})
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **fields}


# Each control, in each type of container
CONTROLS: list[tuple[str, Manifest]] = [
    ("not-privileged", {"securityContext": {"privileged": True}}),
    ("not-privileged", {"securityContext": {"privileged": "true"}}),
    ("not-privileged", {"securityContext": {"procMount": "Unmasked"}}),
    ("not-privileged", {"securityContext": {"windowsOptions": {"hostProcess": True}}}),
    ("capabilities-dropped", {"securityContext": {"capabilities": {"drop": ["CHOWN"]}}}),
    ("capabilities-dropped", {"securityContext": {"capabilities": {"add": ["CAP_SYS_ADMIN"]}}}),
    ("no-privilege-escalation", {"securityContext": {"allowPrivilegeEscalation": "false"}}),
    ("run-as-non-root", {"securityContext": {"runAsUser": 0}}),
    ("run-as-non-root", {"securityContext": {"runAsNonRoot": "true"}}),
    ("run-as-non-root", {"securityContext": {"runAsGroup": 0}}),
    ("no-host-ports", {"ports": [{"containerPort": 80, "hostPort": "80"}]}),
    ("security-profiles-kept", {"securityContext": {"seccompProfile": {"type": "Unconfined"}}}),
    ("security-profiles-kept", {"securityContext": {"appArmorProfile": {"type": "unconfined"}}}),
    ("security-profiles-kept", {"securityContext": {"seLinuxOptions": {"role": "sysadm_r"}}}),
    ("probes-stay-in-pod", {"startupProbe": {"tcpSocket": {"host": "127.0.0.1", "port": 1}}}),
    ("probes-stay-in-pod", {"lifecycle": {"postStart": {"httpGet": {"host": "a", "port": 1}}}}),
    ("root-filesystem-read-only", {"securityContext": {"readOnlyRootFilesystem": False}}),
]


@pytest.mark.parametrize("place", CONTAINERS)
def test_controls_apply_to_every_type_of_container(place: str) -> None:
    for rule, fields in CONTROLS:
        container = {"name": "other", "image": "example.com/a:1.0", **fields}
        value: Any = container if place.endswith("1") else [container]
        assert evaluate_rule(rule, deployment((f"{POD}/{place}", value))), (rule, fields)


@pytest.mark.parametrize(
    ("rule", "field", "value"),
    [
        ("no-host-namespaces", "hostNetwork", "true"),
        ("no-host-namespaces", "hostIPC", 1),
        ("security-profiles-kept", "securityContext/seLinuxOptions", {"type": "spc_t"}),
        ("sysctls-safe", "securityContext/sysctls", [{"name": "net.core.somaxconn"}]),
        ("volume-types-restricted", "volumes/2", {"name": "v", "gitRepo": {"repository": "a"}}),
        ("run-as-non-root", "securityContext/supplementalGroups", [10001, 0]),
        ("priority-not-of-system", "priority", 2_000_001_000),
        ("tolerations-bounded", "tolerations/1", {"key": "", "operator": "Exists"}),
    ],
)
def test_violations_of_pod_level_controls_are_rejected(rule: str, field: str, value: Any) -> None:
    assert evaluate_rule(rule, deployment((f"{POD}/{field}", value)))


@pytest.mark.parametrize(
    ("rule", "field", "value"),
    [
        ("no-host-ports", f"{MAIN}/ports/0/hostPort", 0),
        ("probes-stay-in-pod", f"{MAIN}/livenessProbe/httpGet/host", ""),
        ("security-profiles-kept", f"{POD}/securityContext/seccompProfile/type", "Localhost"),
        ("security-profiles-kept", f"{POD}/securityContext/seLinuxOptions", {"level": "s0:c1,c2"}),
        ("sysctls-safe", f"{POD}/securityContext/sysctls", [{"name": "net.ipv4.tcp_syncookies"}]),
        ("sysctls-safe", f"{POD}/securityContext/sysctls", [{"name": "net.ipv4.tcp_rmem"}]),
        ("run-as-non-root", f"{POD}/securityContext/supplementalGroups", [100]),
        ("volume-types-restricted", f"{POD}/volumes/2", {"name": "v", "csi": {"driver": "s3"}}),
        ("volume-types-restricted", f"{POD}/volumes/2", {"name": "v", "image": {}}),
        (
            "capabilities-dropped",
            f"{MAIN}/securityContext/capabilities",
            {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]},
        ),
        ("tolerations-bounded", f"{POD}/tolerations/1", {"key": "team", "operator": "Exists"}),
        ("no-host-ports", f"{MAIN}/ports/0/hostPort", UNKNOWN_VALUE),
    ],
)
def test_values_allowed_by_the_pod_security_standards_are_accepted(
    rule: str, field: str, value: Any
) -> None:
    assert evaluate_rule(rule, deployment((field, value))) == []


def test_ipc_lock_is_rejected_even_with_an_rdma_device() -> None:
    edits = (
        (f"{MAIN}/securityContext/capabilities/add", ["IPC_LOCK"]),
        (f"{MAIN}/resources/limits/rdma~hca", 1),
    )
    assert evaluate_rule("capabilities-dropped", deployment(*edits)) != []


def test_capabilities_can_be_allowed_by_configuration() -> None:
    edit = (f"{MAIN}/securityContext/capabilities/add", ["IPC_LOCK"])
    config = {"allowedCapabilities": ["IPC_LOCK"]}
    assert evaluate_rule("capabilities-dropped", deployment(edit), config=config) == []


# Secrets
SECRET_VARIABLES = [
    ("PASSWORD", "123456"),
    ("db.password", "true"),
    ("KEY", "abcdefabcdef"),
    ("A", "postgres://me:correct-horse@db/a"),
    ("A", "github_pat_" + "a" * 30),
    ("A", "sk-proj-" + "a" * 30),
    ("A", "hvs." + "a" * 30),
    ("REDIS_URL", "redis://:correct-horse@redis:6379/0"),
    ("REDIS_URL", "redis://:$ecret!@redis:6379/0"),
    ("REDIS_URL", "redis://:$ecret123@redis:6379/0"),
    ("REDIS_URL", "redis://:$ü@redis:6379/0"),
    ("API_KEY_URL", "https://:correct-horse@example.com"),
    ("SECRET_NAME", "ghp_" + "a" * 36),
    ("DB_PASSWORD_TYPE", "correct-horse"),
    ("DB_PASSWORD", "/a/b.txt"),
    ("API_KEY", "/" + "a" * 19 + "/" + "b" * 19),
    ("DSN", "Server=db,1433;User Id=sa;Password=hunter22;Encrypt=true"),
    ("DSN", "Uid=sa; Pwd='hunter22'"),
    ("DSN", "Driver={ODBC Driver 18};UID=sa;PWD=hunter22"),
    ("DSN", "host=db user=app dbname=a password=hunter22"),
    ("URL", "jdbc:postgresql://db/a?user=app&password=hunter22"),
    ("JAAS", 'LoginModule required username="app" password="hunter22";'),
    ("BUS", "Endpoint=sb://a.example.com/;SharedAccessKey=" + "a" * 43 + "="),
    ("AUTHORIZATION", "Basic YWRtaW46aHVudGVyMg=="),
    ("DB_PASS", "123456"),
    ("PASS_1", "123456"),
    ("PASS_DEVICE", "hunter22"),
    ("MYSQL_ALLOW_EMPTY_PASSWORD", "hunter22"),
    ("HF_TOKEN", "{{hunter22}}"),
    ("HF_TOKEN", "${HF_TOKEN:-hunter22}"),
    ("HF_TOKEN", "${HF_TOKEN:hunter22}"),
    ("ROOT_PASSWORD_LOGIN", "hunter22"),
    ("PASSWORD_PROD", "123456"),
    ("MASTER_KEY", "correct-horse"),
    ("REDIS_AUTH", "correct-horse"),
    ("API_KEY", "/etcaaaaaaaaaaaaaaaa/bbbbbbbbbbbbbbbbbbb"),
    ("DB_PASSWORD", "dummy"),
]


def test_secret_in_an_environment_variable_is_rejected() -> None:
    for name, value in SECRET_VARIABLES:
        edit = (f"{MAIN}/env", [{"name": name, "value": value}])
        messages = evaluate_rule("no-literal-secrets", deployment(edit))
        assert len(messages) == 1, (name, value)
        assert value not in messages[0]


HARMLESS_VARIABLES = [
    ("MAX_TOKENS", "4096"),
    ("PAD_TOKEN", "128"),
    ("TOPOLOGY_KEY", "kubernetes.io/hostname"),
    ("PARTITION_KEY", "user_id"),
    ("AUTH", "true"),
    ("TOKENIZERS_PARALLELISM", "false"),
    ("API_KEY_FILE", "/etc/key"),
    ("HF_TOKEN", "$(TOKEN)"),
    ("DATABASE", "postgres://$(USER):$(PASSWORD)@db/a"),
    ("IMAGE", "registry/task-" + "a" * 40),
    ("COMPASS", "north"),
    ("GOOGLE_APPLICATION_CREDENTIALS", "/var/secrets/google/key.json"),
    ("JWT_PRIVATE_KEY", "/etc/keys/jwt.pem"),
    ("SECRETS_DIR", "/etc/secrets"),
    ("SECRET_NAME", "hub"),
    ("EOS_TOKEN", "</s>"),
    ("KEYCLOAK_TOKEN_URL", "https://login.example.com/token"),
    ("API_KEY_HEADER", "X-API-Key"),
    ("OPENAI_API_KEY", "EMPTY"),
    ("REDIS_URL", "redis://:$(PASSWORD)@redis:6379/0"),
    ("SCRIPT", "git clone https://$GIT_USER:$GIT_PASSWORD@example.com/a.git"),
    ("PASS_DEVICE_SPECS", "true"),
    ("MYSQL_ALLOW_EMPTY_PASSWORD", "1"),
    ("MYSQL_RANDOM_ROOT_PASSWORD", "yes"),
    ("GITHUB_TOKEN", "$(params.github-token)"),
    ("PRIVATE_KEY", "$(workspaces.credentials.path)/$(params.key)"),
    ("API_TOKEN", "{{inputs.parameters.api-token}}"),
    ("DSN", "Server=db;User Id=sa;Password=$(PASSWORD)"),
    ("DSN", "host=db user=app password=$(PASSWORD)"),
    ("CODE", "connect(host=h, user=u, password=secret)"),
    ("CODE", "a=1; pwd = here"),
    ("SECRET_BACKEND", "vault"),
    ("AIRFLOW__WEBSERVER__SECRET_KEY_CMD", "cat /run/key"),
    ("secret-name", "hub"),
    ("hub.token.url", "https://login.example.com/token"),
    ("AIRFLOW__SECRETS__BACKEND", "airflow.providers.hashicorp.secrets.vault.VaultBackend"),
    ("TOKEN_ISSUER", "https://login.example.com"),
    ("TOKEN_TTL", "24h"),
    ("VAULT_SECRET_PATH", "kv/data/ml"),
    ("HF_TOKEN_ENV", "HF_TOKEN"),
    ("IMAGE_PULL_SECRETS", "registry"),
    ("CLS_TOKEN", "[CLS]"),
    ("ROUTING_KEY", "prompts_high_priority"),
    ("RUN_META_KEY", "train_metadata_2026"),
    ("PROMPT_KEY", "problem_statement"),
    ("TEXT_KEY", "document_contents"),
    ("LANGFUSE_PUBLIC_KEY", "pk-lf-1234567890"),
    ("OPENAI_API_KEY", "dummy"),
    ("ENABLE_PASSWORD_AUTH", "true"),
    ("PASSWORD_MIN_LENGTH", "12"),
    ("GOOGLE_APPLICATION_CREDENTIALS", "/etc/gcp/credentials"),
    ("HF_TOKEN", "${HF_TOKEN}"),
    ("HF_TOKEN", "${env:HF_TOKEN}"),
    ("GF_DATABASE_PASSWORD", "$__file{/etc/secrets/password}"),
    ("SECRETS_MANAGER", "aws"),
    ("VAULT_TOKEN_ROLE", "trainer"),
    ("AWS_CREDENTIAL_EXPIRATION", "30d"),
    ("PWD", "/workspace"),
    ("HF_TOKEN", "default"),
]


def test_harmless_environment_variable_is_accepted() -> None:
    for name, value in HARMLESS_VARIABLES:
        edit = (f"{MAIN}/env", [{"name": name, "value": value}])
        assert evaluate_rule("no-literal-secrets", deployment(edit)) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["--api-key", "abcd1234"],
        ["--hf-token=abcd1234"],
        ["sh", "-c", "export DB_PASSWORD=hunter22; run"],
        ["sh", "-c", "export DB_PASSWORD=123456; run"],
        ["--token", "auto", "--auth-token", "abcd1234"],
        ["sh", "-c", "AWS_SECRET_ACCESS_KEY='wJalrXUtn' run"],
    ],
)
@pytest.mark.parametrize("key", ["command", "args"])
def test_secret_in_the_arguments_of_a_command_is_rejected(arguments: list[str], key: str) -> None:
    assert evaluate_rule("no-literal-secrets", deployment((f"{MAIN}/{key}", arguments)))


def test_secret_in_a_script_is_reported_with_its_line() -> None:
    script = f"set -e\nexport HUB={TOKEN}\nexec app\n"
    args = ["-c", script]
    (message,) = evaluate_rule("no-literal-secrets", deployment((f"{MAIN}/args", args)))
    assert "args: found a literal on line 2, which is not shown here" in message
    for item in (
        manifest("v1", "ConfigMap", data={"run.sh": script}),
        manifest("example.com/v1", "Thing", spec={"script": script}),
    ):
        (message,) = evaluate_rule("no-secrets-in-manifests", item)
        assert "found a literal on line 2, which" in message


@pytest.mark.parametrize(
    "arguments",
    [
        ["--tokenizer", "meta-llama/Llama-3.1-8B"],
        ["--max-token", "4096"],
        ["--token=$(TOKEN)"],
        ["--token", "--verbose"],
        ["--token", "auto", "--use-auth-token=true"],
        ["--token", "default"],
        ["sh", "-c", "EOS_TOKEN=128001 PAD_TOKEN='end_of_text' MAX_TOKEN=4096 run"],
        ["--api-key-file", "/etc/key"],
        ["--image-pull-secret", "registry"],
        ["sh", "-c", "HF_TOKEN=$(cat /run/token) run"],
        ["sh", "-c", 'DB_PASSWORD="${PASSWORD}" run'],
        ["sh", "-c", "HF_TOKEN=`cat /run/token` run"],
        ["sh", "-c", "cd /src; PWD=build make; exec app"],
        ["sh", "-c", "A=1; PWD=build make"],
    ],
)
def test_harmless_command_is_accepted(arguments: list[str]) -> None:
    assert evaluate_rule("no-literal-secrets", deployment((f"{MAIN}/args", arguments))) == []


SECRETS_IN_OTHER_OBJECTS = [
    manifest("v1", "ConfigMap", data={"api_key": "correct-horse"}),
    manifest("v1", "ConfigMap", data={"a.py": f"login('{TOKEN}')"}),
    manifest("v1", "ConfigMap", data={"credentials": '{"hub": {"token": "correct-horse"}}'}),
    manifest("v1", "ConfigMap", data={"credentials": '{"api_keys": ["correct-horse"]}'}),
    manifest("v1", "ConfigMap", data={"credentials": "{hub: correct-horse}"}),
    manifest("v1", "ConfigMap", data={"credentials": '{"a":' * 100_000}),
    manifest("v1", "ConfigMap", data={"password": '{"value": "correct-horse"}'}),
    manifest("example.com/v1", "Thing", spec={"env": {"DB_PASSWORD": "correct-horse"}}),
    manifest("example.com/v1", "Thing", spec={"auth": [{"name": "password", "value": "horse"}]}),
    manifest("example.com/v1", "Thing", spec={"url": "https://me:correct-horse@example.com"}),
    manifest("v1", "Service", metadata={"annotations": {"note": TOKEN}}),
    manifest("v1", "ConfigMap", data={"a.json": '{"user": "a", "password": "hunter22"}'}),
    *(
        manifest("v1", "ConfigMap", data={"a.sql": f"{statement} 'hunter22';"})
        for statement in (
            "CREATE USER a WITH PASSWORD",
            "CREATE USER a PASSWORD",
            "CREATE ROLE a LOGIN PASSWORD",
            "ALTER ROLE a\n  WITH ENCRYPTED PASSWORD",
            "CREATE USER a IDENTIFIED BY",
            "CREATE USER a IDENTIFIED WITH mysql_native_password BY",
        )
    ),
    manifest("v1", "ConfigMap", data={"a.sql": "ALTER USER a WITH PASSWORD E'hunter22';"}),
    *(
        manifest("v1", "ConfigMap", data={"file": text})
        for text in (
            "{MAX_TOKEN: 4096, WANDB_API_KEY: hunter22}",
            '{"EOS_TOKEN": "end_of_text", "HF_TOKEN": "hunter22"}',
            '{"A_TOKEN": getenv("A"), "HF_TOKEN": "hunter22"}',
            "MYSQL_ALLOW_EMPTY_PASSWORD=true\nMYSQL_PASSWORD=123456",
            "password = hunter22",
            'class Database:\n    password: str = "hunter22"\n',
            "HF_TOKEN: Optional[str] = 'hunter22'",
            "password = password",
            "password = app_password",
            "password = correct.horse",
            "DB_PASSWORD=Tr0ub4dor[3]",
            "HF_TOKEN=args.token python train.py",
            "WANDB_API_KEY: a1b2c3d4.e5f6a7b8",
            "user = me; password = hunter22",
            '{"auths": {"registry.example.com": {"auth": "bWU6aHVudGVyMjI="}}}',
            "machine example.com login me password hunter22",
            "machine example.com\n  login me\n  password hunter22",
            "default login me password hunter22",
            "export HF_TOKEN=${HF_TOKEN:-hunter22}",
            "${API_KEY:=hunter22}",
            "${A}{HF_TOKEN: hunter22}",
        )
    ),
    manifest("v1", "ConfigMap", data={"redis.conf": "requirepass hunter22"}),
    manifest("v1", "ConfigMap", data={"nsswitch.conf": "passwd: files\npassword: hunter22"}),
    manifest("ray.io/v1", "RayJob", spec={"entrypoint": "WANDB_API_KEY=hunter22 python a.py"}),
    *(
        manifest("ray.io/v1", "RayJob", spec={"runtimeEnvYAML": text})
        for text in (
            "env_vars:\n  WANDB_API_KEY: hunter22",
            "env_vars: {A: b, WANDB_API_KEY: hunter22}",
            '{"env_vars": {"WANDB_API_KEY": "hunter22"}}',
        )
    ),
    manifest("example.com/v1", "Thing", spec={"script": "#!/bin/sh\nexport DB_PASSWORD=hunter22"}),
    manifest("example.com/v1", "Thing", spec={"extraArgs": ["--api-key", "hunter22"]}),
    *(
        manifest("example.com/v1", "Thing", spec={"sparkConf": {name: "hunter22"}})
        for name in (
            "spark.hadoop.fs.s3a.secret.key",
            "spark.hadoop.fs.s3a.session.token",
            "spark.hadoop.fs.azure.account.key.team.dfs.core.windows.net",
            "fs.azure.account.oauth2.client.secret.team.dfs.core.windows.net",
            "spark.executorEnv.AWS_SECRET_ACCESS_KEY",
            "javax.jdo.option.ConnectionPassword",
            "connection.password",
            "s3.secret-key",
        )
    ),
    manifest(
        "example.com/v1",
        "Thing",
        spec={"probe": {"httpHeaders": [{"name": "Authorization", "value": "Basic YTpodW50ZXI="}]}},
    ),
    manifest("example.com/v1", "Thing", spec={"name": "a", "value": "b", "password": "hunter22"}),
    manifest("example.com/v1", "Thing", spec={"db": {"secretName": "a", "password": "hunter22"}}),
    manifest("bitnami.com/v1alpha1", "SealedSecret", spec={"template": {"data": {"a": TOKEN}}}),
]


def test_secret_in_any_other_object_is_rejected() -> None:
    for item in SECRETS_IN_OTHER_OBJECTS:
        assert evaluate_rule("no-secrets-in-manifests", item), item


REFERENCES_TO_SECRETS = [
    manifest("v1", "ConfigMap", data={"config.yaml": "tokenizer: fast", "token_ttl": "3600"}),
    manifest("v1", "ConfigMap", data={"password": "", "secretName": "hub"}),
    # A part of KServe's ConfigMap inferenceservice-config.
    manifest(
        "v1",
        "ConfigMap",
        data={
            "credentials": '{"storageSpecSecretName": "a", "s3": {"s3Region": "us-east-1", '
            '"s3SecretAccessKeyName": "AWS_SECRET_ACCESS_KEY"}}'
        },
    ),
    manifest("bitnami.com/v1alpha1", "SealedSecret", spec={"encryptedData": {"password": "AgBy3"}}),
    manifest("example.com/v1", "Thing", spec={"password": "ENC[AES256_GCM,data:a,iv:b]"}),
    manifest("example.com/v1", "Thing", spec={"secretName": "hub", "tokenSecretRef": "a"}),
    manifest("v1", "Secret", data={"token": "Y29ycmVjdA=="}),  # encrypted by the engine
    *(
        manifest("v1", "ConfigMap", data={"file": text})
        for text in (
            "passwd:         files systemd\ngroup: files",
            "passwd: compat [NOTFOUND=return] sss  # users",
            "password: null",
            "require_password: true",
            'password = os.environ["DB_PASSWORD"]',
            '{"HF_TOKEN": os.environ["HF_TOKEN"]}',
            "'HF_TOKEN': hf_token,",
            'HEADERS = {"X_API_KEY": key_from_file()}',
            "MAX_TOKEN: 4096",
            '{"EOS_TOKEN": "end_of_text", "PAD_TOKEN": "pad_text"}',
            "MYSQL_ALLOW_EMPTY_PASSWORD=true",
            "    password=getenv(\n",
            "def connect(\n    password: str,\n    a: int)",
            "password: ${DB_PASSWORD}",
            "ALTER USER a WITH PASSWORD '${DB_PASSWORD}';",
            "ALTER USER a WITH PASSWORD :'password';",
            ': "${HF_TOKEN:?HF_TOKEN must be set}"',
            'serve ${API_KEY:+--api-key "$API_KEY"}',
            'export HF_TOKEN="${HF_TOKEN:-$(cat /run/token)}"',
            'echo "HF_TOKEN: ${HF_TOKEN:0:4}***"',
            "LITELLM_MASTER_KEY: os.environ/LITELLM_MASTER_KEY",
            "password: os.environ/DB_PASSWORD",
            "password: vault:kv/data/db#password",
            "password: ref+vault://kv/db/password",
        )
    ),
    *(
        manifest("example.com/v1", "Thing", spec={"script": text})
        for text in (
            'echo "HF_TOKEN: not set"',
            "run --token $TOKEN --password-file /run/password",
            "run --token auto",
            "env_vars: {HF_TOKEN: $TOKEN}",
            "password = settings.password",
            "password: str | None = None",
            "HF_TOKEN: str = 'none'",
            "password = args.pw",
            "; password = changeme",
            "A=b; MYSQL_ALLOW_EMPTY_PASSWORD=1; c",
            "connect(\n    password=self.options.db_pw,\n)",
            "    auth: basic\n    login with a password later",
            "connect(\n    password=args.password,\n)",
            'HF_TOKEN=os.environ["HF_TOKEN"]',
            "run(environment, HF_TOKEN=args.token)",
            "API_KEY=read_key(path)",
            "connect(\n    password=password,\n)",
        )
    ),
    manifest(
        "kafka.strimzi.io/v1",
        "KafkaBridge",
        spec={"passwordSecret": {"secretName": "user", "password": "key-in-the-secret"}},
    ),
    manifest("example.com/v1", "Thing", spec={"description": "Start it with --token value."}),
    *(
        manifest("example.com/v1", "Thing", spec={"sparkConf": {name: value}})
        for name, value in (
            ("spark.hadoop.fs.s3a.aws.credentials.provider", "com.example.Provider"),
            ("spark.kubernetes.driver.secrets.client.secret", "/etc/secrets"),
            ("spark.kubernetes.driver.secretKeyRef.CLIENT_SECRET", "team:key"),
            ("spark.kubernetes.driver.secretKeyRef.PASSWORD", "team:key"),
            ("spark.kubernetes.driver.secretKeyRef.DB_PASSWORD", "team:key"),
            ("spark.kubernetes.driver.secrets.db-password", "/etc/secrets"),
            ("spark.authenticate.secret", "true"),
            ("spark.kubernetes.kerberos.tokenSecret.name", "kerberos"),
            ("spark.executorEnv.OMP_NUM_THREADS", "8"),
            ("connection.password", "${file:/run/password}"),
        )
    ),
]


def test_references_to_secrets_are_accepted() -> None:
    for item in REFERENCES_TO_SECRETS:
        assert evaluate_rule("no-secrets-in-manifests", item) == []


def test_secret_in_a_pod_is_reported_by_one_rule_only() -> None:
    edit = (f"{MAIN}/env", [{"name": "HF_TOKEN", "value": TOKEN}])
    assert evaluate_rule("no-secrets-in-manifests", deployment(edit)) == []


# Access
def role(kind: str, **rule: Any) -> Manifest:
    return manifest(RBAC, kind, rules=[rule])


@pytest.mark.parametrize(
    "item",
    [
        role("Role", apiGroups=[""], resources=["*"], verbs=["get"]),
        role("Role", apiGroups=["apps"], resources=["deployments"], verbs=["*"]),
        role("Role", apiGroups=["*"], resources=["things"], verbs=["get"]),
        role("Role", apiGroups=["rbac.authorization.k8s.io"], resources=["*"], verbs=["*"]),
        role("Role", apiGroups=[""], resources=["serviceaccounts/token"], verbs=["create"]),
        role("ClusterRole", apiGroups=[""], resources=["pods/attach"], verbs=["create"]),
        role("ClusterRole", apiGroups=[""], resources=["secrets"], verbs=["watch"]),
        role("ClusterRole", nonResourceURLs=["*"], verbs=["get"]),
    ],
)
def test_role_with_too_many_permissions_is_rejected(item: Manifest) -> None:
    assert evaluate_rule("rbac-least-privilege", item)


@pytest.mark.parametrize("verb", ["*", "bind"])
def test_each_verb_is_reported_once(verb: str) -> None:
    classes = {"apiGroups": ["scheduling.k8s.io"], "resources": ["priorityclasses"]}
    item = role("ClusterRole", **classes, verbs=[verb])
    assert len(evaluate_rule("rbac-least-privilege", item)) == 1
    labels = {"rbac.authorization.k8s.io/aggregate-to-view": "true"}
    in_view = changed(item, ("metadata/labels", labels))
    assert len(evaluate_rule("rbac-least-privilege", in_view)) == 1


def test_narrower_access_to_the_kubelet_is_proposed_and_accepted() -> None:
    node = {"apiGroups": [""], "verbs": ["get"]}
    (message,) = evaluate_rule(
        "rbac-least-privilege", role("ClusterRole", resources=["nodes/proxy"], **node)
    )
    for resource in ("nodes/metrics", "nodes/stats", "nodes/pods"):
        assert resource in message
        item = role("ClusterRole", resources=[resource], **node)
        assert evaluate_rule("rbac-least-privilege", item) == []


@pytest.mark.parametrize(
    "item",
    [
        role("ClusterRole", apiGroups=["ray.io"], resources=["*"], verbs=["*"]),
        role("ClusterRole", nonResourceURLs=["/metrics"], verbs=["get"]),
        role("Role", apiGroups=[""], resources=["pods/exec"], verbs=["create"]),
        role("Role", apiGroups=[""], resources=["secrets"], verbs=["get"]),
        role(
            "ClusterRole",
            apiGroups=[""],
            resources=["secrets"],
            resourceNames=["webhook"],
            verbs=["get"],
        ),
        role("ClusterRole", apiGroups=[""], resources=["secrets"], verbs=["create"]),
    ],
)
def test_usual_permissions_of_controllers_are_accepted(item: Manifest) -> None:
    assert evaluate_rule("rbac-least-privilege", item) == []


@pytest.mark.parametrize(("audience", "rejected"), [("api", True), ("sts.amazonaws.com", False)])
def test_only_projected_tokens_for_the_api_server_are_rejected(
    audience: str, rejected: bool
) -> None:
    source = {"serviceAccountToken": {"path": "t", "audience": audience}}
    edit = (f"{POD}/volumes/2", {"name": "t", "projected": {"sources": [source]}})
    assert bool(evaluate_rule("no-hidden-token", deployment(edit))) is rejected


# Exposure
@pytest.mark.parametrize(
    "item",
    [
        manifest("v1", "Service", spec={"type": "ExternalName"}),
        manifest(
            "networking.k8s.io/v1",
            "Ingress",
            metadata={"annotations": {"alb.ingress.kubernetes.io/certificate-arn": "arn:a"}},
            spec={},
        ),
        manifest("example.com/v1", "Gadget", spec={"balancer": {"type": "LoadBalancer"}}),
        manifest("example.com/v1", "Gadget", spec={"ingress": {"enabled": False}}),
        manifest(
            "networking.istio.io/v1",
            "Gateway",
            spec={"servers": [{"port": {"protocol": "HTTP"}, "tls": {"httpsRedirect": True}}]},
        ),
    ],
)
def test_cluster_internal_services_are_not_public(item: Manifest) -> None:
    assert evaluate_rule("service-not-public", item) == []


def test_public_custom_resource_can_be_allowed_by_its_address() -> None:
    ray = manifest("ray.io/v1", "RayCluster", spec={"headGroupSpec": {"serviceType": "NodePort"}})
    assert evaluate_rule("service-not-public", ray)
    allowed = {"allowedServices": ["team/RayCluster.ray.io/a"]}
    assert evaluate_rule("service-not-public", ray, config=allowed) == []


# Images
@pytest.mark.parametrize(
    ("tag", "is_moving"),
    [
        *(("stable", True), ("1-latest", True), ("LATEST-gpu", True), ("edge", True)),
        *(("dev-cuda", True), ("head", True), ("latest.12", True)),
        *(("12.4.1-devel-ubuntu22.04", False), ("main-3f2a9bc", False), ("v2-maintained", False)),
        *(("nightly-20260101", False), ("2.5.0-stable", False), ("headless-2", False)),
    ],
)
def test_only_moving_image_tags_are_rejected(tag: str, is_moving: bool) -> None:
    edit = (f"{MAIN}/image", f"127.0.0.1:5000/team/web:{tag}")
    assert bool(evaluate_rule("image-tag-fixed", deployment(edit))) is is_moving


def test_missing_image_is_reported_only_once() -> None:
    edit = (f"{MAIN}/image", REMOVED)
    assert evaluate_rule("image-tag-fixed", deployment(edit))
    assert evaluate_rule("image-digest-pinned", deployment(edit)) == []


def test_model_image_is_reported_once() -> None:
    spec = {"predictor": {"model": {"storageUri": "oci://registry.example.com/a"}}}
    service = manifest("serving.kserve.io/v1beta1", "InferenceService", spec=spec)
    (message,) = (
        each for each in evaluate_rule("image-tag-fixed", service) if "storageUri" in each
    )
    assert "registry.example.com/a" in message


@pytest.mark.parametrize(("uri", "rejected"), [("hf://evil/pickle", True), ("hf://team/a", False)])
@pytest.mark.parametrize(
    ("kind", "edit"),
    [
        (
            "InferenceService",
            lambda uri: {"predictor": {"model": {}, "storageUris": [{"uri": uri}]}},
        ),
        ("LLMInferenceService", lambda uri: {"model": {"uri": uri}}),
        (
            "LLMInferenceService",
            lambda uri: {"model": {"uri": "hf://team/a", "lora": {"adapters": [{"uri": uri}]}}},
        ),
    ],
)
def test_models_of_kserve_must_come_from_allowed_sources(
    kind: str, edit: Callable[[str], Manifest], uri: str, rejected: bool
) -> None:
    service = manifest("serving.kserve.io/v1beta1", kind, spec=edit(uri))
    config = {"allowedRegistries": ["registry.example.com", "hf://team"]}
    assert bool(evaluate_rule("image-registry-allowed", service, config=config)) is rejected


@pytest.mark.parametrize(
    ("uri", "rejected"),
    [
        *(("hf://evil/pickle", True), ("oci://evil.com/model:1.0", True), ("s3://models/a", True)),
        *(("hf://team/llama", False), ("oci://registry.example.com/model:1.0", False)),
        ("pvc://models/a", False),
    ],
)
def test_models_must_come_from_allowed_sources(uri: str, rejected: bool) -> None:
    spec = {"trainer": {"image": "registry.example.com/a:1.0"}, "initializer": {"model": {}}}
    job = manifest("trainer.kubeflow.org/v1alpha1", "TrainJob", spec=spec)
    job["spec"]["initializer"]["model"]["storageUri"] = uri
    config = {"allowedRegistries": ["registry.example.com", "hf://team"]}
    assert bool(evaluate_rule("image-registry-allowed", job, config=config)) is rejected
