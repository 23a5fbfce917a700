"""What runs on a cluster, how far it is, what it has cost, and why the rest waits."""
