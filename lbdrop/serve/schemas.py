"""What may be sent and what comes back, as the service's OpenAPI page describes it; fields that nobody knows are refused."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr, model_validator

__all__ = [
    "BODY", "REASONED", "TITLE", "Alike", "Explain", "Explanation", "Failure", "Health", "Items", "ModelFacts", "Recommend",
    "Recommended", "SimilarTo",
]  # fmt: skip

BODY = 2**20
"""Bytes of a request at most."""
USERS, HISTORY, BEST, NAMED, TITLE = 100, 10_000, 1_000, 100, 200
"""Of one request at most: users; items of a history or to choose from; items in an answer; items asked about; letters."""
REASONED = 500
"""Items in histories of one request at most where reasons are asked for: each is one more history to score."""

Id = Annotated[
    Annotated[StrictInt, Field(ge=-(2**63), lt=2**64)] | Annotated[StrictStr, Field(max_length=500)],
    Field(description="An id as it was in the data: a whole number or text. The text of a number will do."),
]
K = Annotated[StrictInt, Field(ge=1, le=BEST, description="Items in an answer; fewer where there are no more.")]
IgnoreUnknown = Annotated[
    StrictBool, Field(description="Leave out items the model does not know; an error unless told.")
]


class Request(BaseModel):
    """A body in which nothing is left to chance."""

    model_config = ConfigDict(extra="forbid")


class Recommend(Request):
    """Whom to recommend to: users of the fitted data, or histories of people it never saw. One of the two."""

    users: Annotated[list[Id], Field(min_length=1, max_length=USERS)] | None = None
    histories: Annotated[
        list[Annotated[list[Id], Field(max_length=HISTORY)]] | None,
        Field(min_length=1, max_length=USERS, description="The items that each of some people likes."),
    ] = None
    k: K = 10
    filter_viewed: Annotated[StrictBool, Field(description="Leave out what the user has.")] = True
    items_to_recommend: Annotated[list[Id], Field(min_length=1, max_length=HISTORY)] | None = None
    reasons: Annotated[
        StrictInt, Field(ge=0, le=20, description="Items of the history to name that speak most for each answer.")
    ] = 0
    ignore_unknown: IgnoreUnknown = False

    @model_validator(mode="after")
    def _one_of_two(self) -> "Recommend":
        return one_of(self, "users", "histories")

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"histories": [["tea-00001", "tea-00007"]], "k": 5}]}
    )


class Explain(Request):
    """Which items of a user, or of a history, speak for the items in question."""

    user: Id | None = None
    history: Annotated[list[Id], Field(min_length=1, max_length=REASONED)] | None = None
    items: Annotated[list[Id], Field(min_length=1, max_length=NAMED, description="The items to explain.")]
    ignore_unknown: IgnoreUnknown = False

    @model_validator(mode="after")
    def _one_of_two(self) -> "Explain":
        return one_of(self, "user", "history")


class SimilarTo(Request):
    """Items to find similar ones to."""

    items: Annotated[list[Id], Field(min_length=1, max_length=NAMED)]
    k: K = 10


def one_of(request: Any, *names: str) -> Any:
    given = [name for name in names if getattr(request, name) is not None]
    if len(given) != 1:
        raise ValueError(f"want {' or '.join(names)}, got {'both' if given else 'neither'}")
    return request


# ------------------------------------------------------------------------------------------------------------- answers


class Item(BaseModel):
    item_id: int | str
    title: Annotated[str, Field(description="Its id as text where no title is known.")]


class Reason(Item):
    effect: Annotated[
        float, Field(description="How much the score falls without this item; below 0 it speaks against.")
    ]
    share: Annotated[float, Field(description="Its part of the sum of all effects' sizes.")]


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
    reasons: Annotated[list[Reason] | None, Field(description="If asked for.")] = None


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
    samples: Annotated[int, Field(description="Masks that a score is the mean of; from two on there is uncertainty.")]
    log_probability: Annotated[bool, Field(description="Whether scores are log probabilities.")]
    similar: Annotated[bool, Field(description="Whether the method can compare items.")]
    versions: dict[str, str]
    limits: dict[str, int]


class Health(BaseModel):
    status: str


class Failure(BaseModel):
    error: Annotated[str, Field(description="What was wanted, what came, and what to do next.")]
