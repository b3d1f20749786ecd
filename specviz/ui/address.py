"""Widgets whose values are in the page's address, so that a link restores them."""

from __future__ import annotations

from typing import Literal, TypedDict


class Bound(TypedDict):
    """The keyword of a Streamlit widget that binds its value to a query parameter named after its key."""

    bind: Literal["query-params"]


BOUND: Bound = {"bind": "query-params"}
