"""Names of the resources that Forge itself claims. Pure; one place, so that all who mean a thing name it alike."""


def slots_of_host(host: str) -> str:
    """Physical, with capacity: how many attempts run on a host at once."""
    return f"slots:{host}"


def limit_of_project(project: str) -> str:
    """Physical, with capacity: how many attempts of a project run at once."""
    return f"limit:{project}"


def limit_of_graph(project: str, graph: str) -> str:
    """Physical, with capacity: a graph's own bound on its nodes."""
    return f"limit:{project}:{graph}"


def workspace(host: str, path: str) -> str:
    """Physical: a directory or file of a host. Equal paths on two hosts do not meet; nested ones of one host do."""
    return f"{host}/{path.strip('/')}".rstrip("/")


def landing_scope(project: str, path: str = "") -> str:
    """Integration: a part of a project's target branch, or all of it."""
    return f"{project}/{path.rstrip('/')}" if path else project
