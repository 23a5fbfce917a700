"""Pure functions that build scrape configurations, recording rules, alerts and dashboards."""
