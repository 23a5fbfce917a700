"""Where pods go: pure, as the fields of a pod's specification write it."""

from collections.abc import Mapping

from infra.manifests import Manifest


def even_spread(labels: Mapping[str, str], *, strict: bool) -> list[Manifest]:
    """Distribute the pods with these labels evenly over the nodes that can take them.

    A node that is lost no longer counts, so that the rest finds room on the others.
    """
    return [
        {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "DoNotSchedule" if strict else "ScheduleAnyway",
            "nodeAffinityPolicy": "Honor",
            "nodeTaintsPolicy": "Honor",
            "labelSelector": {"matchLabels": dict(labels)},
        }
    ]


def packed(labels: Mapping[str, str], node_label: str, *, required: bool) -> Manifest:
    """Affinity that keeps the pods with these labels on nodes with one value of `node_label`."""
    term = {"topologyKey": node_label, "labelSelector": {"matchLabels": dict(labels)}}
    if required:
        return {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    preference = {"weight": 100, "podAffinityTerm": term}
    return {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [preference]}}


def alone_on_its_node(label: str, but: Mapping[str, str]) -> Manifest:
    """Affinity that keeps other pods that have the label off the node, in any namespace.

    Pods with the labels `but`, which take no GPU, may stay.
    """
    spared = [{"key": key, "operator": "NotIn", "values": [value]} for key, value in but.items()]
    term = {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchExpressions": [{"key": label, "operator": "Exists"}, *spared]},
        "namespaceSelector": {},
    }
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
