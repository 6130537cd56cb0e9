"""Is there a Docker engine to run containers on?"""

from __future__ import annotations

import functools


@functools.cache
def docker_trouble() -> str:
    """Why no container can be started, in words for a skipped test; "" where one can."""
    try:
        import docker

        docker.from_env(timeout=3).ping()
    except ImportError:
        return "the Docker SDK is not installed"
    except Exception as error:  # whatever the SDK raises without an engine: it has no common base
        return f"no Docker engine answers: {error}"
    return ""
