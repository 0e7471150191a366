"""An estimator in the manner of scikit-learn, which need not be installed."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Optional, Union

import numpy as np

from ._arrays import Array, as_numpy, is_series, label_list, named
from .data import Dataset, by_name, dataset
from .errors import DataError
from .training import Run, train

if TYPE_CHECKING:
    _Bases: tuple[type, ...] = (object,)
else:
    try:
        from sklearn.base import BaseEstimator, ClassifierMixin
    except ImportError:
        _Bases = (object,)
    else:
        _Bases = (ClassifierMixin, BaseEstimator)

_ONE_CLASS = "NodeClassifier needs labels [vertices], one class per vertex; lapidary.train also takes several"


class NodeClassifier(*_Bases):  # type: ignore[misc]
    """Classifies the vertices of a graph.

    ``X`` is a whole graph: what :func:`lapidary.dataset` takes, whose arguments all methods take as keywords.
    The vertices to learn from are those of ``train``, by default those with a label. Parameters are those of
    :func:`lapidary.train`; ``settings`` is a dict of those that are not listed here. Since a graph cannot be cut into
    samples, cross-validation has to vary ``train``.

    Attributes:
        classes_: the classes, in the order of the columns of ``predict_proba``.
        run_: the :class:`lapidary.Run`.

    Example::

        classifier = NodeClassifier(hidden=8).fit(adjacency, labels, features=x)
        classifier.predict(adjacency, features=x)
    """

    def __init__(
        self,
        model: str = "gcn",
        *,
        hidden: int = 16,
        layers: int = 2,
        dropout: float = 0.5,
        epochs: int = 200,
        lr: float = 0.01,
        weight_decay: Optional[float] = None,
        patience: Optional[int] = None,
        seed: int = 0,
        devices: str = "auto",
        device_memory: Union[int, str, None] = None,
        settings: Optional[dict[str, Any]] = None,
    ) -> None:
        self.model = model
        self.hidden = hidden
        self.layers = layers
        self.dropout = dropout
        self.epochs = epochs
        self.lr = lr
        self.weight_decay = weight_decay
        self.patience = patience
        self.seed = seed
        self.devices = devices
        self.device_memory = device_memory
        self.settings = settings

    def fit(self, X: Any, y: Any = None, **data: Any) -> NodeClassifier:
        """Trains on the graph ``X``.

        Args:
            X: the graph.
            y: ``[vertices]``: the classes, of any type; -1, NaN or ``None`` for none. By default the graph's labels.
                For vertices with names, also a Series or a dict by name; an array is in the order of the vertices.
            data: other arguments of :func:`lapidary.dataset`, such as ``features`` and ``train``.

        Raises:
            DataError: as :func:`lapidary.train`.
        """
        made, self.classes_ = _labelled(X, y, data)
        parameters = self.get_params(deep=False)
        settings = parameters.pop("settings") or {}
        self.run_: Run = train(made, progress=False, **{**parameters, **settings})
        return self

    def predict(self, X: Any = None, **data: Any) -> Array:
        """Returns the class of each vertex, ``[vertices]``; of the graph of ``fit``, if ``X`` is ``None``."""
        codes = self._run.predict(_maybe(X, data))
        return self.classes_[codes]

    def predict_proba(self, X: Any = None, **data: Any) -> Array:
        """Returns the probability of each class, ``[vertices, classes]``."""
        return self._run.predict_proba(_maybe(X, data))

    def score(self, X: Any = None, y: Any = None, **data: Any) -> float:
        """Returns the accuracy: on the vertices that ``y`` labels, or else on the test split of the graph.

        Args:
            X: the graph; by default that of ``fit``.
            y: ``[vertices]``, as in ``fit``.
            data: other arguments of :func:`lapidary.dataset`.
        """
        made = _maybe(X, data)
        if y is None:
            test = self._run.predictor.evaluate(self._run.trainer.data if made is None else made).test
            if test is None:
                raise DataError("there are no labels and no test split to compare with; give y")
            return test
        truth = as_numpy(by_name(y, (made or self._run.trainer.data).names, "labels"))
        labelled = _codes(truth)[0] >= 0
        predicted = self.classes_[self._run.predict(made)]
        if len(truth) != len(predicted):
            raise DataError(f"`y` has {len(truth)} labels, expected {len(predicted)}: one per vertex")
        if not labelled.any():
            raise DataError("`y` labels no vertex, so there is nothing to compare with")
        return float(np.mean(predicted[labelled] == truth[labelled]))

    @property
    def _run(self) -> Run:
        if not hasattr(self, "run_"):
            raise DataError("this NodeClassifier is not fitted yet; call fit first")
        return self.run_

    if _Bases == (object,):

        def get_params(self, deep: bool = True) -> dict[str, Any]:
            """Returns the parameters of the constructor."""
            return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

        def set_params(self, **params: Any) -> NodeClassifier:
            """Sets parameters of the constructor.

            Raises:
                DataError: if one does not exist.
            """
            known = self.get_params()
            for name, value in params.items():
                if name not in known:
                    raise DataError(f"NodeClassifier has no parameter `{name}`; there are {', '.join(known)}")
                setattr(self, name, value)
            return self


def _maybe(X: Any, data: dict[str, Any]) -> Optional[Dataset]:
    return None if X is None else dataset(X, **data)


def _codes(y: Array) -> tuple[Array, list[Any]]:
    """Numbers the classes of labels. Numbers below 0 and NaN are no class."""
    if y.ndim != 1:
        raise DataError(_ONE_CLASS)
    if y.dtype.kind in "iuf":
        classes, codes = np.unique(y[y >= 0], return_inverse=True)
        numbers = np.full(len(y), -1, dtype=np.int64)
        numbers[y >= 0] = codes.reshape(-1)
        return numbers, classes.tolist()
    return named(y)


def _labelled(X: Any, y: Any, data: dict[str, Any]) -> tuple[Dataset, Array]:
    """Returns the dataset to train on, and its classes."""
    if y is None:
        made = dataset(X, **data)
        if made.labels is None:
            raise DataError(_ONE_CLASS)
        return made, np.array(made.class_names if made.class_names else range(made.classes))
    codes, classes = _codes(label_list(list(y.values())) if isinstance(y, Mapping) else as_numpy(y))
    train = data.get("train")
    learned = {"labels": _like(y, codes), "classes": len(classes)}
    learned["train"] = _like(y, codes >= 0) if train is None else train
    return dataset(X, **{**data, **learned}), np.array(classes)


def _like(y: Any, values: Array) -> Any:
    """Returns values for the vertices of ``y``, in its form: by name, or in order."""
    if isinstance(y, Mapping):
        return dict(zip(y, values.tolist()))
    return type(y)(values, index=y.index) if is_series(y) else values
