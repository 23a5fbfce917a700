"""Training runs of a cluster: state, progress, cost, and reasons for waiting."""
