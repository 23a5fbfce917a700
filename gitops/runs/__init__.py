"""Training runs of a cluster: state, progress, cost, and the reasons why they wait."""
