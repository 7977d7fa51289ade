"""Pages of the REST lists: cursors over an indexed unique column, stable while rows are added, each page as cheap."""

from rest_framework.pagination import CursorPagination


class ByNewest(CursorPagination):
    """Newest first by primary key."""

    ordering: str | list[str] = "-pk"
    page_size_query_param = "page_size"
    max_page_size = 200


class ByOldest(ByNewest):
    """In the order things happened: the journal."""

    ordering = "pk"
