"""What Prometheus is asked to collect, compute and tell: pure, from settings to objects."""
