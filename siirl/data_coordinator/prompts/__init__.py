"""Training prompts from files: `joined_files` (several files as one), `index` (length, hash and
source of each row), `dataset`, `prompt_loader` (the stream).

At the start all ranks together read the files once: each reads its share of the rows, and they
exchange numbers only (token length, hash of the question, data source). Later a rank reads only the
rows that it trains on, when it needs them.
"""

from siirl.data_coordinator.prompts.dataset import PartitionedRLHFDataset, PromptTask
from siirl.data_coordinator.prompts.index import PromptIndex, build_index
from siirl.data_coordinator.prompts.joined_files import PromptFiles, open_prompt_files
from siirl.data_coordinator.prompts.prompt_loader import PROMPT_LOADER_COLUMNS, PromptLoader
from siirl.data_coordinator.prompts.split import PromptSplit, check_lengths, split_prompts

__all__ = [
    "PROMPT_LOADER_COLUMNS",
    "PartitionedRLHFDataset",
    "PromptFiles",
    "PromptIndex",
    "PromptLoader",
    "PromptSplit",
    "PromptTask",
    "build_index",
    "check_lengths",
    "open_prompt_files",
    "split_prompts",
]
