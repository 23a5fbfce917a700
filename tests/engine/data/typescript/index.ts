import * as platform from "./sdk/nodejs";

const digest = "0123456789abcdef".repeat(4);
const team = new platform.Tenancy("team", { namespace: "vision" });
const queues = new platform.Volcano("queues", { install: false, queues: { vision: { weight: 2 } } });
const storage = new platform.Storage("storage", {
    namespace: team.namespace,
    classes: { shared: { kind: "nfs", parameters: { server: "nfs.example.com", share: "/ml" } } },
    claims: { checkpoints: { size: "10Gi", storageClass: "shared" } },
});
const gpu = new platform.GpuStack("gpu", { provider: "existing", nodeSelector: { pool: "gpu" } });
const digits = new platform.TrainingJob("digits", {
    image: `registry.example.com/team/training@sha256:${digest}`,
    namespace: team.namespace,
    claims: storage.claims,
    gpuNodes: gpu.gpuNodes,
    queue: queues.queues[0],
    nodes: 2,
    gpusPerNode: 4,
    cpu: "8",
    memory: "64Gi",
    hyperparameters: { model: "digits-net", dataset: "digits", epochs: 3, learningRate: 0.01 },
});
export const run = digits.run;
