"""Requests and responses of the service, as its OpenAPI page describes them; unknown fields are rejected."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr, model_validator

__all__ = [
    "MAX_BODY_BYTES", "MAX_ITEMS", "MAX_REASONED_ITEMS", "MAX_SEARCH_LENGTH", "MAX_SEARCH_WORDS", "Alike", "Explain",
    "Explanation", "Failure", "Health", "Items", "ModelFacts", "Recommend", "Recommended", "SimilarTo",
]  # fmt: skip

MAX_BODY_BYTES = 2**20
MAX_USERS = 100
MAX_HISTORY = 10_000
"""Items of a history, of items_to_recommend, or of items_to_exclude."""
MAX_K = 1_000
MAX_ITEMS = 100
"""Items to explain or to compare, items of a search, and k with reasons."""
MAX_SEARCH_LENGTH, MAX_SEARCH_WORDS = 200, 24
MAX_REASONED_ITEMS = 500
"""Items in all histories of a request with reasons: each is one more history to score."""

Id = Annotated[
    Annotated[StrictInt, Field(ge=-(2**63), lt=2**64)] | Annotated[StrictStr, Field(max_length=500)],
    Field(description="An id as in the data: a whole number or text. The text of a number works too."),
]
K = Annotated[StrictInt, Field(ge=1, le=MAX_K, description="Items in an answer; fewer if there are no more.")]
IgnoreUnknown = Annotated[
    StrictBool, Field(description="Leave out items that the model does not know; an error otherwise.")
]


class Request(BaseModel):
    """A body without unknown fields."""

    model_config = ConfigDict(extra="forbid")


class Recommend(Request):
    """Whom to recommend to: users of the fitted data, or histories of people it never saw. One of the two."""

    users: Annotated[list[Id], Field(min_length=1, max_length=MAX_USERS)] | None = None
    histories: Annotated[
        list[Annotated[list[Id], Field(max_length=MAX_HISTORY)]] | None,
        Field(min_length=1, max_length=MAX_USERS, description="The items that each of some people likes."),
    ] = None
    k: K = 10
    filter_viewed: Annotated[StrictBool, Field(description="Leave out what the user has.")] = True
    items_to_recommend: Annotated[list[Id], Field(min_length=1, max_length=MAX_HISTORY)] | None = None
    items_to_exclude: Annotated[list[Id], Field(max_length=MAX_HISTORY, description="Never to recommend.")] = []
    diversity: Annotated[
        float, Field(ge=0, le=1, description="From 0, the best scores, to 1, the items least alike.")
    ] = 0.0
    reasons: Annotated[
        StrictInt,
        Field(ge=0, le=20, description="How many items of the history to name that most support each answer."),
    ] = 0
    ignore_unknown: IgnoreUnknown = False

    @model_validator(mode="after")
    def _one_of_two(self) -> "Recommend":
        return one_of(self, "users", "histories")

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"histories": [["tea-00001", "tea-00007"]], "k": 5}]}
    )


class Explain(Request):
    """Which items of a user, or of a history, support these items."""

    user: Id | None = None
    history: Annotated[list[Id], Field(min_length=1, max_length=MAX_REASONED_ITEMS)] | None = None
    items: Annotated[list[Id], Field(min_length=1, max_length=MAX_ITEMS, description="The items to explain.")]
    ignore_unknown: IgnoreUnknown = False

    @model_validator(mode="after")
    def _one_of_two(self) -> "Explain":
        return one_of(self, "user", "history")


class SimilarTo(Request):
    """Items to find similar ones to."""

    items: Annotated[list[Id], Field(min_length=1, max_length=MAX_ITEMS)]
    k: K = 10


def one_of(request: Any, *names: str) -> Any:
    given = [name for name in names if getattr(request, name) is not None]
    if len(given) != 1:
        raise ValueError(f"want {' or '.join(names)}, got {'both' if given else 'neither'}")
    return request


# ----------------------------------------------------------------------------------------------------------- responses


class Item(BaseModel):
    item_id: int | str
    title: Annotated[str, Field(description="The id as text where no title is known.")]


class Reason(Item):
    effect: Annotated[float, Field(description="How much the score falls without this item; negative if it rises.")]
    share: Annotated[float, Field(description="Its share of the sum of all absolute effects.")]


class Like(Item):
    likes: Annotated[int, Field(description="Users of the fitted data who have it.")]


class Found(Item):
    rank: int
    score: Annotated[float, Field(description="Log probability, or what a linear method gives.")]


class Best(Found):
    uncertainty: Annotated[
        float | None,
        Field(description="Standard deviation of the log probability over masks; null where there are none."),
    ]
    reasons: Annotated[list[Reason] | None, Field(description="Null unless requested.")] = None


class Recommended(BaseModel):
    class User(BaseModel):
        user_id: Annotated[int | str | None, Field(description="Null for a history.")]
        items: list[Best]
        unknown_items: Annotated[int, Field(description="Items of the history that the model does not know.")]

    results: Annotated[list[User], Field(description="In the order of the request.")]


class Explanation(BaseModel):
    class Explained(Found):
        reasons: list[Reason]

    results: list[Explained]


class Items(BaseModel):
    items: list[Like]


class Alike(BaseModel):
    class Of(Item):
        similar: list[Found]

    results: list[Of]


class ModelFacts(BaseModel):
    method: str
    items: int
    users: Annotated[int | None, Field(description="Known by id; null for a model without histories.")]
    titles: Annotated[int, Field(description="Items with a title of their own.")]
    samples: Annotated[int, Field(description="Masks averaged in a score; uncertainty needs two or more.")]
    log_probability: Annotated[bool, Field(description="Whether scores are log probabilities.")]
    similar: Annotated[bool, Field(description="Whether the method can compare items.")]
    versions: dict[str, str]
    limits: dict[str, int]


class Health(BaseModel):
    status: str


class Failure(BaseModel):
    error: Annotated[str, Field(description="What the service wants, what it got, and what to do next.")]
