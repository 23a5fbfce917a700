"""Parts of an inference service's settings."""
