"""A stand-in for Pulumi's Docker plugin where the official one cannot be had.

It offers the one resource `docker:index/image:Image` with the official inputs and outputs, and
drives the Docker command line. The official plugin is preferred wherever it is installed or can
be downloaded.
"""

from devcluster.docker_plugin.install import VERSION, Plugin, install

__all__ = ["VERSION", "Plugin", "install"]
