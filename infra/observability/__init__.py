"""Pure builders of scrape configurations, recording rules, alerts and dashboards."""
