"""Why the Hugging Face Hub did not serve a repository, as a part of messages."""

from siirl.files.hub_place import MODEL


def refusal(error: Exception, *, kind: str = MODEL) -> str:
    """The reason in words.

    Args:
        error: An exception of huggingface_hub, or of its HTTP library.
        kind: Kind of the repository, as in `HubPlace`.
    """
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
    )

    if isinstance(error, GatedRepoError):
        return "its owners must grant access"
    if isinstance(error, RepositoryNotFoundError):
        name = "model" if kind == MODEL else "data set"
        return f"the Hub has no such public {name} (for a private one: `hf auth login`)"
    if isinstance(error, OfflineModeIsEnabled):
        return "the Hub is not asked: HF_HUB_OFFLINE is set"
    if isinstance(error, HfHubHTTPError):
        return f"the Hub answered with status {error.response.status_code}"
    return f"the Hub could not be reached ({str(error) or type(error).__name__})"
