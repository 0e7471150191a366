"""A bar of progress: tqdm's, if it is installed."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Optional

from .epoch import Epoch


class Progress:
    """Shows epochs on standard error or in a notebook; nothing without tqdm."""

    def __init__(self, epochs: int, wanted: Optional[bool]) -> None:
        shown = wanted if wanted is not None else (_in_notebook() or sys.stderr.isatty())
        self._bar: Any = _bar(epochs) if shown else None

    @property
    def is_shown(self) -> bool:
        """Whether there is a bar."""
        return self._bar is not None

    def show_batch(self, number: int, count: int) -> None:
        """Shows that a mini-batch is over."""
        if self._bar is not None:
            self._bar.set_description(f"training, batch {number:,} of {count:,}")

    def show(self, epoch: Epoch) -> None:
        """Shows that an epoch is over."""
        if self._bar is not None:
            val = "" if epoch.val_accuracy is None else f"  val {100 * epoch.val_accuracy:.2f} %"
            self._bar.set_postfix_str(f"loss {epoch.loss:.4f}{val}", refresh=False)
            self._bar.update()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()


def _in_notebook() -> bool:
    return "ipykernel" in sys.modules


def _bar(epochs: int) -> Any:
    if find_spec("tqdm") is None:
        return None
    flavour = "notebook" if _in_notebook() and find_spec("ipywidgets") is not None else "std"
    return import_module(f"tqdm.{flavour}").tqdm(total=epochs, desc="training", unit="epoch")
