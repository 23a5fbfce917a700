"""The protocols over HTTP: Granian reads requests, and gives them to `application.Application`."""
