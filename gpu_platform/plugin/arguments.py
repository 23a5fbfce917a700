"""What programs in any language write: Pulumi makes the plugin's schema from this.

Written by `python -m gpu_platform.plugin.arguments_source` from infra/settings/; edit it there.
"""
# ruff: noqa: E501

from typing import Any, NotRequired, TypedDict

from pulumi import Input


class Toleration(TypedDict):
    """A node taint that pods of this stack may ignore."""

    key: Input[str]
    """the taint's key (qualified name)"""
    operator: NotRequired[Input[str]]
    """how the value is compared (`Exists`, `Equal`; default `Exists`)"""
    value: NotRequired[Input[str]]
    """the taint's value; only with Equal (text)"""
    effect: NotRequired[Input[str]]
    """the taint's effect; null tolerates every effect (`NoSchedule`, `PreferNoSchedule`, `NoExecute`; default `NoSchedule`)"""


class GpuNodes(TypedDict):
    """How pods get GPUs, as the platform's output `gpuNodes` says it."""

    resource: Input[str]
    """resource that a container asks for, such as nvidia.com/gpu"""
    node_selector: NotRequired[Input[dict[str, Input[str]]]]
    """labels of the nodes that have GPUs"""
    tolerations: NotRequired[Input[list[Input[Toleration]]]]
    """taints of those nodes"""
    runtime_class: NotRequired[Input[str]]
    """runtime class of pods with GPUs; leave it out where they need none"""


class Launcher(TypedDict):
    """The pod that starts the others and computes nothing: MPI's launcher, Ray's head."""

    cpu: NotRequired[Input[str]]
    """CPU request (CPU; default `1`)"""
    memory: NotRequired[Input[str]]
    """memory request and limit (size; default `2Gi`)"""


class JobVolume(TypedDict):
    """A further volume of every pod: a claim, a Secret, a ConfigMap, or room on the node."""

    path: Input[str]
    """where the container sees it (absolute path)"""
    claim: NotRequired[Input[str]]
    """claim of this stack (name)"""
    secret: NotRequired[Input[str]]
    """Secret of the namespace (name)"""
    config_map: NotRequired[Input[str]]
    """ConfigMap of the namespace (name)"""
    scratch: NotRequired[Input[str]]
    """size of an empty folder on the node's disk that goes with the pod (size)"""
    read_only: NotRequired[Input[bool]]
    """whether a claim is only read; Secrets and ConfigMaps always are (true or false; default `false`)"""


class Hyperparameters(TypedDict):
    """One training run. Field names are the flags' names with underscores."""

    model: NotRequired[Input[str]]
    """network to train, with what it takes (images are enlarged to it): digits-net 1x8x8; mnist-net 1x28x28; simple-cnn 3x32x32; resnet18 3x224x224 or another image_size; resnet50 the same; gpt text; or your own as package.module:factory (text; default `simple-cnn`)"""
    model_options: NotRequired[Input[dict[str, Input[Any]]]]
    """what the network can be told, as JSON: '{"layers": 6, "context": 512}' of gpt (also heads, width, dropout), image_size of the resnets, anything of your own (mapping to whole number or number or text or true or false; default empty)"""
    dataset: NotRequired[Input[str]]
    """digits, glyphs and photos come with packages, synthetic is made from the seed, all others are read from data_dir (`digits`, `glyphs`, `photos`, `mnist`, `fashion-mnist`, `cifar10`, `cifar100`, `synthetic`, `shards`, `text`, `tokens`; default `digits`)"""
    download: NotRequired[Input[bool]]
    """fetch mnist, fashion-mnist, cifar10 or cifar100 into data_dir first (true or false; default `false`)"""
    loader_workers: NotRequired[Input[int]]
    """processes that read data ahead for each training process (whole number, ≥ 0, ≤ 256; default `0`)"""
    epochs: NotRequired[Input[int]]
    """passes over the training data (whole number, ≥ 1; default `10`)"""
    batch_size: NotRequired[Input[int]]
    """samples per process that are computed at once (whole number, ≥ 1; default `64`)"""
    accumulate: NotRequired[Input[int]]
    """batches per process whose gradients make one step (whole number, ≥ 1; default `1`)"""
    optimizer: NotRequired[Input[str]]
    """sgd has Nesterov momentum 0.9 (`adamw`, `sgd`; default `adamw`)"""
    learning_rate: NotRequired[Input[float]]
    """peak of the schedule (number, > 0, ≤ 10; default `0.001`)"""
    schedule: NotRequired[Input[str]]
    """of the learning rate after the warm-up: down on a cosine, down in a straight line, or not at all (`one-cycle`, `linear`, `constant`; default `one-cycle`)"""
    warm_up: NotRequired[Input[float]]
    """share of the run in which the learning rate rises to its peak (number, ≥ 0, < 1; default `0.2`)"""
    weight_decay: NotRequired[Input[float]]
    """decoupled with adamw (number, ≥ 0, ≤ 1; default `0.0001`)"""
    clip_norm: NotRequired[Input[float]]
    """gradients whose norm, all together, is larger are scaled down to it; 0 is off (number, ≥ 0; default `0`)"""
    seed: NotRequired[Input[int]]
    """of weights, dropout, order and synthetic data (whole number, ≥ 0, < 2147483648; default `0`)"""
    parallel: NotRequired[Input[str]]
    """ddp keeps the whole model in every process, fsdp (FSDP2) a part in each (`ddp`, `fsdp`; default `ddp`)"""
    precision: NotRequired[Input[str]]
    """of the computation by autocast; weights stay fp32, fp16 scales the loss (`fp32`, `bf16`, `fp16`; default `fp32`)"""
    compile: NotRequired[Input[bool]]
    """torch.compile the model: slower start, faster steps (true or false; default `false`)"""
    activation_checkpointing: NotRequired[Input[bool]]
    """compute blocks again instead of keeping their activations: less memory (true or false; default `false`)"""
    gradient_compression: NotRequired[Input[str]]
    """of what the processes send one another (ddp only) (`none`, `bf16`, `fp16`; default `none`)"""
    checkpoint_every: NotRequired[Input[int]]
    """epochs between two checkpoints (whole number, ≥ 1; default `1`)"""
    checkpoint_steps: NotRequired[Input[int]]
    """steps between two checkpoints inside an epoch; 0 is none (whole number, ≥ 0; default `0`)"""
    checkpoint_async: NotRequired[Input[bool]]
    """write checkpoints while training goes on; only a copy makes it wait (true or false; default `true`)"""
    keep_checkpoints: NotRequired[Input[int]]
    """newest checkpoints that are kept; older ones are removed (whole number, ≥ 1; default `3`)"""
    keep_best: NotRequired[Input[bool]]
    """keep the checkpoint of the epoch with the least held-out loss as well (true or false; default `true`)"""
    log_every: NotRequired[Input[int]]
    """steps between two progress lines; 0 writes one line an epoch (whole number, ≥ 0; default `0`)"""
    metrics_port: NotRequired[Input[int]]
    """port at which the first process of every node answers Prometheus; 0 is no port (whole number, ≥ 0, ≤ 65535; default `0`)"""
    device: NotRequired[Input[str]]
    """auto takes a GPU where there is one (`auto`, `cpu`, `cuda`; default `auto`)"""
    peer_timeout: NotRequired[Input[float]]
    """seconds to wait for another process before giving up; must exceed the time that saving a checkpoint takes (number, > 0, ≤ 86400; default `60`)"""
    hang_timeout: NotRequired[Input[float]]
    """seconds without a step, a batch of the evaluation, a checkpoint or another part of the run after which a process shows its stacks and ends with 76; 0 is for ever; unless it is written, a longer peer_timeout takes its place (number, ≥ 0, ≤ 86400; default `1800`)"""
    tensorboard: NotRequired[Input[bool]]
    """write event files for TensorBoard to run_dir/tensorboard (true or false; default `false`)"""
    profile_steps: NotRequired[Input[int]]
    """steps whose profile goes to run_dir/profile; 0 is none (whole number, ≥ 0, ≤ 1000; default `0`)"""
    profile_after: NotRequired[Input[int]]
    """steps of this process before the profile begins (whole number, ≥ 0; default `10`)"""
    export_formats: NotRequired[Input[list[Input[str]]]]
    """Programs that are exported with the weights: pt2 (torch.export). (anything; default empty)"""
    prune: NotRequired[Input[float]]
    """share of the smallest weights that a second export does without (number, ≥ 0, < 1; default `0`)"""
    quantize: NotRequired[Input[str]]
    """second export with whole numbers of 8 bits: static for networks of convolutions, dynamic or weight-only for those of linear layers (`none`, `static`, `dynamic`, `weight-only`; default `none`)"""
    step_delay: NotRequired[Input[float]]
    """seconds slept after each step: makes an interruption visible on tiny data, for demonstrations only (number, ≥ 0, ≤ 60; default `0`)"""


class Reference(TypedDict):
    """A value that stands in a Secret or a ConfigMap of the namespace, and not here."""

    secret: NotRequired[Input[str]]
    """name of the Secret (name)"""
    config_map: NotRequired[Input[str]]
    """name of the ConfigMap (name)"""
    key: Input[str]
    """key in it whose value is taken (text)"""


class Rdma(TypedDict):
    """A direct network between GPUs of several nodes (InfiniBand or RoCE)."""

    resource: Input[str]
    """name of the RDMA device, such as rdma/hca (qualified name)"""
    count: NotRequired[Input[int]]
    """devices for each pod (whole number, ≥ 1; default `1`)"""
    interface: Input[str]
    """network interface of NCCL's first contact (NCCL_SOCKET_IFNAME) (text)"""
    hca: NotRequired[Input[str]]
    """RDMA adapters that NCCL uses (NCCL_IB_HCA) (text)"""


class Nccl(TypedDict):
    """How NCCL uses the network; what is not written is left to NCCL's own defaults."""

    network: Input[str]
    """infiniband and roce need rdma; NCCL then fails rather than falling back to TCP in silence. tcp uses no RDMA device even where there is one (`infiniband`, `roce`, `tcp`)"""
    interface: NotRequired[Input[str]]
    """network interface of tcp (NCCL_SOCKET_IFNAME); with rdma it is rdma.interface (text)"""
    gid_index: NotRequired[Input[int]]
    """roce: index of the adapter's address (NCCL_IB_GID_INDEX); NCCL from 2.21 on finds it by itself, older ones usually need 3 (whole number)"""
    traffic_class: NotRequired[Input[int]]
    """roce: class of the packets (NCCL_IB_TC), as the switches are configured for lossless traffic; 106 where that is DSCP 26 (whole number)"""
    service_level: NotRequired[Input[int]]
    """infiniband: service level (NCCL_IB_SL) (whole number, ≥ 0, ≤ 15)"""
    timeout: NotRequired[Input[int]]
    """exponent of the adapter's timeout, 4.096 µs x 2^timeout (NCCL_IB_TIMEOUT) (whole number, ≥ 1, ≤ 31)"""
    retry_count: NotRequired[Input[int]]
    """retries of the adapter (NCCL_IB_RETRY_CNT) (whole number, ≥ 0, ≤ 7)"""
    queue_pairs: NotRequired[Input[int]]
    """queue pairs of a connection (NCCL_IB_QPS_PER_CONNECTION); more than one spreads a connection over several paths of the fabric (whole number, ≥ 1, ≤ 128)"""
    gpu_direct: NotRequired[Input[str]]
    """how far apart GPU and adapter may be for GPUDirect (NCCL_NET_GDR_LEVEL); LOC never uses it, SYS always does (`LOC`, `PIX`, `PXB`, `PHB`, `SYS`)"""
    socket_threads: NotRequired[Input[int]]
    """tcp: threads of a connection (NCCL_SOCKET_NTHREADS) (whole number, ≥ 1, ≤ 16)"""
    sockets_per_thread: NotRequired[Input[int]]
    """tcp: sockets of a thread (NCCL_NSOCKS_PERTHREAD) (whole number, ≥ 1, ≤ 16)"""
    debug: NotRequired[Input[str]]
    """what NCCL writes into the log (NCCL_DEBUG) (`VERSION`, `WARN`, `INFO`, `TRACE`; default `WARN`)"""


class Packing(TypedDict):
    """Keep the pods of the job within one part of the cluster, told by a label of the nodes."""

    label: Input[str]
    """label of the nodes whose value is the part, such as topology.kubernetes.io/zone or a label that names the rack or switch (qualified name)"""
    required: NotRequired[Input[bool]]
    """wait until the part that the first pod chose has room for all, instead of preferring it (true or false; default `false`)"""


class NetworkTopology(TypedDict):
    """Keep the pods close in Volcano's own tree of the network (HyperNodes)."""

    mode: NotRequired[Input[str]]
    """hard waits for a part with room, soft prefers it (`hard`, `soft`; default `soft`)"""
    highest_tier: NotRequired[Input[int]]
    """highest tier that the pods may span; only with hard (whole number)"""


class Step(TypedDict):
    """One pod with a command, in the job's image and with the job's claims."""

    command: Input[list[Input[str]]]
    """command with its arguments (list of text)"""
    after: NotRequired[Input[list[Input[str]]]]
    """steps that must have ended well before; `train` is the training (list of name; default empty)"""
    gpus: NotRequired[Input[int]]
    """GPUs of the pod (whole number, ≥ 0, ≤ 64; default `0`)"""
    cpu: NotRequired[Input[str]]
    """CPU request of the pod (CPU; default `1`)"""
    memory: NotRequired[Input[str]]
    """memory request and limit of the pod (size; default `2Gi`)"""
    env: NotRequired[Input[dict[str, Input[str]]]]
    """further environment variables (mapping to text; default empty)"""
    writes_datasets: NotRequired[Input[bool]]
    """mount the claim of the data sets so that it can be written (true or false; default `false`)"""


class TrainingJobInputs(TypedDict):
    """One training job; a change of it is a new run."""

    image: Input[str]
    """image of the pods, pinned by digest (`…@sha256:…`)"""
    platform: NotRequired[Input[str]]
    """stack of this project, such as `organization/gpu-platform/prod`, from which namespace, claims and GPU nodes are taken where they are not written here"""
    namespace: NotRequired[Input[str]]
    """namespace of the pods; needed without `platform`"""
    claims: NotRequired[Input[dict[str, Input[str]]]]
    """claims by logical name: their names in the cluster; needed without `platform`"""
    gpu_nodes: NotRequired[Input[GpuNodes]]
    """how pods get GPUs; without it and `platform`, as `nvidia.com/gpu` on any node"""
    service_account: NotRequired[Input[str]]
    """service account of the pods"""
    kind: NotRequired[Input[str]]
    """what the job is made of; docs/jobs.md tells what each kind can do (`volcano`, `indexed`, `pytorch`, `trainjob`, `mpi`, `tensorflow`, `ray`, `plain`; default `volcano`)"""
    command: NotRequired[Input[list[Input[str]]]]
    """own command with its arguments in place of this repository's program; $(NAME) is replaced by the variable of that name (list of text)"""
    queue: Input[str]
    """Volcano queue that it waits in (name)"""
    priority_class: NotRequired[Input[str]]
    """priority class of its pods (name)"""
    nodes: NotRequired[Input[int]]
    """pods, which are scheduled all or none (whole number, ≤ 4096, ≥ 1; default `1`)"""
    min_nodes: NotRequired[Input[int]]
    """fewest pods to start and to go on with, of an elastic job (whole number)"""
    gpus_per_node: NotRequired[Input[int]]
    """GPUs of each pod, and processes in it (whole number, ≤ 64, ≥ 1; default `1`)"""
    gpu_resource: NotRequired[Input[str]]
    """name of the GPU resource where it is not that of the stack (qualified name)"""
    gpu_product: NotRequired[Input[str]]
    """only nodes with this GPU (label nvidia.com/gpu.product) (text)"""
    node_gpus: NotRequired[Input[int]]
    """only nodes with this many GPUs (label nvidia.com/gpu.count) (whole number)"""
    whole_node: NotRequired[Input[bool]]
    """each pod has its node to itself: no other workload of this project (true or false; default `false`)"""
    cpu: Input[str]
    """CPU request of each pod; there is no CPU limit (CPU)"""
    memory: Input[str]
    """memory request and limit of each pod (size)"""
    shm: NotRequired[Input[str]]
    """size of /dev/shm, part of the memory limit; null gives 4Gi for each GPU, but at most half of the memory (size)"""
    launcher: NotRequired[Input[Launcher]]
    """resources of the pod that starts the others, with kind mpi or ray (section)"""
    checkpoints: NotRequired[Input[str]]
    """claim for checkpoints and exports (name; default `checkpoints`)"""
    datasets: NotRequired[Input[str]]
    """claim with data sets, mounted read-only (name)"""
    volumes: NotRequired[Input[dict[str, Input[JobVolume]]]]
    """further volumes by name (mapping to section; default empty)"""
    hyperparameters: NotRequired[Input[Hyperparameters]]
    """configuration of the training program; needed without a command (section)"""
    env: NotRequired[Input[dict[str, Input[str]]]]
    """further environment variables (mapping to text; default empty)"""
    env_from: NotRequired[Input[dict[str, Input[Reference]]]]
    """environment variables whose values stand in Secrets or ConfigMaps (mapping to section; default empty)"""
    omp_threads: NotRequired[Input[int]]
    """CPU threads of each process (whole number)"""
    rdma: NotRequired[Input[Rdma]]
    """direct network between nodes (section)"""
    nccl: NotRequired[Input[Nccl]]
    """how NCCL uses the network between nodes (section)"""
    host_network: NotRequired[Input[bool]]
    """pods use the node's network, where RDMA has no device in pods (true or false; default `false`)"""
    spread: NotRequired[Input[bool]]
    """distribute the pods evenly over the nodes (true or false; default `true`)"""
    pack: NotRequired[Input[Packing]]
    """keep the pods within a part (section)"""
    network_topology: NotRequired[Input[NetworkTopology]]
    """keep the pods close in the network; needs Volcano 1.11 or later (section)"""
    node_selector: NotRequired[Input[dict[str, Input[str]]]]
    """further labels of nodes that it may run on (mapping to text; default empty)"""
    annotations: NotRequired[Input[dict[str, Input[str]]]]
    """annotations of the pods, as other tools want them (hang tracers, sidecars) (mapping to text; default empty)"""
    retries: NotRequired[Input[int]]
    """restarts before the run has failed (whole number, ≤ 100, ≥ 1; default `3`)"""
    fatal_exit_codes: NotRequired[Input[list[Input[int]]]]
    """exit codes after which the run ends at once, instead of being restarted (list of whole number; default `[64]`)"""
    success: NotRequired[Input[str]]
    """whether all pods or the first one must end well; null is the kind's own rule (`all`, `first`)"""
    suspend: NotRequired[Input[bool]]
    """hold the run without pods until it is false again; not a new run (true or false; default `false`)"""
    steps: NotRequired[Input[dict[str, Input[Step]]]]
    """what runs before and after the training, such as prepare and evaluate (mapping to section; default empty)"""
    after: NotRequired[Input[list[Input[str]]]]
    """steps that the training waits for (list of name; default empty)"""
    deadline_seconds: NotRequired[Input[int]]
    """longest life of the run, restarts included (whole number)"""
    attempt_deadline_seconds: NotRequired[Input[int]]
    """longest life of a pod, after which it counts as failed (whole number)"""
    ttl_seconds: NotRequired[Input[int]]
    """how long a finished run stays visible; null keeps it (whole number, ≥ 0)"""
    attempt: NotRequired[Input[int]]
    """a higher number runs the same specification again, as a new run (whole number, ≥ 1; default `1`)"""
    grace_seconds: NotRequired[Input[int]]
    """time to save a checkpoint when pods are asked to leave (whole number, ≥ 0, ≤ 3600; default `60`)"""
    on_change: NotRequired[Input[str]]
    """what happens to the run of an earlier specification: keep leaves it in the cluster, running or finished, replace deletes it (`keep`, `replace`; default `keep`)"""


class Fetch(TypedDict):
    """How pods fetch an export by its `url`."""

    size: NotRequired[Input[str]]
    """room for the export on the node's disk; a pod that needs more ends (size; default `2Gi`)"""
    env: NotRequired[Input[dict[str, Input[str]]]]
    """variables for the object store, such as AWS_REGION and AWS_ENDPOINT_URL (mapping to text; default empty)"""
    env_from: NotRequired[Input[dict[str, Input[Reference]]]]
    """those that stand in Secrets, such as AWS_SECRET_ACCESS_KEY (mapping to section; default empty)"""


class Keda(TypedDict):
    """Let KEDA scale, which asks Prometheus and can end the last pod."""

    prometheus: Input[str]
    """address of Prometheus, such as http://prometheus.monitoring:9090 (text)"""
    cooldown_seconds: NotRequired[Input[int]]
    """time without requests after which the last pod ends (whole number, ≥ 1; default `300`)"""
    activation_query: NotRequired[Input[str]]
    """PromQL that is above 0 while requests come, such as the gateway's rate of requests: pods that are not there report nothing (text)"""


class Autoscaling(TypedDict):
    """Let the load decide how many replicas run."""

    min: NotRequired[Input[int]]
    """fewest replicas; 0 needs keda (whole number, ≥ 0; default `1`)"""
    max: Input[int]
    """most replicas (whole number, ≥ 1)"""
    cpu_percent: NotRequired[Input[int]]
    """use of the CPU request, in percent, that is aimed at; 70 without queue_depth (whole number, ≥ 1, ≤ 1000)"""
    queue_depth: NotRequired[Input[int]]
    """samples waiting in each pod's queue that are aimed at; without keda it needs an adapter that gives the metric inference_queue_depth to the cluster (whole number)"""
    keda: NotRequired[Input[Keda]]
    """KEDA in place of a HorizontalPodAutoscaler (section)"""


class Canary(TypedDict):
    """A second version beside the first, with a share of the requests."""

    weight: Input[int]
    """percent of the requests; 0 takes them all back at once (whole number, ≥ 0, ≤ 100)"""
    run: NotRequired[Input[str]]
    """run that it serves; that of the service (text)"""
    url: NotRequired[Input[str]]
    """export that it serves, in an object store (text)"""
    digest: NotRequired[Input[str]]
    """sha256 of the weights, which it then insists on (text)"""
    server: NotRequired[Input[dict[str, Input[Any]]]]
    """what is different in its configuration of the model server (mapping to anything; default empty)"""
    replicas: NotRequired[Input[int]]
    """its pods (whole number, ≤ 1000, ≥ 1; default `1`)"""


class Gateway(TypedDict):
    """A Gateway of the cluster (Gateway API v1), to which an HTTPRoute is attached."""

    name: Input[str]
    """name of the Gateway (name)"""
    namespace: NotRequired[Input[str]]
    """its namespace; that of the service (name)"""
    section: NotRequired[Input[str]]
    """one of its listeners; all by default (name)"""


class Ingress(TypedDict):
    """An ingress class, for clusters without the Gateway API."""

    class_name: Input[str]
    """name of the IngressClass (name)"""


class Route(TypedDict):
    """How requests from outside of the cluster arrive, and are shared out with a canary."""

    gateway: NotRequired[Input[Gateway]]
    """Gateway to attach to (section)"""
    ingress: NotRequired[Input[Ingress]]
    """Ingress; a canary needs the annotations of ingress-nginx (section)"""
    hostnames: NotRequired[Input[list[Input[str]]]]
    """host names; all by default (list of name; default empty)"""
    path: NotRequired[Input[str]]
    """prefix of the paths that belong to the service; taken off before the server (text; default `/`)"""


class Tls(TypedDict):
    """TLS that ends at the server itself."""

    secret: Input[str]
    """Secret of the type kubernetes.io/tls in the namespace (name)"""


class ApiKeys(TypedDict):
    """Keys without which no prediction is given."""

    secret: Input[str]
    """Secret of the namespace (name)"""
    key: NotRequired[Input[str]]
    """key in it: one API key a line, plain or sha256:<hex> (text; default `keys`)"""


class InferenceServiceInputs(TypedDict):
    """One model that is served."""

    image: Input[str]
    """image of the pods, pinned by digest (`…@sha256:…`)"""
    canary_image: NotRequired[Input[str]]
    """image of the canary, by digest; that of the service"""
    platform: NotRequired[Input[str]]
    """stack of this project, such as `organization/gpu-platform/prod`, from which namespace, claims and GPU nodes are taken where they are not written here"""
    namespace: NotRequired[Input[str]]
    """namespace of the pods; needed without `platform`"""
    claims: NotRequired[Input[dict[str, Input[str]]]]
    """claims by logical name: their names in the cluster; needed without `platform`"""
    gpu_nodes: NotRequired[Input[GpuNodes]]
    """how pods get GPUs; without it and `platform`, as `nvidia.com/gpu` on any node"""
    service_account: NotRequired[Input[str]]
    """service account of the pods"""
    domain: NotRequired[Input[str]]
    """DNS domain of the cluster's services; `cluster.local`"""
    run: NotRequired[Input[str]]
    """a certain run, kept whatever the jobs become (text)"""
    url: NotRequired[Input[str]]
    """an export in an object store: s3://bucket/digits-1a2b3c4d/export (text)"""
    fetch: NotRequired[Input[Fetch]]
    """how pods get what `url` names (section; default empty)"""
    digest: NotRequired[Input[str]]
    """sha256 of the weights: any others are not served (text)"""
    model: NotRequired[Input[str]]
    """name in the protocol; the key by default (text)"""
    checkpoints: NotRequired[Input[str]]
    """claim with the run's export (name; default `checkpoints`)"""
    replicas: NotRequired[Input[int]]
    """pods; 1 by default, and left out with autoscaling (whole number, ≤ 1000)"""
    autoscaling: NotRequired[Input[Autoscaling]]
    """replicas by load (section)"""
    canary: NotRequired[Input[Canary]]
    """a new version that gets a share of the requests; needs a route (section)"""
    route: NotRequired[Input[Route]]
    """Gateway or Ingress; without one only pods reach the service (section)"""
    max_unavailable: NotRequired[Input[int]]
    """pods that may be missing while nodes are drained (whole number, ≥ 1; default `1`)"""
    gpus: NotRequired[Input[int]]
    """GPUs of each pod (whole number, ≥ 0, ≤ 64; default `0`)"""
    gpu_resource: NotRequired[Input[str]]
    """name of the GPU resource where it is not that of the stack (qualified name)"""
    cpu: Input[str]
    """CPU request of each pod; there is no CPU limit (CPU)"""
    memory: Input[str]
    """memory request and limit of each pod (size)"""
    shm: NotRequired[Input[str]]
    """size of /dev/shm, part of the memory limit (size; default `64Mi`)"""
    port: NotRequired[Input[int]]
    """port of the server and of its Service (whole number, ≥ 1024, ≤ 65535; default `8080`)"""
    tls: NotRequired[Input[Tls]]
    """TLS that ends at the server itself (section)"""
    api_keys: NotRequired[Input[ApiKeys]]
    """keys without which no prediction is given (section)"""
    service_type: NotRequired[Input[str]]
    """how the Service is reached (`ClusterIP`, `NodePort`; default `ClusterIP`)"""
    spread: NotRequired[Input[bool]]
    """prefer different nodes for the pods (true or false; default `true`)"""
    node_selector: NotRequired[Input[dict[str, Input[str]]]]
    """further labels of nodes that it may run on (mapping to text; default empty)"""
    priority_class: NotRequired[Input[str]]
    """priority class of its pods (name)"""
    server: NotRequired[Input[dict[str, Input[Any]]]]
    """further configuration of the model server (inference/config.py) (mapping to anything; default empty)"""
    env: NotRequired[Input[dict[str, Input[str]]]]
    """further environment variables (mapping to text; default empty)"""
    env_from: NotRequired[Input[dict[str, Input[Reference]]]]
    """environment variables whose values stand in Secrets or ConfigMaps (mapping to section; default empty)"""
    volumes: NotRequired[Input[dict[str, Input[JobVolume]]]]
    """further volumes of every pod, such as a handler of one's own (mapping to section; default empty)"""
    startup_seconds: NotRequired[Input[int]]
    """longest time from the container's start until the server answers (whole number, ≥ 1; default `120`)"""
    progress_deadline_seconds: NotRequired[Input[int]]
    """when the Deployment reports that a rollout does not advance (whole number, ≥ 1; default `600`)"""
    min_ready_seconds: NotRequired[Input[int]]
    """a new pod has to be ready for so long before an old one leaves: time for load balancers to find it, and for a bad version to fail (whole number, ≥ 0, ≤ 3600; default `5`)"""
    pre_stop_seconds: NotRequired[Input[int]]
    """pause between a pod's removal from the Service and SIGTERM; needs Kubernetes 1.30 or later, unless it is 0 (whole number, ≥ 0, ≤ 300; default `2`)"""
    grace_seconds: NotRequired[Input[int]]
    """time to finish what is in flight when a pod has to leave; more than pre_stop_seconds and the server's notice_seconds and drain_seconds together (whole number, ≥ 1, ≤ 3600; default `30`)"""


class RuntimeClass(TypedDict):
    """The container runtime that gives pods their GPU devices."""

    name: NotRequired[Input[str]]
    """name of the RuntimeClass (name; default `nvidia`)"""
    handler: NotRequired[Input[str]]
    """handler in the node's container runtime (name; default `nvidia`)"""
    create: NotRequired[Input[bool]]
    """make the RuntimeClass; false where the cluster already has it (true or false; default `true`)"""


class TimeSlicing(TypedDict):
    """Several pods take turns on one GPU, without isolation of memory."""

    replicas: Input[int]
    """how many pods share one GPU (whole number, ≥ 2, ≤ 64)"""
    rename: NotRequired[Input[bool]]
    """offer shared GPUs under their own name (nvidia.com/gpu.shared), so that nobody takes one for a whole GPU (true or false; default `true`)"""
    refuse_more_than_one: NotRequired[Input[bool]]
    """refuse pods that ask for several shares, which may be one device (true or false; default `true`)"""


class GpuStackInputs(TypedDict):
    """NVIDIA's device plugin, the runtime class, and the nodes that have GPUs."""

    install: NotRequired[Input[bool]]
    """run the device plugin; false where the cluster has it, for example from the GPU operator (true or false; default `true`)"""
    namespace: NotRequired[Input[str]]
    """namespace of the device plugin (name; default `gpu-system`)"""
    image: NotRequired[Input[str]]
    """image of the device plugin (image; default `nvcr.io/nvidia/k8s-device-plugin:v0.20.0`)"""
    resource: NotRequired[Input[str]]
    """name under which pods ask for a GPU, unless a job says otherwise (qualified name; default `nvidia.com/gpu`)"""
    runtime_class: NotRequired[Input[RuntimeClass]]
    """null where containers get GPUs from the node's default runtime (section)"""
    node_selector: NotRequired[Input[dict[str, Input[str]]]]
    """labels of the nodes that have GPUs (mapping to text; default `{"nvidia.com/gpu.present": "true"}`)"""
    tolerations: NotRequired[Input[list[Input[Toleration]]]]
    """taints of those nodes; the device plugin and all workloads tolerate them (list of section; default `[{"key": "nvidia.com/gpu"}]`)"""
    mig_strategy: NotRequired[Input[str]]
    """how slices of MIG are named: single as whole GPUs, mixed as nvidia.com/mig-<profile> (`none`, `single`, `mixed`; default `none`)"""
    time_slicing: NotRequired[Input[TimeSlicing]]
    """share whole GPUs by turns; null gives each pod its own (section)"""


class Sla(TypedDict):
    """What is done for jobs that have waited too long."""

    longest_wait_seconds: Input[int]
    """wait after which a job is let in even while the cluster is full; the annotation `sla-waiting-time` of a Volcano Job is its own (whole number, ≥ 1)"""
    reserve: NotRequired[Input[bool]]
    """from then on, keep what becomes free for it until all of its gang fits (true or false; default `true`)"""


class Scheduler(TypedDict):
    """The scheduler's configuration; Volcano's own text is made from it."""

    share: NotRequired[Input[str]]
    """what a queue may claim: proportion divides the cluster by the queues' `weight`, capacity gives each its `deserved` and knows parents (`proportion`, `capacity`; default `proportion`)"""
    placement: NotRequired[Input[str]]
    """binpack fills nodes one after the other, which keeps whole nodes free for gangs; spread prefers the emptiest (by CPU and memory) (`binpack`, `spread`; default `binpack`)"""
    pack_by: NotRequired[Input[dict[str, Input[int]]]]
    """what binpack looks at, with its weight (mapping to whole number; default `{"nvidia.com/gpu": 10, "cpu": 1, "memory": 1}`)"""
    preempt: NotRequired[Input[str]]
    """whether jobs push out those of lower priority in the same queue: surplus takes only what elastic jobs have above their minimum, gangs takes any pod, whose job then starts again (`none`, `surplus`, `gangs`; default `none`)"""
    reclaim: NotRequired[Input[str]]
    """whether a queue takes back its share from queues that use more than theirs; values as of `preempt` (`none`, `surplus`, `gangs`; default `none`)"""
    enqueue: NotRequired[Input[bool]]
    """hold jobs back, without pods, while the cluster has no room for them; null does so where nothing is preempted or reclaimed, since a job that is held back can do neither (true or false)"""
    overcommit: NotRequired[Input[float]]
    """how much is let in, as a multiple of the cluster's size; null is 1.2 where jobs are held back (number, ≥ 1)"""
    priority: NotRequired[Input[bool]]
    """jobs of higher priority go first within a queue (true or false; default `true`)"""
    drf: NotRequired[Input[bool]]
    """among jobs of equal priority the one that has least goes first (true or false; default `true`)"""
    sla: NotRequired[Input[Sla]]
    """a limit of waiting; null has none (section)"""
    backfill: NotRequired[Input[bool]]
    """place pods that ask for nothing wherever they fit (true or false; default `true`)"""


class Controllers(TypedDict):
    """The pace of the controllers that make pods, groups and services of jobs.

    A job of eight pods costs them about thirty requests, so that at Volcano's own 50 a second they
    give the scheduler a dozen pods a second (`make bench-scale`).
    """

    requests_per_second: NotRequired[Input[int]]
    """most requests to the API server, which sheds load by itself (whole number, ≥ 1; default `1000`)"""
    burst: NotRequired[Input[int]]
    """most requests at once (whole number, ≥ 1; default `2000`)"""
    workers: NotRequired[Input[int]]
    """jobs, and as many groups, that are handled at once (whole number, ≥ 1; default `10`)"""


class Queue(TypedDict):
    """A share of the cluster that jobs wait in line for."""

    weight: NotRequired[Input[int]]
    """share of the cluster among the queues, where `share` is proportion (whole number, ≥ 1; default `1`)"""
    priority: NotRequired[Input[int]]
    """queues of higher priority are served first (whole number, ≥ 0, ≤ 2147483647)"""
    reclaimable: NotRequired[Input[bool]]
    """others may take back what this queue uses above its share (true or false; default `true`)"""
    capability: NotRequired[Input[dict[str, Input[str]]]]
    """most that the queue may use in all (mapping to quantity; default empty)"""
    deserved: NotRequired[Input[dict[str, Input[str]]]]
    """what the queue may always get back from others, where `share` is capacity (mapping to quantity; default empty)"""
    guarantee: NotRequired[Input[dict[str, Input[str]]]]
    """what is kept free for the queue (mapping to quantity; default empty)"""
    parent: NotRequired[Input[str]]
    """queue above this one, where `share` is capacity; jobs wait in queues that have none below (name)"""


class PriorityClass(TypedDict):
    """How important pods are when not all find a place."""

    value: Input[int]
    """higher goes first (whole number, ≥ -1000000000, ≤ 1000000000)"""
    preemption: NotRequired[Input[str]]
    """whether pods may push out less important ones (`PreemptLowerPriority`, `Never`; default `PreemptLowerPriority`)"""
    description: NotRequired[Input[str]]
    """who should use it (text; default empty)"""


class VolcanoInputs(TypedDict):
    """Volcano's chart and what is configured in it."""

    install: NotRequired[Input[bool]]
    """install the chart; false where the cluster has Volcano (queues and priority classes are made all the same) (true or false; default `true`)"""
    namespace: NotRequired[Input[str]]
    """namespace of the release (name; default `volcano-system`)"""
    chart: NotRequired[Input[str]]
    """name of the chart (text; default `volcano`)"""
    repository: NotRequired[Input[str]]
    """address of the chart's repository (text; default `https://volcano-sh.github.io/helm-charts`)"""
    version: NotRequired[Input[str]]
    """exact version of the chart (text; default `1.15.1`)"""
    values: NotRequired[Input[dict[str, Input[Any]]]]
    """values of the chart, as the chart names them (mapping to anything; default empty)"""
    scheduler: NotRequired[Input[Scheduler]]
    """how it decides; not where the stack does not install it (section; default empty)"""
    controllers: NotRequired[Input[Controllers]]
    """their pace; the same keys in `values` go before it, and charts before 1.11 know none of it (section; default empty)"""
    log_level: NotRequired[Input[int]]
    """detail of the scheduler's and the controllers' logs; from 3 on the scheduler writes a line for each pod and node that do not fit (whole number, ≥ 0, ≤ 10; default `2`)"""
    timeout_seconds: NotRequired[Input[int]]
    """longest wait for the scheduler to be ready (whole number, ≥ 1; default `300`)"""
    queues: NotRequired[Input[dict[str, Input[Queue]]]]
    """queues by name (mapping to section; default empty)"""
    priority_classes: NotRequired[Input[dict[str, Input[PriorityClass]]]]
    """priority classes by name (mapping to section; default empty)"""


class Quota(TypedDict):
    """The most that all pods of the namespace may ask for together."""

    gpus: NotRequired[Input[int]]
    """GPUs of the stack's GPU resource (whole number, ≥ 0)"""
    cpu: NotRequired[Input[str]]
    """CPU requests (CPU)"""
    memory: NotRequired[Input[str]]
    """memory requests (size)"""
    memory_limits: NotRequired[Input[str]]
    """memory limits (size)"""
    pods: NotRequired[Input[int]]
    """pods (whole number)"""
    claims: NotRequired[Input[int]]
    """storage claims (whole number)"""


class Limit(TypedDict):
    """What a container gets that asks for nothing, and the most that one may ask for."""

    default_cpu: NotRequired[Input[str]]
    """CPU request where none is written (CPU; default `100m`)"""
    default_memory: NotRequired[Input[str]]
    """memory request and limit where none is written (size; default `256Mi`)"""
    max_memory: NotRequired[Input[str]]
    """largest memory limit allowed (size)"""


class Network(TypedDict):
    """What may talk to what, where the cluster's network enforces policies."""

    isolate: NotRequired[Input[bool]]
    """deny all traffic of the namespace but the connections that it needs (true or false; default `true`)"""
    inference_from: NotRequired[Input[list[Input[str]]]]
    """namespaces that may call inference; empty allows the whole cluster (list of name; default empty)"""
    egress_cidrs: NotRequired[Input[list[Input[str]]]]
    """addresses that all pods may reach, such as an object store: 10.1.0.0/16 (list of text; default empty)"""


class TenancyInputs(TypedDict):
    """The namespace of the workloads and its borders."""

    gpu_resource: NotRequired[Input[str]]
    """resource that the quota counts; `nvidia.com/gpu`"""
    namespace: Input[str]
    """namespace of all workloads of this stack (name)"""
    pod_security: NotRequired[Input[str]]
    """Pod Security Standard that the cluster enforces there (`restricted`, `baseline`, `privileged`; default `restricted`)"""
    quota: NotRequired[Input[Quota]]
    """limits of the namespace as a whole (section; default empty)"""
    limits: NotRequired[Input[Limit]]
    """limits of a single container (section; default empty)"""
    network: NotRequired[Input[Network]]
    """network policies (section; default empty)"""


class StorageClass(TypedDict):
    """A kind of storage that claims can ask for."""

    kind: Input[str]
    """CephFS CSI, NFS CSI, local volumes, or any other provisioner (`cephfs`, `nfs`, `local`, `other`)"""
    provisioner: NotRequired[Input[str]]
    """name of the driver where it is not the usual one; needed with other (text)"""
    parameters: NotRequired[Input[dict[str, Input[str]]]]
    """parameters of the driver, all of them text (mapping to text; default empty)"""
    mount_options: NotRequired[Input[list[Input[str]]]]
    """options of the mount (list of text; default empty)"""
    reclaim_policy: NotRequired[Input[str]]
    """what happens to the data when the claim is deleted (`Retain`, `Delete`; default `Retain`)"""
    binding: NotRequired[Input[str]]
    """when claims are bound (`Immediate`, `WaitForFirstConsumer`; default `Immediate`)"""
    expandable: NotRequired[Input[bool]]
    """claims may grow later (true or false; default `false`)"""


class LocalSource(TypedDict):
    """A folder on nodes: of one node, or a shared mount that several nodes see."""

    path: Input[str]
    """the folder, the same on every node (absolute path)"""
    nodes: Input[dict[str, Input[list[Input[str]]]]]
    """node labels, and the values with which a node has the folder (mapping to list of text)"""


class NfsSource(TypedDict):
    """A folder that an NFS server exports."""

    server: Input[str]
    """host name or address of the server (text)"""
    path: Input[str]
    """exported folder (absolute path)"""


class CsiSource(TypedDict):
    """A volume that a CSI driver already has."""

    driver: Input[str]
    """name of the driver (name)"""
    handle: Input[str]
    """the driver's identifier of the volume (text)"""
    attributes: NotRequired[Input[dict[str, Input[str]]]]
    """attributes that the driver needs (mapping to text; default empty)"""


class Volume(TypedDict):
    """A volume that exists already, made known to the cluster."""

    capacity: Input[str]
    """size that claims may count on (size)"""
    access_modes: Input[list[Input[str]]]
    """how it may be mounted (list of `ReadWriteOnce`, `ReadOnlyMany`, `ReadWriteMany`, `ReadWriteOncePod`)"""
    storage_class: NotRequired[Input[str]]
    """class it belongs to; null for none (name)"""
    reclaim_policy: NotRequired[Input[str]]
    """what happens after its claim (`Retain`, `Delete`; default `Retain`)"""
    local: NotRequired[Input[LocalSource]]
    """a folder on nodes (section)"""
    nfs: NotRequired[Input[NfsSource]]
    """a folder of an NFS server (section)"""
    csi: NotRequired[Input[CsiSource]]
    """a volume of a CSI driver (section)"""


class Claim(TypedDict):
    """Storage that pods of the stack mount."""

    name: NotRequired[Input[str]]
    """name in the cluster; the key by default (name)"""
    size: Input[str]
    """size asked for (size)"""
    access_modes: NotRequired[Input[list[Input[str]]]]
    """how pods mount it (list of `ReadWriteOnce`, `ReadOnlyMany`, `ReadWriteMany`, `ReadWriteOncePod`; default `["ReadWriteMany"]`)"""
    storage_class: NotRequired[Input[str]]
    """class that provides it; null for a volume without one (name)"""
    volume: NotRequired[Input[str]]
    """volume of this stack that it is bound to (name)"""
    protect: NotRequired[Input[bool]]
    """Pulumi refuses to delete the claim until this is false again (true or false; default `false`)"""
    retain: NotRequired[Input[bool]]
    """a claim that is removed here stays in the cluster with its data (true or false; default `true`)"""


class StorageInputs(TypedDict):
    """Storage classes, volumes that exist, and claims."""

    namespace: Input[str]
    """namespace of the claims"""
    classes: NotRequired[Input[dict[str, Input[StorageClass]]]]
    """storage classes by name (mapping to section; default empty)"""
    volumes: NotRequired[Input[dict[str, Input[Volume]]]]
    """existing volumes by name (mapping to section; default empty)"""
    claims: NotRequired[Input[dict[str, Input[Claim]]]]
    """claims by logical name (mapping to section; default empty)"""
