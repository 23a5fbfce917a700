"""The training program as a RayJob: Ray starts one process per GPU."""
