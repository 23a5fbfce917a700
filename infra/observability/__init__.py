"""Pure builders of what Prometheus scrapes, computes and alerts on, and of dashboards."""
