"""Ways to expose tokens and to write secrets into manifests."""

from tests.policies.ways.makers import replacement
from tests.policies.ways.pods import POD, WEB, container, pod
from tests.policies.ways.way import Way, way

TOKEN_VOLUME = [{"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}]


def variable(name: str, value: str) -> Way:
    """Return an edit that sets an environment variable to a secret."""
    env = [{"name": name, "value": value}]
    return container(f"the secret {name}={value:.8}", "env", env, "no-literal-secrets")


KEY = "3f9a8c7b6d5e4f3a2b1c" * 2

WAYS = [
    *(
        container(f"the arguments {line!r:.40}", "args", ["sh", "-c", line], "no-literal-secrets")
        for line in (
            f"train --api_key {KEY}",
            "train --db_password=correct",
            f"train +wandb.api_key={KEY}",
            "train db.password=correct-horse",
            "java -Dspring.datasource.password=correct-horse",
            "kubectl create secret generic a --from-literal=password=correct-horse",
            f"wandb login --relogin {KEY} && train",
            f"aws configure set aws_secret_access_key {KEY}",
            "sshpass -p correct rsync a:b c",
        )
    ),
    *(
        replacement(
            f"the setting {text!r:.30} in a ConfigMap",
            "v1",
            "ConfigMap",
            "no-secrets-in-manifests",
            data={"settings": text},
        )
        for text in (
            f'{{"model": "a", "api_key": "{KEY}"}}',
            f"wandb:\n  api_key: {KEY}\n",
            f"aws_secret_access_key = {KEY}\n",
            f'{{"username": "a", "key": "{KEY:.32}"}}',
        )
    ),
    *(
        replacement(
            f"the value {name} of a HelmRelease",
            "helm.toolkit.fluxcd.io/v2",
            "HelmRelease",
            "no-secrets-in-manifests",
            spec={"chart": {"spec": {"chart": "a"}}, "values": {name: KEY}},
        )
        for name in ("apiKey", "secretKey", "authToken")
    ),
    variable("DATA_SOURCE", "app:correct-horse@tcp(db:3306)/app"),
    variable("MYSQL_ROOT_PW", "correct-horse"),
    variable("JUDGE", f"gsk_{KEY}abcdefghijkl"),
    variable("GROK", f"xai-{KEY}{KEY}"),
    variable("SEARCH", f"pplx-{KEY}abcdefgh"),
    variable("TRACES", "sk-lf-3f9a8c7b-6d5e-4f3a-2b1c-3f9a8c7b6d5e"),
    variable("SMITH", f"lsv2_pt_{KEY:.32}_3f9a8c7b6d"),
    variable("LAKE", f"dapi{KEY:.32}"),
    variable("HOSTED", f"r8_{KEY:.37}"),
    variable("TAILNET", f"tskey-auth-{KEY:.16}"),
    # tokens and secrets
    way(
        "the API server token",
        WEB,
        "no-service-account-token",
        (f"{POD}/automountServiceAccountToken", True),
        no_service_account_token="mandatory",
    ),
    pod("the API server token as a volume", "volumes", TOKEN_VOLUME),
    *(
        pod(
            f"a token with the audience {audience}",
            "volumes",
            [
                {
                    "name": "t",
                    "projected": {
                        "sources": [{"serviceAccountToken": {"path": "t", "audience": audience}}]
                    },
                }
            ],
        )
        for audience in (
            "https://kubernetes.default.svc",
            "k3s",
            "https://container.googleapis.com/v1/projects/a/locations/b/clusters/c",
            "https://a.hcp.westeurope.azmk8s.io",
        )
    ),
    *(
        variable(name, "correct-horse-battery")
        for name in ("DB_PASS", "WANDB_KEY", "REDIS_AUTH", "NGC_CLI_KEY", "PGPASS", "authToken")
    ),
    variable("SETTING", "glpat-" + "a" * 20),
    variable("SETTING", "xoxb-" + "1" * 12 + "-" + "a" * 24),
    variable("SETTING", "nvapi-" + "a" * 60),
    variable("SETTING", "AIza" + "a" * 35),
    variable("SETTING", "ASIA" + "A" * 16),
    container("a secret in the arguments", "args", ["--token", "hf_" + "a" * 34]),
    container(
        "a secret in the command",
        "command",
        ["sh", "-c", "curl -H 'Authorization: Bearer hf_" + "a" * 34 + "' http://a"],
    ),
    container("a password in the arguments", "args", ["--password=correct-horse"]),
    container(
        "a secret in a probe",
        "readinessProbe/httpGet/httpHeaders",
        [{"name": "Authorization", "value": "Bearer hf_" + "a" * 34}],
    ),
    container(
        "a secret in a hook",
        "lifecycle",
        {"preStop": {"exec": {"command": ["curl", "https://me:correct-horse@example.com/stop"]}}},
    ),
    way(
        "a secret in an annotation",
        WEB,
        "",
        ("0/spec/template/metadata/annotations", {"team.example.com/token": "hf_" + "a" * 34}),
    ),
    way(
        "a secret in a workflow script",
        "argo_workflow_steps",
        "",
        ("0/spec/templates/2/script/source", "import os\nos.system('curl -u me:correct-horse a')"),
    ),
    way(
        "a secret in a step script",
        "tekton_task",
        "",
        ("0/spec/steps/0/script", "#!/bin/sh\nexport HUB_TOKEN=correct-horse\n"),
    ),
    way(
        "a secret in a Spark property",
        "spark_application",
        "",
        ("0/spec/sparkConf/spark.hadoop.fs.s3a.secret.key", "correct-horse"),
    ),
    container(
        "a password in a probe header",
        "readinessProbe/httpGet/httpHeaders",
        [{"name": "Authorization", "value": "Basic bWU6Y29ycmVjdC1ob3JzZQ=="}],
    ),
    way("a secret in a ConfigMap", "mig_configuration", "", ("0/data/token", "hf_" + "a" * 34)),
    way("a password in a ConfigMap", "mig_configuration", "", ("0/data/DB_PASSWORD", "horse")),
    way(
        "a Secret in plain text",
        WEB,
        "",
        (
            "2",
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": "a", "namespace": "web"},
                "stringData": {"password": "correct-horse"},
            },
        ),
    ),
    way(
        "a Secret in base64",
        WEB,
        "",
        (
            "2",
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": "a", "namespace": "web"},
                "data": {"password": "Y29ycmVjdC1ob3JzZQ=="},
            },
        ),
    ),
]
