"""Rules for secrets in manifests, with rejected and accepted manifests."""

import pytest

from tests.policies.harness import evaluate_rule
from tests.policies.rules.test_security_rules import MAIN, deployment, manifest

TOKEN = "hf_" + "a" * 34
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
    ("USE_PASSWORD", "false"),
    ("MODEL_KEY", "llama-3-8b-instruct"),
    ("DATASET_KEY", "imagenet_1k_train"),
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
            "export SMTP_PASS=hunter22",
            "SMTP_PWD: hunter22",
            "# host:port:database:user:password\ndb:5432:app:me:hunter22",
            "*:*:*:me:hunter22",
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
            "SMTP_PASS=\nSMTP_PWD=${SMTP_PWD}\nDB_PASS=/run/secrets/password",
            "db:5432:app:me:\ndb:5432:app:me:${PASSWORD}\ndb:5432:app:me:/run/password",
            "root:*:0:0:System:/root:/bin/sh\n127.0.0.1:5432:5432",
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
